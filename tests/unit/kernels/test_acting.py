"""What stands in for `act` of a small network, against the network's own `act`; and which networks are left alone."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import SingleProcess
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.kernels.select import Accelerator
from runnel.kernels.small.acting import FastActorCritic, FastPopulation, FastQ
from runnel.kernels.small.numpy_act import FEW_ROWS
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.inferencer import Acts
from runnel.nets.layers import NetConfig
from runnel.nets.optim import Adam
from runnel.nets.population import BEST, Population
from runnel.nets.q_nets import QNet

OBS = {"obs": ArraySpec((3,))}
CHOICE = ActionSpec("discrete", num_actions=4)
BOX = ActionSpec("continuous", shape=(2, 1), low=(-1.0,) * 2, high=(1.0,) * 2)
SPECS = {
    "discrete": EnvSpec(OBS, CHOICE),
    "masked": EnvSpec(OBS, CHOICE, has_mask=True),
    "continuous": EnvSpec(OBS, BOX),
    "matrix": EnvSpec({"obs": ArraySpec((3, 2))}, CHOICE),
}
HEADS: list[dict[str, Any]] = [{}, {"num_atoms": 7, "v_min": -2.0, "v_max": 3.0}]


def actor(spec: EnvSpec, *, seed: int = 1, normalise: bool = False, **net: Any) -> ActorCritic:
    made = ActorCritic(spec, build_body(spec, NetConfig(**({"hidden": (8, 6)} | net)), seed=seed), normalise_obs=normalise)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():  # heads start near 0, where every score would be the same
            weight.add_(0.3 * torch.randn(weight.shape, generator=g))
    if normalise:
        made.update_statistics({"obs": 3.0 + 2.0 * torch.randn(50, *spec.obs["obs"].shape, generator=g)}, SingleProcess())
    return made.eval()


def rows_for(spec: EnvSpec, noise_size: int, num: int = 60, *, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    rows = Batch(
        obs=2.0 * torch.randn(num, *spec.obs["obs"].shape, generator=g), noise=torch.rand(num, noise_size, generator=g)
    )
    if spec.has_mask:
        rows["action_mask"] = (torch.rand(num, 4, generator=g) < 0.5).index_fill(1, torch.tensor([2]), True)
    return rows


@torch.inference_mode()
def same_answers(acts: Acts, net: Acts, rows: Batch) -> None:
    """To float32 rounding; discrete actions exactly."""
    for greedy in (False, True):
        found, expected = (x.act(rows, greedy=greedy) for x in (acts, net))
        assert found.keys() == expected.keys()
        for key, x in expected.items():
            assert found[key].dtype == x.dtype
            assert found[key].shape == x.shape
            torch.testing.assert_close(found[key], x, atol=2e-6, rtol=1e-5)


class Counted:
    """Counts the calls of a network's own `act`."""

    def __init__(self, net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num, act = 0, type(net).act

        def counted(own: Any, rows: Batch, *, greedy: bool = False) -> Batch:
            self.num += 1
            answer: Batch = act(own, rows, greedy=greedy)
            return answer

        monkeypatch.setattr(type(net), "act", counted)


ACTIVATIONS, HIDDEN = ("tanh", "relu", "silu"), ((), (9,), (8, 6), (5, 4, 3))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("activation", "hidden"), list(itertools.product(ACTIVATIONS, HIDDEN)))
@pytest.mark.parametrize("kind", SPECS)
def test_an_actor_critic_acts_as_it_would(kind: str, activation: str, hidden: tuple[int, ...], normalise: bool) -> None:
    spec = SPECS[kind]
    net = actor(spec, activation=activation, hidden=hidden, normalise=normalise)
    acts = Accelerator().acts(net)
    assert isinstance(acts, FastActorCritic)
    assert acts.noise_size == net.noise_size
    for num in (1, 60, FEW_ROWS, FEW_ROWS + 1):
        same_answers(acts, net, rows_for(spec, net.noise_size, num))


def test_few_rows_do_not_ask_the_network_and_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    net = actor(SPECS["discrete"])
    acts, calls = Accelerator().acts(net), Counted(net, monkeypatch)
    for num, expected in ((1, 0), (FEW_ROWS, 0), (FEW_ROWS + 1, 1)):
        acts.act(rows_for(net.env_spec, 1, num))
        assert calls.num == expected


def test_noise_at_its_ends_never_picks_a_masked_action() -> None:
    net = actor(SPECS["masked"])
    acts, rows = Accelerator().acts(net), rows_for(SPECS["masked"], 1, 8)
    rows["action_mask"][:] = torch.tensor([False, True, False, False])
    for u in (0.0, 2.0**-25, 0.5, 1.0 - 2.0**-24, 1.0):
        answer = acts.act(Batch(rows | {"noise": torch.full((8, 1), u)}))
        assert answer["action"].tolist() == [1] * 8
        assert answer["logprob"].tolist() == pytest.approx([0.0] * 8, abs=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_a_q_network_acts_as_it_would(activation: str, dueling: bool, head: dict[str, Any], masked: bool) -> None:
    spec = SPECS["masked" if masked else "discrete"]
    net = QNet(spec, NetConfig(hidden=(8, 6), activation=activation), seed=1, dueling=dueling, **head)  # type: ignore[arg-type]
    acts = Accelerator().acts(net)
    assert isinstance(acts, FastQ)
    for epsilon in (0.0, 0.4, 1.0):
        net.epsilon.fill_(epsilon)
        for num in (1, 200, FEW_ROWS + 1):
            rows = rows_for(spec, 2, num)
            same_answers(acts, net, rows)
            if masked:
                assert rows["action_mask"].gather(1, acts.act(rows)["action"][:, None]).all()
    assert len(acts.act(rows_for(spec, 2, 200), greedy=True)["action"].unique()) > 1


def test_rows_that_all_explore_are_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    net = QNet(SPECS["discrete"], NetConfig(hidden=(8, 6)), seed=1)
    acts, calls = Accelerator().acts(net), Counted(net, monkeypatch)
    net.epsilon.fill_(1.0)
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(float("nan"))
    rows = rows_for(SPECS["discrete"], 2)
    assert acts.act(rows)["action"].tolist() == (rows["noise"][:, 1] * 4).long().tolist()
    assert calls.num == 0


@pytest.mark.parametrize("chosen", [None, 1, BEST])
@pytest.mark.parametrize("kind", ["discrete", "masked", "continuous"])
def test_a_population_acts_as_it_would(kind: str, chosen: int | None) -> None:
    spec = SPECS[kind]
    net = Population([actor(spec, seed=s) for s in range(3)], num_envs=4, chosen=chosen)
    acts = Accelerator().acts(net)
    assert isinstance(acts, FastPopulation)
    rows = rows_for(spec, net.noise_size, 12)
    same_answers(acts, net, rows)
    net.tally.copy_(torch.tensor([[1.0, 1.0], [2.0, 1.0], [9.0, 1.0]]))
    same_answers(acts, net, rows)
    other = Population([actor(spec, seed=s) for s in range(3, 6)], num_envs=4, chosen=chosen)
    Adam(other.parameters(), lr=1e-3)
    net.load_state_dict(other.state_dict(), assign=True)
    same_answers(acts, other, rows)


# ------------------------------------------------------------------------------------------------------- weights that move
def nets_of(kind: str) -> list[Any]:
    """Two networks of one kind with other weights."""
    if kind == "q":
        return [QNet(SPECS["discrete"], NetConfig(hidden=(8, 6)), seed=s) for s in (1, 2)]
    return [actor(SPECS[kind], seed=s, normalise=True) for s in (1, 2)]


@pytest.mark.parametrize("kind", ["discrete", "continuous", "q"])
def test_what_is_loaded_counts_at_once(kind: str) -> None:
    """By assignment, in place, and what a learner does to shared memory afterwards."""
    net, other = nets_of(kind)
    acts, rows = Accelerator().acts(net), rows_for(net.env_spec, net.noise_size)
    acts.act(rows)
    net.load_state_dict({k: v.clone() for k, v in other.state_dict().items()})
    same_answers(acts, other, rows)
    net.load_state_dict(other.state_dict(), assign=True)
    same_answers(acts, other, rows)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(-0.7)
        for buffer in other.buffers():
            if buffer.is_floating_point():
                buffer.mul_(1.1)
    same_answers(acts, other, rows)


@pytest.mark.parametrize("kind", ["discrete", "continuous", "q"])
def test_an_optimiser_that_moves_weights_is_followed(kind: str) -> None:
    net, _ = nets_of(kind)
    acts, rows = Accelerator().acts(net), rows_for(net.env_spec, net.noise_size)
    acts.act(rows)
    Adam(net.parameters(), lr=1e-3)  # the weights are views of its vector from now on
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(-0.7)
    same_answers(acts, net, rows)


def test_one_parameter_that_is_assigned_is_seen() -> None:
    """`load_state_dict(assign=True)` of some names alone replaces those, and leaves the first one where it was."""
    net, other = nets_of("discrete")
    acts, rows = Accelerator().acts(net), rows_for(net.env_spec, net.noise_size)
    acts.act(rows)
    last = {k: v.clone() for k, v in other.state_dict().items() if k != next(iter(dict(net.named_parameters())))}
    net.load_state_dict(last, assign=True, strict=False)
    same_answers(acts, net, rows)


@pytest.mark.parametrize("kind", ["discrete", "continuous", "q"])
def test_a_copy_acts_by_its_own_weights(kind: str) -> None:
    net, _ = nets_of(kind)
    acts, rows = Accelerator().acts(net), rows_for(net.env_spec, net.noise_size)
    before = acts.act(rows)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.mul_(-0.7)
    same_answers(Accelerator().acts(twin), twin, rows)
    for key, x in acts.act(rows).items():
        assert torch.equal(x, before[key])


def test_numbers_of_another_type_are_for_the_network() -> None:
    """Float64 rows, as an environment may give them, are answered as the network would, or refused as it would."""
    net = actor(SPECS["discrete"])
    acts, rows = Accelerator().acts(net), rows_for(SPECS["discrete"], 1)
    rows["obs"] = rows["obs"].double()
    same_answers(acts, net, rows)


# ----------------------------------------------------------------------------------------------------------- left alone
class OwnBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(obs["obs"])[..., :4]
        return out

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(obs["obs"])[..., 4]
        return out


class OwnActor(ActorCritic):
    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        num = len(rows["obs"])
        return Batch(action=torch.full((num,), 3), logprob=torch.zeros(num))


class OwnQ(QNet):
    def q(self, obs: Any) -> Tensor:
        return -super().q(obs)


class Own:
    noise_size = 1

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        return Batch(action=torch.zeros(len(rows["obs"]), dtype=torch.int64))


def test_networks_of_a_users_own_are_left_alone() -> None:
    spec = SPECS["discrete"]
    own: list[Acts] = [
        OwnActor(spec, build_body(spec, NetConfig(hidden=(8, 6)), seed=1)),
        OwnQ(spec, NetConfig(hidden=(8, 6)), seed=1),
        Own(),
        Population([OwnActor(spec, build_body(spec, NetConfig(hidden=(8, 6)), seed=s)) for s in range(2)], num_envs=2),
    ]
    for mode in ("auto", "on", "off"):
        assert all(Accelerator(mode).acts(net) is net for net in own)  # type: ignore[arg-type]
    body = ActorCritic(spec, OwnBody())
    same_answers(Accelerator().acts(body), body, rows_for(spec, 1))


def test_with_off_nothing_stands_in() -> None:
    for net in (*nets_of("discrete"), *nets_of("q")):
        assert Accelerator("off").acts(net) is net


def test_a_method_that_was_replaced_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    net, rows = actor(SPECS["discrete"]), rows_for(SPECS["discrete"], 1)
    monkeypatch.setattr(net, "_scores", lambda obs: torch.tensor([0.0, 0.0, 0.0, 50.0]).expand(len(obs["obs"]), 4))
    assert Accelerator().acts(net) is net
    q = QNet(SPECS["discrete"], NetConfig(hidden=(8, 6)), seed=1)
    monkeypatch.setattr(QNet, "q", lambda self, obs: torch.tensor([0.0, 0.0, 0.0, 50.0]).expand(len(obs["obs"]), 4))
    assert Accelerator().acts(q) is q
    for one in (net, q):
        assert one.act(rows, greedy=True)["action"].tolist() == [3] * 60


def test_images_several_leaves_and_cores_act_by_torch() -> None:
    pixels = EnvSpec({"obs": ArraySpec((2, 10, 10), torch.uint8)}, CHOICE)
    leaves = EnvSpec({"obs/a": ArraySpec((2,)), "obs/b": ArraySpec((3,))}, CHOICE)
    whole = EnvSpec({"obs": ArraySpec((3,), torch.int64)}, CHOICE)
    g = torch.Generator().manual_seed(0)
    for spec in (pixels, leaves, whole):
        rows = Batch({k: (9.0 * torch.rand(5, *leaf.shape, generator=g)).to(leaf.dtype) for k, leaf in spec.obs.items()})
        rows["noise"] = torch.rand(5, 2, generator=g)
        net = ActorCritic(spec, build_body(spec, NetConfig(hidden=(8,)), seed=1))
        same_answers(Accelerator().acts(net), net, Batch(rows | {"noise": rows["noise"][:, :1]}))
        q = QNet(spec, NetConfig(hidden=(8,)), seed=1)
        same_answers(Accelerator().acts(q), q, rows)
    recurrent = ActorCritic(SPECS["discrete"], build_body(SPECS["discrete"], NetConfig(core="gru", core_size=5), seed=1))
    rows = rows_for(SPECS["discrete"], 1)
    rows |= {k: torch.randn(60, *leaf.shape) for k, leaf in recurrent.state_spec.items()}
    same_answers(Accelerator().acts(recurrent), recurrent, rows)


def test_numpy_leaves_no_trace_in_the_request() -> None:
    """Rows are read, never written."""
    net = actor(SPECS["continuous"], normalise=True, hidden=())
    rows = rows_for(SPECS["continuous"], 2)
    before = {k: x.numpy().copy() for k, x in rows.items()}
    Accelerator().acts(net).act(rows)
    for key, x in before.items():
        np.testing.assert_array_equal(rows[key].numpy(), x)
