"""Batches of a data set: each row is a transition that was played, drawn from seed and number of the batch alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_sets import MASKED, SPEC, episode, make_set

from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Header, Slot
from runnel.data.offline import OfflineSampler, imitation_stream
from runnel.data.replay import replay_stream

LENGTHS = (3, 1, 4, 2)
GAMMA = 0.5


class Stream:
    """A stream that takes every segment."""

    def __init__(self, spec, first: int = 0) -> None:
        self.spec, self.sequence, self.segments = spec, first, []

    def reserve(self) -> Slot:
        return Slot(0, self.spec, Header(sequence=self.sequence), self.spec.allocate())

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        assert num_steps == 0, "a data set must not spend the budget of steps"
        assert slot.header.version_min == slot.header.version_max == -1, "it must never be stale"
        self.segments.append(Batch(slot.arrays))
        self.sequence += 1

    def feedback(self) -> list:
        return []


def draw(data, num: int, *, first: int = 0, seed: int = 7, batch_size: int = 8) -> list[Batch]:
    stream = Stream(replay_stream(SPEC, batch_size=batch_size, name="offline"), first)
    sampler = OfflineSampler(data, seed=seed, gamma=GAMMA)
    for _ in range(num):
        sampler.step({}, {"offline": stream})
    return stream.segments


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("spec", [SPEC, MASKED], ids=["plain", "masked"])
def test_every_transition_is_the_one_that_was_played(n_step: int, spec, tmp_path: Path) -> None:
    """Against a loop over the episodes, one step at a time."""
    data = make_set(tmp_path / "set", LENGTHS, spec=spec)
    stream = replay_stream(spec, batch_size=sum(LENGTHS), name="offline")
    slot = Slot(0, stream, Header(), stream.allocate())
    OfflineSampler(data, seed=0, gamma=GAMMA, n_step=n_step).fill(slot, np.arange(sum(LENGTHS)))
    row = 0
    for i, length in enumerate(LENGTHS):
        due = episode(i, length, terminated=i % 2 == 0, spec=spec)
        for t in range(length):
            last = min(t + n_step, length) - 1
            found = {key: x[row].numpy() for key, x in slot.arrays.items()}
            assert found["rewards/env"] == sum(GAMMA**k * due["rewards/env"][t + k] for k in range(last - t + 1))
            assert found["discount"] == (0.0 if due["terminated"][last] else GAMMA ** (last - t + 1))
            for key in ("obs", "action_mask")[: 1 + spec.has_mask]:
                np.testing.assert_array_equal(found[key], due[key][t])
                np.testing.assert_array_equal(found["next_" + key], due[key][last + 1])
            assert found["action"] == due["action"][t]
            assert (found["weight"], found["index"]) == (1.0, row)
            row += 1


def test_a_truncated_end_bootstraps_from_the_observation_that_ended_it(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set", (2, 2))
    stream = replay_stream(SPEC, batch_size=2, name="offline")
    slot = Slot(0, stream, Header(), stream.allocate())
    OfflineSampler(data, seed=0, gamma=GAMMA).fill(slot, np.array([1, 3]))
    assert slot.arrays["discount"].tolist() == [0.0, GAMMA]
    assert slot.arrays["next_obs"].tolist() == [[0.0, 2.0], [1.0, 2.0]]


def test_a_batch_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set", LENGTHS)
    whole, later = draw(data, 6), draw(data, 3, first=3)
    for one, two in zip(whole[3:], later, strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)
    indices = [tuple(batch["index"].tolist()) for batch in whole]
    assert len(set(indices)) == 6
    assert tuple(draw(data, 1, seed=8)[0]["index"].tolist()) != indices[0]


def test_all_steps_are_equally_likely(tmp_path: Path) -> None:
    """40,000 draws of 10 steps: the chi-squared statistic of 9 degrees of freedom is above 27.9 once in a thousand times."""
    data = make_set(tmp_path / "set", LENGTHS)
    index = torch.cat([batch["index"] for batch in draw(data, 40, batch_size=1_000)])
    counts = torch.bincount(index, minlength=10).double()
    assert float(((counts - 4_000) ** 2 / 4_000).sum()) < 27.9


def test_imitation_has_observations_and_what_was_done_there(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set", LENGTHS, spec=MASKED)
    stream = Stream(imitation_stream(MASKED, batch_size=64))
    OfflineSampler(data, seed=3).step({}, {"offline": stream})
    batch = stream.segments[0]
    assert set(batch) == {"obs", "action", "action_mask"}
    number, time = batch["obs"].long().unbind(-1)
    assert torch.equal(batch["action"], (number + time) % 3)
    assert batch["action_mask"].gather(1, batch["action"].unsqueeze(-1)).all()


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    one, other = make_set(tmp_path / "a", (2, 3)), make_set(tmp_path / "b", (3, 3))
    state = OfflineSampler(one, seed=0).snapshot()
    OfflineSampler(one, seed=0).restore(state, {})
    with pytest.raises(ConfigError, match=rf"data = .*has digest {other.digest}, and the checkpoint .*{one.digest}"):
        OfflineSampler(other, seed=0).restore(state, {})
