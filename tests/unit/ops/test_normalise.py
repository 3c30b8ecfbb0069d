"""Running statistics equal those of all data at once, however it is split."""

import numpy as np
import pytest
import torch

from runnel.core.contracts.learning import SingleProcess
from runnel.losses.base import masked_mean, masked_sum
from runnel.nets.layers import RunningMeanStd
from runnel.ops.returns import explained_variance


class TwoRanks:
    """A collective that adds what the other rank would have sent."""

    rank, world_size = 0, 2

    def __init__(self, other):
        self.other = other

    def all_reduce(self, x):
        return x + self.other.pop(0)


def test_chunks_give_the_statistics_of_the_whole():
    data = np.random.default_rng(0).normal(1000.0, 0.5, size=(500, 3))
    stats = RunningMeanStd((3,))
    for chunk in np.split(data, [1, 7, 200, 450]):
        stats.update(torch.from_numpy(chunk), SingleProcess())
    np.testing.assert_allclose(stats.mean.numpy(), data.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.var.numpy(), data.var(0), rtol=1e-8)
    assert stats.count.item() == 500


def test_two_ranks_equal_one():
    data = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 2)))
    alone, split = RunningMeanStd((2,)), RunningMeanStd((2,))
    alone.update(data, SingleProcess())
    far = data[20:]
    split.update(data[:20], TwoRanks([torch.stack([torch.full((2,), 20.0), far.sum(0), far.square().sum(0)])]))
    torch.testing.assert_close(split.mean, alone.mean)
    torch.testing.assert_close(split.var, alone.var)
    assert split.count.item() == 40


def test_forward_is_identity_before_data_then_standardises_and_clips():
    stats = RunningMeanStd((), clip=2.0)
    x = torch.tensor([-1.5, 0.0, 1.5])
    torch.testing.assert_close(stats(x), x)
    stats.update(torch.tensor([0.0, 10.0]), SingleProcess())
    torch.testing.assert_close(stats(torch.tensor([5.0, 10.0, 1000.0])), torch.tensor([0.0, 1.0, 2.0]))
    assert stats(x).dtype == torch.float32


def test_statistics_keep_their_address_and_travel_in_the_state():
    stats = RunningMeanStd((2,))
    before = {k: v.data_ptr() for k, v in stats.state_dict().items()}
    stats.update(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), SingleProcess())
    assert before == {k: v.data_ptr() for k, v in stats.state_dict().items()}
    assert set(before) == {"mean", "var", "count"}


def test_explained_variance_is_that_of_numpy_and_of_all_ranks():
    rng = np.random.default_rng(2)
    targets = np.concatenate([rng.normal(100.0, 1.0, 20), rng.normal(-3.0, 5.0, 20)]).astype(np.float32)
    values = (targets + rng.normal(0.0, 2.0, 40)).astype(np.float32)
    expected = 1.0 - (targets - values).astype(np.float64).var() / targets.astype(np.float64).var()
    mine, theirs = (torch.from_numpy(np.stack([values[part], targets[part]])) for part in (slice(20), slice(20, 40)))
    whole = torch.cat([mine, theirs], 1)
    assert explained_variance(whole[0], whole[1], SingleProcess()).item() == pytest.approx(expected, abs=1e-6)
    far = torch.stack([theirs[1] - theirs[0], theirs[1]]).double()
    sent = torch.stack([torch.full((2,), 20.0).double(), far.sum(1), far.square().sum(1)])
    assert explained_variance(mine[0], mine[1], TwoRanks([sent])).item() == pytest.approx(expected, abs=1e-6)
    same = torch.full((7,), 1234.1)
    assert explained_variance(same * 2.0, same, SingleProcess()).item() == 0.0


def test_masked_reductions_are_independent_of_the_split():
    x, mask = torch.arange(6.0), torch.tensor([True, False, True, True, False, True])
    whole = masked_mean(x, mask, denominator=4)
    parts = masked_mean(x[:3], mask[:3], denominator=4) + masked_mean(x[3:], mask[3:], denominator=4)
    assert whole.item() == pytest.approx(2.5)
    assert parts.item() == whole.item()
    assert masked_sum(x).item() == 15.0
