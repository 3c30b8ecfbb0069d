"""A process group: the workers that live in one process, polled in a fixed order.

`round` is the whole in-process launcher: single-threaded, deterministic, and steppable in a debugger. A child process of
the local launcher runs the same rounds over fewer workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch

from runnel.core.accounting import Accounting
from runnel.core.contracts.learning import HasReference, HasRng, Learner, LoadsInitialParams, Sharded, StartsPartly
from runnel.core.errors import CheckpointError
from runnel.core.sharding.param_shards import has_pieces, join_pieces
from runnel.core.state import State, WorkerEvent
from runnel.core.trace import TraceWriter
from runnel.core.user_code import brief
from runnel.core.weight_check import split
from runnel.core.worker import Worker
from runnel.flow.params import Channel, Kept
from runnel.flow.slot_memory import PACE, consumed_in
from runnel.flow.slots import SlotTable
from runnel.flow.workers.actor import ActorWorker
from runnel.flow.workers.evaluator import EvaluatorWorker
from runnel.flow.workers.ranks import FollowingTrainer, LeadingTrainer
from runnel.flow.workers.settings import Change
from runnel.flow.workers.trainer import Arrival, TrainerWorker
from runnel.flow.workers.transform import TransformWorker
from runnel.run.tracing import UpdateCounts


class ProcessGroup:
    """Workers, with the streams that they read (and so save) and the channels that they publish."""

    def __init__(
        self,
        name: str,
        workers: list[Worker],
        tables: Mapping[str, SlotTable],
        channels: Mapping[str, Channel],
        writers: Mapping[str, list[str]],
        recorder: TraceWriter | None = None,
    ) -> None:
        self.name, self.workers, self.tables, self.channels = name, workers, tables, channels
        self._writers = writers
        self._recorder, self._counts = recorder, None if recorder is None else UpdateCounts(recorder)
        self._log: list[WorkerEvent] = []
        self._first: list[Worker] = []
        """Workers that the next round polls first, in addition to their own turn."""
        self.polling: Worker | None = None

    @property
    def trainer(self) -> TrainerWorker | None:
        """The leading trainer, if it lives here."""
        return next((w for w in self.workers if isinstance(w, TrainerWorker) and w.leads), None)

    @property
    def ranks(self) -> list[TrainerWorker | FollowingTrainer]:
        """The ranks of all trainers that live here."""
        return [w for w in self.workers if isinstance(w, TrainerWorker | FollowingTrainer)]

    def live(self) -> dict[str, State]:
        """The live settings that learners here take: by trainer, `names`, and the `members` that have values of their own."""
        return {r.trainer: {"names": r.changes.names, "members": r.changes.members} for r in self.ranks if r.changes.names}

    def next_versions(self) -> dict[str, int]:
        """By trainer, the first version whose update can use a changed setting."""
        return {rank.trainer: rank.next_version for rank in self.ranks}

    def change_settings(self, changes: Sequence[Change]) -> None:
        """Make `changes` of settings, each at its version; they replace all that were given before."""
        for rank in self.ranks:
            rank.changes.replace([change for change in changes if change["trainer"] == rank.trainer])

    def add_tasks(self, arrivals: Sequence[Arrival]) -> None:
        """New tasks for the leading trainer, if it lives here; each counts from its version on."""
        if self.trainer is not None:
            self.trainer.add_tasks(arrivals)

    @property
    def evaluator(self) -> EvaluatorWorker | None:
        return next((w for w in self.workers if isinstance(w, EvaluatorWorker)), None)

    def start(self, states: Mapping[str, State] | None = None, *, epoch: int = 0) -> list[str]:
        """Set every worker up, from `states` (parts of a checkpoint) if there are any. Returns workers without a state.

        The trainer goes first: others load the parameters that it publishes.
        """
        fresh = []
        if states is not None:
            states = _joined(states)
            for name, table in self.tables.items():
                table.restore(states[f"stream-{name}"])
                table.set_epoch(epoch)
                self._abandon_fresh(name, table, states)
            for name, channel in self.channels.items():
                channel.restore(states[f"channel-{name}"])
        for worker in sorted(self.workers, key=lambda w: not isinstance(w, TrainerWorker)):
            if states is not None and isinstance(worker, FollowingTrainer):
                worker.restore({"leader": states[f"worker-{worker.leader}"], "own": states.get(f"worker-{worker.name}")})
            elif states is not None and f"worker-{worker.name}" in states:
                worker.restore(states[f"worker-{worker.name}"])
            elif states is not None:
                fresh.append(worker.name)
            worker.setup()
        evaluator = self.evaluator
        if evaluator is not None and evaluator.owes:  # the version that it owes is still the newest, but not for long
            self._first = [evaluator]
        return fresh

    def rejoin(self, states: Mapping[str, State] | None) -> str | None:
        """Start a trainer that was lost while all others went on; `states` are the newest checkpoint, if there is one.

        Its learner is that of the checkpoint, its streams and its channel are as they are now. Versions only grow, so it goes
        on with the number after the newest that it had published. Returns what was lost, in words; None if its streams are lost
        too (with their node), so that it cannot join.
        """
        (trainer,) = self.workers
        assert isinstance(trainer, TrainerWorker), "only a trainer that is alone in its process joins again"
        newest, before = self.channels[trainer.channel].newest(), dict.fromkeys(self.tables, 0)
        if states is not None:
            # without the parts of a batch in progress: their segments are given out again
            trainer.restore({**states[f"worker-{trainer.name}"], "parts": []})
            for name, table in self.tables.items():
                before[name] = consumed_in(states[f"stream-{name}"], PACE, len(table.spec.all_readers))
        if newest < 0 or any(table.accounting(PACE).consumed < before[name] for name, table in self.tables.items()):
            return None
        was, lost = trainer.version, sum(table.take_back(PACE, before[name]) for name, table in self.tables.items())
        trainer.version = max(was, newest + 1)
        trainer.setup()
        return f"its learner is that of version {was}, {lost} rows that it had trained on since are lost with it"

    def _abandon_fresh(self, stream: str, table: SlotTable, states: Mapping[str, State]) -> None:
        """Cancel the slots of writers that are not in the checkpoint, and drop what such readers held: they start afresh."""
        for index, writer in enumerate(self._writers[stream]):
            if f"worker-{writer}" not in states:
                table.cancel_writer(index, "worker_lost")
        for index, reader in enumerate(table.spec.all_readers):
            if reader in table.spec.lossy_readers and f"worker-{reader}" not in states:
                table.drop_held(index, "worker_lost")

    def warm_start(self, params: Mapping[str, torch.Tensor], source: str) -> None:
        """Start the learner from the parameters of another run, and publish them."""
        trainer = next((w for w in self.workers if isinstance(w, TrainerWorker | FollowingTrainer) and w.leads), None)
        if trainer is None:
            return
        learner = trainer.learner
        own = learner.pieces() if isinstance(learner, Sharded) else _started(learner)
        wrong = [name for name, x in own.items() if name not in params or params[name].shape != x.shape]
        if wrong:
            raise CheckpointError(f"init_from {source!r}: {wrong[0]!r} is missing or has another shape; use the same network")
        if isinstance(learner, LoadsInitialParams):
            learner.start_from(params)
        else:
            with torch.no_grad():
                for name, tensor in learner.params().items():
                    tensor.copy_(params[name])
        if isinstance(trainer, TrainerWorker):  # the leading rank speaks for all
            trainer.emit(_told_start(learner, source))
        trainer.setup()  # publishes the new parameters

    def take_learner(self, states: Mapping[str, State], source: str) -> None:
        """Start the leading learner from the whole state of another run's, and publish it. `states`: the parts of its ranks."""
        trainer = next((w for w in self.workers if isinstance(w, TrainerWorker | FollowingTrainer) and w.leads), None)
        if trainer is None:
            return
        name = trainer.leader if isinstance(trainer, FollowingTrainer) else trainer.name
        found = _joined(states)[f"worker-{name}"]
        version, state = found["version"], {k: 0 if _is_version(k) else v for k, v in found["learner"].items()}
        try:
            trainer.learner.load_state_dict(state)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:  # what learners raise for other states
            fix = f"it has another form ({brief(str(error))}); use the same recipe and network, or --init params"
            raise CheckpointError(f"init_from {source!r}: the learner of that run does not fit this one: {fix}") from error
        if isinstance(trainer.learner, HasReference) and trainer.learner.frozen():
            fix = "its reference was fixed at a version of that run; use --init params, which fixes a new one"
            raise CheckpointError(f"init_from {source!r}: {fix}")
        if isinstance(trainer, FollowingTrainer) and isinstance(trainer.learner, HasRng):
            trainer.learner.reseed(0)
        if isinstance(trainer, TrainerWorker):
            taken = f"init_from {source!r}: took the whole learner of version {version}"
            others = "environments, streams, replay memory, counts, schedules, other trainers"
            trainer.emit({"kind": "event", "level": "info", "text": f"{taken}. Not taken, and so begun anew: {others}"})
        trainer.setup()

    def round(self) -> int:
        """Poll each worker once. Returns the work done; 0 means that every one of them waits."""
        work = 0
        first, self._first = self._first, []
        for worker in (*first, *self.workers):
            self.polling = worker
            work += worker.poll()
            self._note(worker)
        self.polling = None
        return work

    def _note(self, worker: Worker) -> None:
        """Keep the events of a worker in their order. An update event gets the stream accounts of that moment."""
        for event in worker.drain():
            if event["kind"] in ("update", "beside"):
                event["streams"] = {k: dict(vars(v)) for k, v in self.accounting().items()}
                if self._counts is not None and event["kind"] == "update":
                    self._counts.add(worker, event)
            self._log.append({**event, "worker": worker.name})

    def abandon(self, worker: str) -> int:
        """A worker is lost: what it had reserved on our streams is cancelled, what it held as a lossy reader is dropped.
        Returns the rows."""
        rows = 0
        for stream, table in self.tables.items():
            if worker in self._writers[stream]:
                rows += table.cancel_writer(self._writers[stream].index(worker), "worker_lost")
            if worker in table.spec.lossy_readers:
                rows += table.drop_held(table.spec.all_readers.index(worker), "worker_lost")
        return rows

    def evaluate(self) -> bool:
        """Measure the newest version now, if an evaluator lives here; returns whether it was not interrupted."""
        if self.evaluator is None:
            return True
        self.evaluator.evaluate()
        self._note(self.evaluator)
        return not self.evaluator.owes

    def collect(self) -> list[WorkerEvent]:
        """The events of workers since the last call."""
        log, self._log = self._log, []
        return log

    def has_events(self) -> bool:
        return bool(self._log)

    def stages(self) -> dict[str, float]:
        """Seconds by `worker/stage` since the last call."""
        return {f"{w.name}/{stage}": s for w in self.workers for stage, s in w.timer.drain().items()}

    def accounting(self) -> dict[str, Accounting]:
        """By stream the account of the reader that paces it; by `stream:reader` those of its other readers."""
        found = {}
        for name, table in self.tables.items():
            for index, reader in enumerate(table.spec.all_readers):
                found[f"{name}:{reader}" if index else name] = table.accounting(index)
        return found

    def check(self) -> None:
        """At a barrier: every stream adds up for each reader, and what a transform holds is what the streams say it holds."""
        for name, account in self.accounting().items():
            account.check(name)
        for worker in self.workers:
            if isinstance(worker, TransformWorker):
                worker.check()

    def waits(self) -> dict[str, str]:
        return {w.name: w.waits_for() for w in self.workers}

    def kept(self) -> dict[str, list[int]]:
        """By channel of this group, the versions that a checkpoint made now holds of it."""
        return {name: sorted(channel.stamps()) for name, channel in self.channels.items()}

    def snapshot(self, *, without: str = "", whole: bool = True, kept: Kept | None = None) -> dict[str, State]:
        """The parts of a checkpoint that this group owns, by file name; a lost worker is left out. Unless `whole`, only what
        acting needs. `kept` are the versions that the checkpoint holds, where the channels are those of another group."""
        parts: dict[str, State] = {}
        if whole:
            parts |= {f"worker-{w.name}": _saved(w, kept) for w in self.workers if w.name != without}
            parts |= {f"stream-{name}": table.snapshot() for name, table in self.tables.items()}
            parts |= {f"channel-{name}": channel.snapshot() for name, channel in self.channels.items()}
        for trainer in self.workers:
            if isinstance(trainer, TrainerWorker):
                parts["params" if trainer.leads else f"params-{trainer.name}"] = _published(trainer)
        return parts

    def close(self) -> None:
        """Close every worker, also when one of them fails to."""
        with ExitStack() as stack:
            if self._recorder is not None:
                stack.callback(self._recorder.close)
            for worker in reversed(self.workers):
                stack.callback(worker.close)


def _saved(worker: Worker, kept: Kept | None) -> State:
    return worker.snapshot(kept) if isinstance(worker, ActorWorker | TransformWorker) else worker.snapshot()


def _published(trainer: TrainerWorker) -> dict[str, torch.Tensor]:
    """The parameters of a trainer's newest version."""
    if isinstance(trainer, LeadingTrainer) and isinstance(trainer.learner, Sharded):
        return dict(split(trainer.publisher.views(trainer.version))[0])  # all ranks have written there
    return dict(trainer.learner.params())


def _is_version(entry: str) -> bool:
    """Whether an entry of a learner's state counts its updates: it begins at 0 in another run. (`red/version`: of a team.)"""
    return entry.rpartition("/")[2] == "version"


def _started(learner: Learner) -> Mapping[str, torch.Tensor]:
    """The parameters that a warm start replaces: those that the learner publishes, unless it names others."""
    return learner.base_params() if isinstance(learner, LoadsInitialParams) else learner.params()


def _told_start(learner: Learner, source: str) -> WorkerEvent:
    """The event that says which parts were taken from `source`, and which begin anew."""
    taken = f"init_from {source!r}: started from the parameters which that run published"
    if not isinstance(learner, StartsPartly):
        return {"kind": "event", "level": "info", "text": f"{taken}; all else (the optimiser first of all) begins anew"}
    missing = ", ".join(learner.not_taken())
    text = f"{taken}. Not taken, and so begun anew: {missing}. The policy may get worse before it gets better"
    return {"kind": "event", "level": "warning", "text": text}


def _joined(states: Mapping[str, State]) -> Mapping[str, State]:
    """Parts of a checkpoint in which the learner of rank 0 has the pieces of all ranks of its trainer, if it was saved in
    pieces. They stay in their files until rows of them are asked for."""
    joined = dict(states)
    for name, leader in states.items():
        if name.startswith("worker-") and "version" in leader and has_pieces(leader["learner"]):
            others = {k: v for k, v in states.items() if k.startswith(f"{name}-") and k.removeprefix(f"{name}-").isdecimal()}
            joined |= {k: {field: v for field, v in state.items() if not has_pieces(v)} for k, state in others.items()}
            joined[name] = {**leader, "learner": join_pieces([leader["learner"], *others.values()])}
    return joined
