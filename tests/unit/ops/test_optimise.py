"""The flat Adam equals torch's, clipping included."""

import pytest
import torch
from torch import nn

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError
from runnel.nets.optim import Adam


def make(seed=0):
    generator = torch.Generator().manual_seed(seed)
    net = nn.utils.skip_init(nn.Linear, 3, 2)
    for p in net.parameters():
        nn.init.normal_(p, generator=generator)
    return net


def loss_of(net, i):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(i))
    return net(x).square().mean() * (10.0 if i % 2 else 0.01)


def test_equals_torch_adam_with_clipping():
    ours, theirs = make(), make()
    flat = Adam(ours.parameters(), lr=0.1, eps=1e-5)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.1, eps=1e-5)
    for i in range(20):
        norm = flat.step(loss_of(ours, i), max_norm=0.5, collective=SingleProcess())
        reference.zero_grad()
        loss_of(theirs, i).backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
        torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_ranks_add_up():
    class Twin:
        rank, world_size = 0, 2

        def all_reduce(self, x):
            return 2 * x

    one, two = make(), make()
    a, b = Adam(one.parameters(), lr=0.1), Adam(two.parameters(), lr=0.1)
    a.step(2 * loss_of(one, 1), max_norm=1e9, collective=SingleProcess())
    b.step(loss_of(two, 1), max_norm=1e9, collective=Twin())
    torch.testing.assert_close(one.state_dict(), two.state_dict())


def test_state_goes_on_bit_for_bit():
    net, copy = make(), make(1)
    first, second = Adam(net.parameters(), lr=0.1), Adam(copy.parameters(), lr=0.1)
    for i in range(3):
        first.step(loss_of(net, i), max_norm=1.0, collective=SingleProcess())
    second.load_state_dict(first.state_dict())
    copy.load_state_dict(net.state_dict())
    for i in range(3, 6):
        first.step(loss_of(net, i), max_norm=1.0, collective=SingleProcess())
        second.step(loss_of(copy, i), max_norm=1.0, collective=SingleProcess())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), copy.parameters(), strict=True))


def test_frozen_and_unused_weights_stay_and_mixed_types_are_refused():
    net = nn.ModuleList([make(), make(1), make(2)])
    net[1].requires_grad_(False)
    before = [p.clone() for p in net.parameters()]
    Adam(net.parameters(), lr=0.1).step(loss_of(net[0], 1), max_norm=1.0, collective=SingleProcess())
    changed = [not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)]
    assert changed == [True, True, False, False, False, False]
    with pytest.raises(ConfigError, match="one dtype"):
        Adam([*make().parameters(), *make().double().parameters()], lr=0.1)
