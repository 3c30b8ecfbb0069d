"""COMA: its targets, its counterfactual baseline and its steps, agent by agent in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_ranks import together
from made_teams import GROUPS, NUM_ACTIONS, Moment, play, segments_of, spec

from runnel.agents.coma import COMAConfig, COMALearner, extra_size, places_of
from runnel.agents.joint import join
from runnel.core.contracts.learning import Collective, SingleProcess
from runnel.core.errors import ConfigError
from runnel.core.sharding.batch_split import share_of
from runnel.core.spaces import ActionSpec, EnvSpec
from runnel.core.trajectories import ACTIVE
from runnel.nets.central import StateCritic, lone_actor, state_of
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(8,))
AGENTS = [(policy, i) for policy, num in GROUPS.items() for i in range(num)]


def learner(ranks: Collective | None = None, **config: Any) -> COMALearner:
    settled = COMAConfig(**{"normalise_obs": False, **config})
    nets = {}
    for i, (policy, num) in enumerate(GROUPS.items()):
        nets[policy] = lone_actor(spec(num), NET, seed=i, normalise_obs=settled.normalise_obs)
        torch.nn.init.normal_(nets[policy].body.actor.weight[-1], generator=torch.Generator().manual_seed(i))  # type: ignore[union-attr]
    extra = extra_size(nets, GROUPS)
    critic = StateCritic(
        state_of(spec(1)), NET, seed=9, normalise=settled.normalise_obs, num_extra=extra, num_outputs=NUM_ACTIONS
    )
    return COMALearner(settled, nets, critic, agents=GROUPS, collective=ranks)


def values(critic: StateCritic, now: Moment, agent: tuple[str, int]) -> Any:
    """Q of each action of `agent`, while all others do what they did. `[n]`"""
    told = np.zeros(len(AGENTS) * (NUM_ACTIONS + 1), np.float32)
    for place, other in enumerate(AGENTS):
        if other != agent and other in now.seen:
            told[place * NUM_ACTIONS + now.action[other]] = 1.0
    told[len(AGENTS) * NUM_ACTIONS + AGENTS.index(agent)] = 1.0
    with torch.no_grad():
        return critic({"shared/state": torch.from_numpy(now.state)[None]}, torch.from_numpy(told)[None])[0].numpy()


def targets_loop(coma: COMALearner, moments: list[Moment]) -> dict[int, float]:
    """TD(lambda) of one environment by moment; none for the last of a segment, and of an episode that was cut."""
    c, num_steps, found = coma.config, len(moments) - 1, dict[int, float]()
    joint_q = [
        float(np.mean([values(coma.target, now, a)[now.action[a]] for a in AGENTS if a in now.seen])) for now in moments[:-1]
    ]
    ahead = 0.0
    for t in reversed(range(num_steps)):
        now, reward = moments[t], sum(moments[t].paid.values()) / len(AGENTS)
        if now.over and not any(now.flags.values()):
            found[t] = ahead = reward
        elif now.over or t == num_steps - 1:
            ahead = joint_q[t]
        else:
            found[t] = ahead = reward + c.gamma * ((1 - c.td_lambda) * joint_q[t + 1] + c.td_lambda * ahead)
    return found


def test_targets_and_credit_are_those_of_the_paper() -> None:
    for seed in range(3):
        played, coma = play(seed, num_steps=14, num_envs=3), learner(gamma=0.9, td_lambda=0.7)
        with torch.no_grad():
            for x in coma.target.parameters():
                x.add_(0.1)
        made = segments_of(played)
        joint = join(made, device=torch.device("cpu"))
        extra = {policy: coma._extra(joint, policy) for policy in GROUPS}
        targets, counts = coma._targets(joint, extra)
        for e, moments in enumerate(played):
            expected = targets_loop(coma, moments)
            assert counts[:, e].nonzero().flatten().tolist() == sorted(expected)
            for t, target in expected.items():
                assert targets[t, e].item() == pytest.approx(target, abs=1e-4)
        checked = 0
        for policy, num in GROUPS.items():
            data = joint.members[policy]
            rows = coma._seen(data, extra[policy]) | {"action": data["action"]}
            with torch.no_grad():
                probs = coma.nets[policy].scores({"obs": data["obs"][:-1]}).softmax(-1)
            advantages = coma.advantages(rows, probs)
            for e, moments in enumerate(played):
                for t, now in enumerate(moments[:-1]):
                    for i in range(num):
                        if (policy, i) in now.seen:
                            q = values(coma.critic, now, (policy, i))
                            pi = probs[t, e * num + i].numpy()
                            expected_advantage = q[now.action[policy, i]] - (pi * q).sum()
                            assert advantages[t, e * num + i].item() == pytest.approx(expected_advantage, abs=1e-5)
                            checked += 1
        assert checked > 60


def test_a_step_follows_the_counterfactual_gradient() -> None:
    """The policies' first step: torch's own Adam on the mean of log-probability times credit, by the critic after its steps."""
    played, coma = play(4), learner(entropy_coef=0.05, critic_steps=3, lr=0.01)
    before = {policy: [x.detach().clone().requires_grad_() for x in net.parameters()] for policy, net in coma.nets.items()}
    batch = coma.prepare(segments_of(played), progress=0.0)
    start = [x.detach().clone() for x in coma.critic.parameters()]
    coma.update(batch)
    assert not all(torch.equal(a, b) for a, b in zip(start, coma.critic.parameters(), strict=True))
    counted = {(e, t) for e, moments in enumerate(played) for t in targets_loop(coma, moments)}
    total = torch.zeros(())
    for policy, params in before.items():
        losses, entropies = [], []
        for e, t in sorted(counted):
            now = played[e][t]
            for agent in now.seen:
                if agent[0] != policy:
                    continue
                w0, w1, b0, b1 = params
                every = ((torch.from_numpy(now.seen[agent]) @ w0 + b0).tanh() @ w1 + b1).log_softmax(-1)
                q, pi = values(coma.critic, now, agent), every.detach().exp().numpy()
                losses.append(-every[now.action[agent]] * float(q[now.action[agent]] - (pi * q).sum()))
                entropies.append(-(every.exp() * every).sum())
        total = total + torch.stack(losses).mean() - 0.05 * torch.stack(entropies).mean()
    every_weight = [x for params in before.values() for x in params]
    adam = torch.optim.Adam(every_weight, lr=0.01, eps=1e-5)
    total.backward()
    torch.nn.utils.clip_grad_norm_(every_weight, coma.config.max_grad_norm)
    adam.step()
    mine = [x for net in coma.nets.values() for x in net.parameters()]
    for a, b in zip(mine, every_weight, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


def test_the_target_network_follows_after_its_number_of_updates() -> None:
    coma, moved = learner(target_every=2), []
    for seed in range(4):
        before = [x.clone() for x in coma.target.parameters()]
        coma.update(coma.prepare(segments_of(play(seed)), progress=0.0))
        moved.append(not all(torch.equal(a, b) for a, b in zip(before, coma.target.parameters(), strict=True)))
    assert moved == [False, True, False, True]


def test_idle_rows_change_nothing_and_a_loaded_learner_goes_on() -> None:
    found = []
    for garbage in (False, True):
        coma = learner(normalise_obs=True, target_every=1)
        for seed in (1, 2):
            made = segments_of(play(seed))
            if garbage:
                for (segment,) in made.values():
                    idle = ~segment.arrays[ACTIVE]
                    segment.arrays["obs"][idle] = 9.0
                    segment.arrays["shared/state"][idle] = 9.0
                    segment.arrays["action"][idle[:-1]] = 2
                again = learner(normalise_obs=True, target_every=1)
                again.load_state_dict(coma.state_dict())
                coma = again
            metrics = coma.update(coma.prepare(made, progress=0.0)).metrics
        found.append((metrics, {**coma.params(), **coma.critic.state_dict()}))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(x, found[1][1][k]) for k, x in found[0][1].items())


def test_ranks_take_the_step_of_one() -> None:
    def work(ranks: Collective) -> dict[str, torch.Tensor]:
        coma = learner(ranks, normalise_obs=True, target_every=1)
        for seed in (1, 2):
            made = segments_of(play(seed, num_envs=8), num_segments=2)
            mine = {policy: share_of(group, ranks.rank, ranks.world_size) for policy, group in made.items()}
            coma.update(coma.prepare(mine, progress=0.0))
        return {**coma.params(), **{f"critic/{k}": x for k, x in coma.critic.state_dict().items()}}

    expected = work(SingleProcess())
    for found in together(4, work):
        for key, x in expected.items():
            torch.testing.assert_close(found[key], x, rtol=1e-3, atol=1e-5)


def test_boxes_are_refused() -> None:
    box = EnvSpec(spec(1).obs, ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2))
    with pytest.raises(ConfigError, match="policy 'one' has others; use mappo or happo"):
        places_of({"one": lone_actor(box, NET, seed=0)}, {"one": 1})
