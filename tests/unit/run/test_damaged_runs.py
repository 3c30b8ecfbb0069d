"""A run with a damaged checkpoint or damaged rows goes on from what is left, and says so, whoever reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import _told
from runnel.run.api import evaluate_run
from runnel.run.checkpoint import Checkpoints

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 12,
    "eval.episodes": 0,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
    "ppo.lr": 1e-3,
    "checkpoint.every": 1,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rl.train("ppo", out=str(tmp_path_factory.mktemp("runs")), **TINY).path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def damage(run: Path, name: str = "params.safetensors") -> None:
    file = Checkpoints(run / "checkpoints").finished()[-1] / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))


def start_from(run: Path) -> rl.Run:
    settings = {**TINY, "total_updates": 1, "name": "warm"}
    return rl.train("ppo", out=str(run.parent), init_from=str(run), **settings)


def refused_export(run: Path) -> None:
    """It reads what it would write before it looks at the format; writing a graph takes seconds."""
    with pytest.raises(rl.ConfigError, match="hf is for language models"):
        rl.export(run, run.parent / "exported", format="hf")


USES: dict[str, Callable[[Path], Any]] = {
    "load": rl.load,
    "evaluate": lambda run: evaluate_run(run, episodes=1),
    "export": refused_export,
    "init_from": start_from,
    "resume": lambda run: rl.resume(run, total_updates=13),
    "params": lambda run: Checkpoints(run / "checkpoints").newest_params(),
}


@pytest.mark.parametrize("use", USES)
def test_whoever_falls_back_to_an_older_checkpoint_says_so(use: str, run: Path) -> None:
    damage(run)
    with pytest.warns(UserWarning, match=r"fell back to checkpoint 000000011: .*000000012 is damaged: params.safetensors"):
        USES[use](run)


@pytest.mark.parametrize("use", ["load", "init_from"])
def test_what_is_not_read_is_not_missed(use: str, run: Path, recwarn: pytest.WarningsRecorder) -> None:
    damage(run, "worker-trainer.safetensors")
    USES[use](run)
    assert not [w for w in recwarn if "fell back" in str(w.message)]


def test_a_run_that_starts_from_an_older_checkpoint_tells_it_in_its_events(run: Path) -> None:
    damage(run)
    with pytest.warns(UserWarning, match="fell back"):
        warm = start_from(run)
    assert ["fell back to checkpoint 000000011" in e["text"] for e in warm.rows("event") if e["level"] == "warning"] == [True]


def test_the_command_line_shows_a_warning_as_a_line() -> None:
    assert _told(UserWarning("fell back"), UserWarning, "x.py", 3) == "runnel: warning: fell back\n"
    assert "x.py:3: DeprecationWarning" in _told(DeprecationWarning("old"), DeprecationWarning, "x.py", 3)


@pytest.mark.parametrize(
    ("lines", "half", "versions", "told"),
    [
        (4, 0, [1, 2], "no rows of versions 3 to 12"),
        (4, 40, [1, 2], "no rows of versions 3 to 12"),
        (None, 0, [], "metrics.jsonl is missing: no rows of versions 1 to 12"),
    ],
)
def test_rows_that_are_gone_are_told_when_a_run_goes_on(
    lines: int | None, half: int, versions: list[int], told: str, run: Path
) -> None:
    metrics = run / "metrics.jsonl"
    rows = metrics.read_bytes().splitlines(keepends=True)
    metrics.unlink() if lines is None else metrics.write_bytes(b"".join(rows[:lines]) + rows[lines][:half])
    with pytest.warns(UserWarning, match=told):
        longer = rl.resume(run, total_updates=14)
    assert [row["version"] for row in longer.rows()] == [*versions, 13, 14]
    assert [told in e["text"] for e in longer.rows("event") if e["level"] == "warning"] == [True]
    assert told in (run / "report.html").read_text()
    text = metrics.read_bytes()
    assert text.endswith(b"\n")
    assert not [line for line in text.splitlines() if not line.startswith(b"{")], "no half row is left"


def test_rows_that_are_all_there_are_not_missed(run: Path, recwarn: pytest.WarningsRecorder) -> None:
    longer = rl.resume(run, total_updates=14)
    assert [row["version"] for row in longer.rows()] == list(range(1, 15))
    assert not [w for w in recwarn if "metrics.jsonl" in str(w.message)]
