"""One recipe on both launchers, and twice on each: deterministic mode gives the same batches and the same parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_slices import ON_DATA, SLICES, content, settings

import runnel as rl


def train(name: str, out: Path, **extra: object) -> Path:
    recipe, tiny = settings(name, **extra)
    return rl.train(recipe, out=str(out), deterministic=True, **tiny).path


Once = Callable[[str, str], Path]


def late(mode: str) -> dict[str, Any]:
    return {"staleness": {"mode": mode, **({"max_lag": 2} if mode == "window" else {})}}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """The run of a slice in this process, by its name and mode: made once for all tests that compare another with it."""
    return functools.cache(lambda name, mode: train(name, tmp_path_factory.mktemp("once"), **late(mode)))


@pytest.mark.parametrize("mode", ["sync", "one_step"])
@pytest.mark.parametrize("name", [*SLICES, *ON_DATA])
def test_inproc_and_local_are_bit_identical(name: str, mode: str, once: Once, tmp_path: Path) -> None:
    inproc = content(once(name, mode), by_arrival=False)
    local = content(train(name, tmp_path, launcher="local", **late(mode)), by_arrival=False)
    assert inproc[1] == local[1]
    if name == "rlpd":  # a batch of replay may be made before or after the version that is trained meanwhile: shown, not used
        for row in (*inproc[0], *local[0]):
            row["metrics"] = {k: v for k, v in row.get("metrics", {}).items() if not k.startswith("staleness/")}
    assert inproc[0] == local[0]


@pytest.mark.parametrize(
    ("name", "mode"), [("ppo", "sync"), ("ppo", "window"), ("dqn", "one_step"), ("grpo", "sync"), ("grpo", "window")]
)
def test_two_runs_of_one_seed_in_process_are_bit_identical(name: str, mode: str, once: Once, tmp_path: Path) -> None:
    assert content(once(name, mode)) == content(train(name, tmp_path, **late(mode)))


def test_another_seed_gives_another_run(once: Once, tmp_path: Path) -> None:
    assert content(once("ppo", "sync"))[1] != content(train("ppo", tmp_path, seed=4, **late("sync")))[1]


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
