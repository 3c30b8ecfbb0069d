"""Each token algorithm raises the reward of a tiny model on a tiny task: share of digits in the answer, 0.04 by chance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runnel as rl
from runnel.core.config import override
from runnel.llm.tasks.preferences import Pair, append_pairs
from runnel.run.pipeline import load_pipeline

TASK = f"{Path(__file__).parent / 'digits_task.py'}:make_task"
TINY: dict[str, Any] = {
    "task": TASK,
    "lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64},
    "placement": {"threads": 1},
    "track": (),
    "checkpoint": {"every": 0},
    "eval": {"episodes": 16},
}
LEARNER = {"lr": 3e-3, "warmup_updates": 5}


def scores(recipe: str, out: Path, *, good: float, **settings: Any) -> list[float]:
    """The reward on unseen prompts at the end, on three seeds; on two, if both are `good`: then two of three are."""
    found: list[float] = []
    for seed in (1, 2, 3):
        run = rl.train(recipe, seed=seed, out=str(out), **(TINY | settings))
        assert run.eval is not None
        found.append(float(run.eval["mean"]))
        if sum(score >= good for score in found) == 2:
            break
    return found


ROLLOUTS: dict[str, dict[str, Any]] = {
    "dr_grpo": {},
    "rloo": {},
    "reinforce": {},
    "remax": {"num_prompts": 16, "group_size": 3, "total_updates": 60},
    "dapo": {},
    "gspo": {"gspo": {"clip_low": 0.05, "clip_high": 0.05}},
    "aipo": {},
    "decoupled": {"decoupled": {"proximal": "loglinear"}},
    "token_ppo": {"ppo": {"critic_warmup": 3}, "learner": LEARNER | {"critic_lr": 3e-3, "num_minibatches": 2}},
    "online_dpo": {},
    "rebel": {},
    "inpo": {},
}


@pytest.mark.parametrize("recipe", list(ROLLOUTS))
def test_a_policy_algorithm_raises_the_reward(recipe: str, tmp_path: Path) -> None:
    """At least 0.5 on 2 of 3 seeds within 30 updates of 64 completions; with ReMax, which falls back and comes again, within
    60. After 20 updates each but ReMax had 1.0 on seeds 1 and 2, and kept it."""
    settings = {"num_prompts": 8, "group_size": 8, "total_updates": 30, "learner": LEARNER} | ROLLOUTS[recipe]
    found = scores(recipe, tmp_path, good=0.5, **settings)
    assert sum(score >= 0.5 for score in found) == 2, found


FAMILY: dict[str, dict[str, Any]] = {
    "dr_grpo": {"grpo": {"normalise": "batch", "dual_clip": 3.0}},
    "reinforce_plus_plus": {},
    "cispo": {},
    "topr": {},
    "opmd": {},
    "p3o": {},
    "pacs": {"pacs": {"beta": 0.3}},
    "oreal": {},
    "a_lol": {},
    "raft": {},
    "kl_cov": {"learner": LEARNER | {"num_minibatches": 2}},
    "ppo_max": {"ppo_max": {"macro": 2}, "learner": LEARNER | {"critic_lr": 3e-3}},
}


def test_the_family_goes_on_from_imitation(tmp_path: Path) -> None:
    """A model that imitates digits and letters alike answers with some of both. From there each algorithm has 15 updates of 32
    completions, on one seed: the share of digits in samples rises from at most 0.5 to at least 0.75, and in greedy answers to
    unseen prompts to at least 0.8. (The lowest that was seen on seed 1 is 0.85, and 1.0.)"""
    sft = {**TINY, "task": MIXED, "learner": LEARNER | {"lr": 1e-2}, "demo_rows": 32, "total_updates": 15}
    shared = {**TINY, "model": "{sft}/model", "num_prompts": 4, "group_size": 8, "total_updates": 15, "learner": LEARNER}
    del shared["lm"]
    stages = [rl.Stage(recipe, recipe, shared | own) for recipe, own in FAMILY.items()]
    _, *runs = rl.run_pipeline([rl.Stage("sft", "sft", sft), *stages], out=tmp_path)
    for recipe, run in zip(FAMILY, runs, strict=True):
        sampled = [row["metrics"]["reward/mean"] for row in run.rows()]
        assert run.eval is not None
        assert sampled[0] <= 0.5, (recipe, sampled)
        assert np.mean(sampled[-3:]) >= 0.75, (recipe, sampled)
        assert run.eval["mean"] >= 0.8, (recipe, run.eval["mean"])


def test_entropy_stays_at_its_target_while_the_reward_is_kept(tmp_path: Path) -> None:
    """60 updates of 32 completions at a high learning rate take the entropy of GRPO to 0.9 nats by token (0.6 and 1.5 on seeds
    2 and 3; ten digits have at most 2.3). With a target of 2 it falls through that, too, and is back at 1.9 (1.9, 1.9)."""
    settings = {**TINY, "eval": {"episodes": 0}, "num_prompts": 4, "group_size": 8, "total_updates": 60}
    settings |= {"learner": LEARNER | {"lr": 1e-2}}
    held = {"entropy_target": 2.0, "entropy_step": 5e-3, "max_entropy_coef": 0.1}
    plain, controlled = (rl.train("grpo", seed=1, out=str(tmp_path), grpo=own, **settings).rows() for own in ({}, held))
    assert np.mean([row["metrics"]["entropy"] for row in plain[-3:]]) < 1.65
    assert np.mean([row["metrics"]["entropy"] for row in controlled[-3:]]) > 1.75
    for rows in (plain, controlled):
        assert np.mean([row["metrics"]["reward/mean"] for row in rows[-3:]]) >= 0.95
    assert max(row["metrics"]["entropy/coef"] for row in controlled) > 0.05


def test_demonstrations_find_an_answer_that_is_never_made_by_chance(tmp_path: Path) -> None:
    """A model that imitated answers of which most characters are wrong never makes the one right answer: GRPO gets no reward in
    80 updates of 32 completions. Where three of four groups begin inside the answer, greedy answers to unseen prompts are right
    at the end: 1.0 of them on seed 1 (0.88 and 1.0 on 2 and 3). With the answer in each group (RL-PLUS): 1.0 (1.0 and 1.0)."""
    task = f"{Path(__file__).parent / 'sparse_task.py'}"
    sft = {**TINY, "task": f"{task}:make_noisy_task", "demo_rows": 32, "total_updates": 60, "learner": LEARNER | {"lr": 1e-2}}
    model = rl.train("sft", seed=1, out=str(tmp_path), **sft).path / "model"
    rest = {"num_prompts": 4, "group_size": 8, "total_updates": 80, "learner": LEARNER | {"lr": 1e-3}, "model": str(model)}
    settings = {**TINY, "task": f"{task}:make_task"} | rest
    del settings["lm"]
    cases: list[tuple[str, dict[str, Any]]] = [("grpo", {}), ("grpo", {"reset_share": 0.75}), ("rl_plus", {})]
    plain, *others = (rl.train(recipe, seed=1, out=str(tmp_path), **settings, **own) for recipe, own in cases)
    assert max(row["metrics"]["reward/mean"] for row in plain.rows()) == 0.0
    for run in others:
        assert run.eval is not None
        assert run.eval["mean"] >= 0.75


def write_pairs(path: Path) -> str:
    """Answers of random digits are preferred to answers of random letters."""
    rng = np.random.default_rng(0)
    prompts = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]
    texts = [["".join(rng.choice(list(kind), size=6)) for _ in prompts] for kind in ("0123456789", "abcdefghijklmnop")]
    append_pairs(path, [Pair(*each) for each in zip(prompts, *texts, strict=True)])
    return str(path)


MIXED = f"{Path(__file__).parent / 'digits_task.py'}:make_mixed_task"
PREFERENCES: dict[str, dict[str, Any]] = {
    "dpo": {},
    "dpo, ipo": {"dpo": {"loss": "ipo"}},
    # at 3e-3 both answers become unlikely, and others likely: nothing holds the policy
    "simpo": {"learner": LEARNER | {"lr": 3e-4}},
    "cpo": {},
    "orpo": {"orpo": {"odds_coef": 1.0}},
    "rrhf": {},
}


@pytest.fixture(scope="module")
def imitated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], rl.Run]:
    """By seed, a model that imitates digits and letters alike."""

    @functools.cache
    def of(seed: int) -> rl.Run:
        out = str(tmp_path_factory.mktemp("imitated"))
        settings = {**TINY, "task": MIXED, "learner": {**LEARNER, "lr": 1e-2}, "eval": {"episodes": 0}, "demo_rows": 32}
        return rl.train("sft", seed=seed, out=out, total_updates=60, **settings)

    return of


@pytest.mark.parametrize("name", list(PREFERENCES))
def test_digits_are_preferred_after_imitating_both(name: str, imitated: Callable[[int], rl.Run], tmp_path: Path) -> None:
    """A model that imitates digits and letters alike answers with digits after 40 updates on pairs: the share of digits in
    samples rises from about a half to at least 0.9, on 2 of 3 seeds."""
    pairs = str(tmp_path / "p.jsonl")
    append_pairs(pairs, [Pair(f"{a}{b}", "123456", "abcdef") for a in "abcdefgh" for b in "jklnop"])
    found = []
    for seed in (1, 2, 3):
        before = imitated(seed)
        settings = {**TINY, "seed": seed, "task": MIXED, "learner": LEARNER, "eval": {"episodes": 0}} | PREFERENCES[name]
        del settings["lm"]
        recipe, model = name.partition(",")[0], str(before.path / "model")
        after = rl.train(recipe, out=str(tmp_path), model=model, pairs=pairs, num_pairs=16, total_updates=40, **settings)
        found.append([digits_of(before), digits_of(after)])
        if sum(after >= 0.9 for _, after in found) == 2:
            break
    assert np.mean([before for before, _ in found]) <= 0.8, found
    assert sum(after >= 0.9 for _, after in found) == 2, found


def digits_of(run: rl.Run) -> float:
    """Share of digits in sampled answers to unseen prompts."""
    policy: Any = run.policy()
    texts = [policy.act(f"{a}{b}", deterministic=False) for a in "abcdefgh" for b in "im"]
    return sum(c in "0123456789" for text in texts for c in text) / max(1, sum(len(text) for text in texts))


def test_a_reward_model_tells_unseen_answers_apart(tmp_path: Path) -> None:
    """At least 0.9 of the pairs that were kept apart, on 2 of 3 seeds, after 40 updates."""
    pairs = write_pairs(tmp_path / "p.jsonl")
    found = scores("reward_model", tmp_path, good=0.9, pairs=pairs, num_pairs=16, total_updates=40, learner=LEARNER)
    assert sum(score >= 0.9 for score in found) == 2, found


def test_rlhf_raises_the_true_reward_through_a_reward_model(tmp_path: Path) -> None:
    """Imitation (two answers of three are letters), a reward model from pairs that prefer digits, then PPO on its scores alone:
    the share of digits in greedy answers, which nobody trained on, goes from at most 0.2 to at least 0.6."""
    pipeline = load_pipeline("rlhf")
    letters, pairs = f"{Path(__file__).parent / 'digits_task.py'}:make_letters_task", write_pairs(tmp_path / "p.jsonl")
    settings = {"task": letters, "pairs": pairs, "lm": TINY["lm"], "eval_prompts": 16, "demo_rows": 32}
    steps = {"sft_updates": 30, "reward_updates": 20, "rl_updates": 50, "num_prompts": 4, "group_size": 8}
    rates = {"learner": {**LEARNER, "sft_lr": 1e-2, "critic_lr": 3e-3}, "ppo": {"kl_coef": 0.01}}
    stages = pipeline.stages(override(pipeline.Config(), {**settings, **steps, **rates}))
    found = [float(run.eval["mean"]) for run in rl.run_pipeline(stages, out=tmp_path / "runs") if run.eval is not None]
    assert found[0] <= 0.2, found
    assert found[-1] >= 0.6, found
