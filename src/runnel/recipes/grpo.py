"""GRPO on a text task with a verifiable reward, after an optional supervised warm-up.

runnel train grpo --task reverse --warmup-updates 100 --total-updates 400
runnel train grpo --task my_task.py:make_task --model path/to/model
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.RunConfig):
    """GRPO (llm/algorithms.py, llm/learner.py): `num_prompts` groups of `group_size` completions an update."""

    task: str = "reverse"
    """Name of a task (see `runnel list`), or your own as path/to/file.py:make_task."""
    model: str = ""
    """Folder of a Hugging Face model and its tokenizer; empty starts a new, small one of the sizes in `lm`."""
    num_prompts: int = 8
    """Prompts in a batch."""
    group_size: int = 8
    """Completions of each prompt."""
    max_tokens: int = 0
    """Longest completion in tokens; 0 takes what the task says."""
    warmup_updates: int = 0
    """Supervised updates on the task's demonstrations before the first update on rollouts."""
    demo_rows: int = 128
    """Demonstrations in a supervised batch."""
    total_updates: int | None = 300
    """Budget in updates of the learner, the warm-up included."""
    lm: rl.ModelConfig = field(default_factory=rl.ModelConfig)
    learner: rl.TokenLearnerConfig = field(default_factory=rl.TokenLearnerConfig)
    grpo: rl.GRPOConfig = field(default_factory=rl.GRPOConfig)
    placement: rl.PlacementConfig = field(default_factory=lambda: rl.PlacementConfig(threads=2))

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        for name in ("num_prompts", "group_size", "demo_rows"):
            if getattr(self, name) < (2 if name == "group_size" else 1):
                raise rl.ConfigError(name, getattr(self, name), "too small; a group needs 2 completions to compare")
        if self.total_updates is not None and self.warmup_updates >= self.total_updates:
            raise rl.ConfigError(
                "warmup_updates", self.warmup_updates, f"leaves nothing of total_updates = {self.total_updates}"
            )
        if self.num_prompts % self.num_actors:
            raise rl.ConfigError("num_prompts", self.num_prompts, f"must divide among num_actors = {self.num_actors}")


def build(c: Config) -> rl.Experiment:
    """Up to `warmup_updates` the trainer reads `demos`, then `rollouts`: one run, one line of versions."""
    task = rl.PromptTask(c.task, c, model=c.model, lm=c.lm, max_tokens=c.max_tokens)
    rollouts = c.lag_policy(c.num_prompts, start=c.warmup_updates)
    streams = [task.rollouts(group_size=c.group_size, num_prompts=c.num_prompts, lag=rollouts.lag)]
    staleness: dict[str, rl.StalenessPolicy] = {"rollouts": rollouts}
    actors = list(task.actors(group_size=c.group_size, temperature=c.learner.temperature))
    phases = [rl.Phase({"rollouts": c.num_prompts})]
    if c.warmup_updates:
        streams.append(task.demos(rows=c.demo_rows, lag=rollouts.lag))
        staleness["demos"] = c.lag_policy(1, stop=c.warmup_updates)
        actors.insert(0, task.demo_actor())
        phases.insert(0, rl.Phase({"demos": 1}, until=c.warmup_updates))
    slots = c.num_prompts * c.group_size // c.num_actors
    return rl.Experiment(
        config=c,
        title=task.task.name,
        streams=tuple(streams),
        staleness=staleness,
        actors=tuple(actors),
        inference=(rl.InferenceStream(lambda: task.engine(slots), num_workers=c.placement.policy_workers, depth=slots),),
        learner=lambda: task.learner(c.learner, rl.GRPO(c.grpo, channels=task.channels)),
        phases=tuple(phases),
        evaluation=task.evaluation(),
        policy=lambda: task.policy(temperature=c.learner.temperature),
        token_streams=("rollouts", "demos"),
    )
