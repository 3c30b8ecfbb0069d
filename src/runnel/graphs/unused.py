"""Settings that a run would not read, and why: one that was changed is refused, so that no setting is accepted and not used.

Configs say it of themselves (`RunConfig.unused`); what depends on the algorithm is known when a graph is built. Refusing is
`core.config.refuse_unused`. What counts only beside another setting (`staleness.max_lag` with a window) is refused without it;
where both are searched together, a trial leaves it as it is (`tune.job.tried`). Limits of processes with launcher inproc, which
one swaps while one debugs, and shards of a rank that is alone are left alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from runnel.llm.chat.config import TalkConfig
from runnel.llm.learning.learner import TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig

if TYPE_CHECKING:  # that module imports this one
    from runnel.graphs.run_config import EvalConfig

Unused = dict[str, str]


def all_of(group: str, names: Collection[str], why: str) -> Unused:
    """`names` of one group of settings, for one reason."""
    return {f"{group}.{name}": why for name in names}


IN_ONE_PROCESS: Unused = {"placement.groups": "is for launcher local or ray; inproc is one process"}
OF_WINDOW: Unused = dict.fromkeys(
    ("staleness.max_lag", "staleness.balance", "placement.replan_s"), "is of a window; set staleness.mode window"
)
OF_EVALUATIONS: Unused = all_of(
    "eval", ("every", "stop_return", "samples", "temperature", "pass_k", "pass_reward"), "is of evaluations; set eval.episodes"
)
ON_THE_WAY: Unused = {"eval.stop_return": "nothing is evaluated before the run is over, so it cannot stop it; set eval.every"}
OF_SAMPLES: Unused = all_of("eval", ("temperature", "pass_k"), "is of samples that an evaluation draws; set eval.samples")
OF_VIDEOS: Unused = all_of("record", ("every", "fps", "max_steps", "keep"), "is of recorded episodes; set record.videos")

ON_ENVIRONMENTS: Unused = {
    "total_tokens": "environments give no tokens; use total_steps or total_updates",
    **all_of("eval", ("samples", "temperature", "pass_k", "pass_reward"), "is for language models"),
    "record.groups_every": "is for language models",
    "placement.reference_workers": "is for language models",
}
ON_TEXT: Unused = {
    "total_steps": "a language model's run counts no steps of an environment; use total_updates or total_tokens",
    "eval.max_steps": "is of episodes in environments",
    **all_of(
        "record", ("videos", "every", "fps", "max_steps", "keep"), "records episodes of environments; see record.groups_every"
    ),
}
OF_WARM_UP: Unused = dict.fromkeys(("demo_rows", "learner.sft_lr"), "is of the warm-up; set warmup_updates")
OF_FILTER: Unused = all_of("filter", ("low", "high", "momentum", "retry_after"), "is of the filter of prompts; set filter.on")
OF_NEW_TASKS: Unused = {"new_tasks.max_bytes": "is of prompts that are added during the run; set new_tasks.capacity"}
OF_TURNS = "is of conversations of several turns, and a completion is one turn"
OF_PRIORITIES: Unused = all_of("replay", ("alpha", "beta", "min_priority"), "is of draws by priority; set replay.prioritised")
WITHOUT_ROLLOUTS: Unused = {
    "num_actors": "one actor reads the data",
    "staleness.balance": "one actor reads the data",
    "placement.replan_s": "one actor reads the data",
    **all_of(
        "placement", ("policy_workers", "max_actors", "max_policy_workers"), "nothing is sampled while this recipe trains"
    ),
    "placement.reference_workers": "data are read, not sampled, so nothing could overlap with a reference",
    "data.background_rewards": "this recipe judges no rollouts",
    "learner.temperature": "is that of rollouts, and this recipe has none: its log-probabilities are the model's own",
    "learner.max_mismatch": "nothing is sampled of which engine and learner could say different things",
    "learner.in_parts": "a batch is one segment here, so there are no parts to begin with",
    "learner.sft_lr": "is for the warm-up of recipes with rollouts; here the learning rate is learner.lr",
}


def of_sources(tasks: Collection[str], pick: str) -> Unused:
    """Settings of several sources, where there are none, or where all have the same share; and `task`, which they replace."""
    own = all_of("sources", ("window", "temperature", "explore"), "is of sources.pick ucb")
    if not tasks:
        return own | {"sources.pick": "is of several sources of prompts; name them with --tasks NAME=TASK NAME=TASK"}
    return {"task": "tasks names the sources of prompts"} | ({} if pick == "ucb" else own)


def of_turns(chat: str, tools: Collection[str]) -> Unused:
    """Settings of conversations where there are none, and of prompts where an environment speaks."""
    if not chat and not tools:
        why = "is of conversations; name an environment with --chat, or tools with --tools"
        agents = "is of a game's agents; name one with --chat"
        return {"max_turns": why, "max_context": why, "agents": agents, **all_of("talk", TalkConfig.__dataclass_fields__, why)}
    if not chat:
        return {"agents": "is of a game's agents; name one with --chat"}
    of_prompts = dict.fromkeys(("task", "tasks", "reward_model"), "the environment of --chat says what is played, and pays")
    return {**of_prompts, "new_tasks.capacity": "the environment of --chat makes its tasks itself"}


def of_model(model: str) -> Unused:
    """Sizes are of a new model; a given one has its own."""
    if not model:
        return {"lm.path": "name the model with --model"}
    return all_of("lm", ModelConfig.__dataclass_fields__, "is of a new model; the one that model names has its own")


class _TrainsOnData(Protocol):
    @property
    def eval(self) -> EvalConfig: ...

    @property
    def model(self) -> str: ...


def unused_on_data(config: _TrainsOnData) -> Unused:
    """Settings of a recipe that trains a language model on data alone."""
    passing = {} if config.eval.samples else {"eval.pass_reward": "is of samples that an evaluation draws; set eval.samples"}
    return ON_TEXT | WITHOUT_ROLLOUTS | passing | of_model(config.model)


def unused_by_learner(config: TokenLearnerConfig, *, needs: Collection[str]) -> Unused:
    """Settings of a `TokenLearnerConfig` for algorithms that need `needs` (`llm.algorithms.base.Algorithm`)."""
    found: Unused = {}
    if "value" not in needs:
        found["learner.critic_lr"] = "this algorithm has no critic"
    if "reference_logprob" not in needs:
        found |= all_of(
            "learner",
            ("reference", "reference_every", "reference_decay"),
            "the algorithm, as it is set, has no reference policy",
        )
        if "reference" in config.offload:
            found["learner.offload"] = "the algorithm, as it is set, has no reference policy to keep on the host"
    elif not config.reference_every:
        found["learner.reference_decay"] = "is of a reference that follows; set learner.reference_every"
    if config.in_parts:
        found["record.groups_every"] = "groups are recorded from whole batches; use learner.in_parts false"
    if not config.lora.rank:
        found |= all_of("learner.lora", ("alpha", "targets"), "is of adapters; set learner.lora.rank")
    return found
