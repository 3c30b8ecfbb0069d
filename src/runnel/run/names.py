"""Names of recipes, pipelines, algorithms, engines and tasks, each with a line. Nothing is imported, so `runnel list` starts
without torch."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

RECIPES = {
    "ppo": "runnel.recipes.ppo",
    "a2c": "runnel.recipes.a2c",
    "impala": "runnel.recipes.impala",
    "appo": "runnel.recipes.appo",
    "ppo_lagrangian": "runnel.recipes.ppo_lagrangian",
    "ippo": "runnel.recipes.ippo",
    "mappo": "runnel.recipes.mappo",
    "qmix": "runnel.recipes.qmix",
    "vdn": "runnel.recipes.vdn",
    "independent_q": "runnel.recipes.independent_q",
    "selfplay": "runnel.recipes.selfplay",
    "happo": "runnel.recipes.happo",
    "nfsp": "runnel.recipes.nfsp",
    "masac": "runnel.recipes.masac",
    "coma": "runnel.recipes.coma",
    "mat": "runnel.recipes.mat",
    "dqn": "runnel.recipes.dqn",
    "sac": "runnel.recipes.sac",
    "td3": "runnel.recipes.td3",
    "ddpg": "runnel.recipes.ddpg",
    "drm": "runnel.recipes.drm",
    "mex": "runnel.recipes.mex",
    "cip": "runnel.recipes.cip",
    "gbrl": "runnel.recipes.gbrl",
    "soap": "runnel.recipes.soap",
    "sqirl": "runnel.recipes.sqirl",
    "stream_ac": "runnel.recipes.stream_ac",
    "stream_q": "runnel.recipes.stream_q",
    "rlpd": "runnel.recipes.rlpd",
    "bc": "runnel.recipes.bc",
    "grpo": "runnel.recipes.grpo",
    "dr_grpo": "runnel.recipes.dr_grpo",
    "rloo": "runnel.recipes.rloo",
    "reinforce": "runnel.recipes.reinforce",
    "remax": "runnel.recipes.remax",
    "dapo": "runnel.recipes.dapo",
    "gspo": "runnel.recipes.gspo",
    "aipo": "runnel.recipes.aipo",
    "decoupled": "runnel.recipes.decoupled",
    "reinforce_plus_plus": "runnel.recipes.reinforce_plus_plus",
    "stable_reinforce": "runnel.recipes.stable_reinforce",
    "cispo": "runnel.recipes.cispo",
    "topr": "runnel.recipes.topr",
    "opmd": "runnel.recipes.opmd",
    "p3o": "runnel.recipes.p3o",
    "pacs": "runnel.recipes.pacs",
    "oreal": "runnel.recipes.oreal",
    "a_lol": "runnel.recipes.a_lol",
    "raft": "runnel.recipes.raft",
    "clip_cov": "runnel.recipes.clip_cov",
    "kl_cov": "runnel.recipes.kl_cov",
    "rl_plus": "runnel.recipes.rl_plus",
    "token_ppo": "runnel.recipes.token_ppo",
    "ppo_max": "runnel.recipes.ppo_max",
    "gigpo": "runnel.recipes.gigpo",
    "turn_ppo": "runnel.recipes.turn_ppo",
    "loop": "runnel.recipes.loop",
    "grpo_roc": "runnel.recipes.grpo_roc",
    "spa": "runnel.recipes.spa",
    "online_dpo": "runnel.recipes.online_dpo",
    "rebel": "runnel.recipes.rebel",
    "inpo": "runnel.recipes.inpo",
    "dpo": "runnel.recipes.dpo",
    "simpo": "runnel.recipes.simpo",
    "cpo": "runnel.recipes.cpo",
    "orpo": "runnel.recipes.orpo",
    "rrhf": "runnel.recipes.rrhf",
    "reward_model": "runnel.recipes.reward_model",
    "make_pairs": "runnel.recipes.make_pairs",
    "sft": "runnel.recipes.sft",
    "cartpole": "runnel.recipes.cartpole",
    "reverse": "runnel.recipes.reverse",
}
PIPELINES = {
    "iterated_dpo": "runnel.recipes.iterated_dpo",
    "rlhf": "runnel.recipes.rlhf",
}
ALGORITHMS = {
    "ppo": "proximal policy optimisation: clipped ratio, GAE (agents/ppo.py)",
    "a2c": "advantage actor-critic: one gradient a batch, GAE (agents/a2c.py)",
    "impala": "actor-critic on asynchronous actors: V-trace (agents/impala.py)",
    "appo": "PPO on asynchronous actors: clipped ratio, V-trace (agents/appo.py)",
    "ppo_lagrangian": "PPO that holds costs under limits (agents/ppo_lagrangian.py)",
    "ippo": "independent PPO: a policy for each kind of agent of an environment (agents/ppo.py, agents/team.py)",
    "mappo": "PPO with a central critic, which sees the whole game, for agents that play together (agents/mappo.py)",
    "qmix": "Q-learning for a team: its value rises with each agent's, by a network of the global state (agents/qmix.py)",
    "vdn": "Q-learning for a team whose value is the sum of its agents' (agents/qmix.py)",
    "independent_q": "Q-learning of each agent by itself, the others being part of its world (agents/qmix.py)",
    "selfplay": "PPO against itself and a pool of its earlier versions (agents/league.py)",
    "happo": "PPO for a team without shared parameters: policies are updated one after the other (agents/happo.py)",
    "nfsp": "neural fictitious self-play: a best response, and the average of all of them, for games of two (agents/nfsp.py)",
    "masac": "SAC for a team with continuous actions: critics of what all see and do (agents/masac.py)",
    "coma": "policy gradient for a team: each agent is credited with what its own action changed (agents/coma.py)",
    "mat": "PPO for a team by one transformer: agents choose in turn, each knowing the choices before it (agents/mat.py)",
    "dqn": "deep Q-learning: double, prioritised replay (agents/dqn.py)",
    "sac": "soft actor-critic: twin critics, automatic temperature, continuous or discrete (agents/sac.py)",
    "td3": "twin delayed deterministic policy gradient (agents/td3.py)",
    "ddpg": "deep deterministic policy gradient (agents/ddpg.py)",
    "drm": "TD3 that measures its dormant units, and perturbs, explores and exploits by them (agents/drm.py)",
    "mex": "TD3 with optimistic critics: maximise to explore, for sparse rewards (agents/mex.py)",
    "cip": "SAC that finds causes of its reward: counterfactual batches, weighted empowerment (agents/cip.py)",
    "gbrl": "PPO on gradient-boosted trees instead of a network (agents/gbrl.py)",
    "soap": "PPO with options found by policy gradient, as a memory (agents/soap.py)",
    "sqirl": "fitted Q on random exploration, one step of an episode after the other (agents/sqirl.py)",
    "stream_ac": "actor-critic from single transitions, with traces: no replay, no batch (agents/stream.py)",
    "stream_q": "Q-learning from single transitions, with traces (agents/stream.py)",
    "rlpd": "SAC on batches that are half of a data set: an ensemble of critics with layer normalisation (agents/rlpd.py)",
    "bc": "behaviour cloning from a data set, any actions (agents/bc.py)",
    "token_ppo": "PPO with a critic on tokens (llm/algorithms/ppo.py)",
    "gigpo": "GRPO that compares turns as well, with others in the same state (llm/algorithms/gigpo.py)",
    "turn_ppo": "PPO with a critic on the turns of conversations (llm/algorithms/turn_ppo.py)",
    "loop": "leave-one-out credit with PPO's clip, one copy of the weights (llm/algorithms/loop.py)",
    "grpo_roc": "GRPO on a part of each group, which prefers clean tool calls (llm/algorithms/grpo_roc.py)",
    "spa": "GRPO by turn, with rewards that an estimator shares out (llm/algorithms/spa.py)",
    "dpo": "direct preference optimisation on pairs; also IPO, a hinge, noisy pairs (llm/algorithms/dpo.py)",
    "simpo": "preferences by mean log-probability, with a gap and without a reference (llm/algorithms/contrast.py)",
    "cpo": "DPO without a reference, beside cross entropy (llm/algorithms/contrast.py)",
    "orpo": "fine-tuning on chosen answers, with an odds ratio against rejected ones (llm/algorithms/contrast.py)",
    "rrhf": "the better of two answers shall be likelier, and is imitated (llm/algorithms/contrast.py)",
    "rebel": "regression of log-ratios to differences of rewards (llm/algorithms/regression.py)",
    "inpo": "regression towards the Nash policy of a preference game (llm/algorithms/regression.py)",
    "online_dpo": "DPO on the best and the worst of the policy's own completions (llm/algorithms/dpo.py)",
    "reward_model": "Bradley-Terry reward model from pairs (llm/algorithms/reward_model.py)",
    "sft": "supervised fine-tuning on demonstrations (llm/algorithms/sft.py)",
    "grpo": "group-relative policy optimisation of token sequences (llm/algorithms/grpo.py)",
    "dr_grpo": "GRPO without its biases in length and difficulty (llm/algorithms/grpo.py)",
    "rloo": "REINFORCE, leave one out (llm/algorithms/reinforce.py)",
    "reinforce": "the plain policy gradient of completions (llm/algorithms/reinforce.py)",
    "remax": "REINFORCE with the greedy completion as baseline (llm/algorithms/reinforce.py)",
    "dapo": "GRPO with clip-higher, dynamic sampling, token mean, overlong shaping (llm/algorithms/dapo.py)",
    "gspo": "GRPO with the ratio of whole sequences (llm/algorithms/gspo.py)",
    "aipo": "policy gradient with truncated importance weights, asynchronous (llm/algorithms/aipo.py)",
    "decoupled": "PPO around a recent policy, asynchronous: AReaL's loss (llm/algorithms/decoupled.py)",
    "reinforce_plus_plus": "PPO without a critic, credit by batch, KL by token (llm/algorithms/reinforce_plus_plus.py)",
    "stable_reinforce": "REINFORCE++ with a bounded ratio and without far advantages (llm/algorithms/reinforce_plus_plus.py)",
    "cispo": "GRPO whose clip bounds the weights of tokens, not their gradients (llm/algorithms/cispo.py)",
    "topr": "off-policy REINFORCE that tapers bad completions (llm/algorithms/topr.py)",
    "opmd": "policy mirror descent, Kimi k1.5's loss and length reward (llm/algorithms/opmd.py)",
    "p3o": "PPO on pairs of completions, from differences of rewards alone (llm/algorithms/p3o.py)",
    "pacs": "rewards as labels of the log-ratio, by cross entropy (llm/algorithms/pacs.py)",
    "oreal": "imitation of right completions, policy gradient of wrong ones (llm/algorithms/oreal.py)",
    "a_lol": "policy gradient of completions better than their group (llm/algorithms/a_lol.py)",
    "raft": "imitation of the best completions: RAFT, expert iteration (llm/algorithms/raft.py)",
    "clip_cov": "GRPO without the tokens by which entropy falls (llm/algorithms/covariance.py)",
    "kl_cov": "GRPO that holds the tokens by which entropy falls (llm/algorithms/covariance.py)",
    "rl_plus": "GRPO with the demonstrated answer in each group, weighed as another's (llm/algorithms/rl_plus.py)",
    "ppo_max": "PPO with a critic in bounds, macro actions, filters (llm/algorithms/ppo_max.py)",
}
ENGINES = {
    "native": "token-by-token decoding with continuous batching, in process, any Hugging Face decoder",
    "hf": "plain transformers, one request at a time: slow, the reference for other engines (--engine.kind hf)",
    "vllm": "vLLM in a child process with its own interpreter (--engine.kind vllm)",
}
JOB_RUN = "run folder: "
"""A job of a cluster prints this text and the folder of its run on a line, which `runnel stop JOB` reads."""


def summary_of(module: str) -> str:
    """First line of a module's docstring, read from its file."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    text = ast.get_docstring(ast.parse(Path(found.origin).read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def list_recipes() -> dict[str, str]:
    """The recipes of this package, and what each trains."""
    return {name: summary_of(module) for name, module in RECIPES.items()}


def list_pipelines() -> dict[str, str]:
    """The pipelines of this package, and what each does."""
    return {name: summary_of(module) for name, module in PIPELINES.items()}


def list_worlds() -> dict[str, str]:
    """Built-in conversations, each with the first line of its module, and how to name one's own."""
    from runnel.llm.worlds import GAMES, WORLDS

    found = {name: summary_of(target.partition(":")[0]) for name, target in {**WORLDS, **GAMES}.items()}
    return found | {"FILE.py:NAME": "Your own environment: a class with reset and step (docs/guides/conversations.md)."}


TOOLS = {
    "calculator": "whole numbers, exact",
    "python": "an interpreter in the sandbox, with memory for the conversation",
    "search:PATH": "a search in a folder of texts, or in a file of JSON lines",
    "FILE.py:NAME": "your own: a function with types and a docstring (docs/guides/tools.md)",
}


def list_tasks() -> dict[str, str]:
    """Built-in text tasks, each with the first line of its docstring."""
    from runnel.llm.tasks import TASKS

    page = "docs/guides/tasks-and-data.md"
    found = {name: (make.__doc__ or "").strip().partition("\n")[0] for name, make in TASKS.items()}
    found["reasoning_gym:NAME"] = f"Any task of reasoning-gym, such as reasoning_gym:leg_counting ({page})."
    return found | {"FILE": f"Prompts of a .jsonl or .parquet file, or of a saved data set ({page})."}
