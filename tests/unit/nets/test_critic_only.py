"""A critic that reads more than the policy: what either of them depends on, for whom it works, and acting without the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import runnel as rl
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.continuous import DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig

OBS = {"obs/cue": ArraySpec((2,)), "obs/world/luck": ArraySpec((3,)), "obs/world/mass": ArraySpec((1,))}
CHOICE = EnvSpec(OBS, ActionSpec("discrete", num_actions=3))
BOX = EnvSpec(OBS, ActionSpec("continuous", shape=(1,), low=(-1.0,), high=(1.0,)))
NET = NetConfig(hidden=(8,), activation="relu", critic_only=("world",))
LUCK = {"env": "toy_envs:Luck", "track": (), "checkpoint": {"every": 0}, "eval": {"episodes": 0}, "net": {"hidden": (8,)}}


def rows(seed: int, num: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch({key: torch.randn(num, *leaf.shape, generator=generator) for key, leaf in OBS.items()})


def mixed(cue: int, world: int) -> Batch:
    """The cue of one seed beside the world of another."""
    return Batch({key: rows(cue if key == "obs/cue" else world)[key] for key in OBS})


def test_the_policy_reads_what_is_left_and_the_critic_all() -> None:
    net = ActorCritic(CHOICE, build_body(CHOICE, NET, seed=0))
    torch.nn.init.normal_(net.body.actor.weight[-1], generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr]
    assert list(net.policy_obs) == ["obs/cue"]
    (scores, value), (other_scores, other_value) = net.both(mixed(0, 0)), net.both(mixed(0, 1))
    assert torch.equal(scores, other_scores)
    assert not torch.equal(value, other_value)
    assert not torch.equal(scores, net.both(mixed(1, 0))[0])


def test_values_are_those_of_two_networks_in_numpy() -> None:
    body = build_body(CHOICE, NET, seed=3)
    x = rows(5)
    cue, everything = x["obs/cue"].numpy(), np.concatenate([x[k].numpy() for k in sorted(OBS)], -1)
    for net, seen, found in [
        (body.actor, cue, body.policy(x)),  # type: ignore[operator, union-attr]
        (body.critic, everything, body.value(x).unsqueeze(-1)),  # type: ignore[operator, union-attr]
    ]:
        (w1, w2), (b1, b2) = ([p.detach().numpy() for p in part] for part in (net.weight, net.bias))  # type: ignore[union-attr]
        np.testing.assert_allclose(found.detach().numpy(), np.maximum(seen @ w1 + b1, 0.0) @ w2 + b2, atol=1e-6)


@pytest.mark.parametrize("actor", [SquashedGaussianActor, DeterministicActor])
def test_actors_of_replay_read_what_is_left(actor: type[SquashedGaussianActor] | type[DeterministicActor]) -> None:
    net, critic = actor(BOX, NET, seed=0), QEnsemble(BOX, NET, seed=0)
    assert torch.equal(net.scores(mixed(0, 0)), net.scores(mixed(0, 1)))
    action = torch.zeros(4, 1)
    assert not torch.equal(critic.q(mixed(0, 0), action), critic.q(mixed(0, 1), action))


@pytest.mark.parametrize(
    ("names", "text"),
    [(("speed",), "it has cue, world/luck, world/mass"), (("cue", "world"), "nothing is left"), (("wor",), "no such part")],
)
def test_parts_that_are_not_there_or_all_of_them_are_refused(names: tuple[str, ...], text: str) -> None:
    for make in (
        lambda net: build_body(CHOICE, net, seed=0),
        lambda net: SquashedGaussianActor(BOX, net, seed=0),
    ):
        with pytest.raises(ConfigError, match=text):
            make(NetConfig(hidden=(8,), critic_only=names))


@pytest.mark.parametrize("net", [{"core": "gru"}, {"shared": True}])
def test_layers_that_both_use_are_refused(net: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="critic_only"):
        rl.train("ppo", total_updates=1, **{**LUCK, "net": {"critic_only": ("luck",), **net}})


def test_an_observation_of_one_array_has_no_parts() -> None:
    with pytest.raises(ConfigError, match="one array"):
        rl.train("ppo", total_updates=1, net={"critic_only": ("luck",)}, eval={"episodes": 0}, track=())


SAC = {"total_steps": 80, "min_fill": 64, "sac": {"batch_size": 8}, "env_kwargs": {"box": True}}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("ppo", {"total_updates": 2}), ("a2c", {"total_updates": 2}), ("sac", SAC), ("cip", SAC)],
    ids=["ppo", "a2c", "sac", "cip"],
)
def test_a_trained_policy_acts_without_what_its_critic_read(recipe: str, settings: dict[str, object], tmp_path: Path) -> None:
    given = {**LUCK, "net": {"hidden": (8,), "critic_only": ("luck",)}, "out": str(tmp_path), **settings}
    run = rl.train(recipe, **given)
    policy = rl.load(run.path)
    cues = np.linspace(-1.0, 1.0, 5, dtype=np.float32)[:, None]
    alone, beside = (policy.act(x) for x in ({"cue": cues}, {"cue": cues, "luck": 9.0 * cues}))
    assert np.array_equal(alone, beside)
    folder = rl.export(run.path, tmp_path / "file")
    assert list(json.loads((folder / "policy.json").read_text())["inputs"]) == ["obs/cue"]
