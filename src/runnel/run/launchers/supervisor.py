"""The supervisor of a run that has one process for each group, on this machine or on a cluster.

It does not train. It starts the groups, keeps the ledger, calls the user's callbacks, makes checkpoints at barriers, and
watches the groups.

- A group dies or sends no heartbeat, and its workers hold no state (actors, policy workers): the supervisor restarts it.
- The lost group is a trainer beside the leading one: it starts again from its part of the newest checkpoint, the others go on.
- The lost group held streams or the leading learner: the whole run restarts from its newest checkpoint, without a person.
- A group raises an error or hangs: the supervisor names it, saves the rest of the run, and ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from runnel.core.errors import (
    CheckpointError,
    ClusterLost,
    DeadlockError,
    DiskError,
    DiskFullError,
    EngineLost,
    NonFiniteError,
    RunnelError,
    UnrestorableError,
    WorkerFailure,
)
from runnel.core.framing import Message
from runnel.flow.transports.cluster.remote import PeerLost
from runnel.flow.workers.trainer import Arrival
from runnel.run.checkpoint import Checkpoints, write_parts
from runnel.run.launchers.deadlines import LIMIT, STALL, Deadlines
from runnel.run.launchers.groups import Child, RestoreFailed, RunLost, as_error
from runnel.run.launchers.heartbeat import STANDSTILL_S
from runnel.run.launchers.host import GroupHost
from runnel.run.session import Session
from runnel.track.folder import RunFolder

RESTART_WINDOW_S = 600.0
"""Length of the window in which restarts of a group are counted. More than `placement.max_restarts` in it end the run."""
EXIT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
"""Time that a failed group has to close its environments and engines."""
ROUND_S = 0.1
PARTING_S = 15.0
"""Time for the groups to pause, and again to save, after the cluster's head is lost. Ray kills them 60 s after the loss."""
OWN_LOSSES = {PeerLost.__name__: "has lost a node", EngineLost.__name__: "has lost its engine"}
"""Errors with a cause outside of the group that raised them: the group is restarted."""


def supervise(session: Session, host: GroupHost) -> str:
    """Run to the end; returns the status. No process is left behind, also after an error."""
    losses: dict[str, list[float]] = {}
    lost_at: float | None = None
    while True:
        supervisor = Supervisor(session, host, losses)
        try:
            supervisor.start()
            if lost_at is not None:
                session.ledger.recovered("the run", time.monotonic() - lost_at)
            return supervisor.run()
        except RunLost as loss:
            lost_at = time.monotonic()
            supervisor.end()
            session.go_back(str(loss))
        except RestoreFailed as failure:
            supervisor.end()
            session.fall_back(failure.error)
        except ClusterLost as loss:
            loss.add_note(supervisor.part())
            raise
        finally:
            supervisor.end()


class Supervisor:
    """All groups of a run, from one start to its end or to a loss."""

    def __init__(self, session: Session, host: GroupHost, losses: dict[str, list[float]]) -> None:
        self.session, self.config, self.host = session, session.experiment.config, host
        self._deadlines = Deadlines(self.config.placement.stage_timeout_s)
        self.children: dict[str, Child] = {}
        self._losses = losses
        self._active = [g for g, members in session.groups.items() if not all(map(session.experiment.is_idle, members))]
        self._paused = True
        self._is_up = False
        """Whether every group has started (from the checkpoint if there is one). From then on a group can restart alone."""
        self._restoring = False
        """Whether groups are loading their parts of a checkpoint: an error now means that the checkpoint cannot be restored."""
        self._kept: dict[str, list[int]] = {}
        """By parameter channel, the versions that a checkpoint at this barrier contains."""
        self._next_versions: dict[str, int] = {}
        """By trainer, the first version whose update can use a setting that is changed now."""
        self._gone: list[str] = []
        self._leaving: dict[str, Child] = {}
        self._comings: dict[str, int] = {}
        """How often each group has left because it was told to; it may be started again later."""
        self._moved = self._watched = time.monotonic()
        self._interrupted = False
        self._saving = False
        """Whether groups are writing a checkpoint: the supervisor waits for them even if the cluster's head is lost."""
        self._parting = False
        """Whether the cluster is about to end all processes: no group is started any more."""

    # --------------------------------------------------------------------------------------------------------- start
    def start(self) -> None:
        session = self.session
        self._open()
        for name in self._active:
            self.children[name] = self._handle(name)
        session.ledger.tick("starting processes")
        self._await("ready", list(self.children))
        self._restoring = session.resume_from is not None
        # Groups that read streams start first: they restore the slots that the writers then claim.
        live, added = Message(), session.new_tasks.replay()
        owners = [g for g in self._active if self._owns_streams(g)]
        for name in (*owners, *(g for g in self._active if g not in owners)):
            source = {"checkpoint": str(session.resume_from or ""), "init_from": self._init_from()}
            self._order(name, {"op": "start", **source, "changes": session.live.replay(), "tasks": self._for(name, added)})
            live |= self._await("started", [name])[0]["live"]
        self._restoring = False
        session.begin(live)
        self._is_up = True
        self._go()

    def _open(self) -> None:
        """Open the host. If a node is lost meanwhile and the run had started before, count that as one more loss."""
        try:
            self.host.open(self._active)
        except WorkerFailure as failure:
            if not self.session.started or not self._may_restart(failure.worker):
                raise
            raise RunLost(str(failure)) from failure

    def _handle(self, name: str) -> Child:
        """Start a group's process."""
        # The restart counter differs between epochs and between restarts inside an epoch (low 12 bits: the epoch), so that
        # messages of an earlier process of the same name are recognised and ignored.
        epoch, restarts = self.session.epoch, len(self._losses.get(name, ())) + self._comings.get(name, 0)
        return Child(name, self.host.start(name, {"epoch": epoch, "incarnation": epoch + (restarts << 12)}))

    def _owns_streams(self, group: str) -> bool:
        e, members = self.session.experiment, self.session.groups[group]
        return any(e.reader_of(s.name) in members for s in e.streams)

    def _init_from(self) -> str:
        if not self.config.init_from or self.session.resume_from is not None:
            return ""
        part = "params" if self.config.init == "params" else f"worker-{self.session.experiment.leader.name}"
        return str(Checkpoints(RunFolder.open(self.config.init_from).checkpoints).newest((part,))[0])

    # ----------------------------------------------------------------------------------------------------------- run
    def run(self) -> str:
        ledger, saved = self.session.ledger, self.session.ledger.version
        self._moved = time.monotonic()
        while True:
            self._listen(ROUND_S)
            self._watch()
            self._check_moving()
            status = self.session.should_stop()
            if status is not None:
                return self._finish(status)
            asked = self._obey()
            if asked or self.session.checkpoint_due(saved):
                self._barrier()
                saved = ledger.version
                self._go()
                self._moved = time.monotonic()
            ledger.tick()

    def _obey(self) -> bool:
        """Obey the user's orders (`runnel scale`, `checkpoint`); returns whether a checkpoint was ordered."""
        asked, orders = False, self.session.orders()
        settings, tasks = self.session.settings_ordered(orders), self.session.tasks_ordered(orders)
        if settings or tasks:
            self._change(settings)
        for order in orders:
            if order["op"] == "scale":
                for kind, number in order["numbers"].items():
                    self._scale(kind, number)
            asked = asked or order["op"] == "checkpoint"
        self._see_off()
        return asked

    def _change(self, settings: Message) -> None:
        """Change live settings, and add the tasks that wait: all trainers stand still between two updates, so each rank begins
        with the same version."""
        self._await_returns()
        self._pause(self._standing())
        if settings:
            self.session.live.record(settings, self._next_versions)
        added = self.session.added_at(self._next_versions)
        for name in self._standing():
            self._order(name, {"op": "set", "changes": self.session.live.replay(), "tasks": self._for(name, added)})
        self._go()
        self._moved = time.monotonic()

    def _for(self, name: str, added: Sequence[Arrival]) -> list[Arrival]:
        """New tasks as far as a group needs them: the leading trainer alone does."""
        return list(added) if self.session.experiment.leader.name in self.session.groups[name] else []

    def _scale(self, kind: str, number: int) -> None:
        """Set the number of workers of a kind: start groups that are missing, or stop the last ones."""
        numbered = [g for g in self.session.groups if g.rpartition("-")[0] == kind and g.rpartition("-")[2].isdigit()]
        for group in numbered[number:]:
            if group in self.children:
                self._dismiss(group)
        for group in numbered[:number]:
            if group not in self.children and group not in self._leaving:
                child = self.children[group] = self._handle(group)
                child.since, child.is_new = time.monotonic(), True
        number = min(number, len(numbered))
        told = f"scaled to {number} {kind} worker{'s' * (number != 1)}"
        self.session.ledger.note(told, what="order", about={"numbers": {kind: number}})

    def _dismiss(self, group: str) -> None:
        child = self.children.pop(group)
        child.handle.line.send({"op": "stop"})
        child.heard = time.monotonic()
        self._leaving[group] = child
        self._comings[group] = self._comings.get(group, 0) + 1

    def _see_off(self) -> None:
        """Remove groups that were told to leave, once they have ended or are late; free their reserved slots."""
        for group, child in list(self._leaving.items()):
            if not child.handle.died() and time.monotonic() - child.heard < EXIT_TIMEOUT_S:
                continue
            child.handle.end(0.0)
            del self._leaving[group]
            self._abandon(self.session.groups[group])
            self.session.ledger.forget(self.session.groups[group])

    def _abandon(self, workers: list[str]) -> None:
        for name in self.children:
            if self._owns_streams(name):
                self._order(name, {"op": "abandon", "workers": workers})

    def _go(self) -> None:
        self._paused = False
        for child in self.children.values():
            if child.since is None:
                child.handle.line.send({"op": "go"})

    def _finish(self, status: str) -> str:
        """Measure the last version and save the run; returns how it ended."""
        self._interrupt()
        self._pause(self._standing())
        owner = self._evaluates()
        if owner is not None and status != "interrupted":
            self._order(owner, {"op": "evaluate"})
            (answer,) = self._await("evaluated", [owner])
            status = status if answer["whole"] else "interrupted"
        self._barrier(last=True)
        return status

    def _evaluates(self) -> str | None:
        return next((g for g, members in self.session.groups.items() if "evaluator" in members), None)

    def _interrupt(self) -> None:
        """Abort a running evaluation when the user stops the run."""
        owner = self._evaluates()
        if self.session.interrupted.is_set() and not self._interrupted and owner in self.children:
            self._interrupted = True
            self._order(owner, {"op": "interrupt"})

    def _standing(self) -> list[str]:
        """Groups that are not restarting at the moment."""
        return [name for name, child in self.children.items() if child.since is None]

    def _barrier(self, *, last: bool = False) -> None:
        """Pause all groups between two versions and let each write its part. A missing group later starts without state."""
        self._await_returns()  # without its part the checkpoint could not be restored
        names = self._standing()
        self._pause(names)
        for whole in (kinds := self.session.checkpoint_kinds(last=last)):
            self._saving = True
            try:
                path = self.session.begin_checkpoint()
                self._save(path, [n for n in names if n in self._standing()], whole=whole)
                return
            except (DiskError, UnrestorableError) as error:
                self.session.drop_checkpoint(str(error))
                if last and whole is kinds[-1]:
                    raise
            finally:
                self._saving = False

    def _await_returns(self) -> None:
        """Wait for groups with a state that are restarting; `_watch` gives up one that hangs."""
        while any(child.since is not None and not self._is_stateless(name) for name, child in self.children.items()):
            self._listen(0.05)
            self._watch()

    def _save(self, path: Path, names: list[str], *, whole: bool) -> None:
        """Write the parts of all groups and of the ledger as one checkpoint."""
        session = self.session
        expected = [g for g in session.groups if g in self.children or g in self._gone]
        missing = [w for g in expected if g not in names for w in session.groups[g]]
        files: dict[str, str] = {}
        for name in names:
            self._order(name, {"op": "save", "path": str(path), "abandon": missing, "whole": whole, "kept": self._kept})
        answers = self._await("saved", names)
        if full := [answer["full"] for answer in answers if answer["full"]]:
            raise DiskFullError(full[0])
        for answer in answers:
            files |= answer["files"]
            session.ledger.streams |= answer["streams"]
            session.tell_damage(answer["told"])
        files |= write_parts(path, {"ledger": session.ledger.snapshot()} if whole else {})
        session.finish_checkpoint(path, files, left_out=missing, whole=whole, kept=self._kept)

    def _pause(self, names: list[str]) -> None:
        """Pause groups and wait until they have paused."""
        self._paused = True
        # Trainers first: each may be inside an update that its other ranks must finish with it.
        leading = {trainer.name for trainer in self.session.experiment.trainers}
        first = [n for n in names if leading & set(self.session.groups[n])]
        for some in (first, [n for n in names if n not in first]):
            for name in some:
                self._order(name, {"op": "pause"})
            for answer in self._await("paused", some):
                self._kept |= answer["kept"]
                for trainer, version in answer["next"].items():  # ranks of one may differ while it is inside a batch
                    self._next_versions[trainer] = max(version, self._next_versions.get(trainer, 0))

    # --------------------------------------------------------------------------------------------------------- lines
    def _order(self, name: str, message: Message) -> None:
        self.children[name].handle.line.send(message)

    def _listen(self, timeout_s: float) -> None:
        self.session.listen()
        self._interrupt()
        if not self._parting and not self._saving and (how := self.host.lost()):
            raise ClusterLost(how)
        self.host.wait([c.handle for c in self.children.values()], timeout_s)
        for child in list(self.children.values()):
            for message in child.handle.line.receive():
                self._hear(child, message)

    def _hear(self, child: Child, message: Message) -> None:
        child.heard = time.monotonic()
        if message["op"] not in ("beat", "stages") or message.get("moved"):
            child.moved = child.heard
        match message["op"]:
            case "beat":
                child.stages = {w: (stage, age, first) for w, (stage, age, first) in message["stages"].items()}
                child.held, child.waits = message["held"], message["waits"]
                self.session.ledger.note_cpu(child.name, message["cpu_s"])
                # A stage in progress counts: it has its own deadline, and the stall timeout is for runs in which all wait.
                if message["progressed"] or any(stage != "idle" for stage, _, _ in child.stages.values()):
                    self._moved = child.heard
            case "stages":
                self.session.ledger.add_stages(message["stages"])
            case "events":
                self.session.ledger.add_stages(message["stages"])
                self.session.ledger.add(message["events"])
                self._moved = time.monotonic()
            case "tick":
                self.session.ledger.tick(message["text"])
            case "error":
                self._find_dead_rank(message)
                if message["type"] in OWN_LOSSES:
                    first, _, rest = message["text"].partition("\n")
                    self._lost(child, f"{OWN_LOSSES[message['type']]}: {first}", rest and f"\n{rest}")
                    return
                if self._restoring:
                    raise RestoreFailed(as_error(message, self.session.ledger.version))
                self._fail(child, message["worker"], as_error(message, self.session.ledger.version))
            case "ready" if child.since is not None:
                again = {**self._again_from(child.name), "init_from": "", "changes": self.session.live.replay(), "tasks": []}
                child.handle.line.send({"op": "start", **again})
            case "started" if child.since is not None:
                if "told" in message and message["told"] is None:
                    raise RunLost(f"worker {child.name!r} was lost with its streams")
                self._back(child, message.get("told", ""))
            case _:
                child.answers.append(message)

    def _await(self, op: str, names: list[str]) -> list[Message]:
        """Wait for the reply `op` of each group; a group that does not reply and makes no progress is named in the error.

        A group that is lost meanwhile and restarts gives no reply.
        """
        limits, asked = self._deadlines, time.monotonic()
        limit = limits.start_s if op in ("ready", "started") else limits.limit_s
        found: dict[str, Message] = {}
        while True:
            for name in names:
                for answer in list(self.children[name].answers):
                    if answer["op"] == op:
                        self.children[name].answers.remove(answer)
                        found[name] = answer
            late = [n for n in names if n not in found and self.children[n].since is None]
            if not late:
                return [found[name] for name in names if name in found]
            self._listen(0.05)
            self._watch(silence=op != "ready")
            child = self.children[late[0]]
            busy = any(stage != "idle" for stage, _, _ in child.stages.values())  # each stage has its own deadline
            if self._parting and time.monotonic() - asked > PARTING_S:  # Ray kills the processes even while they work
                raise RunLost(f"worker {child.name!r} was not {op} within {PARTING_S:g} s")
            if child.since is None and not busy and time.monotonic() - max(asked, child.moved) > limit:
                if (quiet := time.monotonic() - child.heard) > STANDSTILL_S:
                    self._lost(child, f"has sent no heartbeat for {quiet:.1f} s, asked to be {op}; it is stopped or stuck")
                    continue
                text = f"was asked to be {op}, and has done nothing for {limit:g} s ({limits.named(limit)}); its stack:"
                self._fail(child, child.name, WorkerFailure(child.name, f"{text}\n{child.handle.stack()}"), raising=LIMIT)

    # ------------------------------------------------------------------------------------------------------ watching
    def _watch(self, *, silence: bool = True) -> None:
        self._extend_deadlines()
        for child in list(self.children.values()):
            if how := child.handle.died():
                self._died(child, how)
                continue
            if child.since is not None:
                self._watch_start(child)
                continue
            quiet = time.monotonic() - child.heard
            limit = self._deadlines.limit_s
            if silence and quiet > max(limit, STANDSTILL_S):
                what = f"has sent no heartbeat for {quiet:.1f} s ({self._deadlines.named(limit)}); it is stopped or stuck"
                self._lost(child, what)
        if silence:
            self._watch_stages()

    def _watch_start(self, child: Child) -> None:
        """Check a group that is restarting: it is lost if it makes no progress."""
        if child.handle.waits():
            child.moved = time.monotonic()
        limit = self._deadlines.start_s
        if (still := time.monotonic() - child.moved) > limit:
            self._lost(child, f"did not start: it has done nothing for {still:.0f} s ({self._deadlines.named(limit)})")

    def _watch_stages(self) -> None:
        e = self.session.experiment
        at_work, ranks = [c for c in self.children.values() if c.since is None], e.ranks_of(e.leader)
        found = self._deadlines.hung({w: stage for c in at_work for w, stage in c.stages.items()}, ranks)
        if found is None and (odd := self._deadlines.at_odds({w: age for c in at_work for w, age in c.held.items()}, ranks)):
            found = ranks[0], odd
        if found is not None:
            worker, text = found
            child = next(c for c in at_work if worker in c.stages)
            self._fail(child, worker, WorkerFailure(worker, f"{text}; its stack:\n{child.handle.stack()}"), raising=LIMIT)

    def _extend_deadlines(self) -> None:
        """Extend all deadlines by the time for which this process was suspended (Ctrl-Z, a long callback)."""
        now = time.monotonic()
        gap, self._watched = now - self._watched, now
        if gap > STANDSTILL_S:
            self._moved = min(self._moved + gap, now)
            for child in self.children.values():
                child.heard, child.moved = min(child.heard + gap, now), min(child.moved + gap, now)

    def _check_moving(self) -> None:
        if any(c.since is not None for c in self.children.values()):
            self._moved = time.monotonic()
        still = time.monotonic() - self._moved
        if still > self.config.placement.stall_timeout_s:
            waits = "; ".join(f"{w} waits for {what}" for c in self.children.values() for w, what in c.waits.items())
            limit = self.config.placement.stall_timeout_s
            error = DeadlockError(f"nothing has moved for {still:.0f} s ({STALL} = {limit:g}): {waits}")
            error.add_note(f"run folder: {self.session.folder.path}; {self.session.how_to_go_on(STALL)}")
            raise error

    # -------------------------------------------------------------------------------------------------------- losses
    def _died(self, child: Child, how: str) -> None:
        for message in child.handle.line.receive():  # its last messages may name the cause
            self._hear(child, message)
        tail = self.host.output()
        self._lost(child, how, f"; its last output:\n{tail}" if tail else "")

    def _find_dead_rank(self, message: Message) -> None:
        """After a `RankError`, look for the rank that died: it is the lost one, not the rank that raised the error."""
        # Wait a little: the error of a rank may arrive before the end of the other process is visible.
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while message["type"] == "RankError" and time.monotonic() < deadline:
            for child in list(self.children.values()):
                if how := child.handle.died():
                    self._lost(child, how)
            time.sleep(0.05)

    def _lost(self, child: Child, how: str, output: str = "") -> None:
        """Handle the loss of a group without an error of its own: restart it, restart the run from a checkpoint, or give up."""
        members = self.session.groups[child.name]
        detail = f"{how} (workers: {', '.join(members)})" if members != [child.name] else how
        child.handle.end(0.0)  # it may only be stuck: two processes of one name must never run
        if self._parting:
            raise RunLost(f"worker {child.name!r} {detail}")
        if not self._may_restart(child.name):
            raising = LIMIT if LIMIT in how else ""
            self._fail(child, child.name, WorkerFailure(child.name, detail + output), raising=raising)
        if not self._is_up or not (self._is_stateless(child.name) or self._is_second_trainer(child.name)):
            raise RunLost(f"worker {child.name!r} {detail}")
        self.session.ledger.lost(f"worker {child.name!r} {detail}", "starting it again")
        # Free the slots of the lost process before its successor asks for new ones. A trainer has none, and owns its streams.
        if self._is_stateless(child.name):
            self._abandon(members)
        again = self._handle(child.name)
        again.since = child.since or time.monotonic()
        self.children[child.name] = again

    def _may_restart(self, name: str) -> bool:
        """Note a loss of the group; returns whether it may restart once more."""
        now, past = time.monotonic(), self._losses.setdefault(name, [])
        past.append(now)
        recent = [t for t in past if now - t < RESTART_WINDOW_S]
        return len(recent) <= self.config.placement.max_restarts

    def _is_stateless(self, group: str) -> bool:
        return all(self.session.experiment.is_stateless(w) and w != "evaluator" for w in self.session.groups[group])

    def _is_second_trainer(self, group: str) -> bool:
        """Whether the group is a trainer that does not lead, alone: others go on without it, and it joins them again."""
        e = self.session.experiment
        return self.session.groups[group] in [
            e.ranks_of(trainer) for trainer in e.trainers[1:] if len(e.ranks_of(trainer)) == 1
        ]

    def _again_from(self, group: str) -> Message:
        """From what a group that was lost starts again: a second trainer from the newest checkpoint, others from nothing."""
        if not self._is_second_trainer(group):
            return {"checkpoint": ""}
        try:
            path = self.session.checkpoints.newest()[0]
        except CheckpointError:
            return {"checkpoint": "", "rejoins": True}
        return {"checkpoint": str(path), "rejoins": True}

    def _back(self, child: Child, told: str = "") -> None:
        assert child.since is not None, "it was lost"
        seconds, child.since = time.monotonic() - child.since, None
        if told:
            self.session.ledger.note(f"worker {child.name!r}: {told}", level="warning")
        if child.is_new:
            self.session.ledger.note(f"worker {child.name!r} has joined after {seconds:.1f} s", what="order")
        else:
            self.session.ledger.recovered(f"worker {child.name!r}", seconds)
        if not self._paused:
            child.handle.line.send({"op": "go"})

    def _fail(self, child: Child, worker: str, error: Exception, *, raising: str = "") -> None:
        """End the run with `error`; first save the rest of the run if the learner is not affected.

        `raising` names the setting that would have given the group more time.
        """
        child.handle.end(CLOSE_TIMEOUT_S)
        whole = self._is_stateless(child.name) and not isinstance(error, NonFiniteError)
        if whole and self.session.started and self.session.ledger.version > 0 and not self._gone and not self._parting:
            self._gone.append(child.name)
            del self.children[child.name]
            try:
                self.session.ledger.note(str(error).partition("\n")[0], level="error")
                self._barrier()
            except DiskError as full:
                error.add_note(f"the rest of the run could not be saved: {full}")
        error.add_note(f"run folder: {self.session.folder.path}; {self.session.how_to_go_on(raising)}")
        raise error

    def part(self) -> str:
        """Save the run before the cluster ends all processes; returns what was saved, as text."""
        self._parting = True
        ledger, became = self.session.ledger, "progress after the newest checkpoint is lost. "
        if self._is_up and ledger.version > 0:
            try:
                self._barrier()
                became = f"the run was saved at version {ledger.version}. "
            except (RunLost, RunnelError) as problem:
                ledger.note(f"the last checkpoint could not be written: {problem}", level="warning")
        if not self.session.checkpoints.finished():
            became = ""
        return f"{became}run folder: {self.session.folder.path}; {self.session.how_to_go_on()}"

    # ----------------------------------------------------------------------------------------------------------- end
    def end(self) -> None:
        """Stop all groups and close the host. A second call does nothing."""
        # All are told before any is waited for, so that they share one timeout.
        children = [*self.children.values(), *self._leaving.values()]
        for child in children:
            child.handle.line.send({"op": "stop"})
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for child in children:
            child.handle.end(max(0.1, deadline - time.monotonic()))
        self.children.clear()
        self._leaving.clear()
        self.host.close()
