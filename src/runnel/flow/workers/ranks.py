"""A trainer of several ranks: one leads, the others follow, and together they take the step that one would take.

The leader takes a batch, as a trainer that is alone does, and marks in the stream's memory which part of it is whose
(`core/shares.py`). Followers find their parts there. All prepare and update at the same time; their learners meet in sums
over the collective. At the end of an update every rank leaves its feedback beside the segments and tells the others how it
went (`Ranks.finish`); that is the last time they meet, and only then does the leader publish, release and advance. So between
two polls of the leader no rank holds anything, and the accounts are those of one reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.core.clock import Clock
from runnel.core.errors import RankError
from runnel.core.metrics import StageTimer
from runnel.core.protocols import Draws, Learner, SharedReader, State, Update
from runnel.core.shares import share_of
from runnel.flow.collective import TorchCollective
from runnel.flow.params import checksum
from runnel.flow.workers.base import Worker
from runnel.flow.workers.stragglers import Stragglers
from runnel.flow.workers.trainer import Budget, Phase, Taken, TrainerWorker, count_steps, phase_at

COMPARE_EVERY = 100
"""Updates between two comparisons of the ranks' parameters; at first they are compared at each power of 2."""


class Ranks:
    """What a rank tells the others at the end of an update, and learns of them."""

    def __init__(self, collective: TorchCollective, timer: StageTimer) -> None:
        self.collective, self._timer = collective, timer
        self.rank, self.num = collective.rank, collective.world_size
        collective.around = timer.wait
        self._before: list[float] = []
        self._compared = -1

    def begin(self, learner: Learner, version: int) -> None:
        """Before an update; before the first of all ranks must have the same parameters."""
        self.collective.stage = "start"
        if self._compared < 0:
            self._compare(self.collective.gather([float(checksum(learner.params()))]), version)
        self._before = self._seconds()
        self.collective.stage = "prepare and update"

    def finish(self, learner: Learner, version: int, counts: Sequence[int] = (0, 0)) -> list[list[float]]:
        """After an update to `version`: by rank, seconds of prepare, update and waiting, and the steps and tokens (`counts`)
        that the leader has counted."""
        spent = [now - before for now, before in zip(self._seconds(), self._before, strict=True)]
        due = version % COMPARE_EVERY == 0 or version & (version - 1) == 0
        mark = float(checksum(learner.params())) if due else 0.0
        self.collective.stage = "end of update"
        rows = self.collective.gather([*spent, *map(float, counts), float(version), mark])
        others = [r for r, row in enumerate(rows) if row[-2] != rows[0][-2]]
        if others:
            raise RankError(others, "end of update", f"are not at version {int(rows[0][-2])}")
        self._compare([row[-1:] for row in rows], version)
        return rows

    def answer(self, readers: Mapping[str, SharedReader], mine: Taken, update: Update) -> None:
        """Leave this rank's feedback beside its part of the batch."""
        for name, feedback in update.feedback.items():
            readers[name].answer(mine[name], feedback, rank=self.rank)

    def _seconds(self) -> list[float]:
        return [self._timer.spent("prepare"), self._timer.spent("update"), self._timer.waited_s]

    def _compare(self, marks: list[list[float]], version: int) -> None:
        others = [r for r, row in enumerate(marks) if row != marks[0]]
        if others:
            why = "does the learner sum its gradients over `collective`?" if version else "is the network made from the seed?"
            raise RankError(others, "end of update", f"are at version {version} with other parameters than rank 0", why)
        self._compared = version


class LeadingTrainer(TrainerWorker):
    """Rank 0: takes batches for all ranks, and alone publishes and tells. Waits for segments; inside an update, for the other
    ranks."""

    readers: Mapping[str, SharedReader]

    def __init__(self, name: str, clock: Clock, *, collective: TorchCollective, **settings: Any) -> None:
        super().__init__(name, clock, **settings)
        self.ranks = Ranks(collective, self.timer)
        self._stragglers = Stragglers()
        self._seconds: dict[str, float] = {}

    def setup(self) -> None:
        address = self.ranks.collective.listen()
        for reader in self.readers.values():
            reader.announce(address)
        super().setup()

    def _take(self, wanted: Mapping[str, int]) -> Taken:
        return {name: self.readers[name].take(num, ranks=self.ranks.num) for name, num in wanted.items()}

    def _train(self, segments: Taken) -> Update:
        mine = {name: share_of(group, 0, self.ranks.num) for name, group in segments.items()}
        self.ranks.begin(self.learner, self.version)
        update = super()._train(mine)
        self.ranks.answer(self.readers, mine, update)
        rows = self.ranks.finish(self.learner, self.version + 1, count_steps(segments, self._token_streams))
        self._seconds, warning = self._stragglers.add([row[:3] for row in rows])
        if warning:
            self.emit({"kind": "event", "level": "warning", "text": warning})
        # what each rank has said lies beside the segments already
        return Update(update.metrics, {name: [{} for _ in segments[name]] for name in update.feedback})

    def _times(self) -> dict[str, Any]:
        return {"time": {"ranks": self._seconds}}

    def close(self) -> None:
        self.ranks.collective.close()


class FollowingTrainer(Worker):
    """Another rank: trains on the part of each batch that the leader gives it. Waits for the leader to take a batch; inside an
    update, for the other ranks."""

    kind = "trainer"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        learner: Learner,
        readers: Mapping[str, SharedReader],
        collective: TorchCollective,
        phases: Sequence[Phase],
        budget: Budget,
        token_streams: Sequence[str] = (),
    ) -> None:
        super().__init__(name, clock)
        self.learner, self.readers, self.phases, self.budget = learner, readers, phases, budget
        self.ranks = Ranks(collective, self.timer)
        self.version = self.steps = self.tokens = 0

    def poll(self) -> int:
        mine = self._given()
        if not mine:
            return 0
        self.ranks.collective.address = next(iter(self.readers.values())).meeting()
        progress = self.budget.progress(steps=self.steps, updates=self.version, tokens=self.tokens)
        self.ranks.begin(self.learner, self.version)
        with self.timer.stage("prepare"):
            batch = self.learner.prepare(mine, progress=progress)
        with self.timer.stage("update"):
            update = self.learner.update(batch)
        self.ranks.answer(self.readers, mine, update)
        self.version += 1
        steps, tokens = self.ranks.finish(self.learner, self.version)[0][3:5]
        self.steps, self.tokens = self.steps + int(steps), self.tokens + int(tokens)
        return 1

    def _given(self) -> Taken:
        """This rank's part of the next batch, once there is one; what the leader has not yet released is of the last."""
        found: dict[str, Any] = {}
        for name in phase_at(self.phases, self.version).segments:
            reader = self.readers[name]
            found[name] = reader.given(self.ranks.rank, self.ranks.num) if reader.version() == self.version else []
        return found if all(found.values()) else {}

    def waits_for(self) -> str:
        return "the leading trainer to take a batch"

    def snapshot(self) -> State:
        """Only what is this rank's own: all else is the leader's too."""
        if not isinstance(self.learner, Draws):
            return {}
        state = self.learner.state_dict()
        return {name: state[name] for name in self.learner.own_state}

    def restore(self, state: State) -> None:
        """`leader`: its snapshot; `own`: this rank's, or None where the checkpoint is of fewer ranks."""
        leader, own = state["leader"], state["own"]
        self.learner.load_state_dict(leader["learner"] | (own or {}))
        self.version, self.steps, self.tokens = leader["version"], leader["steps"], leader["tokens"]
        if own is None and isinstance(self.learner, Draws):
            self.learner.reseed(self.version)

    def close(self) -> None:
        self.ranks.collective.close()
