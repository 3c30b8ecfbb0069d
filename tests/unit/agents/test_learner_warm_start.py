"""`init_from` with learners that keep more than they publish: targets start from what was taken, exploration from its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from replay_segments import BOX, CHOICE, segment

import runnel as rl
from runnel.agents.ddpg import DDPGConfig, DDPGLearner
from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.contracts.learning import LoadsInitialParams, StartsPartly
from runnel.nets.continuous import CategoricalActor, DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(8,), activation="relu")


def dqn(seed: int, **settings: Any) -> DQNLearner:
    config = DQNConfig(**settings)
    return DQNLearner(config, config.network(CHOICE, NET, seed=seed))


def td3(seed: int) -> TD3Learner:
    config = TD3Config(exploration_noise="linear(0.5, 0)", actor_delay=1)
    return TD3Learner(config, DeterministicActor(BOX, NET, seed=seed), QEnsemble(BOX, NET, seed=seed), seed=seed)


def ddpg(seed: int) -> DDPGLearner:
    config = DDPGConfig(exploration_noise="linear(0.5, 0)")
    critic = QEnsemble(BOX, NET, seed=seed, copies=1)
    return DDPGLearner(config, DeterministicActor(BOX, NET, seed=seed), critic, seed=seed)


def sac(seed: int) -> SACLearner:
    return SACLearner(SACConfig(), SquashedGaussianActor(BOX, NET, seed=seed), QEnsemble(BOX, NET, seed=seed), seed=seed)


def discrete_sac(seed: int) -> SACLearner:
    return SACLearner(SACConfig(), CategoricalActor(CHOICE, NET, seed=seed), QEnsemble(CHOICE, NET, seed=seed), seed=seed)


def update(learner: Any, progress: float = 0.0, seed: int = 0) -> Any:
    spec = learner.net.env_spec if isinstance(learner, DQNLearner) else learner.actor.env_spec
    return learner.update(learner.prepare({"replay": [segment(seed, spec=spec)]}, progress=progress))


EXPLORATION = {"epsilon", "explore", "noise_scale"}


@pytest.mark.parametrize("make", [dqn, td3, ddpg, sac, discrete_sac])
def test_targets_start_from_what_was_taken_and_exploration_from_its_start(make: Any) -> None:
    old, new = make(0), make(1)
    for i in range(3):
        update(old, progress=0.9, seed=i)
    begun = {k: v.clone() for k, v in new.params().items() if k in EXPLORATION}
    assert isinstance(new, LoadsInitialParams)
    assert isinstance(new, StartsPartly)
    assert new.not_taken()
    new.start_from(old.params())
    for key, taken in new.params().items():
        assert torch.equal(taken, begun[key] if key in begun else old.params()[key])
    assert begun
    assert not EXPLORATION & set(new.base_params())
    target = {"DQNLearner": "target_net", "SACLearner": "actor"}.get(type(new).__name__, "target_actor")
    weights = dict(getattr(new, target).named_parameters())
    assert all(torch.equal(x, old.params()[k]) for k, x in weights.items())


def test_values_that_are_right_stay_right() -> None:
    """A reward of 1 for ever is worth 100 at a discount of 0.99; a random target would drag that down."""
    good, new = dqn(0), dqn(1)
    with torch.no_grad():
        good.net.head.weight[-1].zero_()
        good.net.head.bias[-1].fill_(100.0)
    new.start_from(good.params())
    data = segment(0, num=64, spec=CHOICE)
    data.arrays["rewards/env"].fill_(1.0)
    data.arrays["discount"].fill_(0.99)
    told = [new.update(new.prepare({"replay": [data]}, progress=0.0)).metrics for _ in range(63)]
    assert max(metrics["td_error"] for metrics in told) < 0.01
    assert told[-1]["q"] == pytest.approx(100.0, abs=0.01)


def run(tmp_path: Path, recipe: str, **settings: Any) -> Any:
    tiny = {"num_steps": 4, "min_fill": 16, "total_steps": 32, "net": {"hidden": (8,)}, "eval": {"episodes": 0}}
    return rl.train(recipe, out=str(tmp_path), **{**tiny, recipe: {"batch_size": 4}, **settings})


def notes(run: Any) -> list[tuple[str, str]]:
    return [(row["level"], row["text"]) for row in run.rows("event") if "init_from" in row["text"]]


@pytest.mark.parametrize(
    ("recipe", "env", "says"),
    [
        ("dqn", "CartPole-v1", ["the exploration rate (it begins at 1)", "the replay memory", "the optimiser's moments"]),
        ("sac", "Pendulum-v1", ["the critics", "the temperature", "the end of the uniform actions before the first update"]),
        ("td3", "Pendulum-v1", ["the critics", "the exploration noise (it begins at 0.1)"]),
    ],
)
def test_a_run_says_what_it_did_not_take(tmp_path: Path, recipe: str, env: str, says: list[str]) -> None:
    first = run(tmp_path, recipe, env=env)
    assert notes(first) == []
    second = run(tmp_path, recipe, env=env, init_from=str(first.path))
    ((level, text),) = notes(second)
    assert level == "warning"
    assert all(part in text for part in says)
