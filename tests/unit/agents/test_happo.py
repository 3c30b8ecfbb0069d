"""HAPPO: which rows of all streams belong together, the credit of the team, and one policy after the other, in plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made_ranks import together
from made_teams import GROUPS, Moment, credit_loop, play, segments_of, spec

from runnel.agents.happo import HAPPOConfig, HAPPOLearner
from runnel.agents.joint import join
from runnel.core.contracts.learning import Collective, SingleProcess
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Segment
from runnel.core.sharding.batch_split import share_of
from runnel.core.trajectories import ACTIVE, CLOCK
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.central import StateCritic, lone_actor, state_of
from runnel.nets.layers import NetConfig

NET = NetConfig(hidden=(8,))
CPU = torch.device("cpu")
NUM_AGENTS = sum(GROUPS.values())


def learner(ranks: Collective | None = None, groups: dict[str, int] = GROUPS, **config: Any) -> HAPPOLearner:
    nets = {}
    for i, (policy, num) in enumerate(groups.items()):
        nets[policy] = lone_actor(spec(num), NET, seed=i, normalise_obs=config.get("normalise_obs", False))
        torch.nn.init.normal_(nets[policy].body.actor.weight[-1], generator=torch.Generator().manual_seed(i))  # type: ignore[union-attr]
    critic = StateCritic(state_of(spec(1)), NET, seed=9, normalise=config.get("normalise_obs", False))
    return HAPPOLearner(HAPPOConfig(**{"normalise_obs": False, **config}), nets, critic, seed=4, collective=ranks)


def test_rows_of_all_streams_belong_to_their_moment() -> None:
    """Rewards say which environment, agent and step they are of; every agent's row comes back at its place."""
    groups = {"one": 1, "three": 3}
    played = play(1, num_steps=6, num_envs=4, groups=groups)
    agents = [("one", 0), ("three", 0), ("three", 1), ("three", 2)]
    for e, moments in enumerate(played):
        for t, now in enumerate(moments):
            now.paid = {agent: 100.0 * e + 10.0 * t + i + 5.0 * (agent[0] == "one") for i, agent in enumerate(agents)}
    for num_segments in (1, 2):
        joint = join(segments_of(played, groups=groups, num_segments=num_segments), device=CPU)
        three = joint.of_team("three", joint.members["three"]["rewards/env"])
        for e, moments in enumerate(played):
            for t, now in enumerate(moments):
                assert np.allclose(joint.state["shared/state"][t, e], now.state)
                if t == 6:
                    continue
                assert [three[t, e, i].item() for i in range(3)] == [100.0 * e + 10.0 * t + i + 1 for i in range(3)]
                assert joint.rewards[t, e].item() == pytest.approx(100.0 * e + 10.0 * t + 11 / 4)
                ends = joint.terminated[t, e].item(), joint.truncated[t, e].item()
                cut = any(now.flags.values())
                assert ends == (now.over and not cut, now.over and cut)
        places = joint.for_rows("three", joint.places)
        assert places[2].tolist() == [2 * 4 + e for e in range(4) for _ in range(3)]


def test_the_team_is_credited_through_deaths_and_waits() -> None:
    """Agents die early and wait; the episode of the team goes on until its environment begins anew."""
    for seed in range(4):
        played, happo = play(seed, num_steps=14), learner(gamma=0.9, gae_lambda=0.8)
        for name, number in (("m", 3.0), ("s", 13.0), ("w", 1.0)):
            getattr(happo.critic.value_norm, name).fill_(number)

        def value(state: Any, happo: HAPPOLearner = happo) -> float:
            return 3.0 + 2.0 * happo.critic.net({"shared/state": torch.from_numpy(state).unsqueeze(0)}).item()

        credit = happo.critic.credit(join(segments_of(played), device=CPU), happo.config)
        advantages, counts = credit_loop(played, value, gamma=0.9, lam=0.8, num_agents=NUM_AGENTS)
        assert np.array_equal(credit.counts.numpy(), counts)
        np.testing.assert_allclose(credit.advantages.numpy(), advantages, rtol=1e-4, atol=1e-4)


def test_where_only_an_opponent_decides_the_team_waits() -> None:
    """Steps at which none of ours decides belong to the decision before; the first of ours then tells the end by its clock."""
    moments = play(3, num_steps=8, num_envs=1)[0]
    for t, now in enumerate(moments):
        now.over, now.flags, now.clock = t == 4, {}, t if t <= 4 else t - 5
        now.paid = dict.fromkeys([("one", 0), ("two", 0), ("two", 1)], 1.0)
        if t in (1, 4, 5):
            now.seen = {}
        elif not now.seen:
            now.seen, now.action, now.logprob = {("one", 0): np.ones(3, np.float32)}, {("one", 0): 0}, {("one", 0): -1.0}
    moments[4].flags = {("one", 0): False}
    happo = learner(gamma=0.5, gae_lambda=0.0, normalise_value=False)
    credit = happo.critic.credit(join(segments_of([moments]), device=CPU), happo.config)
    with torch.no_grad():
        v = [happo.critic.net({"shared/state": torch.from_numpy(m.state).unsqueeze(0)}).item() for m in moments]
    assert credit.counts.flatten().tolist() == [True, False, True, True, False, False, True, True]
    expected = {0: 2.0 + 0.5 * v[2] - v[0], 2: 1.0 + 0.5 * v[3] - v[2], 3: 2.0 - v[3], 6: 1.0 + 0.5 * v[7] - v[6]}
    for t, advantage in expected.items():
        assert credit.advantages[t, 0].item() == pytest.approx(advantage, abs=1e-5), t


def plain_update(happo: HAPPOLearner, played: list[list[Moment]]) -> dict[str, list[torch.Tensor]]:
    """The weights after an update of one pass, agent by agent and step by step, with torch's own Adam."""
    c = happo.config
    with torch.no_grad():
        v = lambda s: happo.critic.net({"shared/state": torch.from_numpy(s).unsqueeze(0)}).item()  # noqa: E731
        advantages, _ = credit_loop(played, v, gamma=c.gamma, lam=c.gae_lambda, num_agents=NUM_AGENTS)
    advantages = (advantages - advantages.mean()) / advantages.std()
    factor, found = np.ones_like(advantages), {}
    for policy in happo.order():
        net = happo.nets[policy]
        params = [x.detach().clone().requires_grad_() for x in net.parameters()]
        adam = torch.optim.Adam(params, lr=c.lr, eps=1e-5)  # type: ignore[arg-type]
        rows = [
            (t, e, now.seen[agent], now.action[agent], now.logprob[agent])
            for e, moments in enumerate(played)
            for t, now in enumerate(moments[:-1])
            for agent in now.seen
            if agent[0] == policy
        ]

        def logprobs(params: list[torch.Tensor], rows: Any = rows) -> torch.Tensor:
            # of the network: hidden layer, tanh, logits
            w0, w1, b0, b1 = (params[i] for i in (0, 1, 2, 3))
            x = torch.stack([torch.from_numpy(row[2]) for row in rows])
            logits = (x @ w0 + b0).tanh() @ w1 + b1
            return logits.log_softmax(-1)

        for _ in range(c.num_epochs):
            every = logprobs(params)
            chosen = every[range(len(rows)), [row[3] for row in rows]]
            ratio = (chosen - torch.tensor([row[4] for row in rows])).exp()
            weighed = torch.tensor([factor[row[0], row[1]] * advantages[row[0], row[1]] for row in rows], dtype=torch.float32)
            clipped = ratio.clamp(1 - c.clip_range, 1 + c.clip_range)
            entropy = -(every.exp() * every).sum(-1).mean()
            loss = -torch.minimum(ratio * weighed, clipped * weighed).mean() - c.entropy_coef * entropy
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, c.max_grad_norm)
            adam.step()
        with torch.no_grad():
            chosen = logprobs(params)[range(len(rows)), [row[3] for row in rows]]
        for row, new in zip(rows, chosen.tolist(), strict=True):
            factor[row[0], row[1]] *= np.exp(new - row[4])
        found[policy] = params
    return found


def test_each_policy_is_judged_by_what_those_before_it_became() -> None:
    orders = set()
    for seed in (1, 2, 3):
        played, happo = play(seed), learner(lr=0.05, num_epochs=3, entropy_coef=0.02, normalise_value=False)
        happo.version = seed
        orders.add(tuple(happo.order()))
        expected = plain_update(happo, played)
        happo.update(happo.prepare(segments_of(played), progress=0.0))
        for policy, net in happo.nets.items():
            for mine, theirs in zip(net.parameters(), expected[policy], strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    assert len(orders) == 2, "the order is drawn anew"


def trained(happo: HAPPOLearner, played: list[list[Moment]], **more: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    metrics = happo.update(happo.prepare(segments_of(played, **more), progress=0.0)).metrics
    return metrics, {**happo.params(), **happo.critic.net.state_dict(), **happo.critic.value_norm.state_dict()}


def equal(left: Any, right: Any) -> bool:
    return left[0] == right[0] and all(torch.equal(x, right[1][k]) for k, x in left[1].items())


def test_what_stands_in_rows_that_do_not_decide_changes_nothing() -> None:
    made = segments_of(play(5))
    found = []
    for garbage in (False, True):
        happo = learner(normalise_obs=True, num_epochs=2, num_minibatches=2)
        if garbage:
            for (segment,) in made.values():
                idle = ~segment.arrays[ACTIVE]
                for key in ("obs", "shared/state"):
                    segment.arrays[key][idle] = 9.0
                segment.arrays["logprob"][idle[:-1]] = -9.0
        metrics = happo.update(happo.prepare(made, progress=0.0)).metrics
        found.append((metrics, {**happo.params(), **happo.critic.net.state_dict()}))
    assert equal(*found)


def test_a_learner_that_is_loaded_goes_on_bit_for_bit() -> None:
    whole, part, again = (learner(normalise_obs=True, num_minibatches=2) for _ in range(3))
    for one in (whole, part):
        trained(one, play(1))
    again.load_state_dict(part.state_dict())
    assert equal(trained(whole, play(2)), trained(again, play(2)))


@pytest.mark.parametrize("num", [2, 4])
def test_ranks_take_the_step_of_one(num: int) -> None:
    """Segments are dealt out, or cut: every stream at the same environments."""

    def work(ranks: Collective) -> dict[str, torch.Tensor]:
        happo = learner(ranks, normalise_obs=True, num_epochs=2)
        for seed in (1, 2):
            made = segments_of(play(seed, num_envs=8), num_segments=2)
            mine = {policy: share_of(group, ranks.rank, ranks.world_size) for policy, group in made.items()}
            happo.update(happo.prepare(mine, progress=0.0))
        return {**happo.params(), **{f"critic/{k}": x for k, x in happo.critic.net.state_dict().items()}}

    expected = work(SingleProcess())
    for found in together(num, work):
        for key, x in expected.items():
            torch.testing.assert_close(found[key], x, rtol=1e-3, atol=1e-5)


def test_streams_that_are_not_of_one_round_are_refused() -> None:
    def without(segment: Segment, key: str) -> Segment:
        fields = {k: f for k, f in segment.spec.fields.items() if k != key}
        return replace(segment, spec=replace(segment.spec, fields=fields))

    made = segments_of(play(1, num_envs=4), num_segments=2)
    swapped = {"one": made["one"], "two": made["two"][::-1]}
    with pytest.raises(DataError, match="streams of a team are not of the same environments and steps"):
        join(swapped, device=CPU)
    for segment in made["two"]:
        segment.header.writer = 0
    with pytest.raises(DataError, match="not of the same environments"):
        join(made, device=CPU)
    other = {"one": segments_of(play(1))["one"], "two": segments_of(play(2))["two"]}
    with pytest.raises(DataError, match="differs between agents"):
        join(other, device=CPU)
    with pytest.raises(ConfigError, match="its rows have no clock of their episode"):
        join({"one": [without(made["one"][0], CLOCK)]}, device=CPU)
    short = {"one": segments_of(play(1))["one"], "two": segments_of(play(1, num_steps=6))["two"]}
    with pytest.raises(ConfigError, match="have segments of one length"):
        join(short, device=CPU)


def test_the_policy_reads_what_its_agent_sees_alone() -> None:
    net = lone_actor(spec(2), NET, seed=0, normalise_obs=True)
    assert isinstance(net, ActorCritic)
    assert (list(net.policy_obs), list(net.normalisers)) == (["obs"], ["obs"])
    assert not any("critic" in name for name in net.state_dict())
