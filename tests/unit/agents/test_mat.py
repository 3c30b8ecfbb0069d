"""MAT beside other forms: torch's own transformer layers, acting step by step, and its loss agent by agent in plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from joint_segments import mat, team_net, team_segment
from team_transitions import A, N, team_spec
from torch import Tensor, nn
from torch.testing import assert_close

from runnel.agents.mat import MATConfig
from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE
from runnel.nets.layers import NetConfig
from runnel.nets.mat import Attention, EncoderBlock, TeamTransformer

B = 64


def rows(seed: int = 0) -> Batch:
    """Requests of teams, in which some agents do not decide."""
    made = team_segment(seed, num_steps=2, num_envs=B // 2).arrays
    leaves = {key: made[key][:2].flatten(0, 1) for key in ("obs", TEAM_ACTIVE, "action_mask")}
    noise = torch.rand(B, A, generator=torch.Generator().manual_seed(seed))
    return Batch({**leaves, "noise": noise})


def copy(to: nn.MultiheadAttention, own: Attention) -> None:
    parts = (own.query, own.key, own.value)
    to.in_proj_weight.copy_(torch.cat([part.weight[0].T for part in parts]))
    to.in_proj_bias.copy_(torch.cat([part.bias[0] for part in parts]))
    to.out_proj.weight.copy_(own.out.weight[0].T)
    to.out_proj.bias.copy_(own.out.bias[0])


@torch.no_grad()
def test_layers_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, source = torch.randn(5, 4, 8, generator=generator), torch.randn(5, 4, 8, generator=generator)
    allowed = torch.ones(4, 4, dtype=torch.bool).tril().expand(5, 4, 4)
    own, other = Attention(8, 2, seed=3), nn.MultiheadAttention(8, 2, batch_first=True)
    copy(other, own)
    assert_close(own(x, source, allowed), other(x, source, source, attn_mask=~allowed[0], need_weights=False)[0])
    block = EncoderBlock(8, 2, "relu", seed=4)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, dropout=0.0, batch_first=True).train()
    copy(layer.self_attn, block.attention)
    for to, part in ((layer.linear1, block.inner.first), (layer.linear2, block.inner.second)):
        to.weight.copy_(part.weight[0].T)
        to.bias.copy_(part.bias[0])
    there = torch.rand(5, 4, generator=generator) < 0.6
    there[:, 0] = True
    found = block(x, there.unsqueeze(1).expand(5, 4, 4) | torch.eye(4, dtype=torch.bool))
    assert_close(found[there], layer(x, src_key_padding_mask=~there)[there])


@torch.no_grad()
def test_one_pass_over_what_they_did_says_what_acting_said() -> None:
    """Log-probabilities of the team, and each action again from its noise by the scores of the one pass."""
    net, asked = team_net(), rows()
    reply = net.act(asked)
    logprob, _ = net.evaluate(asked, reply["action"], asked["action_mask"])
    assert_close(logprob.masked_fill(~asked[TEAM_ACTIVE], 0.0).sum(-1), reply["logprob"])
    scores, _ = net.following(asked, reply["action"])
    allowed = asked["action_mask"].view(B, A, N)
    probs = torch.where(allowed, scores, -torch.inf).softmax(-1).numpy()
    cdf = probs.cumsum(-1)
    again = (cdf <= asked["noise"].numpy()[..., None] * cdf[..., -1:]).sum(-1)
    assert np.array_equal(again, reply["action"].numpy())
    greedy = net.act(asked, greedy=True)["action"]
    best = torch.where(allowed, net.following(asked, greedy)[0], -torch.inf).argmax(-1)
    assert torch.equal(best, greedy)
    assert not torch.equal(greedy, reply["action"])


@torch.no_grad()
def test_an_agent_hangs_on_those_before_it_and_on_nobody_after_it() -> None:
    net, asked = team_net(), rows()
    active = asked[TEAM_ACTIVE] = torch.ones_like(asked[TEAM_ACTIVE])
    action = net.act(asked)["action"]
    before = net.following(asked, action)[0]
    for agent in range(A):
        other = action.clone()
        other[:, agent] = (other[:, agent] + 1) % N
        moved = (net.following(asked, other)[0] - before).abs().amax(-1)
        assert (moved[:, : agent + 1] == 0.0).all()
        assert (moved[:, agent + 1 :] > 1e-4).all()
    assert active.all()


@torch.no_grad()
def test_who_does_not_decide_changes_nothing_for_others() -> None:
    net, asked = team_net(), rows()
    active = asked[TEAM_ACTIVE]
    assert (active.sum(-1) < A).any()
    action = net.act(asked)["action"]
    scores, values = net.following(asked, action)
    other = Batch(asked | {"obs": torch.where(active.unsqueeze(-1), asked["obs"], 7.0)})
    acted = torch.where(active, action, (action + 1) % N)
    changed, worth = net.following(other, acted)
    assert torch.equal(changed[active], scores[active])
    assert torch.equal(worth[active], values[active])
    assert torch.equal(net.value(other), net.value(asked))
    assert torch.equal(net.act(other)["action"][active], action[active])
    statistics = team_net(normalise_obs=True)
    statistics.update_statistics(other, SingleProcess())
    assert_close(statistics.normalisers["obs"].mean.float(), asked["obs"][active].mean(0))


def as_numbers(net: TeamTransformer, a: Batch, *, gamma: float, lam: float) -> tuple[Any, Any, Any]:
    """Values of the team, advantages and returns of a segment, step by step."""
    num_steps, num_envs = a["action"].shape[:2]

    def worth(name: str, place: Any) -> float:
        leaves = {key: a[name + key][place].unsqueeze(0) for key in ("obs", TEAM_ACTIVE)}
        seen = net.transformer.encode(leaves, leaves[TEAM_ACTIVE])
        there = a[name + TEAM_ACTIVE][place]
        return float(net.transformer.values(seen)[0, there].mean())

    where = {int(i): f for f, i in enumerate(a["final_index"])}
    values, advantages = np.zeros((num_steps, num_envs)), np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        ahead = 0.0
        for t in reversed(range(num_steps)):
            done, cut = bool(a["terminated"][t, b]), bool(a["truncated"][t, b])
            after = worth("final_", where[t * num_envs + b]) if cut else 0.0 if done else worth("", (t + 1, b))
            values[t, b] = worth("", (t, b))
            delta = float(a["rewards/env"][t, b]) + gamma * after - values[t, b]
            ahead = delta + gamma * lam * ahead * (not (done or cut))
            advantages[t, b] = ahead
    return values, advantages, advantages + values


def test_the_loss_is_that_of_the_paper_agent_by_agent() -> None:
    """Advantages of the team by the mean of its values, a ratio for each agent, everybody's value to the team's return."""
    config = MATConfig(
        gamma=0.9, gae_lambda=0.8, normalise_reward=False, normalise_obs=False, normalise_advantage=False, entropy_coef=0.1
    )
    learner, data = mat(config), team_segment(3)
    batch = learner.prepare({"trajectories": [data]}, progress=0.0)
    with torch.no_grad():
        values, advantages, returns = as_numbers(learner.net, data.arrays, gamma=0.9, lam=0.8)
        for name, found in (("value", values), ("advantage", advantages), ("return", returns)):
            assert_close(batch[name].numpy(), found.reshape(-1).astype(np.float32), rtol=1e-4, atol=1e-5)
        for x in learner.net.parameters():  # another policy than the one that acted
            x.add_(0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(9)))
        said = learner.loss(batch)
        scores, now = learner.net.following(batch, batch["action"])
    active, allowed = batch[TEAM_ACTIVE], batch["action_mask"].view(-1, A, N)
    logits = torch.where(allowed, scores, -torch.inf).double()
    policy = value = entropy = clipped = 0.0
    for row, agent in active.nonzero().tolist():
        p = logits[row, agent].softmax(-1).numpy()
        ratio = p[batch["action"][row, agent]] / np.exp(batch["logprob"][row, agent].item())
        advantage, target = advantages.reshape(-1)[row], returns.reshape(-1)[row]
        policy -= min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        clipped += not 0.8 <= ratio <= 1.2
        value += 0.5 * (float(now[row, agent]) - target) ** 2
        entropy -= sum(x * np.log(x) for x in p if x > 0)
    count = int(active.sum())
    expected = (policy + value - 0.1 * entropy) / count
    assert said["loss/total"].item() == pytest.approx(expected, rel=1e-4)
    assert said["loss/policy"].item() == pytest.approx(policy / count, rel=1e-3)
    assert said["clip_fraction"].item() == pytest.approx(clipped / count)
    assert clipped


def test_what_idle_agents_see_and_do_reaches_no_gradient() -> None:
    found: list[dict[str, Tensor]] = []
    for junk in (False, True):
        learner, data = mat(MATConfig(num_epochs=2)), team_segment(1)
        idle = ~data.arrays[TEAM_ACTIVE]
        if junk:
            data.arrays["obs"][idle] = 5.0
            data.arrays["action"][idle[:-1]] = 2
        learner.update(learner.prepare({"trajectories": [data]}, progress=0.0))
        found.append({key: x.clone() for key, x in learner.params().items()})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_what_it_cannot_do_is_refused() -> None:
    box = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2))
    with pytest.raises(ConfigError, match="one choice each; use masac for boxes"):
        MATConfig().network(team_spec(), box, NetConfig(), seed=0)
    with pytest.raises(ConfigError, match=r"ppo\.heads = 3: use a divisor of ppo\.width \(64\)"):
        MATConfig(heads=3).check(8)
