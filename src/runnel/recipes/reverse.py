"""The language-model demonstration: a small transformer learns to write words backwards, by imitation and then by GRPO.

runnel train reverse
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import grpo


@dataclass(frozen=True)
class Config(grpo.Config):
    """A warm-up that is stopped early, then GRPO on the exact answer until 90 % of unseen words are right."""

    warmup_updates: int = 80
    """Supervised updates before the first update on rollouts."""
    demo_rows: int = 64
    """Demonstrations in a supervised batch."""
    num_prompts: int = 32
    """Prompts in a batch."""
    total_updates: int | None = 160
    """Budget in updates of the learner, with the warm-up."""
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(every=20, episodes=256, stop_return=0.95))


build = grpo.build
