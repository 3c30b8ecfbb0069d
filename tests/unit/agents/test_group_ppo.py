"""Credit within groups of agents: beside a plain loop over moments, and what a group teaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_teams import play, segments_of, spec

from runnel.agents.group_ppo import GroupPPOLearner
from runnel.agents.ppo import PPOConfig
from runnel.core.errors import ConfigError
from runnel.core.trajectories import ACTIVE
from runnel.nets.central import lone_actor
from runnel.nets.layers import NetConfig

GROUP = {"crew": 4}


def learner(**config: Any) -> GroupPPOLearner:
    net = lone_actor(spec(4), NetConfig(hidden=(8,)), seed=0)
    return GroupPPOLearner(PPOConfig(num_epochs=2, num_minibatches=2, **config), net, num_agents=4, seed=1)


@pytest.mark.parametrize("gamma", [0.9, 0.0])
def test_agents_are_judged_beside_those_who_decide_with_them(gamma: float) -> None:
    """Returns from decision to decision, and their standing within each moment, agent by agent in plain Python."""
    for seed in range(3):
        played = play(seed, num_steps=12, num_envs=3, groups=GROUP)
        (segment,) = segments_of(played, groups=GROUP)["crew"]
        data, ppo = segment.arrays, learner(gamma=gamma)
        _, advantages, _ = ppo.credit(data, data["rewards/env"])
        checked = 0
        for e, moments in enumerate(played):
            to_go: dict[tuple[int, int], float] = {}
            for i in range(4):
                ahead, paid, known = 0.0, 0.0, moments[-1].seen.get(("crew", i)) is not None
                for t in reversed(range(12)):
                    now, agent = moments[t], ("crew", i)
                    if agent in now.flags:
                        ahead, paid, known = 0.0, 0.0, True
                    paid += now.paid.get(agent, 0.0)
                    if agent in now.seen:
                        if known:
                            to_go[t, i] = ahead = paid + gamma * ahead
                        else:
                            ahead = 0.0
                        paid, known = 0.0, True
            for t in range(12):
                group = [to_go[t, i] for i in range(4) if (t, i) in to_go]
                for i in range(4):
                    if (t, i) not in to_go:
                        continue
                    spread = np.std(group, ddof=1) if len(group) > 1 else 0.0
                    expected = (to_go[t, i] - np.mean(group)) / (spread + 1e-6) if len(group) > 1 else 0.0
                    assert advantages[t, e * 4 + i].item() == pytest.approx(expected, abs=2e-3), (e, t, i)
                    checked += 1
        assert checked > 50


def test_what_everybody_gets_changes_nothing() -> None:
    """The same luck for all agents of a moment, now or later, leaves no trace. Metrics know no critic."""
    ppo, made = learner(gamma=0.9), segments_of(play(5, num_envs=4, groups=GROUP), groups=GROUP)
    data = made["crew"][0].arrays
    data[ACTIVE].fill_(True)
    for key in ("terminated", "truncated"):
        data[key].fill_(False)
    luck = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).repeat_interleave(4, dim=1)
    plain, lucky = (ppo.credit(data, data["rewards/env"] + more * luck)[1] for more in (0.0, 10.0))
    torch.testing.assert_close(lucky, plain, atol=1e-3, rtol=1e-3)
    assert plain.abs().mean() > 0.5
    metrics = ppo.update(ppo.prepare(made, progress=0.0)).metrics
    assert {"loss/policy", "entropy"} <= set(metrics)
    assert not {"loss/value", "explained_variance"} & set(metrics)


def test_a_group_of_one_is_refused() -> None:
    net = lone_actor(spec(1), NetConfig(hidden=(8,)), seed=0)
    with pytest.raises(ConfigError, match="let at least two of them share a policy, or use credit critic"):
        GroupPPOLearner(PPOConfig(), net, num_agents=1, seed=1)
