"""A trainer of several ranks: one leader and its followers, which together take the step that one rank would take.

The leader takes a batch like a single trainer, and marks in the stream's memory which rank has which part
(`core/sharding/batch_split.py`). Followers read their parts there; on another node they fetch them
(`flow/transports/cluster/ranks.py`). All ranks prepare and update at the same time; their learners sum over the collective. At
the end of an update every rank writes its feedback beside the segments, and all exchange their results (`Ranks.finish`). After
this last synchronisation the leader publishes, releases and advances. So between two polls of the leader no rank holds a
segment, and the accounts are those of one reader.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from runnel.core.clock import Clock
from runnel.core.contracts.learning import HasRng, HasWeightCheck, Learner, Sharded, Update
from runnel.core.contracts.params import SharedPublisher
from runnel.core.contracts.samples import RankReader, SharedReader
from runnel.core.errors import RankError
from runnel.core.records import Batch, SegmentView
from runnel.core.sharding.batch_split import share_of
from runnel.core.sharding.param_shards import ParamShard, rows_of_rank
from runnel.core.state import Metrics, State
from runnel.core.weight_check import pack
from runnel.core.worker import StageTimer, Worker
from runnel.flow.collective import TorchCollective
from runnel.flow.params import checksum
from runnel.flow.workers.settings import SettingChanges
from runnel.flow.workers.stragglers import Stragglers
from runnel.flow.workers.trainer import Budget, Phase, Taken, TrainerWorker, check_finite, count_steps, phase_at, seen

COMPARE_EVERY = 100
"""Number of updates between two comparisons of the ranks' parameters. They are also compared at each power of 2."""


@dataclass(frozen=True)
class Finish:
    """Results of an update that all ranks share."""

    seconds: list[list[float]]
    """Seconds of prepare, update and waiting, by rank."""
    counts: tuple[int, int]
    """Steps and tokens in the batch."""
    metrics: Metrics
    """Metrics of the whole batch."""


class Ranks:
    """A rank's exchange with the other ranks before and after each update."""

    def __init__(self, collective: TorchCollective, timer: StageTimer, trainer: str) -> None:
        self.collective, self._timer, self._trainer = collective, timer, trainer
        self.rank, self.num = collective.rank, collective.world_size
        collective.around = self._wait
        self._before: list[float] = []
        self._met = False

    def begin(self, learner: Learner, version: int) -> None:
        """To be called before an update. Before the first, check that all ranks have the same parameters."""
        if not self._met:
            with self._timer.stage("meet"):
                self._compare(self.collective.gather([float(_mark(learner))]), version)
            self._met = True
        self._before = self._seconds()

    def finish(self, learner: Learner, version: int, metrics: Metrics, counts: Sequence[int] = (0, 0)) -> Finish:
        """Exchange results after an update to `version`. `counts`: steps and tokens, from the leader only."""
        spent = [now - before for now, before in zip(self._seconds(), self._before, strict=True)]
        due = version % COMPARE_EVERY == 0 or version & (version - 1) == 0
        with self._timer.stage("agree"):
            mark, names = _mark(learner) if due else 0, zlib.crc32("\n".join(metrics).encode())
            rows = self.collective.gather([*spent, *counts, names, version, mark])
            # Versions first: ranks at different versions have different parameters by nature.
            behind = [r for r, row in enumerate(rows) if row[6] != rows[0][6]]
            if behind:
                raise RankError(behind, "agree", f"are not at version {int(rows[0][6])}", trainer=self._trainer)
            self._compare([row[7:] for row in rows], version)
            if metrics and all(row[5] == rows[0][5] for row in rows):  # with different names, the leader's own metrics are used
                metrics = _join(metrics, self.collective.gather(list(metrics.values())))
        return Finish([row[:3] for row in rows], (int(rows[0][3]), int(rows[0][4])), metrics)

    def answer(self, readers: Mapping[str, RankReader], mine: Taken, update: Update) -> None:
        """Write this rank's feedback beside its part of the batch."""
        for name, feedback in update.feedback.items():
            readers[name].answer(mine[name], feedback, rank=self.rank)

    def write(self, learner: Sharded, publisher: SharedPublisher, version: int, *, here: bool = True) -> None:
        """Publish a sharded learner's `version`: every rank writes its own rows into the channel.

        The leader opens the version, and commits it when all ranks have finished. A rank on another node than the channel (not
        `here`) sends its rows to the leader, one parameter after another.
        """
        pieces = dict(learner.pieces())
        check_finite({name: piece.value for name, piece in pieces.items()}, version)
        weight_check = pack(learner.weight_check()) if isinstance(learner, HasWeightCheck) else {}
        if self.rank == 0:
            pieces |= {name: ParamShard.of(value) for name, value in weight_check.items()}
            publisher.open(version, pieces)
        # This gather is also the barrier: no rank writes before the leader has opened the version.
        away = [r for r, (near,) in enumerate(self.collective.gather([float(here)])) if not near]
        if here:
            publisher.write(version, pieces)
        for rank in away if self.rank == 0 else ():
            for name in learner.pieces():
                publisher.write(version, {name: self._receive(pieces[name], rank)})
        for piece in pieces.values() if self.rank in away else ():
            self.collective.send(piece.value.detach().to("cpu", piece.dtype).contiguous(), 0)

    def _receive(self, like: ParamShard, rank: int) -> ParamShard:
        start, stop = rows_of_rank(like.shape[0], rank, self.num)
        rows = self.collective.receive(torch.empty(stop - start, *like.shape[1:], dtype=like.dtype), rank)
        return ParamShard(((start, rows),), like.shape, like.dtype)

    @contextmanager
    def _wait(self) -> Iterator[None]:
        self.collective.stage = self._timer.current[0]
        with self._timer.wait():
            yield

    def _seconds(self) -> list[float]:
        return [self._timer.spent("prepare"), self._timer.spent("update"), self._timer.waited_s]

    def _compare(self, marks: list[list[float]], version: int) -> None:
        others = [r for r, row in enumerate(marks) if row != marks[0]]
        if others:
            why = "does the learner sum its gradients over `collective`?" if version else "is the network made from the seed?"
            what = f"are at version {version} with other parameters than rank 0"
            raise RankError(others, "agree", what, why, trainer=self._trainer)


def _mark(learner: Learner) -> int:
    """A checksum that is equal on ranks with equal parameters. Sharded parameters can be compared only before the first pass,
    while every rank still has all rows; later the checksum is 0."""
    if not isinstance(learner, Sharded):
        return checksum(learner.params())
    pieces = learner.pieces()
    return checksum({n: p.value for n, p in pieces.items()}) if all(p.value.shape == p.shape for p in pieces.values()) else 0


def _join(metrics: Metrics, rows: list[list[float]]) -> Metrics:
    """Join the ranks' metrics: the mean, or the maximum if the name has 'max'. Equal values stay equal to the last bit."""
    joined = {}
    for name, said in zip(metrics, zip(*rows, strict=True), strict=True):
        whole = max(said) if "max" in name.rpartition("/")[2] else fmean(said)
        joined[name] = said[0] if all(value == said[0] for value in said) else whole
    return joined


class LeadingTrainer(TrainerWorker):
    """Rank 0: takes batches for all ranks, and is the only one that publishes and emits events. It waits for segments, and
    inside an update for the other ranks."""

    readers: Mapping[str, SharedReader]
    publisher: SharedPublisher

    def __init__(self, name: str, clock: Clock, *, collective: TorchCollective, **settings: Any) -> None:
        super().__init__(name, clock, **settings)
        self.ranks = Ranks(collective, self.timer, name)
        self._stragglers = Stragglers(name)
        self._seconds: dict[str, float] = {}

    def _take(self, wanted: Mapping[str, int]) -> Taken:
        return {name: self.readers[name].take(num, ranks=self.ranks.num) for name, num in wanted.items()}

    def _train(self, segments: Taken) -> Update:
        mine = {name: share_of(group, 0, self.ranks.num) for name, group in segments.items()}
        self.ranks.begin(self.learner, self.version)
        update = super()._train(mine)
        self._batch = Batch()  # it is of this rank alone
        self.ranks.answer(self.readers, mine, update)
        if isinstance(self.learner, Sharded):
            with self.timer.stage("publish"):
                self.ranks.write(self.learner, self.publisher, self.version + 1)
        counts = count_steps(segments, self._token_streams)
        end = self.ranks.finish(self.learner, self.version + 1, update.metrics, counts)
        self._seconds, warning = self._stragglers.add(end.seconds)
        if warning:
            self.emit({"kind": "event", "level": "warning", "text": warning})
        # Empty feedback: every rank has already written its own beside the segments.
        return Update(end.metrics, {name: [{} for _ in segments[name]] for name in update.feedback}, update.events)

    def setup(self) -> None:
        address = self.ranks.collective.listen()
        for reader in self.readers.values():
            reader.announce(address)
        if isinstance(self.learner, Sharded):  # rank 0 has all rows before the first pass
            pieces = dict(self.learner.pieces()) | {name: ParamShard.of(value) for name, value in pack(None).items()}
            self.publisher.open(self.version, pieces)
            self.publisher.write(self.version, pieces)
        super().setup()

    def _check(self) -> None:
        if not isinstance(self.learner, Sharded):
            super()._check()

    def _publish_params(self) -> None:
        """Publish the version. Of a sharded learner the ranks have written it already, so it is only committed."""
        if isinstance(self.learner, Sharded):
            self.publisher.commit(self.version)
        else:
            super()._publish_params()

    def _times(self) -> dict[str, Any]:
        return {"time": {"ranks": self._seconds}}

    def close(self) -> None:
        self.ranks.collective.close()


class FollowingTrainer(Worker):
    """A rank after 0: trains on its part of each batch. It waits for the leader to take a batch, and inside an update for the
    other ranks."""

    kind = "trainer"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        learner: Learner,
        readers: Mapping[str, RankReader],
        collective: TorchCollective,
        publisher: SharedPublisher,
        here: bool = True,
        phases: Sequence[Phase],
        budget: Budget,
        token_streams: Sequence[str] = (),
        view: SegmentView | None = None,
        leads: bool = True,
        live: Mapping[str, type] | None = None,
    ) -> None:
        super().__init__(name, clock)
        self.changes = SettingChanges(learner, live or {})
        self._view = view
        self.leads = leads
        """Whether its trainer makes the versions of the run."""
        self.learner, self.readers, self.phases, self.budget = learner, readers, phases, budget
        self._publisher, self._here = publisher, here
        self.leader = name.rpartition("-")[0]
        """The worker that is rank 0 of this trainer."""
        self.ranks = Ranks(collective, self.timer, self.leader)
        self.version = self.steps = self.tokens = 0

    @property
    def trainer(self) -> str:
        """The name of the trainer that it is a rank of."""
        return self.leader

    @property
    def next_version(self) -> int:
        """The first version whose update can use a changed setting."""
        return self.version

    def poll(self) -> int:
        mine = self._given()
        if not mine:
            return 0
        self.changes.apply(self.version)  # rank 0 tells of them
        self.ranks.collective.address = self.readers[next(iter(mine))].meeting()
        progress = self.budget.progress(steps=self.steps, updates=self.version, tokens=self.tokens)
        self.ranks.begin(self.learner, self.version)
        with self.timer.stage("prepare"):
            batch = self.learner.prepare(seen(mine, self._view), progress=progress)
        with self.timer.stage("update"):
            update = self.learner.update(batch)
        self.ranks.answer(self.readers, mine, update)
        self.version += 1
        if isinstance(self.learner, Sharded):
            with self.timer.stage("publish"):
                self.ranks.write(self.learner, self._publisher, self.version, here=self._here)
        steps, tokens = self.ranks.finish(self.learner, self.version, update.metrics).counts
        self.steps, self.tokens = self.steps + steps, self.tokens + tokens
        return 1

    def _given(self) -> Taken:
        """This rank's part of the next batch; empty until there is one. An unreleased part of the last batch is ignored."""
        found: dict[str, Any] = {}
        for name in phase_at(self.phases, self.version).segments:
            reader = self.readers[name]
            found[name] = reader.given(self.ranks.rank, self.ranks.num) if reader.version() == self.version else []
        return found if all(found.values()) else {}

    def waits_for(self) -> str:
        return "the leading trainer to take a batch"

    def snapshot(self) -> State:
        """The state that only this rank has; the leader saves all else."""
        if not isinstance(self.learner, HasRng):
            return {}
        state = self.learner.state_dict()
        return {name: state[name] for name in self.learner.own_state}

    def restore(self, state: State) -> None:
        """Restore from the leader's snapshot and this rank's `own` (None if the checkpoint has fewer ranks)."""
        leader, own = state["leader"], state["own"]
        self.learner.load_state_dict(leader["learner"] | (own or {}))
        self.version, self.steps, self.tokens = leader["version"], leader["steps"], leader["tokens"]
        if own is None and isinstance(self.learner, HasRng):
            self.learner.reseed(self.version)

    def close(self) -> None:
        self.ranks.collective.close()
