"""Values of a team: the mixer, the losses and their gradients beside numpy, on ragged batches whose agents die and wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from replay_segments import numpy_mlp
from team_transitions import AGENT, NET, A, N, made, team_spec, transitions
from torch import Tensor

from runnel.agents.qmix import QMIXLearner
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE, own_reward, trajectory_stream
from runnel.data.sequences import sequence_stream
from runnel.nets.layers import NetConfig
from runnel.nets.mixing import MonotoneMixer, TeamQNet


def numpy_q(net: TeamQNet, obs: Tensor) -> Any:
    """`[B, A, 2] -> [B, A, N]`, agent by agent."""
    seen, found = obs.numpy().astype(np.float64), []
    for i in range(A):
        if len(net.members) == 1:
            which = np.tile(np.eye(A)[i], (len(seen), 1))
            found.append(numpy_mlp(net.nets()[0].head, np.concatenate([which, seen[:, i]], -1)))
        else:
            found.append(numpy_mlp(net.nets()[i].head, seen[:, i]))
    return np.stack(found, 1)


def numpy_mix(mixer: MonotoneMixer, q: Any, state: Tensor) -> Any:
    """`[B, A], [B, 5] -> [B]`, row by row."""
    totals = []
    for values, s in zip(q, state.numpy().astype(np.float64), strict=True):
        first = np.abs(numpy_mlp(mixer.first, s)).reshape(A, -1)
        h = values @ first + numpy_mlp(mixer.first_bias, s)
        h = np.where(h > 0, h, np.exp(np.minimum(h, 0.0)) - 1.0)
        totals.append(h @ np.abs(numpy_mlp(mixer.second, s)) + numpy_mlp(mixer.value, s)[0])
    return np.array(totals)


def numpy_loss(learner: QMIXLearner, batch: Batch) -> tuple[float, Any]:
    """The loss and the error of each row."""
    x = {key: value.numpy() for key, value in batch.items()}
    rows, agents, c = np.arange(len(x["discount"]))[:, None], np.arange(A)[None], learner.config
    now, later = x[TEAM_ACTIVE], x["next_" + TEAM_ACTIVE]
    q = np.where(now, numpy_q(learner.net, batch["obs"])[rows, agents, x["action"]], 0.0)
    values = numpy_q(learner.target_net, batch["next_obs"])
    chooser = numpy_q(learner.net, batch["next_obs"]) if c.double else values
    best = np.where(x["next_action_mask"].reshape(values.shape), chooser, -np.inf).argmax(-1)
    after = np.where(later, values[rows, agents, best], 0.0)
    if c.mixer == "none":
        reward = np.stack([x[own_reward(i)] for i in range(A)], -1)
        error = np.where(now, q - reward - x["discount"][:, None] * after, 0.0)
        return float((x["weight"][:, None] * error**2 / 2).sum() / now.sum()), np.abs(error).sum(-1) / now.sum(-1)
    mix, target_mix = learner.net.mixer, learner.target_net.mixer
    total = q.sum(-1) if mix is None else numpy_mix(mix, q, batch["shared/state"])
    worth = after.sum(-1) if target_mix is None else numpy_mix(target_mix, after, batch["next_shared/state"])
    error = total - x["rewards/env"] - x["discount"] * worth
    return float((x["weight"] * error**2 / 2).mean()), np.abs(error)


@pytest.mark.parametrize("share", ["all", "none"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("mixer", ["qmix", "vdn", "none"])
def test_the_loss_is_that_of_the_papers(mixer: str, double: bool, share: str) -> None:
    learner = made(mixer=mixer, double=double, share=share, hypernet=7 if double else 0)
    for seed in range(3):
        batch = learner.prepare({"r": [transitions(seed, own_rewards=mixer == "none")]}, progress=0.0)
        loss, (value, error) = learner.loss(batch), numpy_loss(learner, batch)
        assert loss.value.item() == pytest.approx(value, rel=1e-4)
        np.testing.assert_allclose(loss.error.numpy(), error, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mixer", ["qmix", "vdn", "none"])
def test_who_does_not_decide_gets_no_gradient_and_changes_nothing(mixer: str) -> None:
    learner, segment = made(mixer=mixer), transitions(4, own_rewards=mixer == "none")
    batch = learner.prepare({"r": [segment]}, progress=0.0)
    gone = ~batch[TEAM_ACTIVE]
    assert 0 < int(gone.sum()) < gone.numel()
    batch["obs"].requires_grad_()
    value = learner.loss(batch).value
    value.backward()
    grad = batch["obs"].grad
    assert grad is not None
    assert not grad[gone].any()
    assert grad[~gone].any()
    with torch.no_grad():
        for name in ("", "next_"):
            rows = ~batch[name + TEAM_ACTIVE]
            batch[name + "obs"][rows] += 5.0
        batch["action"][gone] = (batch["action"][gone] + 1) % N
        assert torch.equal(learner.loss(batch).value, value)


def test_the_value_of_the_team_never_falls_with_that_of_an_agent() -> None:
    for seed in range(20):
        mixer = MonotoneMixer({"shared/state": ArraySpec((5,))}, A, width=6, hypernet=7 * (seed % 2), seed=seed)
        generator = torch.Generator().manual_seed(seed)
        q = (10.0 * torch.randn(50, A, generator=generator)).requires_grad_()
        total = mixer(q, {"shared/state": 3.0 * torch.randn(50, 5, generator=generator)})
        (slope,) = torch.autograd.grad(total.sum(), q)
        assert bool((slope >= 0.0).all())
        assert bool((slope > 0.0).any())


@pytest.mark.parametrize("mixer", ["qmix", "none"])
@pytest.mark.parametrize("share", ["all", "none"])
def test_sequences_have_the_errors_of_their_single_steps(mixer: str, share: str) -> None:
    """A memory that is played step by step, agent by agent, from the state of the row, and begins anew behind each end."""
    steps, num = 5, 4
    net = NetConfig(hidden=(8,), activation="relu", core="gru", core_size=3)
    learner = made(mixer=mixer, share=share, net=net, burn_in=2)
    spec = team_spec(own_rewards=mixer == "none")
    source = trajectory_stream(spec, num_steps=steps, num_envs=num, state=learner.net.state_spec, logprob=False)
    stream, rng = sequence_stream(source, batch_size=num), np.random.default_rng(3)
    batch = stream.allocate()
    for x in batch.values():
        if x.dtype == torch.float32:
            x.copy_(torch.from_numpy(rng.normal(size=x.shape)))
    ends = [(1, 0), (3, 2), (4, 1)]
    batch["ended"].zero_()
    for t, b in ends:
        batch["ended"][t, b] = True
    batch["final_index"] = torch.tensor([t * num + b for t, b in ends])
    for key in [key for key in batch if key.startswith("final_") and key != "final_index"]:
        batch[key] = batch[key][: len(ends)]
    for key in (TEAM_ACTIVE, "final_" + TEAM_ACTIVE):
        batch[key].copy_(torch.from_numpy(rng.random(batch[key].shape) < 0.7))
    for key in ("action_mask", "final_action_mask"):
        batch[key].copy_(torch.from_numpy(rng.random(batch[key].shape) < 0.6))
        batch[key][..., ::N] = True
    batch["action"].copy_(torch.from_numpy(rng.integers(0, N, batch["action"].shape)))
    batch["last"].copy_(torch.arange(steps).unsqueeze(-1).expand(steps, num))
    error = learner.loss(batch).error.detach()
    assert error.shape == (steps - 2, num)
    for b in range(num):
        singles = _by_single_steps(learner, batch, b, steps, ends)
        expected = [numpy_error(learner, single) for single in singles[2:]]
        np.testing.assert_allclose(error[:, b].numpy(), expected, rtol=1e-3, atol=1e-4)


def numpy_error(learner: QMIXLearner, single: dict[str, Any]) -> float:
    """The error of one transition of which the values are known."""
    after = np.where(single["later"], single["after"], 0.0)
    q = np.where(single["now"], single["q"], 0.0)
    if learner.config.mixer == "none":
        error = np.where(single["now"], q - single["own"] - single["discount"] * after, 0.0)
        return float(np.abs(error).sum() / max(single["now"].sum(), 1))
    mix, target_mix = learner.net.mixer, learner.target_net.mixer
    assert mix is not None
    assert target_mix is not None
    total = numpy_mix(mix, q[None], single["state"][None])[0]
    return float(
        abs(total - single["reward"] - single["discount"] * numpy_mix(target_mix, after[None], single["next"][None])[0])
    )


def _by_single_steps(learner: QMIXLearner, batch: Batch, b: int, steps: int, ends: list[tuple[int, int]]) -> list[Any]:
    """Row `b` played by both networks with `QNet.step`, one step and one agent at a time."""
    found = []
    memory = {name: batch["state/h"][b].clone() for name in ("ours", "theirs")}
    for t in range(steps):
        one: dict[str, Any] = {"q": np.zeros(A), "after": np.zeros(A)}
        over = (t, b) in ends
        f = ends.index((t, b)) if over else -1
        following = batch["final_obs"][f] if over else batch["obs"][t + 1, b]
        mask = (batch["final_action_mask"][f] if over else batch["action_mask"][t + 1, b]).view(A, N)
        for i in range(A):
            said = {}
            for name, net in (("ours", learner.net), ("theirs", learner.target_net)):
                core = net.nets()[0 if len(net.members) == 1 else i]
                which = {"agent": torch.eye(A)[i : i + 1]} if len(net.members) == 1 else {}
                q, state = core.step({"obs": batch["obs"][t, b, i : i + 1], **which}, {"state/h": memory[name][i : i + 1]})
                nexts, _ = core.step({"obs": following[i : i + 1], **which}, state)
                said[name] = (q.squeeze(-1)[0].detach(), nexts.squeeze(-1)[0].detach())
                memory[name][i] = 0.0 if over else state["state/h"][0].detach()
            best = said["ours"][1].masked_fill(~mask[i], -np.inf).argmax()
            one["q"][i], one["after"][i] = said["ours"][0][batch["action"][t, b, i]], said["theirs"][1][best]
        state_key = "shared/state"
        one |= {
            "now": batch[TEAM_ACTIVE][t, b].numpy(),
            "state": batch[state_key][t, b],
            "reward": float(batch["rewards/env"][t, b]),
        }
        later = batch["final_" + TEAM_ACTIVE][f] if over else batch[TEAM_ACTIVE][t + 1, b]
        one |= {"later": later.numpy(), "next": batch["final_" + state_key][f] if over else batch[state_key][t + 1, b]}
        if learner.config.mixer == "none":
            one["own"] = np.array([float(batch[own_reward(i)][t, b]) for i in range(A)])
        found.append(one | {"discount": float(batch["discount"][t, b])})
    return found


@pytest.mark.parametrize("share", ["all", "none"])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_an_agent_alone_does_what_it_does_in_the_team(core: Any, share: str) -> None:
    net = made(share=share, net=NetConfig(hidden=(8,), core=core, core_size=3)).net
    generator = torch.Generator().manual_seed(1)
    rows = Batch(obs=torch.randn(6, A, 2, generator=generator), noise=torch.rand(6, 2 * A, generator=generator))
    rows |= {key: torch.randn(6, *leaf.shape, generator=generator) for key, leaf in net.state_spec.items()}
    mask = torch.rand(6, A, N, generator=generator) < 0.5
    mask[..., 0] = True
    rows["action_mask"] = mask.view(6, -1)
    for epsilon, greedy in ((0.0, True), (0.5, False)):
        for part in net.nets():
            part.epsilon.fill_(epsilon)
        whole = net.act(rows, greedy=greedy)
        for i in range(A):
            mine = Batch({key: rows[key][:, i] for key in ("obs", *net.state_spec)})
            mine |= {"noise": rows["noise"].view(6, A, 2)[:, i], "action_mask": mask[:, i]}
            one = net.of_agent(i)
            assert one.epsilon.item() == epsilon
            alone = one.act(mine, greedy=greedy)
            for key, x in alone.items():
                torch.testing.assert_close(x, whole[key][:, i], rtol=1e-5, atol=1e-6)
        assert bool(mask.gather(-1, whole["action"].unsqueeze(-1)).all())


def test_agents_that_see_the_same_differ_only_by_their_number() -> None:
    same = Batch(obs=torch.randn(1, 1, 2, generator=torch.Generator().manual_seed(2)).expand(4, A, 2))
    with_number, without = made(agent_id=True).net.q(same), made(agent_id=False).net.q(same)
    assert not torch.allclose(with_number[:, 0], with_number[:, 1])
    torch.testing.assert_close(without[:, 0], without[:, 1])


def test_boxes_are_refused() -> None:
    boxes = EnvSpec(AGENT.obs, ActionSpec("continuous", (1,), low=(-1.0,), high=(1.0,)))
    with pytest.raises(ConfigError, match="agents with one choice each"):
        TeamQNet(team_spec(), boxes, NET, num_agents=A, seed=0)
