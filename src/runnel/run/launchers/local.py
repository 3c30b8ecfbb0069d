"""The local launcher: one process per group on this machine, over shared memory.

This process trains nothing. It starts the groups, keeps the ledger, calls the user's callbacks, makes checkpoints at
barriers, and watches: a group that dies, hangs or falls silent is named, and what is left of the run is saved.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from runnel.core.errors import DeadlockError, NonFiniteError, WorkerFailure
from runnel.flow.transports.shm import Doorbells
from runnel.run.checkpoint import Checkpoints, write_parts
from runnel.run.launchers.child import ORDERS, STANDSTILL_S
from runnel.run.launchers.line import Line, Message
from runnel.run.session import Session
from runnel.run.wiring import Edges
from runnel.track.folder import RunFolder

START_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
"""A group that failed has so long to let go of what it holds (environments, engines)."""


def launch(session: Session) -> str:
    """Run to the end; returns the status. However it ends, no process is left behind."""
    cluster = Cluster(session)
    try:
        cluster.start()
        return cluster.run()
    finally:
        cluster.end()


class Child:
    """A group's process as the launcher sees it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], line: Line, stack_file: Path) -> None:
        self.name, self.process, self.line, self.stack_file = name, process, line, stack_file
        self.heard = time.monotonic()
        self.stages: dict[str, tuple[str, float]] = {}
        self.waits: dict[str, str] = {}
        self.answers: list[Message] = []

    def stack(self) -> str:
        """Where the process is now, if it can still say so."""
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and self.stack_file.stat().st_size == 0:
            time.sleep(0.02)
        time.sleep(0.1)
        return self.stack_file.read_text() or "(it does not answer)"


class Cluster:
    """All groups of a run."""

    def __init__(self, session: Session) -> None:
        self.session, self.config = session, session.experiment.config
        self.children: dict[str, Child] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="runnel-")
        self._moved = self._watched = time.monotonic()
        self._fds: list[int] = []

    # --------------------------------------------------------------------------------------------------------- start
    def start(self) -> None:
        session = self.session
        fds = Edges(session.experiment, session.groups).allocate()
        pipes = Doorbells.make(list(session.groups))
        self._fds = [*fds.values(), *(fd for pair in pipes.values() for fd in pair)]
        log = session.folder.log.open("ab")
        for name in session.groups:
            self.children[name] = self._spawn(name, fds, pipes, log)
        log.close()
        session.ledger.tick("starting processes")
        self._await("ready", list(self.children), START_TIMEOUT_S)
        owners = [g for g, members in session.groups.items() if self._owns_streams(members)]
        for name in (*owners, *(g for g in session.groups if g not in owners)):
            self._order(name, {"op": "start", "checkpoint": str(session.resume_from or ""), "init_from": self._init_from()})
            self._await("started", [name], START_TIMEOUT_S)
        session.started = True
        self._tell_all({"op": "go"})

    def _owns_streams(self, members: list[str]) -> bool:
        e = self.session.experiment
        return any(e.reader_of(s.name) in members for s in e.streams)

    def _init_from(self) -> str:
        if self.session.warm_params is None:
            return ""
        return str(Checkpoints(RunFolder.open(self.config.init_from).checkpoints).newest()[0])

    def _spawn(self, name: str, fds: dict[str, int], pipes: dict[str, tuple[int, int]], log: Any) -> Child:
        ours, theirs = socket.socketpair()
        stack_file = Path(self._scratch.name) / f"{name}.stack"
        stack_file.touch()
        orders = {
            "run": str(self.session.folder.path.resolve()),
            "group": name,
            "fds": fds,
            "pipes": pipes,
            "control": theirs.fileno(),
            "parent": os.getpid(),
            "epoch": self.session.epoch,
            "stack_file": str(stack_file),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from runnel.run.launchers.child import main; sys.exit(main())"],
            env={**os.environ, ORDERS: json.dumps(orders), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            pass_fds=[*self._fds, theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        theirs.close()
        return Child(name, process, Line(ours), stack_file)

    # ----------------------------------------------------------------------------------------------------------- run
    def run(self) -> str:
        ledger, saved = self.session.ledger, self.session.ledger.version
        self._moved = time.monotonic()
        while True:
            self._listen(0.1)
            self._watch()
            self._check_moving()
            status = self.session.should_stop()
            if status is not None:
                self._finish(status)
                return status
            if self.session.checkpoint_due(saved):
                self._barrier()
                saved = ledger.version
                self._tell_all({"op": "go"})
                self._moved = time.monotonic()
            ledger.tick()

    def _finish(self, status: str) -> None:
        self._pause(list(self.children))
        owner = next((g for g, members in self.session.groups.items() if "evaluator" in members), None)
        if owner is not None and status != "interrupted":
            self._order(owner, {"op": "evaluate"})
            self._await("evaluated", [owner], None)
        self._barrier()

    def _barrier(self, *, lost: str = "") -> None:
        """Everyone stops at the end of a poll, on a version boundary, and writes its own part."""
        session, names = self.session, [n for n in self.children if n != lost]
        self._pause(names)
        path = session.checkpoints.begin(session.ledger.version)
        abandon = session.groups[lost] if lost else []
        files: dict[str, str] = {}
        for name in names:
            self._order(name, {"op": "save", "path": str(path), "abandon": abandon})
        for answer in self._await("saved", names, self.config.placement.stage_timeout_s):
            files |= answer["files"]
            session.ledger.streams |= answer["streams"]
        files |= write_parts(path, {"ledger": session.ledger.snapshot()})
        session.finish_checkpoint(path, files, left_out=abandon)

    def _pause(self, names: list[str]) -> None:
        for name in names:
            self._order(name, {"op": "pause"})
        self._await("paused", names, self.config.placement.stage_timeout_s)

    # --------------------------------------------------------------------------------------------------------- lines
    def _order(self, name: str, message: Message) -> None:
        self.children[name].line.send(message)

    def _tell_all(self, message: Message) -> None:
        for name in self.children:
            self._order(name, message)

    def _listen(self, timeout_s: float) -> None:
        select.select([c.line for c in self.children.values() if not c.line.closed], [], [], timeout_s)
        for child in self.children.values():
            for message in child.line.receive():
                self._hear(child, message)

    def _hear(self, child: Child, message: Message) -> None:
        child.heard = time.monotonic()
        match message["op"]:
            case "beat":
                child.stages = {w: (stage, age) for w, (stage, age) in message["stages"].items()}
                child.waits = message["waits"]
                if any(stage != "idle" for stage, _ in child.stages.values()):
                    self._moved = time.monotonic()
            case "events":
                self.session.ledger.add_stages(message["stages"])
                self.session.ledger.add(message["events"])
                self._moved = time.monotonic()
            case "tick":
                self.session.ledger.tick(message["text"])
            case "error":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(CLOSE_TIMEOUT_S)
                self._fail(child, message["worker"], _as_error(message))
            case _:
                child.answers.append(message)

    def _await(self, op: str, names: list[str], timeout_s: float | None) -> list[Message]:
        """The answer `op` of each of `names`; who does not give it in time is named."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found: dict[str, Message] = {}
        while len(found) < len(names):
            for name in names:
                for answer in list(self.children[name].answers):
                    if answer["op"] == op:
                        self.children[name].answers.remove(answer)
                        found[name] = answer
            if len(found) == len(names):
                break
            self._listen(0.05)
            self._watch(silence=op != "ready")
            if deadline is not None and time.monotonic() > deadline:
                late = next(n for n in names if n not in found)
                stack = self.children[late].stack()
                self._fail(
                    self.children[late], late, WorkerFailure(late, f"did not answer {op!r} in {timeout_s:g} s:\n{stack}")
                )
        return [found[name] for name in names]

    # ------------------------------------------------------------------------------------------------------ watching
    def _watch(self, *, silence: bool = True) -> None:
        limit = self.config.placement.stage_timeout_s
        self._forgive()
        for child in self.children.values():
            if child.process.poll() is not None:
                self._died(child)
            if not silence:
                continue
            quiet = time.monotonic() - child.heard
            if quiet > max(limit, 2.0):
                error = WorkerFailure(
                    child.name, f"has sent no heartbeat for {quiet:.1f} s (limit {limit:g} s); it is stopped or stuck"
                )
                self._fail(child, child.name, error)
            for worker, (stage, age) in child.stages.items():
                if stage != "idle" and age > limit:
                    text = f"hung in stage {stage!r} for {age:.1f} s (limit {limit:g} s); its stack:\n{child.stack()}"
                    self._fail(child, worker, WorkerFailure(worker, text))

    def _forgive(self) -> None:
        """Nobody is to blame for the time in which this process itself stood still (Ctrl-Z, a long callback)."""
        now = time.monotonic()
        gap, self._watched = now - self._watched, now
        if gap > STANDSTILL_S:
            self._moved = min(self._moved + gap, now)
            for child in self.children.values():
                child.heard = min(child.heard + gap, now)

    def _check_moving(self) -> None:
        still = time.monotonic() - self._moved
        if still > self.config.placement.stall_timeout_s:
            waits = "; ".join(f"{w} waits for {what}" for c in self.children.values() for w, what in c.waits.items())
            raise DeadlockError(f"nothing has moved for {still:.0f} s: {waits}")

    def _died(self, child: Child) -> None:
        for message in child.line.receive():
            self._hear(child, message)
        code = child.process.returncode
        how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        members = ", ".join(self.session.groups[child.name])
        tail = self.session.folder.log.read_text(errors="replace")[-2000:]
        detail = f"{how} (process {child.process.pid}, workers: {members})" + (f"; its last output:\n{tail}" if tail else "")
        self._fail(child, child.name, WorkerFailure(child.name, detail))

    def _fail(self, child: Child, worker: str, error: Exception) -> None:
        """Name the culprit; save what is left if the learner is not touched; end the run."""
        child.process.kill()
        child.process.wait()
        whole = "trainer" not in self.session.groups[child.name] and not isinstance(error, NonFiniteError)
        if whole and self.session.started and self.session.ledger.version > 0 and not self._failing():
            del self.children[child.name]
            self.session.ledger.note(str(error).partition("\n")[0], level="error")
            self._barrier(lost=child.name)
        error.add_note(f"run folder: {self.session.folder.path}; go on with `runnel resume {self.session.folder.path}`")
        raise error

    def _failing(self) -> bool:
        """A second failure while the first is being saved ends the run without another attempt."""
        return len(self.children) < len(self.session.groups)

    # ----------------------------------------------------------------------------------------------------------- end
    def end(self) -> None:
        self._tell_all({"op": "stop"})
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for child in self.children.values():
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.line.close()
        for fd in self._fds:
            os.close(fd)
        self._scratch.cleanup()


def _as_error(message: Message) -> Exception:
    if message["type"] == "NonFiniteError":
        return NonFiniteError(message["tensor"], message["step"], message["detail"])
    text = f"failed with {message['type']}: {message['text']}"
    error = WorkerFailure(message["worker"], text)
    error.add_note(message["traceback"])
    return error
