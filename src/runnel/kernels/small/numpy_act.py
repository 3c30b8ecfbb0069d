"""Acts on a few rows in numpy. At 8 rows the cost is that of the calls, and a numpy call costs a quarter of a torch call.

The weights are views of the same memory and the formulas are those of `nets/actor_critic.py`, `nets/q_nets.py` and
`ops/distributions.py`; results agree to float32 rounding. Serves networks of one plain float vector, without convolutions or a
core.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array
from runnel.nets.actor_critic import ActorCritic, SeparateBody
from runnel.nets.layers import MLP, RunningMeanStd, Torso
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import HALF_LOG_TWO_PI, UNIFORM_MARGIN, ContinuousHead, DiscreteHead

FEW_ROWS = 256
"""With more rows torch is as fast."""
_LOWEST = np.finfo(np.float32).min
_ROWS = np.arange(FEW_ROWS)


def vector_leaf(env_spec: EnvSpec, torso: Torso) -> str:
    """The name of the only observation leaf, if it is a float vector; else empty."""
    ((key, leaf), *more) = env_spec.obs.items()
    return key if not more and leaf.dtype == torch.float32 and type(torso) is Torso and not torso.convolves else ""


def why_not_plain(net: ActorCritic) -> str:
    """The reason why no kernel serves this network; empty if one may."""
    if type(net) is not ActorCritic or type(net.body) is not SeparateBody or type(net.body.nets) is not MLP:
        return "the network is not one of separate fully connected layers"
    if type(net.head) not in (DiscreteHead, ContinuousHead):
        return "the action has several parts"
    if any(type(n) is not RunningMeanStd for n in net.normalisers.values()):
        return "observations are normalised by code of your own"
    return ""


def is_few(x: Tensor) -> bool:
    """Whether `x` has few rows on the CPU; never during `torch.export`, which must see torch operations."""
    return not x.is_cuda and x.shape[0] <= FEW_ROWS and not torch.compiler.is_exporting()


class NumpyMLP:
    """One network of an `MLP`, on views of its weights."""

    def __init__(self, mlp: MLP, copy: int = 0) -> None:
        pairs = [(w.detach().numpy(), b.detach().numpy()) for w, b in zip(mlp.weight, mlp.bias, strict=True)]
        num_hidden = len(pairs) - (mlp.heads or 1)
        if mlp.copies:
            pairs = [(w[copy], b[copy]) for w, b in pairs[:num_hidden]] + pairs[num_hidden:]
        last = pairs[num_hidden + copy] if mlp.heads else pairs[-1]
        if mlp.copies and not mlp.heads:
            last = last[0][copy], last[1][copy]
        self._hidden, self._last, self._act = pairs[:num_hidden], last, _ACTIVATIONS[mlp.activation]

    def __call__(self, x: Array) -> Array:
        """`[N, I] -> [N, O]`"""
        for w, b in self._hidden:
            x = self._act(np.add(h := x @ w, b, out=h))
        out: Array = np.add(h := x @ self._last[0], self._last[1], out=h)
        return out


class NumpyActor:
    """`ActorCritic.act` of a few rows."""

    def __init__(self, net: ActorCritic) -> None:
        assert isinstance(net.body, SeparateBody)
        self._leaf, self._head, self._shape = vector_leaf(net.env_spec, net.body.torso), net.head, net.env_spec.action.shape
        self._mlp, self._normaliser = NumpyMLP(net.body.nets), net.normalisers[self._leaf] if net.normalisers else None
        self._log_std = None if net.log_std is None else net.log_std.detach().numpy()

    @staticmethod
    def why_not(net: ActorCritic) -> str:
        """The reason why numpy does not serve this network; empty if it does."""
        if reason := why_not_plain(net):
            return reason
        assert isinstance(net.body, SeparateBody)
        return "" if vector_leaf(net.env_spec, net.body.torso) else "the network sees more than one float vector"

    def act(self, rows: Batch, *, greedy: bool) -> Batch | None:
        """`action` and `logprob`; None for more rows than `FEW_ROWS`."""
        seen = rows[self._leaf]
        if not is_few(seen) or seen.dtype != torch.float32:
            return None
        x = seen.numpy() if self._normaliser is None else _normalised(self._normaliser, seen.numpy())
        scores = self._mlp(x if x.ndim == 2 else x.reshape(len(x), -1))
        if self._log_std is not None:
            action, logprob = _gaussian(scores, self._log_std, None if greedy else rows["noise"])
            action = action.reshape(len(action), *self._shape)
        else:
            mask = rows.get("action_mask")
            scores = scores if mask is None else np.where(mask.numpy(), scores, _LOWEST)
            action, logprob = categorical(scores, None if greedy else rows["noise"].numpy())
        return Batch(action=torch.from_numpy(action), logprob=torch.from_numpy(logprob))


class NumpyQ:
    """`QNet.act` of a few rows. If all rows explore, the network is not run."""

    best: Callable[[Array, Array | None], Array | None] | None = None
    """A faster way to find the best action (`numba/dqn.py`), if there is one."""

    def __init__(self, net: QNet) -> None:
        self._net, self._leaf = net, vector_leaf(net.env_spec, net.torso)
        self._value = NumpyMLP(net.head, 0) if net.dueling and net.num_atoms > 1 else None
        self._mlp = NumpyMLP(net.head, 1 if net.dueling else 0)  # V does not change which action is best

    @staticmethod
    def why_not(net: QNet) -> str:
        """The reason why numpy does not serve this network; empty if it does."""
        if type(net) is not QNet or net.core is not None or type(net.head) is not MLP:
            return "the network is not one of fully connected layers"
        return "" if vector_leaf(net.env_spec, net.torso) else "the network sees more than one float vector"

    def act(self, rows: Batch, *, greedy: bool) -> Batch | None:
        """`action`; None for more rows than `FEW_ROWS`."""
        if not is_few(rows[self._leaf]):
            return None
        mask = rows["action_mask"].numpy() if "action_mask" in rows else None
        if greedy:
            return Batch(action=torch.from_numpy(self._best(rows, mask)))
        noise = rows["noise"].numpy()
        explore = noise[:, 0] < self._net.epsilon.item()
        num = np.count_nonzero(explore)
        if num == 0:
            return Batch(action=torch.from_numpy(self._best(rows, mask)))
        action = self._random(noise[:, 1], mask)
        if num < len(action):
            action = np.where(explore, action, self._best(rows, mask))
        return Batch(action=torch.from_numpy(action))

    def _random(self, noise: Array, mask: Array | None) -> Array:
        pick = np.minimum(noise, np.float32(1.0 - UNIFORM_MARGIN))
        if mask is None:
            return (pick * np.float32(self._net.num_actions)).astype(np.int64)
        rank = mask.cumsum(-1)
        random: Array = (rank <= np.floor(pick * rank[:, -1])[:, None]).sum(-1)
        return random

    def _best(self, rows: Batch, mask: Array | None) -> Array:
        obs = rows[self._leaf].numpy()
        x = obs if obs.ndim == 2 else obs.reshape(len(obs), -1)
        if self.best is not None and (found := self.best(x, mask)) is not None:
            return found
        q = self._mlp(x) if self._net.num_atoms == 1 else self._expected(x)
        best: Array = (q if mask is None else np.where(mask, q, _LOWEST)).argmax(-1)
        return best

    def _expected(self, x: Array) -> Array:
        logits = self._mlp(x).reshape(len(x), self._net.num_actions, self._net.num_atoms)
        if self._value is not None:
            logits = logits - logits.mean(1, keepdims=True) + self._value(x)[:, None, :]
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        q: Array = (weights @ self._net.support.numpy()) / weights.sum(-1)
        return q


def categorical(scores: Array, noise: Array | None) -> tuple[Array, Array]:
    """`categorical_sample` (`categorical_mode` without noise). `[N, A], [N, 1] -> [N], [N]`"""
    # less the maximum: exp cannot overflow, and the ratio of weights stays the same
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    cdf = weights.cumsum(-1)
    total = cdf[:, -1]
    if noise is None:
        action = scores.argmax(-1)
    else:
        # inverse of the distribution: the number of choices whose cumulated weight is below the noise
        action = (cdf <= np.minimum(noise, 1.0 - UNIFORM_MARGIN) * total[:, None]).sum(-1)
    return action, np.log(weights[_ROWS[: len(action)], action] / total)


def _gaussian(mean: Array, log_std: Array, noise: Tensor | None) -> tuple[Array, Array]:
    """`gaussian_sample` (`gaussian_mode` without noise). `[N, D], [D], [N, D] -> [N, D], [N]`"""
    constant = log_std.sum() + len(log_std) * np.float32(HALF_LOG_TWO_PI)
    if noise is None:
        return mean, np.full(len(mean), -constant, dtype=np.float32)
    z = torch.special.ndtri(noise.clamp(UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN)).numpy()
    logprob: Array = -0.5 * np.square(z).sum(-1) - constant
    return mean + np.exp(log_std) * z, logprob


def _normalised(statistics: RunningMeanStd, x: Array) -> Array:
    """`RunningMeanStd.forward`. `[N, ...] -> [N, ...]`"""
    scale = (1.0 / np.sqrt(statistics.var.numpy() + statistics.epsilon)).astype(np.float32)
    seen: Array = (x - statistics.mean.numpy().astype(np.float32)) * scale
    return np.minimum(np.maximum(seen, -statistics.clip), statistics.clip)


def _silu(x: Array) -> Array:
    out: Array = x / (1.0 + np.exp(-x))
    return out


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "silu": _silu,
}
