"""What stands in rows whose agent waits, has left or is not there yet reaches no metric, statistic or parameter of learners
that read the global state. (Of PPO, with and without a memory: `test_recurrent_teams.py`.)"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_segments import shared_segment
from made_teams import play, segments_of
from test_happo import learner as happo_learner
from test_mappo import learner as mappo_learner

from runnel.core.records import Batch, Segment
from runnel.core.trajectories import ACTIVE, AGENT

GARBAGE = st.sampled_from([float("nan"), float("inf"), -1e30, 7.0])


def spoilt(segment: Segment, garbage: float) -> Segment:
    """The same segment with other numbers wherever nobody decides."""
    active, arrays = segment.arrays[ACTIVE], Batch({key: x.clone() for key, x in segment.arrays.items()})
    for key in ("obs", AGENT, *(key for key in arrays if key in ("shared/seen", "shared/state"))):
        arrays[key][~active] = garbage
    arrays["logprob"][~active[:-1]] = garbage
    arrays["action"][~active[:-1]] = 1 - arrays["action"][~active[:-1]].clamp(max=1)
    return Segment(segment.index, segment.spec, segment.header, arrays)


def equal(first: Any, second: Any) -> bool:
    """Whether two states, nested alike, are equal to the last bit, and finite."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second) and (not first.is_floating_point() or bool(first.isfinite().all()))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(x, second[key]) for key, x in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(equal(x, y) for x, y in zip(first, second, strict=True))
    return bool(first == second)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0.05, 1.0), garbage=GARBAGE, normalise=st.booleans())
def test_mappo(seed: int, share: float, garbage: float, normalise: bool) -> None:
    segment = shared_segment(seed, num_steps=10)
    drawn = torch.rand(segment.arrays[ACTIVE].shape, generator=torch.Generator().manual_seed(seed))
    segment.arrays[ACTIVE].copy_(drawn < share)
    found = []
    for given_segment in (segment, spoilt(segment, garbage)):
        mappo = mappo_learner(num_epochs=2, num_minibatches=2, normalise_value=normalise, normalise_reward=normalise)
        update = mappo.update(mappo.prepare({"a": [given_segment]}, progress=0.0))
        found.append({"metrics": dict(update.metrics), "state": mappo.state_dict()})
    assert equal(*found)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), garbage=GARBAGE, normalise=st.booleans())
def test_happo(seed: int, garbage: float, normalise: bool) -> None:
    """Agents that die, wait, and come back with the next episode."""
    played, found = segments_of(play(seed, num_steps=12)), []
    for given_segments in (played, {name: [spoilt(s, garbage) for s in some] for name, some in played.items()}):
        happo = happo_learner(num_epochs=2, num_minibatches=1, normalise_obs=normalise, normalise_value=normalise)
        update = happo.update(happo.prepare(given_segments, progress=0.0))
        found.append({"metrics": dict(update.metrics), "state": happo.state_dict()})
    assert equal(*found)
