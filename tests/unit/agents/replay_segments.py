"""Batches of transitions for tests of learners, and networks computed without torch's layers."""

from __future__ import annotations

import numpy as np
import torch

from runnel.core.records import Header, Segment
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.data.replay import replay_stream

OBS = {"obs": ArraySpec((3,))}
BOX = EnvSpec(OBS, ActionSpec("continuous", shape=(2,), low=(-2.0, 0.0), high=(2.0, 10.0)))
CHOICE = EnvSpec(OBS, ActionSpec("discrete", num_actions=3))
MASKED = EnvSpec(OBS, ActionSpec("discrete", num_actions=3), has_mask=True)


def segment(seed=0, num=8, spec=BOX, gamma=0.99):
    """Random transitions, a third of them at the end of their episode."""
    stream = replay_stream(spec, batch_size=num)
    arrays, rng = stream.allocate(), make_rng(seed, "transitions")
    for key in ("obs", "next_obs", "rewards/env"):
        arrays[key].copy_(torch.from_numpy(rng.normal(size=arrays[key].shape)))
    if spec.action.kind == "discrete":
        arrays["action"].copy_(torch.from_numpy(rng.integers(0, 3, size=num)))
    else:
        low, high = np.array(spec.action.low), np.array(spec.action.high)
        arrays["action"].copy_(torch.from_numpy(rng.uniform(low, high, (num, len(low)))))
    arrays["discount"].copy_(torch.from_numpy(gamma * (rng.random(num) > 0.3)))
    arrays["weight"].copy_(torch.from_numpy(rng.uniform(0.5, 1.0, num)))
    arrays["index"].copy_(torch.arange(num) + 100 * seed)
    if spec.has_mask:
        for key in ("action_mask", "next_action_mask"):
            arrays[key].copy_(torch.from_numpy(rng.random((num, 3)) < 0.5))
            arrays[key][:, 0] = True
    return Segment(0, stream, Header(), arrays)


def numpy_mlp(mlp, x, copy=None):
    """A relu perceptron (or one of a stack) by matrix products in float64."""
    x = np.asarray(x, dtype=np.float64)
    layers = list(zip(mlp.weight, mlp.bias, strict=True))
    for i, (w, b) in enumerate(layers):
        w, b = (t.detach().numpy().astype(np.float64) for t in ((w, b) if copy is None else (w[copy], b[copy])))
        x = x @ w + b
        x = np.maximum(x, 0.0) if i < len(layers) - 1 else x
    return x
