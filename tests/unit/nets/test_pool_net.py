"""Live and frozen policies as one network: who sits where, who acts, and that nobody acts for somebody else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.core.errors import DataError
from runnel.core.lineups import LINEUP, MEMBER, OPENING, RANDOM, number_of, place_code
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig
from runnel.nets.pool import DRAW, FROZEN, NUMBERS, SHARES, PoolNet, packed, unpacked

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=4), has_mask=True)
MAIN, RIVAL, OLD, NEW = number_of(0, -1, 2), number_of(1, -1, 2), number_of(0, 0, 2), number_of(1, 7, 2)


def net(seed: int, **config: object) -> ActorCritic:
    made = ActorCritic(SPEC, build_body(SPEC, NetConfig(hidden=(8,), **config), seed=seed), normalise_obs=True)  # type: ignore[arg-type]
    with torch.no_grad():  # far from uniform, so that policies differ
        for x in made.parameters():
            x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
    made.normalisers["obs"].update(torch.full((4, 3), float(seed)), _One())
    return made


class _One:
    rank, world_size = 0, 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x


def pool(seats: int = 2, **config: object) -> tuple[PoolNet, list[ActorCritic]]:
    """Two live policies, two frozen ones, an empty place; and the four policies alone."""
    made = PoolNet({"main": net(1, **config), "rival": net(2, **config)}, places=3, seats=seats)
    nets = [net(seed, **config) for seed in (1, 2, 3, 4)]
    state = made.state_dict()
    for i, frozen in enumerate(nets[2:]):
        for kind, vector in packed(frozen.state_dict()).items():
            state[FROZEN + kind][i] = vector
    state[NUMBERS] = torch.tensor([MAIN, RIVAL, OLD, NEW, 0])
    state[DRAW] = torch.tensor([[0.5, 0.0, 0.125, 0.375, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    state[SHARES] = torch.tensor([0.75, 0.25], dtype=torch.float64)
    made.load_state_dict(state)
    return made, nets


def rows(made: PoolNet, num_envs: int, lineup: torch.Tensor | None = None, seed: int = 0) -> Batch:
    rng, num = np.random.default_rng(seed), num_envs * made.seats
    found = Batch(
        obs=torch.from_numpy(rng.normal(size=(num, 3))).float(),
        noise=torch.from_numpy(rng.uniform(0.01, 0.99, size=(num, made.noise_size))).float(),
        action_mask=torch.from_numpy(rng.random((num, 4)) < 0.6),
    )
    found["action_mask"][:, 0] = True
    for key, leaf in made.state_spec.items():
        found[key] = torch.from_numpy(rng.normal(size=(num, *leaf.shape))).float()
    found[LINEUP] = torch.zeros(num, made.seats, dtype=torch.int64) if lineup is None else lineup
    return found


@pytest.mark.parametrize("config", [{}, {"core": "gru", "core_size": 4}], ids=["plain", "recurrent"])
def test_each_row_gets_what_its_member_alone_would_do(config: dict[str, object]) -> None:
    made, nets = pool(**config)
    asked = rows(made, 40)
    found = made.act(asked)
    members = found[MEMBER]
    assert set(members.tolist()) == {MAIN, RIVAL, OLD, NEW}
    for number, alone in zip((MAIN, RIVAL, OLD, NEW), nets, strict=True):
        index = (members == number).nonzero().squeeze(1)
        inner = asked.map(lambda x, index=index: x[index])
        mine = alone.act(Batch({**inner, "noise": inner["noise"][:, : alone.noise_size]}))
        for key in ("action", "logprob", *alone.state_spec):
            # frozen perceptrons run as one batched product, which may round otherwise
            exact = not mine[key].is_floating_point() or config or number in (MAIN, RIVAL)
            torch.testing.assert_close(found[key][index], mine[key], rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    assert bool(asked["action_mask"].gather(1, found["action"].unsqueeze(1)).all())


@pytest.mark.parametrize("config", [{}, {"core": "gru", "core_size": 4}], ids=["plain", "recurrent"])
@pytest.mark.parametrize("greedy", [False, True])
def test_on_an_accelerator_every_network_answers_every_row_and_says_the_same(config: dict[str, object], greedy: bool) -> None:
    made, _ = pool(**config)
    lineup = torch.tensor([[MAIN, OLD], [NEW, RIVAL], [RANDOM, MAIN], [place_code(4), place_code(3)], [0, 0]])
    asked = rows(made, 40, lineup.repeat_interleave(2, 0).repeat(8, 1))
    by_place, made._by_place = made.act(asked, greedy=greedy), made.of_all  # type: ignore[method-assign]
    found = made.act(asked, greedy=greedy)
    assert found.keys() == by_place.keys()
    assert len(set(found[MEMBER].tolist())) == 6  # place 4 is empty: its moves are drawn
    for key, x in by_place.items():
        torch.testing.assert_close(found[key], x, rtol=1e-5, atol=1e-6)


def test_seats_and_opponents_are_drawn_as_often_as_they_should() -> None:
    """On a grid of noise frequencies are exact: main's episodes have share 0.75, each seat is the owner's half the time."""
    made, _ = pool()
    grid = (torch.arange(8) + 0.5) / 8
    noise = torch.cartesian_prod(grid, grid, grid, grid)
    asked = rows(made, len(noise))
    asked["noise"][::2, -4:] = noise
    lineups = made.act(asked)[LINEUP][::2]
    pairs, counts = torch.unique(lineups, dim=0, return_counts=True)
    found = {tuple(pair): num / len(noise) for pair, num in zip(pairs.tolist(), counts.tolist(), strict=True)}
    expected = {(MAIN, MAIN): 0.75 * 0.5}
    for opponent, share in ((OLD, 0.75 * 0.125), (NEW, 0.75 * 0.375), (RIVAL, 0.25)):
        expected |= {(MAIN, opponent): share / 2, (opponent, MAIN): share / 2}
    assert found == pytest.approx(expected)


def test_a_lineup_that_was_drawn_stays_and_who_comes_later_takes_it() -> None:
    made, _ = pool(seats=3)
    told = torch.zeros(9, 3, dtype=torch.int64)
    told[1] = told[5] = torch.tensor([OLD, MAIN, NEW])  # in two environments one row decided before; in the third nobody
    asked = rows(made, 3, told)
    found = made.act(asked)
    assert found[LINEUP][:6].tolist() == [[OLD, MAIN, NEW]] * 6
    assert found[MEMBER][:6].tolist() == [OLD, MAIN, NEW] * 2
    assert bool((found[LINEUP][6:] > 0).all())
    assert found[LINEUP][6:].unique(dim=0).shape[0] == 1
    again = made.act(Batch({**asked, LINEUP: found[LINEUP]}))
    assert all(torch.equal(again[key], found[key]) for key in found)


def test_a_member_that_is_gone_is_an_error_and_never_somebody_else() -> None:
    made, _ = pool()
    state = made.state_dict()
    told = torch.tensor([[MAIN, NEW]] * 4)
    made.act(rows(made, 2, told))
    state[NUMBERS] = torch.tensor([MAIN, RIVAL, OLD, number_of(0, 9, 2), 0])
    made.load_state_dict(state)
    with pytest.raises(DataError, match=r"an episode is played by member rival@7 .* no longer in the pool"):
        made.act(rows(made, 2, told))


def test_an_evaluation_says_itself_who_plays() -> None:
    """Live policies act greedily, frozen ones draw; a random player is uniform over what is allowed; an empty place says so."""
    made, nets = pool()
    lineup = torch.tensor([[place_code(0), RANDOM]] * 6000)
    asked = rows(made, 3000, lineup)
    asked["action_mask"][:] = torch.tensor([True, True, False, True])
    found = made.act(asked, greedy=True)
    assert found["action"][1::2].bincount(minlength=4).div(3000).tolist() == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3], abs=0.03)
    mine = asked.map(lambda x: x[::2])
    assert torch.equal(found["action"][::2], nets[0].act(mine, greedy=True)["action"])
    probe = torch.tensor([[place_code(2)] * 2] * 2 + [[place_code(4)] * 2] * 2)
    assert made.act(rows(made, 2, probe), greedy=True)[MEMBER].tolist() == [OLD, OLD, place_code(4), place_code(4)]


def test_shared_memory_is_seen_and_copies_are_not() -> None:
    made, nets = pool()
    state = {key: x.clone() for key, x in made.state_dict().items()}
    other, _ = pool()
    other.load_state_dict(state, assign=True)
    like = nets[2].state_dict()
    told = torch.tensor([[OLD, OLD]] * 20)
    before = made.act(rows(made, 10, told))["logprob"]
    for kind in {str(x.dtype).removeprefix("torch.") for x in like.values()}:
        state[FROZEN + kind][0] = state[FROZEN + kind][1]
    assert torch.equal(made.act(rows(made, 10, told))["logprob"], before)
    assert not torch.equal(other.act(rows(made, 10, told))["logprob"], before)
    vectors = {kind.removeprefix(FROZEN): x[1] for kind, x in state.items() if kind.startswith(FROZEN)}
    assert all(torch.equal(x, nets[3].state_dict()[name]) for name, x in unpacked(vectors, like).items())


def test_random_openings_are_uniform_counted_down_and_told_apart() -> None:
    """A seat has 0, 1 or 2 of them, each as often; its member's number has a minus meanwhile, and then it plays itself."""
    made, _ = pool()
    state = made.state_dict()
    made = PoolNet({"main": net(1), "rival": net(2)}, places=3, seats=2, openings=2)
    made.load_state_dict(state)
    asked = rows(made, 3000)
    asked[OPENING] = torch.zeros(6000, dtype=torch.int64)
    asked["action_mask"][:] = torch.tensor([True, False, True, True])
    asked["noise"][:, -1] = (torch.arange(6000) % 300 + 0.5) / 300
    first = made.act(asked)
    num = first[OPENING] + (first[MEMBER] < 0)
    assert num.bincount().tolist() == [2000, 2000, 2000]
    assert torch.equal(first[MEMBER].abs(), first[LINEUP][::2].flatten())
    shares = first["action"][first[MEMBER] < 0].bincount(minlength=4) / 4000
    assert shares.tolist() == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3], abs=0.03)
    for step in (1, 2):
        asked = Batch({**asked, LINEUP: first[LINEUP], OPENING: first[OPENING]})
        first = made.act(asked)
        assert int((first[MEMBER] < 0).sum()) == {1: 2000, 2: 0}[step]
