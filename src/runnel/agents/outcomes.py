"""What segments of self-play say: whose rows they are, who won the episodes that ended, and who is still in one.

A row belongs to the member that acts for it (`nets/pool.MEMBER`), for a whole episode. A learner trains on the decisions of its
own rows alone; those of frozen members, and what they saw, never reach a loss or a normaliser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from runnel.core.lineups import LINEUP, MEMBER, OPENING
from runnel.core.records import Batch, Segment, StreamSpec
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE, REWARD, TASK_RETURN
from runnel.ops.matchmaking import DRAW, LOSS, WIN
from runnel.ops.returns import returns_so_far

Games = Counter[tuple[int, int, int, int]]
"""Games by (member, other member, seat of the first, result of the first)."""
_OURS = (MEMBER, LINEUP, OPENING, TASK_RETURN)
"""Fields that only the league reads."""


def rows_of(segment: Segment, number: int) -> Segment:
    """The segment as the learner of member `number` sees it: in the rows of all others nobody decides."""
    arrays = Batch({key: x for key, x in segment.arrays.items() if key not in _OURS})
    # the moves of a random opening have negative numbers: nobody chose them, so nobody learns from them
    # an episode that goes on behind the last step is played by who has played it; where one ended, nothing reads that flag
    member = segment.arrays[MEMBER]
    arrays[ACTIVE] = segment.arrays[ACTIVE] & (torch.cat([member, member[-1:]]) == number)
    return replace(segment, spec=_without(segment.spec), arrays=arrays)


def _without(spec: StreamSpec) -> StreamSpec:
    return replace(spec, fields={key: f for key, f in spec.fields.items() if key not in _OURS})


@dataclass
class _Lane:
    """The newest segment of one vector of environments: its number, the oldest version in it, the members whose episodes were
    open at its end, and what those had got who had left (`[E, A]`; NaN: not left)."""

    count: int
    version: int
    open: set[int]
    left: NDArray[np.float64] = field(repr=False)


class Outcomes:
    """Reads segments of environments with `seats` agents, from `num_lanes` vectors, `lanes_per_writer` of each actor.

    The result of a pair is that of their sums of rewards over the episode, known when both have ended it.
    """

    def __init__(self, *, seats: int, num_lanes: int, lanes_per_writer: int) -> None:
        self._seats, self._num_lanes, self._per_writer = seats, num_lanes, lanes_per_writer
        self._lanes: dict[str, _Lane] = {}

    def see(self, segment: Segment) -> Games:
        """The games that ended in the next segment of a vector."""
        rows, writers = segment.num_rows, segment.spec.num_writers
        count = segment.header.sample_id // rows // writers
        key = f"{segment.header.writer}/{count % self._per_writer}"
        a = segment.arrays
        ended = (a["terminated"] | a["truncated"]).numpy(force=True)
        sums = returns_so_far(a[REWARD].double(), a["terminated"] | a["truncated"], a[TASK_RETURN].double(), gamma=1.0)
        member, active = a[MEMBER].abs().numpy(force=True), a[ACTIVE].numpy(force=True)
        before = self._lanes.get(key)
        follows = before is not None and before.count == count - self._per_writer
        left = before.left.copy() if before is not None and follows else np.full((rows // self._seats, self._seats), np.nan)
        games = self._walk(ended, sums.numpy(force=True), member, active, left)
        last_ended = ended[-1].reshape(-1, self._seats)
        in_play = member[-1].reshape(-1, self._seats)[~last_ended.all(1)]
        self._lanes[key] = _Lane(count, segment.header.version_min, set(in_play.flatten().tolist()), left)
        return games

    def _walk(
        self,
        ended: NDArray[np.bool_],
        sums: NDArray[np.float64],
        member: NDArray[np.int64],
        active: NDArray[np.bool_],
        left: NDArray[np.float64],
    ) -> Games:
        """Games in the order of the steps at which somebody ended. `left` is brought up to date."""
        games: Games = Counter()
        seen = 0
        for t in np.flatnonzero(ended.any(1)).tolist():
            if not np.isnan(left).all():
                # who decides again is in a new episode, and so is everybody beside him
                again = active[seen : t + 1].any(0).reshape(left.shape) & ~np.isnan(left)
                left[again.any(1)] = np.nan
            now = ended[t].reshape(left.shape)
            left[now] = sums[t].reshape(left.shape)[now]
            self._count(games, now, left, member[t].reshape(left.shape))
            left[(~np.isnan(left)).all(1)] = np.nan  # all are done: the episode is over
            seen = t + 1
        if not np.isnan(left).all():
            left[(active[seen:].any(0).reshape(left.shape) & ~np.isnan(left)).any(1)] = np.nan
        return games

    def _count(self, games: Games, now: NDArray[np.bool_], left: NDArray[np.float64], member: NDArray[np.int64]) -> None:
        """Count each pair of seats of which one has just ended and the other has ended, too."""
        for i in range(self._seats):
            for j in range(self._seats):
                both = (now[:, i] & ~np.isnan(left[:, j])) | (now[:, j] & ~np.isnan(left[:, i]))
                if i == j or not both.any():
                    continue
                diff = left[both, i] - left[both, j]
                result = np.where(diff > 0, WIN, np.where(diff < 0, LOSS, DRAW))
                pairs = zip(member[both, i].tolist(), member[both, j].tolist(), result.tolist(), strict=True)
                games.update((a, b, i, r) for a, b, r in pairs)

    def is_over(self, number: int, *, since: int) -> bool:
        """Whether no environment can still be in an episode of member `number`, which was last drawn before version `since`."""
        if len(self._lanes) < self._num_lanes:
            return False
        return all(lane.version >= since and number not in lane.open for lane in self._lanes.values())

    def state_dict(self) -> State:
        return {
            key: {"count": x.count, "version": x.version, "open": sorted(x.open), "left": torch.from_numpy(x.left.copy())}
            for key, x in self._lanes.items()
        }

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        self._lanes = {
            key: _Lane(int(x["count"]), int(x["version"]), set(x["open"]), torch.as_tensor(x["left"]).double().numpy().copy())
            for key, x in state.items()
        }
