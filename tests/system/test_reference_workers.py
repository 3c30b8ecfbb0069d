"""The reference model on workers of its own: what a run learns is what it learns with the reference in the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from test_faults import descendants
from test_restarts import kill, once, told
from tiny_slices import content
from torch.testing import assert_close

import runnel as rl

TINY: dict[str, Any] = {
    "total_updates": 6,
    "num_prompts": 2,
    "group_size": 4,
    "lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64},
    "learner": {"lr": 3e-3, "warmup_updates": 1},
    "grpo": {"kl_coef": 1.0},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 2},
    "deterministic": True,
    "track": (),
    "name": "run",
    "seed": 3,
}
TASK = """
import time
import runnel as rl

def score(prompts, completions, **columns):
    time.sleep(SLEEP)
    return [float(sum(map(ord, c)) % 7) for c in completions]

def make():
    all = [rl.Example(f"p{i}", answer=f"a{i}") for i in range(14)]
    return rl.TextTask("made", all[2:], all[:2], score, max_tokens=6)
"""
MOVES = {"warmup_updates": 2, "learner": {**TINY["learner"], "reference_every": 2, "reference_decay": 0.5}}


def train(out: Path, workers: int = 1, groups: tuple[str, ...] = (), sleep: float = 0.0, **extra: Any) -> rl.Run:
    (file := out.parent / f"{out.name}_task.py").write_text(TASK.replace("SLEEP", str(sleep)))
    placement = {"threads": 1, "reference_workers": workers, "groups": groups}
    return rl.train("grpo", out=str(out), task=f"{file}:make", placement=placement, **{**TINY, **extra})


def same(run: rl.Run, other: rl.Run) -> None:
    """The same parameters in the end, up to the order of sums."""
    (rows, found), (_, expected) = (content(r.path, by_arrival=False) for r in (run, other))
    assert run.version == other.version == TINY["total_updates"]
    assert rows[-1]["metrics"]["kl"] > 1e-4, "the reference must matter"
    assert_close(load(found), load(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extra", [{"num_actors": 2}, MOVES], ids=["fixed", "moves"])
def test_it_learns_what_a_reference_in_the_trainer_teaches(extra: dict[str, Any], tmp_path: Path) -> None:
    inside = train(tmp_path / "inside", 0, **extra)
    same(train(tmp_path / "outside", 2, **extra), inside)


def test_in_processes_also_when_its_worker_is_killed(tmp_path: Path) -> None:
    """What was asked of it is asked again, and answered by the same weights: not a bit of the run changes."""
    inside = train(tmp_path / "inside", 0)
    local: dict[str, Any] = {"launcher": "local", "groups": ("actor-* trainer",)}
    # rewards that take their time: without them all updates may be over before the launching process has heard of the second
    killed = train(tmp_path / "killed", sleep=0.2, on_update=once(2, kill("reference-0")), **local)
    assert "worker 'reference-0' was killed by signal SIGKILL" in told(killed)
    assert "worker 'reference-0' is back after" in told(killed)
    same(killed, inside)
    assert content(killed.path)[1] == content(train(tmp_path / "outside").path)[1]
    assert not descendants()


@pytest.mark.parametrize("mode", ["sync", "one_step"])
def test_it_resumes_bit_for_bit(mode: str, tmp_path: Path) -> None:
    extra: dict[str, Any] = {**MOVES, "staleness": {"mode": mode}}
    whole = train(tmp_path / "whole", **extra)
    part = train(tmp_path / "part", on_update=lambda row: row["version"] < 3, **extra)
    assert part.version == 3
    rl.resume(part.path)
    assert content(part.path, by_arrival=False) == content(whole.path, by_arrival=False)


def test_what_has_no_reference_to_ask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=r"placement\.reference_workers = 1.*set its kl_coef above 0, or use 0"):
        train(tmp_path / "runs", grpo={"kl_coef": 0.0})
    with pytest.raises(rl.ConfigError, match=r"placement\.reference_workers = 1.*no shards"):
        train(tmp_path / "runs", learner={"shard": True})
    with pytest.raises(rl.ConfigError, match=r"placement\.reference_workers = -1"):
        train(tmp_path / "runs", -1)
    for recipe, fix in (("dpo", "data are read, not sampled"), ("ppo", "is for language models"), ("sft", "leave it at 0")):
        with pytest.raises(rl.ConfigError, match=rf"placement\.reference_workers = 1.*{fix}"):
            rl.train(recipe, out=str(tmp_path / "runs"), placement={"reference_workers": 1})
    assert not (tmp_path / "runs").exists()
