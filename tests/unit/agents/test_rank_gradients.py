"""Ranks take the step that one learner takes on the whole batch: every classical learner, over real sums."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest
import torch
from joint_segments import mat as made_mat
from joint_segments import team_segment
from made_ranks import together
from made_segments import BOX as WIDE
from made_segments import COSTLY, SHARING, make_net, make_segment, shared_segment
from replay_segments import BOX, CHOICE, segment
from team_transitions import made, transitions
from test_masac import made as made_actors
from test_masac import transitions as of_actors

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.agents.appo import APPOConfig, APPOLearner
from runnel.agents.bc import BCConfig, BCLearner
from runnel.agents.cip import CIPConfig, CIPLearner
from runnel.agents.ddpg import DDPGConfig, DDPGLearner
from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.impala import IMPALAConfig, IMPALALearner
from runnel.agents.mappo import MAPPOConfig, MAPPOLearner
from runnel.agents.masac import MASACLearner
from runnel.agents.mat import MATConfig, MATLearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.ppo_lagrangian import LagrangianConfig, PPOLagrangianLearner
from runnel.agents.qmix import QMIXLearner
from runnel.agents.rlpd import RLPDConfig, RLPDLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.contracts.learning import Collective, HasRng, SingleProcess
from runnel.core.records import Batch, Header, Segment
from runnel.core.sharding.batch_split import share_of
from runnel.data.offline import imitation_stream
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.central import central_body
from runnel.nets.continuous import CategoricalActor, DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.cost_critics import CostCritics
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(16, 16), activation="relu")
ONE_PASS: dict[str, Any] = {"num_epochs": 2, "num_minibatches": 1, "normalise_obs": True}
Make = Callable[[Collective], Any]


def ppo(ranks: Collective) -> PPOLearner:
    return PPOLearner(PPOConfig(**ONE_PASS, normalise_reward=True), make_net(normalise_obs=True), seed=1, collective=ranks)


def ppo_of_boxes(ranks: Collective) -> PPOLearner:
    return PPOLearner(PPOConfig(num_epochs=1, num_minibatches=1, target_kl=0.5), make_net(WIDE), seed=1, collective=ranks)


def mappo(ranks: Collective) -> MAPPOLearner:
    """Its returns are of all ranks before any of them learns on their scale."""
    body = central_body(SHARING, NET, seed=0)
    net = ActorCritic(SHARING, body, normalise_obs=True)
    return MAPPOLearner(MAPPOConfig(num_epochs=2, value_clip=0.05, value_decay=0.9), net, seed=1, collective=ranks)


def mat(ranks: Collective) -> MATLearner:
    """Ranks have unequal numbers of agents that decided."""
    return made_mat(MATConfig(num_epochs=2, value_clip=0.05, value_coef=0.7), ranks)


def ppo_lagrangian(ranks: Collective) -> PPOLagrangianLearner:
    costs = ("heat", "noise")
    lagrangian = LagrangianConfig(dict.fromkeys(costs, 0.5), initial_multiplier=0.7, multiplier_lr=0.1)
    critics, net = CostCritics(COSTLY, NET, costs, seed=0), make_net(COSTLY, normalise_obs=True)
    return PPOLagrangianLearner(PPOConfig(**ONE_PASS), lagrangian, net, critics, seed=1, collective=ranks)


def appo(ranks: Collective) -> APPOLearner:
    return APPOLearner(APPOConfig(num_epochs=1, num_minibatches=1), make_net(), seed=1, collective=ranks)


def a2c(ranks: Collective) -> A2CLearner:
    return A2CLearner(A2CConfig(normalise_obs=True), make_net(normalise_obs=True), collective=ranks)


def impala(ranks: Collective) -> IMPALALearner:
    return IMPALALearner(IMPALAConfig(), make_net(), collective=ranks)


def dqn(ranks: Collective) -> DQNLearner:
    return DQNLearner(DQNConfig(), DQNConfig().network(CHOICE, NET, seed=0), collective=ranks)


def qmix(ranks: Collective) -> QMIXLearner:
    return made(ranks=ranks)


def vdn(ranks: Collective) -> QMIXLearner:
    return made(ranks=ranks, mixer="vdn", share="none")


def independent_q(ranks: Collective) -> QMIXLearner:
    """Ranks have unequal numbers of agents that decided."""
    return made(ranks=ranks, mixer="none")


def masac(ranks: Collective) -> MASACLearner:
    """The same noise for every row; ranks have unequal numbers of agents that decided."""
    learner = made_actors(ranks)
    learner.draw = lambda num_rows: torch.tensor([[0.3, -0.8, 0.1, 0.5, -0.2, 0.9]]).expand(num_rows, -1)  # type: ignore[method-assign]
    return learner


def sac(ranks: Collective) -> SACLearner:
    return SACLearner(SACConfig(), fixed_actor(), QEnsemble(BOX, NET, seed=0), seed=1, collective=ranks)


def rlpd(ranks: Collective) -> RLPDLearner:
    """The subset of critics is the same on every rank."""
    config, critic = RLPDConfig(num_critics=4, actor_every=1), QEnsemble(BOX, NET, copies=4, layer_norm=True, seed=0)
    return RLPDLearner(config, fixed_actor(), critic, seed=1, collective=ranks)


class Drawless(CIPLearner):
    """The same noise for every row. It exchanges none: which of them it would is each rank's own draw."""

    def draw(self, num_rows: int) -> torch.Tensor:
        return torch.tensor([[0.3, -0.8]]).expand(num_rows, -1)


def cip(ranks: Collective) -> CIPLearner:
    actor = SquashedGaussianActor(BOX, NET, seed=0)
    return Drawless(CIPConfig(swap=0.0, empowerment=0.5), actor, QEnsemble(BOX, NET, seed=0), seed=1, collective=ranks)


def fixed_actor() -> SquashedGaussianActor:
    """The noise of an observation is a function of the observation, so that one learner and several draw the same."""
    actor = SquashedGaussianActor(BOX, NET, seed=0)
    sample = actor.sample

    def fixed(obs: Any, noise: torch.Tensor) -> Any:
        grid = 50.0 * obs["obs"].sum(-1, keepdim=True) * torch.tensor([0.7, 1.3])
        assert noise.shape == grid.shape
        return sample(obs, grid.sin())

    actor.sample = fixed  # type: ignore[method-assign]
    return actor


def bc(ranks: Collective) -> BCLearner:
    return BCLearner(BCConfig(), make_net(normalise_obs=True), collective=ranks)


def done() -> list[Segment]:
    """Observations and actions of a data set."""
    stream, played = imitation_stream(make_net().env_spec, batch_size=12), make_segment(1, num_envs=4).arrays
    arrays = Batch({key: played[key].flatten(0, 1)[:12] for key in stream.fields})
    return [Segment(0, stream, Header(), arrays)]


def sac_of_choices(ranks: Collective) -> SACLearner:
    return SACLearner(
        SACConfig(), CategoricalActor(CHOICE, NET, seed=0), QEnsemble(CHOICE, NET, seed=0), seed=1, collective=ranks
    )


def td3(ranks: Collective) -> TD3Learner:
    config = TD3Config(target_noise=0.0, actor_delay=1)
    return TD3Learner(config, DeterministicActor(BOX, NET, seed=0), QEnsemble(BOX, NET, seed=0), seed=1, collective=ranks)


def ddpg(ranks: Collective) -> DDPGLearner:
    critic = QEnsemble(BOX, NET, copies=1, seed=0)
    return DDPGLearner(DDPGConfig(), DeterministicActor(BOX, NET, seed=0), critic, seed=1, collective=ranks)


def played(spec: Any = None) -> list[Segment]:
    return [make_segment(seed, num_envs=4, **({"spec": spec} if spec else {})) for seed in (1, 2)]


LEARNERS: dict[str, tuple[Make, Callable[[], list[Segment]]]] = {
    "ppo": (ppo, played),
    "ppo of boxes": (ppo_of_boxes, lambda: played(WIDE)),
    "mappo": (mappo, lambda: [shared_segment(seed) for seed in (1, 2)]),
    "ppo_lagrangian": (ppo_lagrangian, lambda: played(COSTLY)),
    "appo": (appo, played),
    "a2c": (a2c, played),
    "impala": (impala, played),
    "dqn": (dqn, lambda: [segment(1, 12, CHOICE)]),
    "qmix": (qmix, lambda: [transitions(1, 12)]),
    "vdn": (vdn, lambda: [transitions(1, 12)]),
    "independent_q": (independent_q, lambda: [transitions(1, 12, own_rewards=True)]),
    "masac": (masac, lambda: [of_actors(1, 12)]),
    "mat": (mat, lambda: [team_segment(seed) for seed in (1, 2)]),
    "bc": (bc, done),
    "rlpd": (rlpd, lambda: [segment(1, 12, BOX)]),
    "sac": (sac, lambda: [segment(1, 12, BOX)]),
    "cip": (cip, lambda: [segment(1, 12, BOX)]),
    "sac of choices": (sac_of_choices, lambda: [segment(1, 12, CHOICE)]),
    "td3": (td3, lambda: [segment(1, 12, BOX)]),
    "ddpg": (ddpg, lambda: [segment(1, 12, BOX)]),
}


def flat(state: Any) -> torch.Tensor:
    """All numbers of a learner's state but what is each rank's own."""
    if isinstance(state, torch.Tensor):
        return state.double().flatten()
    if isinstance(state, dict):
        parts = [flat(v) for k, v in state.items() if k not in ("shuffle", "generator", "actor_loss", "sample")]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    return torch.zeros(0, dtype=torch.float64)


@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("name", list(LEARNERS))
def test_ranks_take_the_step_of_one(name: str, num: int) -> None:
    """Weights, moments of the gradient, statistics and metrics. Two segments for four ranks are cut by rows."""
    make, data = LEARNERS[name]

    def work(ranks: Collective) -> tuple[torch.Tensor, dict[str, float], int]:
        learner, rows = make(ranks), 0
        for _ in range(2):
            mine = share_of(data(), ranks.rank, ranks.world_size)
            update = learner.update(learner.prepare({"s": mine}, progress=0.25))
            rows = sum(len(f["priority"]) for f in update.feedback.get("s", []))
        return flat(learner.state_dict()), update.metrics, rows

    torch.set_num_threads(1)
    state, metrics, rows = work(SingleProcess())
    found = together(num, work)
    for other, _, part in found:
        torch.testing.assert_close(other, state, rtol=1e-4, atol=1e-6)
        assert torch.equal(other, found[0][0]), "the same bits on every rank"
        assert part == rows // num
    for key, value in metrics.items():
        assert fmean(said[key] for _, said, _ in found) == pytest.approx(value, rel=1e-4, abs=1e-5), key


def test_a_rank_that_joins_draws_like_nobody_else() -> None:
    for make in (ppo, sac, td3):
        learner = make(SingleProcess())
        assert isinstance(learner, HasRng)
        start = learner.state_dict()
        learner.reseed(7)
        joined = learner.state_dict()
        key = learner.own_state[0]
        assert str(start[key]) != str(joined[key])
        learner.load_state_dict(start)
        learner.reseed(7)
        assert str(learner.state_dict()[key]) == str(joined[key])
