"""Teams for tests of learners: a learner whose target is another network, and random batches whose agents die and wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runnel.agents.qmix import QMIXConfig, QMIXLearner
from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.contracts.learning import Collective
from runnel.core.records import Header, Segment
from runnel.core.routes import Side
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE, own_reward
from runnel.data.replay import replay_stream
from runnel.envs.team.joint import joint_spec
from runnel.nets.layers import NetConfig

A, N = 3, 4
AGENT = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=N), has_mask=True)
STATED = EnvSpec({**AGENT.obs, "shared/state": ArraySpec((5,))}, AGENT.action, has_mask=True)
NET = NetConfig(hidden=(8,), activation="relu")


def team_spec(*, own_rewards: bool = False) -> EnvSpec:
    side = Side(("a", "b", "c"), STATED, AgentRoute(".*", "team", (SampleRoute("team"),)))
    return joint_spec(side, own_rewards=own_rewards)


def made(seed: int = 0, net: NetConfig = NET, ranks: Collective | None = None, **settings: Any) -> QMIXLearner:
    """A learner whose target is another network than its own."""
    config = QMIXConfig(**{"gamma": 0.9, "lr": 0.01, "mixer_width": 6, "hypernet": 7, "target_every": 1000, **settings})
    spec = team_spec(own_rewards=config.mixer == "none")
    learner = QMIXLearner(config, config.network(spec, AGENT, net, num_agents=A, seed=seed), collective=ranks)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for net in (learner.net, learner.target_net):  # type: ignore[assignment]
            for x in net.parameters():  # type: ignore[attr-defined]
                x.add_(0.3 * torch.randn(x.shape, generator=generator))
    return learner


def transitions(seed: int = 0, num: int = 16, *, own_rewards: bool = False) -> Segment:
    """Random transitions: some agents have left before, some leave now; some episodes end."""
    stream = replay_stream(team_spec(own_rewards=own_rewards), batch_size=num)
    arrays, rng = stream.allocate(), np.random.default_rng(seed)
    for x in arrays.values():
        if x.dtype == torch.float32:
            x.copy_(torch.from_numpy(rng.normal(size=x.shape)))
    active = rng.random((num, A)) < 0.7
    active[:, 0] |= ~active.any(-1)
    later = active & (rng.random((num, A)) < 0.7)
    for name, now in (("", active), ("next_", later)):
        arrays[name + TEAM_ACTIVE].copy_(torch.from_numpy(now))
        arrays[name + "obs"][~torch.from_numpy(now)] = 0.0
        mask = (rng.random((num, A, N)) < 0.6) | ~now[..., None]
        mask[..., 1] = True
        arrays[name + "action_mask"].copy_(torch.from_numpy(mask.reshape(num, -1)))
    arrays["action"].copy_(torch.from_numpy(rng.integers(0, N, (num, A))))
    arrays["discount"].copy_(torch.from_numpy(0.9 * (rng.random(num) > 0.2)))
    arrays["weight"].copy_(torch.from_numpy(rng.uniform(0.5, 1.0, num)))
    arrays["index"].copy_(torch.arange(num))
    for i in range(A if own_rewards else 0):
        arrays[own_reward(i)][~torch.from_numpy(active[:, i])] = 0.0
    return Segment(0, stream, Header(), arrays)
