"""`runnel trace`: the format's rules on real runs, numbers against metrics.jsonl, and runs that do not notice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from trace_rules import arrows, lanes, read_trace

import runnel as rl
from runnel.cli.main import main
from runnel.core.clock import ManualClock
from runnel.core.errors import ConfigError
from runnel.core.trace import MARK, RECORD, SPAN, WAIT, TraceWriter
from runnel.core.worker import StageTimer
from runnel.run.checkpoint import Checkpoints
from runnel.track.trace import write_trace
from runnel.track.trace.files import Process, _align, read_process

ABOUT = {"group": "main", "epoch": 0, "incarnation": 0}
SHORT: dict[str, Any] = {"num_envs": 2, "eval.episodes": 2, "eval.every": 2, "track": (), "vector.backend": "serial"}
PPO: dict[str, Any] = {**SHORT, "env": "CartPole-v1", "num_steps": 32, "total_updates": 6, "checkpoint.every": 3}
DQN: dict[str, Any] = {**SHORT, "env": "CartPole-v1", "total_updates": 20}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rl.Run]:
    """Each with and without."""
    out = str(tmp_path_factory.mktemp("runs"))
    found = {}
    for name, recipe, settings in (("ppo", "ppo", PPO), ("dqn", "dqn", DQN)):
        for trace in (True, False):
            folder = f"{name}-traced" if trace else name
            found[folder] = rl.train(recipe, out=out, name=folder, trace=trace, **settings)
    return found


# ---------------------------------------------------------------------------------------------------------------- runs
def test_a_traced_run_is_the_same_run(runs: dict[str, rl.Run]) -> None:
    for name in ("ppo", "dqn"):
        plain, traced = runs[name], runs[f"{name}-traced"]
        told = [[{k: v for k, v in row.items() if k != "time"} for row in run.rows()] for run in (plain, traced)]
        assert told[0] == told[1]
        params = [Checkpoints(run.path / "checkpoints").newest_params().params for run in (plain, traced)]
        assert all(torch.equal(value, params[1][key]) for key, value in params[0].items())
        assert not (plain.path / "trace").exists()


def test_stages_add_up_to_those_of_the_metrics(runs: dict[str, rl.Run]) -> None:
    for name in ("ppo-traced", "dqn-traced"):
        run = runs[name]
        events = read_trace(write_trace(run.path).path)
        where, found = lanes(events), Counter[str]()
        for e in events:
            if e["ph"] == "X" and e["cat"] == "stage":
                found[f"{where[e['pid'], e['tid']].partition('/')[2]}/{e['name']}"] += e["args"]["busy_us"] / 1e6
        wanted = Counter[str]()
        for row in run.rows():
            wanted.update(row["time"]["stages"])
        for stage, seconds in wanted.items():
            if stage != "evaluator/evaluate":  # the last one is after the last row
                assert found[stage] == pytest.approx(seconds, abs=1e-6), stage
        assert found["evaluator/evaluate"] >= wanted["evaluator/evaluate"] - 1e-6


def test_samples_and_versions_can_be_followed(runs: dict[str, rl.Run]) -> None:
    run = runs["ppo-traced"]
    events = read_trace(write_trace(run.path).path)
    path = ["main/actor-0", "main/trainer", "main/trainer"]  # sample -> prepare -> publish
    assert arrows(events, "trajectories segment").count(path) == run.version
    loads = arrows(events, "policy version")
    assert ["main/trainer", "main/actor-0"] in loads
    assert ["main/trainer", "main/evaluator"] in loads
    bars = [e for e in events if e["ph"] == "b" and e["name"] == "trajectories segment"]
    assert [bar["args"]["sample_id"] for bar in bars] == sorted(
        i for row in run.rows() for i in row["sample_ids"]["trajectories"]
    )
    assert {bar["args"]["end"] for bar in bars} == {"release"}
    assert [bar["args"]["version"] for bar in bars] == list(range(run.version))
    phases = [e["name"] for e in events if e["ph"] == "b" and e["id"] == bars[0]["id"]]
    assert phases == ["trajectories segment", "filled", "waiting", "in use"]


def test_a_buffer_is_on_the_path(runs: dict[str, rl.Run]) -> None:
    run = runs["dqn-traced"]
    events = read_trace(write_trace(run.path).path)
    assert ["main/actor-0", "main/buffer"] in arrows(events, "trajectories segment")
    batches = arrows(events, "replay segment")
    assert batches.count(["main/buffer", "main/trainer", "main/trainer"]) == run.version


def test_counters_and_instants_tell_of_the_run(runs: dict[str, rl.Run]) -> None:
    events = read_trace(write_trace(runs["ppo-traced"].path).path)
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {
        "version",
        "trajectories queued",
        "trajectories in flight",
        "staleness/mean",
        "staleness/max",
        "steps_per_s",
    } <= counters
    instants = [e["name"] for e in events if e["ph"] == "i"]
    assert any(text.startswith("checkpoint at version 3") for text in instants)
    assert any(text.startswith("evaluation of version 6") for text in instants)
    assert instants[-1] == "end: finished"


def test_processes_of_a_local_run_are_on_one_time_base(tmp_path: Path) -> None:
    settings = {
        **PPO,
        "launcher": "local",
        "placement.policy_workers": 1,
        "eval.episodes": 0,
        "eval.every": 0,
        "total_updates": 4,
    }
    run = rl.train("ppo", out=str(tmp_path), trace=True, **settings)
    made = write_trace(run.path, tmp_path / "t.json")
    events = read_trace(made.path)
    assert made.num_processes == 4
    assert {"launcher/run", "trainer/trainer", "policy-0/policy-0", "actor-0/actor-0"} <= set(lanes(events).values())
    assert ["actor-0/actor-0", "trainer/trainer", "trainer/trainer"] in [
        [w for i, w in enumerate(a) if i == 0 or w != "actor-0/actor-0"] for a in arrows(events, "trajectories segment")
    ]
    assert ["trainer/trainer", "policy-0/policy-0"] in arrows(events, "policy version")


# --------------------------------------------------------------------------------------------------------------- command
def test_a_run_that_was_not_traced_is_told_how(runs: dict[str, rl.Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(runs["ppo"].path)]) == 2
    error = capsys.readouterr().err
    assert "was not traced" in error
    assert "--trace" in error


def test_the_command_says_what_it_made(runs: dict[str, rl.Run], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["trace", str(runs["ppo-traced"].path), "--out", str(tmp_path / "t.json.gz")]) == 0
    assert "6 segments" in capsys.readouterr().out
    assert read_trace(tmp_path / "t.json.gz")
    assert main(["trace", str(runs["ppo-traced"].path), "--out", str(tmp_path / "no" / "t.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_resumed_run_adds_to_its_trace(tmp_path: Path) -> None:
    settings = {**PPO, "total_updates": 2, "eval.episodes": 0, "eval.every": 0}
    run = rl.train("ppo", out=str(tmp_path), **settings)
    rl.resume(run.path, total_updates=4, trace=True)
    rl.resume(run.path, total_updates=6)
    events = read_trace(write_trace(run.path).path)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"launcher, epoch 1", "launcher, epoch 2", "main, epoch 1", "main, epoch 2", "samples"}


# ---------------------------------------------------------------------------------------------------------------- files
def recorded(path: Path) -> Process:
    return read_process(path)


def test_pieces_of_one_stage_become_one_slice_and_keep_their_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    recorder = TraceWriter(tmp_path / "a.bin", clock, about=ABOUT)
    timer = StageTimer(clock)
    timer.track = recorder.track("actor")
    for gap in (0.0, 5e-5, 5e-5, 0.5):
        clock.advance(gap)
        with timer.stage("sample"):
            clock.advance(0.001)
            with timer.wait():
                clock.advance(0.002)
    recorder.close()
    process = recorded(tmp_path / "a.bin")
    spans = process.of_kind(SPAN)
    assert spans[:, 4].tolist() == [3.0, 1.0]
    assert spans[:, 3].tolist() == pytest.approx([0.003, 0.001])
    assert (spans[0, 2] - spans[0, 1]) == pytest.approx(0.0091)
    assert len(process.of_kind(WAIT)) == 4
    assert timer.drain() == {"sample": pytest.approx(0.004)}


def test_a_full_file_counts_what_it_leaves_out(tmp_path: Path) -> None:
    clock = ManualClock()
    recorder = TraceWriter(tmp_path / "a.bin", clock, about=ABOUT, max_bytes=2000)
    track = recorder.track("actor")
    code = track.code(MARK, "reserve x")
    for _ in range(4):
        for _ in range(20):
            track.put(code, 1)
        recorder.flush()
    recorder.close()
    process = recorded(tmp_path / "a.bin")
    assert len(process.records) + process.left_out == 80
    assert process.left_out >= 40
    assert (tmp_path / "a.bin").stat().st_size < 3000


def test_a_disk_that_is_full_ends_the_trace_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = TraceWriter(tmp_path / "a.bin", ManualClock(), about=ABOUT)

    class Full:
        closed = False

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(recorder, "_file", Full())
    track = recorder.track("actor")
    for _ in range(3):
        track.put(track.code(MARK, "reserve x"), 1)
        recorder.flush()
    recorder.close()
    assert recorder.left_out == 2


def test_a_killed_process_leaves_what_it_had_written(tmp_path: Path) -> None:
    recorder = TraceWriter(tmp_path / "a.bin", ManualClock(), about=ABOUT)
    track = recorder.track("actor")
    for n in range(2):
        track.put(track.code(MARK, "reserve x"), n)
        recorder.flush()
    recorder.close()
    data = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "b.bin").write_bytes(data[:-RECORD])
    process = recorded(tmp_path / "b.bin")
    assert process.records[:, 2].tolist() == [0.0]
    assert "killed" in process.problem


@pytest.mark.parametrize(
    "junk", [b"", b"not json\n", b'{"runnel_trace": 1}\n', b'{"runnel_trace": 9}\n', b"[1]\n", b"\x00" * 80]
)
def test_a_file_that_is_no_trace_is_named(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(junk)
    with pytest.raises(ConfigError, match=r"x\.bin"):
        read_process(tmp_path / "x.bin")


def test_records_that_point_nowhere_are_left_out(tmp_path: Path) -> None:
    recorder = TraceWriter(tmp_path / "a.bin", ManualClock(), about=ABOUT)
    recorder.track("actor")
    recorder.block.extend((8 * (5 + 4096 * 77), 1.0, 0.0, 0.0, 0.0))
    recorder.block.extend((0, float("nan"), 0.0, 0.0, 0.0))
    recorder.close()
    assert len(recorded(tmp_path / "a.bin").records) == 0


def test_machines_with_clocks_of_their_own_are_aligned() -> None:
    """Node b started its clock 1,000 s later; its seconds 5 and those of node a at 1005 are the same moment."""
    a = Process("trainer", 0, 0, 1, "a", "boot-a", [(1000.0, 5000.0), (1001.0, 5001.0), (1002.0, 5002.25)])
    b = Process("actor-0", 0, 0, 1, "b", "boot-b", [(0.0, 5000.0), (1.0, 5001.0)])
    twin = Process("actor-1", 0, 0, 2, "b", "boot-b", [(2.0, 5002.0)])
    _align([a, b, twin])
    assert (a.shift_s, b.shift_s, twin.shift_s) == (0.0, 1000.0, 1000.0)


def test_a_process_that_was_started_again_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for incarnation in (0, 1 << 12):
        about = {"group": "actor-0", "epoch": 0, "incarnation": incarnation}
        recorder = TraceWriter(tmp_path / "trace" / f"actor-0-{incarnation}.bin", ManualClock(), about=about)
        recorder.track("actor-0").instant("x")
        recorder.close()
    events = read_trace(write_trace(tmp_path, tmp_path / "t.json").path)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"actor-0", "actor-0, start 2"}
    assert "actor-0 was started again" in {e["name"] for e in events if e["ph"] == "i"}
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["left_out"] == []
