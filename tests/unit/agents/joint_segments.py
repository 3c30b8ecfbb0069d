"""Segments whose rows are whole teams, for tests of learners on policy: agents leave, wait and come back at random."""

from __future__ import annotations

import numpy as np
import torch
from team_transitions import AGENT, A, N, team_spec

from runnel.agents.mat import MATConfig, MATLearner
from runnel.core.contracts.learning import Collective
from runnel.core.records import Header, Segment, trim
from runnel.core.trajectories import CARRIED, REWARD, TEAM_ACTIVE, trajectory_stream
from runnel.nets.layers import NetConfig
from runnel.nets.mat import TeamTransformer

NET = NetConfig(hidden=(8,))


def team_net(seed: int = 0, *, blocks: int = 2, normalise_obs: bool = False) -> TeamTransformer:
    """A network whose choices are far from uniform, so that what a choice hangs on shows."""
    net = TeamTransformer(team_spec(), AGENT, NET, width=8, heads=2, blocks=blocks, normalise_obs=normalise_obs, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in net.parameters():
            x.add_(0.3 * torch.randn(x.shape, generator=generator))
    return net


def mat(config: MATConfig, ranks: Collective | None = None) -> MATLearner:
    return MATLearner(config, team_net(normalise_obs=config.normalise_obs), seed=1, collective=ranks)


def team_segment(seed: int = 0, *, num_steps: int = 6, num_envs: int = 4) -> Segment:
    rng = np.random.default_rng(seed)
    stream = trajectory_stream(team_spec(), num_steps=num_steps, num_envs=num_envs, carried=(REWARD,))
    arrays = stream.allocate()
    for x in arrays.values():
        if x.dtype == torch.float32:
            x.copy_(torch.from_numpy(rng.normal(size=x.shape)))
    for name in ("", "final_"):
        lead = arrays[name + TEAM_ACTIVE].shape
        active = rng.random(lead) < 0.7
        active[..., 0] |= ~active.any(-1)
        arrays[name + TEAM_ACTIVE].copy_(torch.from_numpy(active))
        arrays[name + "obs"][~torch.from_numpy(active)] = 0.0
        mask = (rng.random((*lead, N)) < 0.6) | ~active[..., None]
        mask[..., 1] = True
        arrays[name + "action_mask"].copy_(torch.from_numpy(mask.reshape(*lead[:-1], -1)))
    allowed = arrays["action_mask"][:-1].view(num_steps, num_envs, A, N).numpy()
    arrays["action"].copy_(torch.from_numpy((rng.random(allowed.shape) * allowed).argmax(-1)))
    arrays[CARRIED].copy_(torch.linspace(-1.0, 1.0, num_envs))
    end = torch.from_numpy(rng.random((num_steps, num_envs)))
    arrays["terminated"].copy_(end < 0.15)
    arrays["truncated"].copy_((end >= 0.15) & (end < 0.3))
    index = (end < 0.3).flatten().nonzero().flatten()
    arrays["final_index"][: len(index)] = index
    used = {"F": len(index)}
    return Segment(0, stream, Header(used=used), trim(stream, arrays, used))
