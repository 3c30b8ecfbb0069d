"""A tiny model with random weights learns to use a tool: imitation shows it how, reinforcement that it pays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import runnel as rl

sys.path.insert(0, str(Path(__file__).parent))

from sums_world import save_model

IMITATION = 100
CALCULATOR: dict[str, Any] = {
    "chat": f"{Path(__file__).parent / 'sums_world.py'}:make_env",
    "max_turns": 3,
    "max_context": 72,
    "max_tokens": 16,
    "demo_rows": 32,
    "num_prompts": 8,
    "group_size": 8,
    "warmup_updates": IMITATION,
    "total_updates": IMITATION + 30,
    "learner": {"sft_lr": 5e-3, "lr": 1e-3, "warmup_updates": 10},
    "eval": {"every": IMITATION, "episodes": 64},
    "placement": {"threads": 1},
    "checkpoint": {"every": 0},
    "track": (),
}


def test_a_tiny_model_learns_to_call_the_calculator(tmp_path: Path) -> None:
    """Sums on which it was not trained, played greedily: at most 0.3 are right after imitation alone, without a call, and at
    least 0.5 after 30 updates of 64 conversations, with one; on 2 of 3 seeds. A guess is right in 0.125. On seeds 1, 2, 3 and
    11 it was 0.13, 0.06, 0.22 and 0.22 after imitation, and 0.70, 0.64, 1.00 and 1.00 at the end: what is missing are digits
    that the model does not copy rightly into its call."""
    found = []
    for seed in (1, 2, 3):
        model = save_model(tmp_path / f"model-{seed}", seed=seed)
        run = rl.train("grpo", seed=seed, model=model, out=str(tmp_path / "runs"), **CALCULATOR)
        imitated, learned = run.rows("eval")[0], run.rows("eval")[-1]
        assert (imitated["version"], learned["version"]) == (IMITATION, IMITATION + 30)
        found.append((imitated["mean"], learned["mean"], imitated["extra"]["tool_calls"], learned["extra"]["tool_calls"]))
        if sum(map(learns, found)) == 2:
            break
    assert sum(map(learns, found)) == 2, found


def learns(found: tuple[float, float, float, float]) -> bool:
    """Success and calls a conversation: after the imitation, and at the end."""
    imitated, learned, calls_before, calls = found
    return imitated <= 0.3 and learned >= 0.5 and calls_before < 0.1 and calls > 0.9
