import hashlib
import json
import sys
import types

import numpy as np
import pytest

from runnel.core.clock import ManualClock
from runnel.core.errors import ConfigError
from runnel.track.folder import read_rows
from runnel.track.sinks import JsonlSink, encode, make_sink, scalars, step_of
from runnel.track.sinks.tensorboard import TensorBoardSink
from runnel.track.sinks.wandb import WandbSink

UPDATE = {
    "kind": "update",
    "version": 2,
    "steps": 64,
    "tokens": 0,
    "metrics": {"loss/policy": 0.5, "kl": float("nan")},
    "streams": {"trajectories": {"dispatched": 8, "consumed": 6, "dropped": {"stale": 1}, "cancelled": {}, "in_flight": 1}},
    "time": {"wall_s": 1.5, "stages": {"trainer/update": 0.25}, "idle": {"trainer": 0.5}},
}


def update(version: int, **metrics: float) -> dict:
    return {"kind": "update", "version": version, "steps": version * 10, "metrics": metrics}


def test_jsonl_rows_are_on_disk_before_close(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.row({"kind": "event", "text": "ä\n"})
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"kind": "event", "text": "ä\n"}
    sink.close()


def test_jsonl_cuts_back_to_a_mark_and_goes_on_bit_for_bit(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    for version in range(3):
        sink.row(update(version))
    mark = sink.mark()
    expected = path.read_bytes()
    assert mark == {"offset": len(expected), "digest": hashlib.sha256(expected).hexdigest()}
    sink.row(update(3))
    sink.close()
    path.write_bytes(path.read_bytes() + b'{"kind": "upd')
    again = JsonlSink(path)
    assert again.cut(mark, 2) == ""
    assert path.read_bytes() == expected
    assert again.mark() == mark
    again.row(update(3))
    again.close()
    rows, problems = read_rows(path)
    assert [row["version"] for row in rows] == [0, 1, 2, 3]
    assert problems == []


def test_jsonl_that_is_not_written_is_not_touched(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.close()
    assert not (tmp_path / "m.jsonl").exists()
    (tmp_path / "m.jsonl").write_bytes(b'{"a": 1}\n{"a')
    JsonlSink(tmp_path / "m.jsonl").close()
    assert (tmp_path / "m.jsonl").read_bytes() == b'{"a": 1}\n{"a'


def damaged(how: str, lines: list[bytes]) -> bytes | None:
    """The rows of versions 1 to 12 with a checkpoint at 10, after something has happened to them."""
    whole = b"".join(lines)
    return {
        "cut behind row 2": b"".join(lines[:2]),
        "cut in row 3": b"".join(lines[:2]) + lines[2][:30],
        "rows 3 to 6 removed": b"".join(lines[:2] + lines[6:]),
        "row 5 overwritten": whole.replace(lines[4][:-1], b"\0" * (len(lines[4]) - 1)),
        "one byte changed": whole.replace(b'"steps": 70', b'"steps": 71'),
        "removed": None,
    }[how]


@pytest.mark.parametrize("digest", [True, False])
@pytest.mark.parametrize(
    ("how", "kept", "told"),
    [
        ("cut behind row 2", [1, 2], "no rows of versions 3 to 10"),
        ("cut in row 3", [1, 2], "no rows of versions 3 to 10"),
        ("rows 3 to 6 removed", [1, 2, 7, 8, 9, 10], "no rows of versions 3 to 6"),
        ("row 5 overwritten", [1, 2, 3, 4, 6, 7, 8, 9, 10], "no rows of version 5"),
        ("one byte changed", list(range(1, 11)), "changed since"),
        ("removed", [], "is missing: no rows of versions 1 to 10"),
    ],
)
def test_a_damaged_file_is_cut_behind_a_row_and_what_is_lost_is_told(how, kept, told, digest, tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for version in range(1, 13):
        sink.row({"kind": "update", "version": version, "steps": version * 10, "metrics": {}})
        mark = sink.mark() if version == 10 else locals().get("mark")
    sink.close()
    data = damaged(how, path.read_bytes().splitlines(keepends=True))
    path.unlink() if data is None else path.write_bytes(data)
    if not digest:  # of an older checkpoint, which does not see what keeps the length
        mark = {"offset": mark["offset"]}
        told = "" if how in ("row 5 overwritten", "one byte changed") else told
    again = JsonlSink(path)
    assert told in (lost := again.cut(mark, 10))
    assert bool(lost) == bool(told)
    again.row({"kind": "update", "version": 11})
    again.close()
    rows, _ = read_rows(path)
    assert [row["version"] for row in rows] == [*kept, 11]
    assert path.read_bytes().endswith(b"\n")


def test_jsonl_opened_on_half_a_line_keeps_new_rows_readable(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a')
    sink = JsonlSink(path)
    sink.row({"a": 2})
    sink.close()
    rows, problems = read_rows(path)
    assert rows == [{"a": 1}, {"a": 2}]
    assert len(problems) == 1


def test_half_a_character_survives_the_file(tmp_path):
    sink = JsonlSink(tmp_path / "s.jsonl")
    sink.row({"completion": "a\udc80ä"})
    sink.close()
    assert read_rows(tmp_path / "s.jsonl") == ([{"completion": "a\udc80ä"}], [])


def test_encode_is_strict_json():
    line = encode({"x": float("inf"), "y": [np.float32(0.5), float("nan")], "z": np.arange(2)})
    assert json.loads(line, parse_constant=lambda c: pytest.fail(c)) == {"x": None, "y": [0.5, None], "z": [0, 1]}
    with pytest.raises(TypeError, match="object"):
        encode({"x": object()})


def test_scalars_flatten_an_update():
    assert scalars(UPDATE) == {
        "loss/policy": 0.5,
        "time/wall_s": 1.5,
        "time/stages/trainer/update": 0.25,
        "time/idle/trainer": 0.5,
        "streams/trajectories/dispatched": 8.0,
        "streams/trajectories/consumed": 6.0,
        "streams/trajectories/dropped/stale": 1.0,
        "streams/trajectories/in_flight": 1.0,
    }
    assert scalars({"kind": "event", "text": "x"}) == {}


def test_axis_is_steps_or_version():
    assert step_of({"version": 4}) == 4
    assert step_of(UPDATE) == 64


def tensorboard_points(directory, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(e.step, e.value) for e in accumulator.Scalars(tag)]


def test_tensorboard_flush_leaves_nothing_in_memory(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.row(update(1, kl=0.25))
    sink.flush()
    assert tensorboard_points(tmp_path / "tensorboard", "kl") == [(10, 0.25)]
    sink.close()


def test_tensorboard_thins_fast_updates_and_keeps_the_last(tmp_path):
    clock = ManualClock()
    sink = TensorBoardSink(tmp_path, clock=clock, interval_s=1.25)
    for version in range(1, 26):
        sink.row(update(version, kl=float(version)))
        clock.advance(0.125)
    sink.row({"kind": "eval", "version": 25, "steps": 250, "mean": 7.0})
    sink.close()
    assert tensorboard_points(tmp_path / "tensorboard", "kl") == [(10, 1.0), (110, 11.0), (210, 21.0), (250, 25.0)]
    assert tensorboard_points(tmp_path / "tensorboard", "eval/mean") == [(250, 7.0)]


def test_a_missing_package_names_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'runnel\[wandb\]'"):
        make_sink("wandb", tmp_path, {})
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        make_sink("tensorboard", tmp_path, {})
    for name, module, extra in (
        ("mlflow", "mlflow.tracking", "mlflow"),
        ("trackio", "trackio", "trackio"),
        ("parquet", "pyarrow", "data"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf"pip install 'runnel\[{extra}\]'"):
            make_sink(name, tmp_path, {})


class FakeRun:
    def __init__(self, **arguments):
        self.arguments, self.logged, self.summary, self.exit_code, self.step = arguments, [], {}, None, 0

    def log(self, values, step):
        self.logged.append((step, values))
        self.step = step

    def finish(self, exit_code):
        self.exit_code = exit_code


def fake_wandb(monkeypatch) -> list[FakeRun]:
    """A wandb that keeps what it is given; returns its runs as they are made."""
    runs: list[FakeRun] = []
    fake = types.SimpleNamespace(
        init=lambda **arguments: runs.append(FakeRun(**arguments)) or runs[-1],
        Settings=lambda **arguments: arguments,
        errors=types.SimpleNamespace(UsageError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return runs


def test_wandb_rows_and_identity_over_resume(tmp_path, monkeypatch):
    runs = fake_wandb(monkeypatch)
    for status in ("failed", "finished"):
        sink = WandbSink(tmp_path, {"lr": 0.1}, mode="online")
        sink.row(update(1, kl=0.5))
        sink.row({"kind": "end", "status": status})
        sink.close()
    assert runs[0].logged == [(10, {"kl": 0.5})]
    assert runs[0].arguments["id"] == runs[1].arguments["id"]
    assert runs[0].arguments["config"] == {"lr": 0.1}
    assert [run.exit_code for run in runs] == [1, 0]
    assert runs[1].summary["status"] == "finished"


def test_wandb_online_is_sent_no_step_that_it_has(tmp_path, monkeypatch):
    runs = fake_wandb(monkeypatch)
    sink = WandbSink(tmp_path, {})
    sink.row(update(1, kl=0.5))
    sink.flush()
    runs[0].step = 25  # as a run that wandb takes up again says
    sink.row(update(2, kl=0.25))
    sink.row(update(3, kl=0.125))
    sink.close()
    assert runs[0].logged == [(10, {"kl": 0.5}), (30, {"kl": 0.125})]


NAMES = {"sinks": {"project": "mine", "entity": "us", "group": "first", "name": "a run"}}


def test_wandb_is_told_project_entity_group_and_name(tmp_path, monkeypatch):
    runs = fake_wandb(monkeypatch)
    monkeypatch.setenv("WANDB_PROJECT", "of the environment")
    told = ("project", "entity", "group", "name")
    (tmp_path / "usual").mkdir()
    WandbSink(tmp_path / "usual", {})
    assert [runs[0].arguments[k] for k in told] == ["of the environment", None, None, "usual"]
    monkeypatch.delenv("WANDB_PROJECT")
    WandbSink(tmp_path, {})
    assert runs[1].arguments["project"] == "runnel"
    WandbSink(tmp_path, NAMES)
    assert [runs[2].arguments[k] for k in told] == ["mine", "us", "first", "a run"]


def test_a_project_that_has_nothing_of_the_run_gets_all_of_it(tmp_path, monkeypatch):
    runs = fake_wandb(monkeypatch)
    (tmp_path / "metrics.jsonl").write_text("".join(encode(update(v, kl=0.5)) + "\n" for v in (1, 2)))
    for config in ({}, NAMES, NAMES):
        WandbSink(tmp_path, config).close()
    assert [[step for step, _ in run.logged] for run in runs] == [[10, 20], [10, 20], []]
    ids = [run.arguments["id"] for run in runs]
    assert ids[0] != ids[1] == ids[2]


class FakeStore:
    """An MLflow client that keeps what it is given (a real store takes seconds to make; the contract tests have one)."""

    def __init__(self, tracking_uri):
        self.made = []

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location):
        self.made.append(name)
        return "7"

    def create_run(self, experiment, run_name):
        self.made.append((experiment, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

    def log_batch(self, run, **what): ...


def test_mlflow_and_trackio_take_the_same_names(tmp_path, monkeypatch):
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", types.SimpleNamespace(MlflowClient=FakeStore))
    monkeypatch.setitem(sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=tuple, Param=lambda name, value: name))
    assert make_sink("mlflow", tmp_path, NAMES)._client.made == ["mine", ("7", "a run")]
    sink = make_sink("trackio", tmp_path, NAMES)
    sink.row(update(1, kl=0.5))
    sink.close()
    with sink._here() as storage:
        assert storage.get_projects() == ["mine"]
        assert storage.get_runs("mine") == ["a run"]
