"""`set` of every learner: its next update is that of a learner which had the setting from the beginning, also with kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from joint_segments import mat, team_segment
from made_segments import make_net, make_segment
from made_teams import GROUPS, NUM_ACTIONS, play, segments_of, spec
from replay_segments import BOX, CHOICE, segment
from team_transitions import AGENT, A, team_spec, transitions
from test_masac import made
from test_masac import transitions as of_actors

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.agents.appo import APPOConfig, APPOLearner
from runnel.agents.coma import COMAConfig, COMALearner, extra_size
from runnel.agents.ddpg import DDPGConfig, DDPGLearner
from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.happo import HAPPOConfig, HAPPOLearner
from runnel.agents.impala import IMPALAConfig, IMPALALearner
from runnel.agents.mappo import MAPPOConfig, MAPPOLearner
from runnel.agents.masac import MASACConfig, MASACLearner
from runnel.agents.mat import MATConfig
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.qmix import QMIXConfig, QMIXLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.agents.team import TeamLearner
from runnel.core.contracts.learning import HasLiveSettings, HasMembers
from runnel.core.errors import ConfigError
from runnel.core.live_settings import live_fields, with_live
from runnel.core.resuming import OnResume, live
from runnel.kernels.graphs import CudaGraphed
from runnel.kernels.select import Accelerator, _record
from runnel.nets.central import StateCritic, lone_actor, state_of
from runnel.nets.continuous import DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(16, 16), activation="relu")


def replayed(kind: type, actor: type, config: Any) -> Any:
    copies = 1 if kind is DDPGLearner else 2
    return kind(config, actor(BOX, NET, seed=0), QEnsemble(BOX, NET, copies=copies, seed=0), seed=0)


def of_team(config: HAPPOConfig) -> HAPPOLearner:
    nets = {policy: lone_actor(spec(num), NET, seed=0) for policy, num in GROUPS.items()}
    return HAPPOLearner(config, nets, StateCritic(state_of(spec(1)), NET, seed=0), seed=1)


def counterfactual(config: COMAConfig) -> COMALearner:
    nets = {policy: lone_actor(spec(num), NET, seed=0) for policy, num in GROUPS.items()}
    critic = StateCritic(state_of(spec(1)), NET, seed=0, num_extra=extra_size(nets, GROUPS), num_outputs=NUM_ACTIONS)
    return COMALearner(config, nets, critic, agents=GROUPS)


MAKE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "ppo": (PPOConfig(num_epochs=2, num_minibatches=2), lambda c: PPOLearner(c, make_net(), seed=1)),
    "appo": (APPOConfig(num_epochs=2, num_minibatches=2), lambda c: APPOLearner(c, make_net(), seed=1)),
    "mappo": (MAPPOConfig(num_epochs=2, num_minibatches=2), lambda c: MAPPOLearner(c, make_net(), seed=1)),
    "happo": (HAPPOConfig(num_epochs=2, num_minibatches=2, normalise_obs=False), of_team),
    "coma": (COMAConfig(target_every=2, normalise_obs=False), counterfactual),
    "mat": (MATConfig(lr=0.02, num_epochs=2, num_minibatches=2), mat),
    "a2c": (A2CConfig(), lambda c: A2CLearner(c, make_net())),
    "impala": (IMPALAConfig(), lambda c: IMPALALearner(c, make_net())),
    "dqn": (DQNConfig(target_every=2, huber=1.0), lambda c: DQNLearner(c, c.network(CHOICE, NET, seed=0))),
    "qmix": (QMIXConfig(target_every=2), lambda c: QMIXLearner(c, c.network(team_spec(), AGENT, NET, num_agents=A, seed=0))),
    "masac": (MASACConfig(), lambda c: MASACLearner(c, *(made().actor, made().critic), seed=0)),
    "sac": (SACConfig(), lambda c: replayed(SACLearner, SquashedGaussianActor, c)),
    "td3": (TD3Config(), lambda c: replayed(TD3Learner, DeterministicActor, c)),
    "ddpg": (DDPGConfig(), lambda c: replayed(DDPGLearner, DeterministicActor, c)),
}
VALUES: dict[str, Any] = {
    "num_epochs": 3,
    "critic_steps": 3,
    "value_clip": 0.01,
    "huber_delta": 0.05,
    "dual_clip": 1.1,
    "target_every": 5,
    "actor_delay": 5,
    "epsilon": 0.7,
}
VALUES["max_grad_norm"] = 0.01
NO_EFFECT_HERE = {"sigma": "is of another head"}
CASES = [
    (name, field) for name, (config, _) in MAKE.items() for field in live_fields(type(config)) if field not in NO_EFFECT_HERE
]


def another(config: Any, field: str) -> Any:
    """A value that the field does not have, small enough to have an effect where it is a bound."""
    value = getattr(config, field)
    return VALUES.get(field, 0.05 if isinstance(value, str) or not value else value * 0.3)


def data(name: str, seed: int) -> Any:
    if name in ("ppo", "appo", "mappo", "a2c", "impala"):
        return {"trajectories": [make_segment(seed)]}
    if name == "masac":
        return {"replay": [of_actors(seed)]}
    if name == "mat":
        return {"trajectories": [team_segment(seed)]}
    if name == "qmix":
        return {"replay": [transitions(seed)]}
    if name in ("happo", "coma"):
        return segments_of(play(seed))
    return {"replay": [segment(seed, spec=CHOICE if name == "dqn" else BOX)]}


def trained(learner: Any, name: str, seeds: range) -> list[dict[str, float]]:
    return [learner.update(learner.prepare(data(name, seed), progress=0.25)).metrics for seed in seeds]


def outcome(learner: Any, name: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    metrics = trained(learner, name, range(5, 8))
    state = learner.state_dict()
    nets = state.get("nets") or {"net": state["net"], "target": state.get("target", {})}
    return metrics, {f"{net}/{k}": x for net, one in nets.items() for k, x in one.items()} | dict(learner.params())


def equal(a: Any, b: Any) -> bool:
    return a[0] == b[0] and a[1].keys() == b[1].keys() and all(torch.equal(a[1][k], b[1][k]) for k in a[1])


@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize(("name", "field"), CASES)
def test_the_next_update_is_that_of_a_learner_made_with_it(name: str, field: str, compiled: Any) -> None:
    config, make = MAKE[name]
    value, accelerator = another(config, field), Accelerator(compiled)

    def begun(config: Any) -> Any:
        return accelerator.learner(make(config)).learner

    before = begun(config)
    trained(before, name, range(4))
    state, plain = before.state_dict(), begun(config)
    plain.load_state_dict(state)
    made, changed = begun(replace(config, **{field: value})), begun(config)
    made.load_state_dict(state)
    trained(changed, name, range(4))
    assert isinstance(changed, HasLiveSettings)
    changed.set(field, value)
    found = outcome(changed, name)
    assert equal(found, outcome(made, name))
    assert not equal(found, outcome(plain, name)), f"{field} has no effect"


@pytest.mark.parametrize("name", list(MAKE))
def test_what_is_not_live_is_refused_and_changes_nothing(name: str) -> None:
    config, make = MAKE[name]
    learner, known = make(config), live_fields(type(config))
    (fields,) = learner.takes.values()
    assert (list(learner.takes), list(fields)) == ([type(config)], known)
    rate = known[0]
    before = learner.config
    for field, value, why in (
        ("gamma", 0.5, f"gamma = 0.5: may not change while a run goes on; live settings here: {', '.join(known)}"),
        ("nonsense", 1, "nonsense = 1: may not change while a run goes on"),
        (rate, -1.0, f"{rate} = -1.0: must be at least 0"),
        (rate, "soon", f"{rate} = 'soon': write a number"),
        (rate, None, f"{rate} = None: expected"),
    ):
        if name == "ddpg" and field == "gamma":
            why = "gamma = 0.5: may not change while a run goes on"  # its learner is TD3's
        with pytest.raises(ConfigError) as error:
            learner.set(field, value)
        assert why in str(error.value)
    assert learner.config is before


@dataclass(frozen=True)
class Switched:
    on_resume: ClassVar[OnResume] = live("weight", switches=False)
    weight: float = 0.0


def test_what_changes_the_run_is_not_switched_on_the_way() -> None:
    assert with_live(Switched(0.1), "weight", 0.2) == Switched(0.2)
    for now, then in ((0.0, 0.1), (0.1, 0.0)):
        with pytest.raises(ConfigError, match="stop the run, and resume with it"):
            with_live(Switched(now), "weight", then)


def test_a_member_of_a_team_has_values_of_its_own() -> None:
    """`red/lr` is for red, `lr` for all; a field that only one of them has goes to that one."""
    team = TeamLearner({name: MAKE[kind][1](MAKE[kind][0]) for name, kind in (("red", "ppo"), ("blue", "ppo"), ("old", "a2c"))})
    assert isinstance(team, HasLiveSettings)
    assert isinstance(team, HasMembers)
    red, blue, old = team.members.values()
    team.set("red/lr", 0.1)
    team.set("max_grad_norm", 0.2)
    team.set("clip_range", 0.3)
    assert (red.config.lr, blue.config.lr) == (0.1, PPOConfig().lr)
    assert {x.config.max_grad_norm for x in (red, blue, old)} == {0.2}
    assert (red.config.clip_range, blue.config.clip_range) == (0.3, 0.3)
    for name, why in (("green/lr", "there is no such member; use one of red, blue, old"), ("old/clip_range", "may not change")):
        with pytest.raises(ConfigError, match=why):
            team.set(name, 0.1)


def test_a_changed_setting_ends_the_graphs_that_kept_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded graph repeats the numbers of its recording, so it must be recorded again. Without a GPU: it is told to."""
    forgotten: list[CudaGraphed[Any]] = []
    monkeypatch.setattr(CudaGraphed, "forget", lambda graph: forgotten.append(graph))
    config, make = MAKE["ppo"]
    learner = make(config)
    _record(learner, PPOLearner)
    learner.set("clip_range", 0.3)
    assert learner.config.clip_range == 0.3
    assert forgotten == [learner.make_batch, learner.learn]
