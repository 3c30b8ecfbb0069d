"""Supervised fine-tuning: imitate the demonstrations of a task, or of a data set.

runnel train sft --task reverse --total-updates 200
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.RunConfig):
    """SFT (llm/algorithms/sft.py, llm/learning/learner.py): `demo_rows` demonstrations an update."""

    on_resume: ClassVar[rl.core.OnResume] = (
        rl.core.may_change("max_tokens", then="counts from the next evaluation on")
        | rl.core.stays("task", "token_weights", why="a run is of one task")
        | rl.core.stays("model", why="what was learned is of that network")
        | rl.core.stays("demo_rows", why="segments of that size are on their way")
    )

    task: str = "reverse"
    """Name of a task (see `runnel list`), or your own as path/to/file.py:make_task."""
    model: str = ""
    """Folder of a Hugging Face model and its tokenizer. Empty: a new, small model of the sizes in `lm`."""
    demo_rows: int = rl.core.bounded(128, at_least=1)
    """Demonstrations in a batch."""
    token_weights: str = ""
    """Column of the examples that says how much parts of an answer count: a list of [text, weight]. Other tokens count 1."""
    max_tokens: int = rl.core.bounded(0, at_least=0)
    """Longest completion in an evaluation, in tokens; 0: the limit of the task."""
    total_updates: int | None = 200
    """Budget in updates of the learner."""
    data: rl.llm.DataConfig = field(default_factory=rl.llm.DataConfig)
    lm: rl.llm.ModelConfig = field(default_factory=rl.llm.ModelConfig)
    learner: rl.llm.TokenLearnerConfig = field(default_factory=lambda: rl.llm.TokenLearnerConfig(lr=1e-3))
    placement: rl.PlacementConfig = field(default_factory=lambda: rl.PlacementConfig(threads=2))

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        learner = rl.graphs.unused_by_learner(self.learner, needs=())
        recording = {"record.groups_every": "demonstrations are no groups of completions"}
        return {**super().unused(), **rl.graphs.unused_on_data(self), **learner, **recording}


def build(c: Config) -> rl.Experiment:
    """One actor reads demonstrations; each update trains on one segment of them."""
    task = rl.PromptTask(c.task, c, model=c.model, lm=c.lm, max_tokens=c.max_tokens, data=c.data, lora=c.learner.lora)
    told = task.weigh_demos(c.token_weights) if c.token_weights else []
    policy = c.lag_rule(1)

    def learner(ranks: rl.Collective) -> rl.Learner:
        return task.learner(c.learner, {"demos": rl.llm.SupervisedFineTuning()}, ranks)

    return rl.Experiment(
        config=c,
        title=task.task.name,
        streams=(task.demos(rows=c.demo_rows, lag=policy.lag),),
        staleness={"demos": policy},
        actors=(task.demo_actor(),),
        inference=(),
        trainers=(rl.graphs.TrainerSpec(learner, (rl.flow.Phase({"demos": 1}),), token_streams=("demos",)),),
        evaluation=task.evaluation(),
        policy=task.policy,
        export=task.export,
        look=lambda: [*told, *task.check_demos()],
        disk=lambda: task.disk(c.learner),
    )
