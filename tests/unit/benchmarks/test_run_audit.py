"""The audit of a run's raw files finds what was done to them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.faults.audit import audit, finished

import runnel as rl

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = {"num_envs": 2, "num_steps": 4, "vector.backend": "serial", "net.hidden": (4,), "ppo.num_minibatches": 1}
    rest = {"total_updates": 8, "eval.episodes": 0, "track": (), "checkpoint.every": 4, "checkpoint.keep": 2}
    return rl.train("ppo", out=str(tmp_path_factory.mktemp("runs")), **tiny, **rest).path


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_rows(run: Path, rows: list[dict]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lose_a_version(run: Path) -> None:
    write_rows(run, [row for row in rows_of(run) if row.get("version") != 7 or row["kind"] != "update"])


def train_twice(run: Path) -> None:
    rows = rows_of(run)
    updates = [row for row in rows if row["kind"] == "update"]
    updates[-1]["sample_ids"] = updates[-2]["sample_ids"]
    write_rows(run, rows)


def lose_rows(run: Path) -> None:
    rows = rows_of(run)
    next(iter(rows[-1]["streams"].values()))["consumed"] -= 8
    write_rows(run, rows)


def flip_a_bit(run: Path) -> None:
    file = finished(run)[-1] / "worker-trainer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "a version": (lose_a_version, "a version is missing"),
    "samples": (train_twice, "trained on twice"),
    "rows": (lose_rows, "8 rows are unaccounted for"),
    "a bit": (flip_a_bit, "checkpoint 000000008: worker-trainer.safetensors is damaged"),
    "the end": (lambda run: write_rows(run, rows_of(run)[:-1]), "the last row is not that of the end"),
    "a half": (lambda run: (run / "checkpoints" / ".writing-000000009").mkdir(), "half written checkpoints are left"),
}


def test_a_run_that_nothing_was_done_to_is_well_and_all_its_checkpoints_come_back(made: Path) -> None:
    found = audit(made, launcher="inproc")
    assert found["wrong"] == []
    assert (found["version"], found["checkpoints"]) == (8, ["000000004", "000000008"])
    assert found["events"]["checkpoint"] == 2


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found(what: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(made, tmp_path / "run")
    do, text = WRONG[what]
    do(run)
    monkeypatch.setattr("benchmarks.faults.audit.restore", lambda *_: [])
    assert text in "\n".join(audit(run)["wrong"])


def test_a_checkpoint_that_cannot_be_restored_is_found(made: Path, tmp_path: Path) -> None:
    run = shutil.copytree(made, tmp_path / "run")
    flip_a_bit(run)
    assert "checkpoint 000000008 was not restored: CheckpointError" in "\n".join(audit(run, launcher="inproc")["wrong"])
