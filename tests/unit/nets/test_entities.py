"""Sets of entities: no order, no trace of those who are not there, any number of them, and the equations in numpy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.records import Batch
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.central import StateCritic, central_body, lone_actor
from runnel.nets.entities import EntityTorso, make_torso
from runnel.nets.layers import NetConfig
from runnel.nets.q_nets import QNet

Kind = Literal["attention", "mean"]
KINDS: tuple[Kind, ...] = ("attention", "mean")


def spec(num: int, *, own: bool = True, shared: bool = False) -> EnvSpec:
    obs = {"obs/others": ArraySpec((num, 3)), "obs/others_mask": ArraySpec((num,))}
    obs |= {"obs/self": ArraySpec((2,))} if own else {}
    obs |= {"shared/state": ArraySpec((4,))} if shared else {}
    return EnvSpec(obs, ActionSpec("discrete", num_actions=4))


def rows(seed: int, num: int, *, lead: tuple[int, ...] = (5,), own: bool = True) -> Batch:
    rng = make_rng(seed, "rows")
    found = {"obs/others": rng.normal(size=(*lead, num, 3)), "obs/others_mask": rng.random((*lead, num)) < 0.6}
    found |= {"obs/self": rng.normal(size=(*lead, 2))} if own else {}
    return Batch({key: torch.from_numpy(np.asarray(x, np.float32)) for key, x in found.items()})


def network(num: int, kind: Kind, **net: Any) -> ActorCritic:
    env = spec(num)
    body = build_body(env, NetConfig(hidden=(8, 8), entities=kind, **net), seed=1)
    return ActorCritic(env, body, normalise_obs=True)


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(KINDS))
@settings(max_examples=40, deadline=None)
def test_order_and_those_who_are_not_there_change_nothing(seed: int, num: int, kind: Kind) -> None:
    net, seen = network(num, kind), rows(seed, num)
    order = torch.from_numpy(make_rng(seed, "order").permutation(num))
    turned = Batch(seen | {key: seen[key][:, order] for key in ("obs/others", "obs/others_mask")})
    hidden = seen["obs/others"].clone()
    hidden[seen["obs/others_mask"] == 0] = torch.nan
    for other in (turned, Batch(seen | {"obs/others": hidden})):
        for a, b in zip(net.both(other), net.both(seen), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parameters_of_few_act_among_many(kind: Kind) -> None:
    """Also where sets are filled up: two of five that are there look like two of two."""
    small, large = network(2, kind), network(5, kind)
    assert set(small.normalisers) == {"obs/self"}, "no statistics of places in a set"
    large.load_state_dict(small.state_dict())
    seen = rows(3, 2)
    wide = Batch(seen)
    for key in ("obs/others", "obs/others_mask"):
        wide[key] = torch.cat([seen[key], torch.zeros(5, 3, *seen[key].shape[2:])], dim=1)
    wide["obs/others"][:, 2:] = 7.0
    for a, b in zip(large.both(wide), small.both(seen), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_equations(kind: Kind, own: bool) -> None:
    torso = make_torso(spec(4, own=own).obs, NetConfig(hidden=(6,), entities=kind, activation="relu"), seed=2)
    assert isinstance(torso, EntityTorso)
    seen, pool = rows(1, 4, own=own), torso.pools["obs/others"]
    seen["obs/others_mask"][0] = 0.0
    for part in pool.children():
        torch.nn.init.normal_(part.bias[0], generator=torch.Generator().manual_seed(0))  # type: ignore[index, arg-type]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        layer = getattr(pool, name)
        found: np.ndarray = x @ layer.weight[0].detach().numpy() + layer.bias[0].detach().numpy()
        return found

    expected = []
    for b in range(5):
        me = seen["obs/self"][b].numpy() if own else np.zeros(0, np.float32)
        there = [seen["obs/others"][b, i].numpy() for i in range(4) if seen["obs/others_mask"][b, i]]
        e = [np.maximum(linear("embed", f), 0.0) for f in there]
        if not e:
            z = np.zeros(6)
        elif kind == "mean":
            z = np.mean(e, axis=0)
        else:
            scores = np.array([linear("query", me if own else np.zeros(1)) @ linear("key", x) / np.sqrt(6) for x in e])
            weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            z = sum(w * linear("value", x) for w, x in zip(weights, e, strict=True))
        expected.append(np.concatenate([me, z]))
    np.testing.assert_allclose(torso(seen).detach().numpy(), np.stack(expected), rtol=1e-4, atol=1e-5)
    assert torso.width == 6 + 2 * own


@pytest.mark.parametrize("kind", KINDS)
def test_every_on_policy_network_takes_sets(kind: Kind) -> None:
    env, config = spec(3), NetConfig(hidden=(8,), entities=kind)
    for net in (config, NetConfig(hidden=(8,), entities=kind, shared=True)):
        both = ActorCritic(env, build_body(env, net, seed=0)).both(rows(0, 3, lead=(4, 2)))
        assert [x.shape for x in both] == [(4, 2, 4), (4, 2)]
    assert ActorCritic(env, build_body(env, NetConfig(hidden=(8,), entities=kind, core="gru"), seed=0)).state_spec
    central = ActorCritic(spec(3, shared=True), central_body(spec(3, shared=True), config, seed=0))
    assert central.value({**rows(0, 3), "shared/state": torch.zeros(5, 4)}).shape == (5,)
    assert lone_actor(env, config, seed=0).scores(rows(0, 3)).shape == (5, 4)
    assert StateCritic(env.obs, config, seed=0, normalise=True)(rows(0, 3)).shape == (5, 1)
    assert StateCritic({"shared/state": ArraySpec((4,))}, config, seed=0)({"shared/state": torch.zeros(2, 4)}).shape == (2, 1)


def test_without_a_set_or_a_layer_for_it_the_setting_is_refused() -> None:
    flat = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=2))
    with pytest.raises(UnusedSettingError, match="no part of the observation is a set of entities"):
        build_body(flat, NetConfig(entities="mean"), seed=0)
    wrong = EnvSpec({"obs/a": ArraySpec((3, 2)), "obs/a_mask": ArraySpec((2,))}, flat.action)
    with pytest.raises(UnusedSettingError, match="beside a mask"):
        build_body(wrong, NetConfig(entities="mean"), seed=0)
    with pytest.raises(UnusedSettingError, match="this network has no layer for sets of entities"):
        QNet(spec(3), NetConfig(entities="mean"), seed=0)


def omniscient(num: int, *, shared: bool = False) -> EnvSpec:
    known = spec(num, shared=shared)
    return EnvSpec({**known.obs, "obs/others_exists": ArraySpec((num,))}, known.action)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("central", [False, True])
def test_critics_read_entities_that_policies_do_not_see(kind: Kind, central: bool) -> None:
    env, config = omniscient(4, shared=central), NetConfig(hidden=(8, 8), entities=kind)
    body = central_body(env, config, seed=1) if central else build_body(env, config, seed=1)
    net = ActorCritic(env, body, normalise_obs=True)
    assert "obs/others_exists" not in net.policy_obs
    assert not {"obs/others_exists", "obs/others_mask", "obs/others"} & set(net.normalisers)
    seen = rows(2, 4)
    seen["obs/others_exists"] = torch.ones(5, 4)
    if central:
        seen["shared/state"] = torch.zeros(5, 4)
    hidden = seen["obs/others_mask"] == 0
    assert hidden.any()
    assert not hidden.all()
    moved = Batch(seen | {"obs/others": torch.where(hidden.unsqueeze(2), seen["obs/others"] + 1.0, seen["obs/others"])})
    none = Batch(seen | {"obs/others_exists": seen["obs/others_mask"]})
    (scores, value), (scores_of_moved, value_of_moved), (scores_of_none, value_of_none) = map(net.both, (seen, moved, none))
    some = hidden.any(1)
    assert torch.equal(scores, scores_of_moved)
    assert torch.equal(scores, scores_of_none)
    assert (value != value_of_moved)[some].all()
    assert (value != value_of_none)[some].all()
    torch.testing.assert_close(value[~some], value_of_moved[~some])
    alone = lone_actor(env, config, seed=1)
    assert "obs/others_exists" not in alone.env_spec.obs


def test_networks_that_would_show_policies_what_they_do_not_see_are_refused() -> None:
    env = omniscient(4)
    for net, field in (
        (NetConfig(), "net.entities"),
        (NetConfig(entities="mean", core="gru"), "net"),
        (NetConfig(entities="mean", shared=True), "net.shared"),
    ):
        with pytest.raises(ConfigError, match=field):
            build_body(env, net, seed=1)
    with pytest.raises(ConfigError, match="others_exists"):
        QNet(env, NetConfig(), seed=1)
