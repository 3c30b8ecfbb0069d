"""Pains of other systems that no other test holds: mismatch that creeps, memory that grows, memory that runs out."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import runnel as rl
from runnel.core.errors import OutOfMemoryError
from runnel.llm.model.token_model import TokenModel


def make_task() -> rl.TextTask:
    """A task on which completions of one prompt differ in their reward."""

    def reward(prompts, completions, **columns) -> list[float]:
        return [len(set(text)) + 0.1 * i for i, text in enumerate(completions)]

    examples = [rl.Example(f"say {word}") for word in ("one", "two", "three", "four", "five", "six")]
    return rl.TextTask("letters", examples[:-2], examples[-2:], reward)


SMALL = {
    "task": make_task,
    "num_prompts": 3,
    "group_size": 4,
    "max_tokens": 6,
    "lm": {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "inner": 64},
    "warmup_updates": 0,
    "eval": {"episodes": 0},
    "track": (),
    "checkpoint": {"every": 0},
}


def test_at_a_learning_rate_of_zero_the_mismatch_stays_where_it_is(tmp_path: Path) -> None:
    """It rises by itself elsewhere (open-instruct#1473). Every update has rows of its own version here."""
    run = rl.train("grpo", total_updates=12, learner={"lr": 0.0}, out=str(tmp_path), **SMALL)
    found = [row["metrics"] for row in run.rows() if "mismatch/kl" in row["metrics"]]
    assert len(found) >= 6
    assert max(m["mismatch/max_ratio"] for m in found) < 1 + 1e-5
    assert max(m["mismatch/kl"] for m in found) < 1e-9


def test_host_memory_does_not_grow_with_updates(tmp_path: Path) -> None:
    """Tensors alive after update 10, and after update 30: rows, versions and segments are all given back."""
    alive: dict[int, tuple[int, int]] = {}

    def watch(row: dict) -> None:
        if row["version"] in (10, 30):
            gc.collect()
            tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor]
            alive[row["version"]] = (len(tensors), sum(x.numel() * x.element_size() for x in tensors))

    staleness = {"mode": "window", "max_lag": 2}
    rl.train("grpo", total_updates=30, staleness=staleness, on_update=watch, out=str(tmp_path), **SMALL)
    (early, early_bytes), (late, late_bytes) = alive[10], alive[30]
    assert late <= early * 1.2 + 50
    assert late_bytes <= early_bytes * 1.2 + (1 << 20)


def test_a_learner_that_runs_out_of_memory_says_what_to_lower_and_can_be_resumed(tmp_path: Path, monkeypatch) -> None:
    step = TokenModel.step

    def fail(self, lr, **kwargs):
        if kwargs["version"] == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, lr, **kwargs)

    monkeypatch.setattr(TokenModel, "step", fail)
    settings = {**SMALL, "checkpoint": {"every": 1}}
    with pytest.raises(
        OutOfMemoryError, match=r"lower learner\.micro_batch_tokens \(now 8192\), then set learner\.recompute mlp"
    ):
        rl.train("grpo", total_updates=4, out=str(tmp_path), name="short", **settings)
    monkeypatch.undo()
    run = rl.resume(str(tmp_path / "short"))
    assert (run.status, run.version) == ("finished", 4)


def test_a_cache_that_cannot_fit_is_refused_before_anything_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("runnel.core.memory.free_memory", lambda device: 1 << 12)
    with pytest.raises(
        rl.ConfigError, match=r"engine\.num_slots = 12: needs .* GiB, and cpu has .* use at most \d+, or lower max_tok"
    ):
        rl.train("grpo", total_updates=1, out=str(tmp_path), **SMALL)
