"""MASAC beside numpy: what critics read, what the log-density of a team is, and that who does not decide changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from replay_segments import numpy_mlp

from runnel.agents.masac import MASACConfig, MASACLearner
from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Header, Segment
from runnel.core.routes import Side
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE
from runnel.data.replay import replay_stream
from runnel.envs.team.joint import joint_spec
from runnel.nets.continuous import QEnsemble
from runnel.nets.layers import NetConfig

A, D = 3, 2
AGENT = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("continuous", shape=(D,), low=(-2.0, 0.0), high=(2.0, 10.0)))
TEAM = joint_spec(Side(("a", "b", "c"), AGENT, AgentRoute(".*", "team", (SampleRoute("team"),))))
NET = NetConfig(hidden=(8,), activation="relu")


def made(ranks: Collective | None = None, **settings: Any) -> MASACLearner:
    config = MASACConfig(temperature=0.3, **settings)
    actor, critic = config.network(TEAM, AGENT, NET, num_agents=A, seed=1), QEnsemble(TEAM, NET, seed=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for x in (*actor.parameters(), *critic.parameters()):
            x.add_(0.3 * torch.randn(x.shape, generator=generator))
    return MASACLearner(config, actor, critic, seed=1, collective=ranks)


def transitions(seed: int = 0, num: int = 12) -> Segment:
    stream = replay_stream(TEAM, batch_size=num)
    arrays, rng = stream.allocate(), np.random.default_rng(seed)
    for x in arrays.values():
        if x.dtype == torch.float32:
            x.copy_(torch.from_numpy(rng.normal(size=x.shape)))
    active = rng.random((num, A)) < 0.7
    later = active & (rng.random((num, A)) < 0.7)
    for name, now in (("", active), ("next_", later)):
        arrays[name + TEAM_ACTIVE].copy_(torch.from_numpy(now))
        arrays[name + "obs"][~torch.from_numpy(now)] = 0.0
    arrays["action"].copy_(torch.from_numpy(rng.uniform((-2.0, 0.0), (2.0, 10.0), (num, A, D))))
    arrays["discount"].copy_(torch.from_numpy(0.9 * (rng.random(num) > 0.2)))
    arrays["weight"].copy_(torch.from_numpy(rng.uniform(0.5, 1.0, num)))
    arrays["index"].copy_(torch.arange(num))
    return Segment(0, stream, Header(), arrays)


def numpy_actions(learner: MASACLearner, obs: Any, active: Any, z: Any) -> tuple[Any, Any]:
    """Actions `[B, A, D]` and the team's log-densities `[B]`, agent by agent."""
    actions, logprob = np.zeros((len(obs), A, D)), np.zeros(len(obs))
    for i in range(A):
        shared = len(learner.actor.members) == 1
        net: Any = learner.actor.members[0 if shared else i]
        which = np.tile(np.eye(A)[i], (len(obs), 1))
        said = numpy_mlp(net.head, np.concatenate([which, obs[:, i]], -1) if shared else obs[:, i])
        mean, log_std = said[:, :D], np.clip(said[:, D:], -20.0, 2.0)
        u = mean + np.exp(log_std) * z[:, i]
        normal = -0.5 * z[:, i] ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)
        logprob += np.where(active[:, i], (normal - np.log(1.0 - np.tanh(u) ** 2)).sum(-1), 0.0)
        actions[:, i] = np.where(active[:, i, None], np.tanh(u), 0.0)
    return actions, logprob


def numpy_q(critic: QEnsemble, obs: Any, active: Any, action: Any) -> Any:
    """`[S, B]` of what all see, who decides, and what all do."""
    inputs = np.concatenate([obs.reshape(len(obs), -1), active, action.reshape(len(obs), -1)], -1)
    return np.stack([numpy_mlp(critic.head, inputs, copy=i)[:, 0] for i in range(2)])


@pytest.mark.parametrize("share", ["all", "none"])
def test_the_losses_are_those_of_one_agent_with_independent_parts(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = made(share=share)
    z = torch.randn(12, A * D, generator=torch.Generator().manual_seed(9))
    monkeypatch.setattr(learner, "draw", lambda num_rows: z)
    raw = transitions().arrays
    x = {key: value.numpy().astype(np.float64) for key, value in raw.items()}
    now, later = raw[TEAM_ACTIVE].numpy(), raw["next_" + TEAM_ACTIVE].numpy()
    batch = learner.prepare({"r": [transitions()]}, progress=0.0)
    temperature, noise = torch.tensor(0.3), z.numpy().astype(np.float64).reshape(-1, A, D)

    done = np.where(now[..., None], (x["action"] - (0.0, 5.0)) / (2.0, 5.0), 0.0)
    following, logprob = numpy_actions(learner, x["next_obs"], later, noise)
    ahead = numpy_q(learner.target_critic, x["next_obs"], later, following).min(0) - 0.3 * logprob
    error = numpy_q(learner.critic, x["obs"], now, done) - (x["rewards/env"] + x["discount"] * ahead)
    expected = (0.5 * error**2 * x["weight"]).sum() / 12
    assert learner.critic_loss(batch, temperature).value.item() == pytest.approx(expected, rel=1e-4)

    fresh, logprob = numpy_actions(learner, x["obs"], now, noise)
    expected = (0.3 * logprob - numpy_q(learner.critic, x["obs"], now, fresh).min(0)).mean()
    actor = learner.actor_loss(batch, temperature)
    assert actor.value.item() == pytest.approx(expected, rel=1e-4)
    wanted = -D * now.sum(-1).mean()
    heat = learner.temperature_loss(batch, actor.metrics["entropy"]).value.item()
    assert heat == pytest.approx(0.3 * (-logprob.mean() - wanted), rel=1e-4)


def test_who_does_not_decide_changes_nothing() -> None:
    learner, other = made(), made()
    plain, strange = transitions(4), transitions(4)
    gone = ~strange.arrays[TEAM_ACTIVE]
    assert bool(gone.any())
    strange.arrays["action"][gone] = 1.7
    for made_, segment in ((learner, plain), (other, strange)):
        made_.update(made_.prepare({"r": [segment]}, progress=0.0))
    for key, x in learner.params().items():
        assert torch.equal(x, other.params()[key]), key
    batch = learner.prepare({"r": [plain]}, progress=0.0)
    batch["obs"].requires_grad_()
    (slope,) = torch.autograd.grad(learner.actor.sample(batch, learner.draw(12))[1].sum(), batch["obs"])
    assert not slope[gone].any()
    assert slope[~gone].any()


@pytest.mark.parametrize("share", ["all", "none"])
def test_an_agent_alone_does_what_it_does_in_the_team(share: str) -> None:
    actor = made(share=share).actor
    generator = torch.Generator().manual_seed(1)
    rows = Batch(obs=torch.randn(6, A, 2, generator=generator), noise=torch.rand(6, A * D, generator=generator))
    for explore, greedy in ((1.0, False), (0.0, False), (0.0, True)):
        actor.explore.fill_(explore)
        whole = actor.act(rows, greedy=greedy)["action"]
        assert whole.shape == (6, A, D)
        for i in range(A):
            mine = Batch(obs=rows["obs"][:, i], noise=rows["noise"].view(6, A, D)[:, i])
            torch.testing.assert_close(actor.of_agent(i).act(mine, greedy=greedy)["action"], whole[:, i], rtol=1e-5, atol=1e-6)


def test_choices_are_refused() -> None:
    choice = EnvSpec(AGENT.obs, ActionSpec("discrete", num_actions=3))
    spec = joint_spec(Side(("a", "b"), choice, AgentRoute(".*", "team", (SampleRoute("team"),))))
    with pytest.raises(ConfigError, match="one box of continuous actions"):
        MASACConfig().network(spec, choice, NET, num_agents=2, seed=0)
