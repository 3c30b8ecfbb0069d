"""Recurrent networks: a segment unrolled is what acting step by step gave; resets, final observations, gradients in time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic, RecurrentBody, build_body
from runnel.nets.layers import NetConfig
from runnel.nets.rnn import Core

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=4))
T, B = 7, 5


def make(core: str) -> ActorCritic:
    return ActorCritic(SPEC, build_body(SPEC, NetConfig(core=core, hidden=(6,), core_size=8), seed=1))  # type: ignore[arg-type]


def played(net: ActorCritic, seed: int = 0) -> dict[str, Tensor]:
    """A segment acted step by step, with episodes that end in it."""
    rng = np.random.default_rng(seed)
    over = torch.from_numpy(rng.random((T, B)) < 0.3)
    data: dict[str, Tensor] = {
        "obs": torch.from_numpy(rng.normal(size=(T + 1, B, 3)).astype(np.float32)),
        "terminated": over & torch.from_numpy(rng.random((T, B)) < 0.5),
        "final_index": over.flatten().nonzero().flatten(),
    }
    data["truncated"] = over & ~data["terminated"]
    data["final_obs"] = torch.from_numpy(rng.normal(size=(int(over.sum()), 3)).astype(np.float32))
    state = {k: torch.from_numpy(rng.normal(size=(B, 8)).astype(np.float32)) for k in net.state_spec}
    data |= {k: x.clone() for k, x in state.items()}
    actions, logprobs, values, after = [], [], [], []
    with torch.no_grad():
        for t in range(T):
            noise = torch.from_numpy(rng.random((B, 1), dtype=np.float32))
            answer = net.act(Batch(obs=data["obs"][t], noise=noise, **state))
            assert isinstance(net.body, RecurrentBody)
            values.append(net.body.step({"obs": data["obs"][t]}, state)[1])
            actions.append(answer["action"])
            logprobs.append(answer["logprob"])
            after.append({k: answer[k] for k in state})
            state = {k: answer[k].masked_fill(over[t].unsqueeze(-1), 0.0) for k in state}
        data["last_value"] = net.body.step({"obs": data["obs"][T]}, state)[1]  # type: ignore[operator]
    data |= {"action": torch.stack(actions), "logprob": torch.stack(logprobs), "values": torch.stack(values)}
    data |= {f"after_{k}": torch.stack([a[k] for a in after]) for k in state}
    return data


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_unroll_is_acting_step_by_step(core: str) -> None:
    net = make(core)
    data = played(net)
    scores, values, following = net.unroll(data)
    logprob, _ = net.evaluate_scores(scores, data["action"])
    torch.testing.assert_close(logprob, data["logprob"])
    torch.testing.assert_close(values, data["values"])
    over = (data["terminated"] | data["truncated"]).flatten()
    expected = torch.cat([data["values"][1:], data["last_value"].unsqueeze(0)]).flatten()
    torch.testing.assert_close(following.flatten()[~over], expected[~over])
    index = data["final_index"]
    state = {k: data[f"after_{k}"].flatten(0, 1)[index] for k in net.state_spec}
    with torch.no_grad():
        at_ends = net.body.step({"obs": data["final_obs"]}, state)[1]  # type: ignore[operator]
    torch.testing.assert_close(following.flatten()[index], at_ends)
    assert not following.requires_grad


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_nothing_passes_a_reset(kind: str) -> None:
    core = Core(kind, 3, 4, seed=1)  # type: ignore[arg-type]
    x = torch.randn(6, 2, 3, requires_grad=True)
    state = {k: torch.randn(2, 4) for k in core.state_spec}
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[3, 0] = True
    y, _ = core.unroll(x, state, resets)
    (grad,) = torch.autograd.grad(y[5].sum(), x)
    assert not grad[:3, 0].any()
    assert grad[3:, 0].any(-1).all()
    assert grad[:, 1].any(-1).all()


def test_a_gru_by_hand() -> None:
    """Weights 0, bias 0: gates are 1/2, the candidate 0, so h' = h / 2. An LSTM: c' = sigmoid(1) c, h' = tanh(c') / 2."""
    for kind, expected in (("gru", 0.5), ("lstm", 0.5 * np.tanh(1.0 / (1.0 + np.exp(-1.0))))):
        core = Core(kind, 2, 3, seed=1)  # type: ignore[arg-type]
        for p in core.parameters():
            torch.nn.init.zeros_(p)
        y, _ = core.step(torch.ones(1, 2), {k: torch.ones(1, 3) for k in core.state_spec})
        torch.testing.assert_close(y, torch.full((1, 3), float(expected)))
