"""Writes pairs from a policy as JSON lines: the completions of each prompt with the highest and the lowest reward.

runnel train make_pairs --model path/to/model --task reverse --pairs-out pairs.jsonl --total-updates 20
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Trains nothing: the learner of this recipe only writes pairs (llm/sampling/pairs.py)."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("pairs_out", why="the first pairs are there")

    pairs_out: str = ""
    """File to write. Empty: pairs.jsonl in `out`."""
    num_prompts: int = 32
    """Prompts in a batch."""
    total_updates: int | None = 10
    """Number of batches to write."""
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=0))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        of_training = [f"learner.{f.name}" for f in fields(self.learner) if f.name != "temperature"]
        others: tuple[str, ...] = (
            "warmup_updates",
            "demo_rows",
            "reset_share",
            "record.groups_every",
            "placement.reference_workers",
            "placement.trainers",
        )
        others += () if self.eval.samples else ("eval.pass_reward",)
        return {**super().unused(), **dict.fromkeys([*of_training, *others], "this recipe trains nothing")}


def build(c: Config) -> rl.Experiment:
    """The graph of training, with another learner."""
    path = c.pairs_out or Path(c.out) / "pairs.jsonl"
    return rl.prompt_graph(c, learner=lambda task: rl.llm.PairWriter(path, task.model(), task.tokenizer, task=task.task))
