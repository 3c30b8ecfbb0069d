"""One recipe on both launchers, and twice on each: deterministic mode gives the same batches and the same parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_slices import ON_DATA, SLICES, content, settings

import runnel as rl


def train(name: str, out: Path, **extra: object) -> Path:
    recipe, tiny = settings(name, **extra)
    return rl.train(recipe, out=str(out), deterministic=True, **tiny).path


@pytest.mark.parametrize("mode", ["sync", "one_step"])
@pytest.mark.parametrize("name", [*SLICES, *ON_DATA])
def test_inproc_and_local_are_bit_identical(name: str, mode: str, tmp_path: Path) -> None:
    extra = {"staleness": {"mode": mode}}
    inproc = content(train(name, tmp_path / "inproc", **extra), by_arrival=False)
    local = content(train(name, tmp_path / "local", launcher="local", **extra), by_arrival=False)
    assert inproc[1] == local[1]
    if name == "rlpd":  # a batch of replay may be made before or after the version that is trained meanwhile: shown, not used
        for row in (*inproc[0], *local[0]):
            row["metrics"] = {k: v for k, v in row.get("metrics", {}).items() if not k.startswith("staleness/")}
    assert inproc[0] == local[0]


@pytest.mark.parametrize("name", list(SLICES))
@pytest.mark.parametrize("mode", ["sync", "window"])
def test_two_runs_of_one_seed_in_process_are_bit_identical(name: str, mode: str, tmp_path: Path) -> None:
    mode = mode if name != "dqn" else "one_step"
    extra = {"staleness": {"mode": mode, **({"max_lag": 2} if mode == "window" else {})}}
    assert content(train(name, tmp_path / "a", **extra)) == content(train(name, tmp_path / "b", **extra))


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    assert content(train("ppo", tmp_path / "a"))[1] != content(train("ppo", tmp_path / "b", seed=4))[1]


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_remote_inference_gives_the_same_parameters_as_inline(name: str, tmp_path: Path) -> None:
    """A policy worker in its own process answers exactly what an inline policy answers, though what it answers together is a
    matter of timing: two actors ask it."""
    remote = {"launcher": "local", "num_actors": 2, "placement": {"policy_workers": 1, "threads": 1}}
    inline = content(train(name, tmp_path / "inline", num_actors=2), by_arrival=False)
    assert content(train(name, tmp_path / "remote", **remote), by_arrival=False)[1] == inline[1]


def test_windowed_asynchrony_is_refused_where_it_cannot_be_deterministic(tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=r"staleness\.mode = 'window'.*timing"):
        train("ppo", tmp_path, launcher="local", staleness={"mode": "window"})
