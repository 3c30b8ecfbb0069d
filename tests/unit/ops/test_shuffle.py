"""Random orders: each a permutation, spread evenly, saved and restored; on a device by hashing."""

import pytest
import torch

from runnel.agents.base import Shuffle, hashed

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def made_keys(num):
    return torch.randint(0, 1 << 30, (num, 8), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8, 32, 1 << 10, 1 << 17])
def test_hashing_permutes(num_rows):
    orders = hashed(made_keys(5), num_rows)
    assert orders.dtype == torch.int32
    assert all(torch.equal(order.sort().values, torch.arange(num_rows, dtype=torch.int32)) for order in orders)


def test_hashed_orders_are_spread_like_random_ones():
    """Which rows meet in the first quarter: each as often as any other, and neighbours not more often than strangers."""
    num, rows = 2000, 1024
    first = (hashed(made_keys(num), rows).long().argsort(-1) < rows // 4).double()
    deviation = (0.25 * 0.75 / num) ** 0.5
    assert (first.mean(0) - 0.25).abs().max() < 5 * deviation
    for distance in (1, 2, 32, 256, 512):
        together = (first[:, :-distance] * first[:, distance:]).mean()
        assert abs(together - 0.25**2) < 2e-3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[cuda, pytest.mark.cuda])])
@pytest.mark.parametrize("num_rows", [64, 100])
def test_orders_are_permutations_and_go_on_after_a_restore(device, num_rows):
    shuffle, twin = Shuffle(3, device=device), Shuffle(4, device=device)
    orders = shuffle.orders(4, num_rows)
    assert orders.shape == (4, num_rows)
    assert all(torch.equal(x.long().sort().values.cpu(), torch.arange(num_rows)) for x in orders)
    assert not torch.equal(orders[0], orders[1])
    twin.load_state_dict(shuffle.state_dict())
    assert torch.equal(shuffle.order(num_rows), twin.order(num_rows))
