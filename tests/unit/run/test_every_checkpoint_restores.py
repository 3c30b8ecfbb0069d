"""Every checkpoint that was ever written can be restored, however far actors lag; one that cannot is never the newest.

The supervisor and its members are the real ones; nodes and their channels are in this process (`nodes_in_process.py`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_run import experiment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nodes_in_process import ProcessHost, lags_of
from test_recovery_from_checkpoint import session_of, told

from runnel.core.errors import CheckpointError, UnrestorableError
from runnel.flow.inference.inline import InlineClient
from runnel.flow.staleness import StalenessConfig
from runnel.flow.workers.actor import ActorWorker
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import CheckpointConfig
from runnel.run import checkpoint
from runnel.run.checkpoint import Checkpoints, digest_of, write_parts
from runnel.run.launchers import inproc
from runnel.run.launchers.supervisor import Supervisor, supervise
from runnel.run.restorable import check_restorable
from runnel.run.session import Session

pytestmark = pytest.mark.filterwarnings("ignore:fell back", "ignore:metrics.jsonl is not what it was")


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for the disk is most of what so many checkpoints would take."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def asynchronous(max_lag: int, *, num_actors: int = 3, keep: int = 99, every: int = 3) -> Experiment:
    return experiment(
        num_actors,
        launcher="local",
        staleness=StalenessConfig(mode="window", max_lag=max_lag),
        checkpoint=CheckpointConfig(every=every, keep=keep),
    )


def trained(e: Experiment, path: Path, channel: str, script: dict[str, list[int]]) -> tuple[Session, ProcessHost]:
    """A run to its end, on nodes that get parameters as late as `script` says."""
    shutil.rmtree(path, ignore_errors=True)
    session = session_of(e, path)
    session.checkpoints = Checkpoints(session.folder.checkpoints, keep=e.config.checkpoint.keep)
    host = ProcessHost(session, channel=channel, late=lags_of(script))
    assert supervise(session, host) == "finished"
    session.ledger.close()
    return session, host


def restored(e: Experiment, path: Path, channel: str) -> tuple[Supervisor, ProcessHost]:
    """The run as it comes back from the checkpoint `path`, at work."""
    session = session_of(e, path.parents[1] / "again")
    session.restore(path, json.loads((path / "manifest.json").read_bytes()), [])
    host = ProcessHost(session, channel=channel)
    supervisor = Supervisor(session, host, {})
    supervisor.start()
    return supervisor, host


def loaded(host: ProcessHost) -> dict[str, tuple[int, float]]:
    """By actor with a policy of its own: the version that it has loaded, and its parameter."""
    found = {}
    for handle in host.handles.values():
        for worker in handle.member.group.workers:
            client = worker.clients["policy"] if isinstance(worker, ActorWorker) else None
            if isinstance(client, InlineClient) and client.version >= 0:
                found[worker.name] = (client.version, float(client._inferencer.w))  # type: ignore[attr-defined]
    return found


def saved(path: Path) -> dict[str, int]:
    """By actor, the version that a checkpoint says it had loaded."""
    files = {p.stem.removeprefix("worker-"): json.loads(p.read_bytes()) for p in path.glob("worker-actor-*.json")}
    return {name: state["clients"]["policy"]["version"] for name, state in files.items()}


LAGS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(max_lag=st.integers(1, 4), lags=st.tuples(LAGS, LAGS), channel=st.sampled_from(["local", "shm"]))
def test_every_checkpoint_of_lagging_actors_is_restored_as_it_was(
    max_lag: int, lags: tuple[list[int], list[int]], channel: str, tmp_path: Path
) -> None:
    """One actor follows closely, so that the run goes on; two are behind, by more versions than the channel keeps at times."""
    e = asynchronous(max_lag)
    session, host = trained(e, tmp_path / "run", channel, {"actor-1": lags[0], "actor-2": lags[1]})
    written = session.checkpoints.finished()
    assert [int(p.name[:9]) for p in written] == [3, 6, 9, 12, 15, 18, 20]
    for path in written:
        supervisor, again = restored(e, path, channel)
        expected = {name: (v, float(host.nodes.value_of(v)["w"])) for name, v in saved(path).items() if v >= 0}
        assert loaded(again) == expected, path
        version = supervisor.session.ledger.version
        while supervisor.session.ledger.version < min(version + 1, 20):
            supervisor._listen(0.0)
        supervisor.end()


def test_an_actor_further_behind_than_the_channel_keeps_has_its_parameters_saved(tmp_path: Path) -> None:
    """The case that was lost: its own node still has the version, the trainer's channel has not."""
    e = asynchronous(2)
    session, _ = trained(e, tmp_path / "run", "local", {"actor-1": [7]})
    behind = []
    for path in session.checkpoints.finished():
        client = json.loads((path / "worker-actor-1.json").read_bytes())["clients"]["policy"]
        kept = json.loads((path / "channel-policy.json").read_bytes())["versions"]
        if 0 <= client["version"] < min(map(int, kept)):
            behind.append(client["params"] is not None)
    assert len(behind) > 2
    assert all(behind)


# ------------------------------------------------------------------------------------------------------------ the barrier
def forget(monkeypatch: pytest.MonkeyPatch, *versions: int) -> None:
    """Actors leave out parameters that the checkpoint lacks, at barriers of these versions: what an older release did."""
    snapshot = InlineClient.snapshot

    def short(client: InlineClient, kept: Any = None) -> Any:
        state = snapshot(client, kept)
        return {**state, "params": None} if kept is not None and max(kept["policy"]) in versions else state

    monkeypatch.setattr(InlineClient, "snapshot", short)


def test_a_checkpoint_that_could_not_be_restored_is_never_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, 12, 15)
    session, _ = trained(asynchronous(2), tmp_path / "run", "local", {"actor-1": [7]})
    assert [int(p.name[:9]) for p in session.checkpoints.finished()] == [3, 6, 9, 18, 20]
    texts = [text for text in told(session) if "no checkpoint was written" in text]
    assert len(texts) == 2
    assert "worker 'actor-1' needs version 5 of 'policy', of which the checkpoint holds 9, 10, 11, 12" in texts[0]
    assert not list(session.checkpoints.folder.glob(".writing-*"))


def test_the_end_of_a_run_that_cannot_be_saved_whole_leaves_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch, 20)
    session, _ = trained(asynchronous(2), tmp_path / "run", "local", {"actor-1": [7]})
    _, manifest, _ = session.checkpoints.newest(("params",))
    assert (manifest["version"], manifest["whole"]) == (20, False)
    assert session.checkpoints.newest()[1]["version"] == 18


DAMAGE = {
    "worker-trainer.safetensors": "worker-trainer.safetensors",
    "channel-policy.json": "channel-policy.json is not there",
    "stream-play.json": "stream-play.json is not there",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_part_that_is_not_on_the_disk_is_seen_at_the_barrier(name: str, tmp_path: Path) -> None:
    session, _ = trained(asynchronous(2, num_actors=1, every=0), tmp_path / "run", "local", {})
    (path,) = session.checkpoints.finished()
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    kept = {"policy": [17, 18, 19, 20]}
    check_restorable(path, files, needed=session._needed(), kept=kept)
    (path / name).unlink()
    with pytest.raises(UnrestorableError, match=DAMAGE[name]):
        check_restorable(path, files, needed=session._needed(), kept=kept)
    part = name.partition(".")[0]
    with pytest.raises(UnrestorableError, match=f"it has no part '{part}'"):
        check_restorable(path, [f for f in files if not f.startswith(part)], needed=session._needed(), kept=kept)


def test_a_request_that_names_a_version_needs_it(tmp_path: Path) -> None:
    """Who asks a policy worker elsewhere saves no parameters: the worker would wait for ever for a version that is gone."""

    def check(version: int) -> None:
        client = {"channel": "policy", "version": 9, "requests": {"3": {"rows": {"x": torch.ones(1)}, "version": version}}}
        channel = {"versions": {"8": {"w": torch.ones(1)}}}
        files = write_parts(tmp_path, {"worker-actor-0": {"clients": {"policy": client}}, "channel-policy": channel})
        check_restorable(tmp_path, files, needed=(), kept={"policy": [8, 9]})

    for version in (-1, 8, 9):
        check(version)
    with pytest.raises(UnrestorableError, match="'actor-0' needs version 7 of 'policy', of which the checkpoint holds 8, 9"):
        check(7)


# ----------------------------------------------------------------------------------------------------------- falling back
def unrestorable(path: Path) -> None:
    """Make of a checkpoint what older releases wrote: its digests are right, and an actor's version is nowhere."""
    part = path / "worker-actor-1.json"
    state = json.loads(part.read_bytes())
    state["clients"]["policy"] |= {"version": 1, "params": None}
    part.write_bytes(json.dumps(state).encode())
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][part.name] = digest_of(part)
    del manifest["sha256"]
    (path / "manifest.json").write_text(json.dumps({**manifest, "sha256": checkpoint._digest(manifest)}))


@pytest.fixture
def left(tmp_path: Path) -> Session:
    """A run that ended at version 20, with checkpoints at 15, 18 and 20."""
    session, _ = trained(asynchronous(2, keep=3), tmp_path / "run", "local", {})
    return session


def gone_on(session: Session, launcher: str) -> Session:
    """The run again, as `runnel resume` does it."""
    e = session.experiment
    config = replace(e.config, launcher=launcher)
    again = session_of(replace(e, config=config), session.folder.path)
    again.hold()
    again.restore(*again.checkpoints.newest())
    if launcher == "inproc":
        assert inproc.launch(again) == "finished"
    else:
        assert supervise(again, ProcessHost(again)) == "finished"
    return again


@pytest.mark.parametrize("launcher", ["local", "inproc"])
def test_a_checkpoint_that_cannot_be_restored_falls_back_to_the_one_before(launcher: str, left: Session) -> None:
    unrestorable(left.checkpoints.finished()[-1])
    with pytest.warns(UserWarning, match=r"fell back to checkpoint 000000018: .*000000020 cannot be restored: "):
        again = gone_on(left, launcher)
    assert [row["version"] for row in again.folder.read_rows()[0] if row["kind"] == "update"] == list(range(1, 21))
    (text,) = [t for t in told(again) if "fell back" in t]
    assert "holds no parameters of the version that an actor had loaded: version 1 of 'policy'" in text
    assert len(list(again.checkpoints.folder.glob("damaged-000000020-*"))) == 1, "it is kept, for a person to look at"


@pytest.mark.parametrize("launcher", ["local", "inproc"])
def test_where_none_can_be_restored_the_error_says_why_and_the_run_stays_as_it_is(launcher: str, left: Session) -> None:
    for path in left.checkpoints.finished():
        unrestorable(path)
    names, rows = [p.name for p in left.checkpoints.finished()], left.folder.metrics.read_bytes()
    with pytest.raises(CheckpointError, match=r"000000020 cannot be restored: .*version 1 of 'policy'.*000000015 cannot be"):
        gone_on(left, launcher)
    assert [p.name for p in left.checkpoints.finished()] == names
    assert left.folder.metrics.read_bytes() == rows


def test_a_run_that_has_lost_its_learner_goes_back_behind_what_cannot_be_restored(left: Session) -> None:
    """As `supervise` does it, unattended."""
    unrestorable(left.checkpoints.finished()[-1])
    again = session_of(left.experiment, left.folder.path)
    again.started = True
    again.go_back("worker 'trainer' was lost")
    assert again.ledger.version == 20
    assert supervise(again, ProcessHost(again)) == "finished"
    assert [row["version"] for row in again.folder.read_rows()[0] if row["kind"] == "update"] == list(range(1, 21))
    assert "fell back to checkpoint 000000018" in "\n".join(told(again))
    assert torch.isfinite(again.checkpoints.newest_params().params["w"]).all()


def test_a_run_at_work_that_cannot_go_back_at_all_ends_and_loses_nothing(left: Session) -> None:
    for path in left.checkpoints.finished():
        unrestorable(path)
    names = [p.name for p in left.checkpoints.finished()]
    again = session_of(left.experiment, left.folder.path)
    again.started = True
    again.go_back("worker 'trainer' was lost")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        supervise(again, ProcessHost(again))
    assert [p.name for p in again.checkpoints.finished()] == names
    assert [row["version"] for row in again.folder.read_rows()[0] if row["kind"] == "update"] == list(range(1, 21))
    assert not again.held
