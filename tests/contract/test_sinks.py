"""The contract of sinks, over every one of them; what was written is read back by the library that it was written for."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sink_readers import READERS, Points

import runnel as rl
from runnel.core.errors import ConfigError
from runnel.track.folder import read_rows
from runnel.track.sinks import SINKS, GuardedSink, JsonlSink, make_sink, open_sinks
from runnel.track.sinks.parquet import ParquetSink
from runnel.track.sinks.tensorboard import TensorBoardSink
from runnel.track.sinks.wandb import _set_aside

NAMES = list(READERS)
HERE = Path(__file__).parent
OTHERS: list[dict[str, Any]] = [
    {"kind": "event", "level": "info", "text": "hello"},
    {"kind": "sample", "prompt": "p"},
    {"kind": "a kind of tomorrow", "metrics": {"kl": 99.0}},
    {"kind": "update", "version": 9, "steps": 90, "metrics": {"kl": float("nan")}},
]


def update(version: int, **metrics: float) -> dict[str, Any]:
    return {"kind": "update", "version": version, "steps": version * 10, "tokens": 0, "metrics": metrics}


def evaluation(version: int, mean: float) -> dict[str, Any]:
    return {"kind": "eval", "version": version, "steps": version * 10, "tokens": 0, "mean": mean, "returns": [mean]}


class Run:
    """metrics.jsonl and one sink, as a ledger feeds them."""

    def __init__(self, name: str, folder: Path, *, cut_to: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.metrics = JsonlSink(folder / "metrics.jsonl")
        if cut_to is not None:
            self.metrics.cut({"offset": cut_to}, version=cut_to)
        self.sink = TensorBoardSink(folder, interval_s=0.0) if name == "tensorboard" else make_sink(name, folder, {"seed": 1})

    def rows(self, *rows: dict[str, Any]) -> int:
        for row in rows:
            self.metrics.row(row)
            self.sink.row(row)
        self.sink.flush()
        return int(self.metrics.mark()["offset"])

    def close(self) -> None:
        self.sink.close()
        self.metrics.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event files are read in the order of their names, which have whole seconds: each sink gets a second of its own."""
    seconds = iter(range(int(time.time()), int(time.time()) + 1000))
    import tensorboard.summary.writer.event_file_writer as writer

    monkeypatch.setattr(writer, "time", type("Time", (), {"time": staticmethod(lambda: next(seconds))}))
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("MLFLOW_TRACKING_URI", "TRACKIO_DIR", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


def test_every_sink_is_under_contract() -> None:
    assert {*NAMES, "wandb"} == set(SINKS)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_steps_are_those_that_were_given(name: str, tmp_path: Path) -> None:
    run = Run(name, tmp_path / "r")
    run.rows(update(1, kl=0.5, loss=-2.0), update(2, kl=0.25), *OTHERS, evaluation(2, 7.0), update(3, kl=1e-3, late=4.0))
    run.rows({"kind": "end", "status": "finished"})
    run.close()
    found = READERS[name](tmp_path / "r")
    expected = {
        "kl": [(10, 0.5), (20, 0.25), (30, pytest.approx(1e-3))],
        "loss": [(10, -2.0)],
        "eval/mean": [(20, 7.0)],
        "late": [(30, 4.0)],
    }
    assert {tag: sorted(points) for tag, points in found.items()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_resume_leaves_nothing_twice_and_nothing_that_was_cut(name: str, tmp_path: Path) -> None:
    """The checkpoint lies between an update and the evaluation of the same step; the second life takes another way."""
    folder = tmp_path / "r"
    run = Run(name, folder)
    kept = run.rows(update(1, kl=1.0), update(2, kl=2.0))
    run.rows(evaluation(2, 5.0), update(3, kl=3.0), update(4, kl=4.0, gone=1.0))
    run.close()
    again = Run(name, folder, cut_to=kept)
    again.rows(evaluation(2, 6.0), update(3, kl=30.0))
    again.close()
    third = Run(name, folder)  # nothing was cut: it goes on
    third.rows(update(4, kl=40.0))
    third.close()
    found = {tag: sorted(points) for tag, points in READERS[name](folder).items() if points}
    assert found == {"kl": [(10, 1.0), (20, 2.0), (30, 30.0), (40, 40.0)], "eval/mean": [(20, 6.0)]}


@pytest.mark.parametrize("name", NAMES)
def test_a_sink_that_comes_later_shows_what_was_before(name: str, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    metrics = JsonlSink(tmp_path / "r" / "metrics.jsonl")
    metrics.row(update(1, kl=1.0))
    metrics.close()
    run = Run(name, tmp_path / "r")
    run.rows(update(2, kl=2.0))
    run.close()
    assert READERS[name](tmp_path / "r") == {"kl": [(10, 1.0), (20, 2.0)]}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a process that flushed three rows into each sink, gave a fourth, and was killed."""
    folder = tmp_path_factory.mktemp("killed")
    env = {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"}  # a wandb of its own
    command = [sys.executable, str(HERE / "sink_child.py"), str(folder), *NAMES]
    child = subprocess.run(command, env=env, capture_output=True, timeout=120)
    assert child.returncode == -9, child.stderr.decode()
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_costs_nothing_that_was_flushed_and_a_resume_mends_the_rest(name: str, killed: Path) -> None:
    folder = killed / name
    if name != "wandb-offline":  # its own process may still be writing
        assert READERS[name](folder)["kl"][:3] == [(10, 0.25), (20, 0.5), (30, 0.75)]
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    again = Run(name, folder, cut_to=sum(map(len, lines[:2])))
    again.rows(update(3, kl=8.0))
    again.close()
    assert READERS[name](folder) == {"kl": [(10, 0.25), (20, 0.5), (30, 8.0)]}


def test_a_run_that_was_started_twice_in_a_second_is_set_aside_whole(tmp_path: Path) -> None:
    """wandb calls the second folder as the first, with a number behind."""
    names = ["offline-run-20260101_000000-abc", "offline-run-20260101_000000-abc-1", "offline-run-20260101_000000-other"]
    for name in names:
        (tmp_path / name).mkdir()
    _set_aside(tmp_path, "abc")
    assert [path.name for path in sorted(tmp_path.glob("offline-run-*"))] == names[2:]
    assert len(list((tmp_path / "superseded").iterdir())) == 2


def test_many_files_of_a_table_have_the_columns_of_the_last(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, part=2)
    for version in range(1, 8):
        sink.row(update(version, kl=float(version), **({"late": 1.0} if version == 6 else {})))
    sink.close()
    assert len(list((tmp_path / "metrics.parquet").glob("*.parquet"))) == 4
    found = READERS["parquet"](tmp_path)
    assert found == {"kl": [(10 * v, float(v)) for v in range(1, 8)], "late": [(60, 1.0)]}


# -------------------------------------------------------------------------------------------------------------- failures
class Failing:
    """Fails where it is told to."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where, self.error, self.seen = where, error, 0

    def __call__(self) -> Failing:
        self._do("make")
        return self

    def row(self, row: dict[str, Any]) -> None:
        self.seen += 1
        self._do("row")

    def flush(self) -> None:
        self._do("flush")

    def close(self) -> None:
        self._do("close")

    def _do(self, what: str) -> None:
        if what == self.where:
            raise self.error


@pytest.mark.parametrize("where", ["make", "row", "flush", "close"])
def test_a_sink_that_fails_is_named_once_and_switched_off(where: str) -> None:
    told: list[str] = []
    sink = GuardedSink("mine", Failing(where, OSError(errno.ENOSPC, "No space left on device")), told.append)
    for _ in range(2):
        sink.row(update(1))
        sink.flush()
    sink.close()
    assert len(told) == 1
    assert "sink 'mine' failed" in told[0]
    assert "No space left on device" in told[0]
    assert sink._sink is None


def test_a_wrong_setting_is_refused_not_switched_off() -> None:
    with pytest.raises(ConfigError, match="pip install"):
        GuardedSink("mine", Failing("make", ConfigError("track", "x", "pip install 'runnel[x]'")), pytest.fail)


@pytest.mark.parametrize("name", ["csv", "parquet", "tensorboard"])
def test_a_disk_that_is_full_ends_the_sink_alone(name: str, tmp_path: Path) -> None:
    """The folder of the sink cannot be written any more."""
    told: list[str] = []
    (sink,) = open_sinks([name], tmp_path, {}, told.append)
    place = {"csv": "metrics.csv.new", "parquet": "metrics.parquet", "tensorboard": "tensorboard"}[name]
    if name == "csv":
        (tmp_path / place).mkdir()  # the table cannot be written again where a column is added
    else:
        for path in (tmp_path / place).iterdir():
            path.unlink()
        (tmp_path / place).rmdir()
    if name == "tensorboard":  # an open file outlives its folder: have the library fail instead
        sink._sink._writer.add_event = Failing("row", OSError("disk full")).row  # type: ignore[union-attr]
    sink.row(update(1, kl=1.0))
    sink.flush()
    assert [f"sink {name!r} failed" in text for text in told] == [True]


MY_SINK = """
import json

class MySink:
    def __init__(self, folder, config):
        self.file = open(folder / "mine.jsonl", "a")
        self.limit = 3

    def row(self, row):
        if row["kind"] == "update":
            self.limit -= 1
            if self.limit < 0:
                raise RuntimeError("quota exceeded")
            self.file.write(json.dumps(row["version"]) + chr(10))

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()

NOT_CALLABLE = 3

def lame(folder, config):
    return object()
"""


def test_a_run_outlives_your_own_sink_and_resumes_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "my_sink.py").write_text(MY_SINK)
    mine = f"{tmp_path / 'my_sink.py'}:MySink"
    settings: dict[str, Any] = {"out": str(tmp_path / "runs"), "total_steps": 320, "num_envs": 2, "eval.episodes": 0}
    run = rl.train("ppo", env="CartPole-v1", track=(mine, "csv", "parquet"), **settings, num_steps=32)
    assert run.status == "finished"
    assert (run.path / "mine.jsonl").read_text().split() == ["1", "2", "3"]
    warned = [row["text"] for row in run.rows("event") if row["level"] == "warning"]
    assert len(warned) == 1
    assert "my_sink.py:MySink" in warned[0]
    assert "quota exceeded" in warned[0]
    rl.resume(run.path, total_steps=640)
    rows = [row for row in read_rows(run.path / "metrics.jsonl")[0] if row["kind"] == "update"]
    expected = [(row["steps"], row["metrics"]["loss/value"]) for row in rows]
    assert len(expected) == 10
    for name in ("csv", "parquet"):
        points: Points = READERS[name](run.path)
        assert points["loss/value"] == expected


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wandbb", "tensorboard, wandb"),
        ("no_such.py:Sink", "no such file"),
        ("my_sink.py:Missing", "has no 'Missing'"),
        ("my_sink.py:NOT_CALLABLE", "no class or function"),
        ("my_sink.py:lame", "no method 'row'"),
    ],
)
def test_a_sink_that_is_none_is_refused(name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_sink.py").write_text(MY_SINK)
    with pytest.raises(ConfigError, match=says):
        make_sink(name, tmp_path, {})


def test_an_unknown_sink_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown sink"):
        rl.train("ppo", env="CartPole-v1", total_steps=100, track=("tensorbord",), out=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_run_that_goes_back_by_itself_takes_its_sinks_along(tmp_path: Path) -> None:
    from runnel.core.clock import ManualClock
    from runnel.run.ledger import Ledger
    from runnel.track.folder import RunFolder

    ledger = Ledger(RunFolder(tmp_path), ManualClock())
    ledger.attach(open_sinks(["csv"], tmp_path, {}, pytest.fail))
    event = {"kind": "update", "tokens": 0, "progress": 0.1, "sample_ids": {}, "streams": {}, "worker": "trainer"}
    ledger.add([{**event, "version": 1, "steps": 10, "metrics": {"kl": 1.0}}])
    state = json.loads(json.dumps(ledger.snapshot()))
    ledger.add([{**event, "version": 2, "steps": 20, "metrics": {"kl": 2.0}}])
    ledger.restore(state)
    ledger.add([{**event, "version": 2, "steps": 20, "metrics": {"kl": 20.0}}])
    ledger.close()
    assert READERS["csv"](tmp_path)["kl"] == [(10, 1.0), (20, 20.0)]
