"""Compiled Q-learning with a small network on the CPU: like `ppo.py`, for `QNet`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.agents.dqn import DQNConfig
from runnel.core.state import Array
from runnel.kernels.small.numba.ppo import ACT_ROWS, has_numba, one_blas_thread
from runnel.kernels.small.numpy_act import NumpyQ, vector_leaf
from runnel.nets.optim import Adam
from runnel.nets.q_nets import QNet

METRICS = ("loss/td", "td_error", "q", "grad_norm")
"""The numbers of an optimiser step that `step` returns."""
_NO_MASK = np.zeros((0, 0), np.bool_)
_COLUMNS = ("action", "rewards/env", "discount", "weight")


def why_not(net: QNet) -> str:
    """The reason why the kernels cannot serve this network, or an empty text.

    They are for one float vector, two fully connected hidden layers of tanh or relu and one number for each action, on the CPU.
    """
    first = net.head.weight[0]
    if reason := NumpyQ.why_not(net):
        return reason
    if net.dueling or net.num_atoms != 1:
        return "kernels are for one number for each action, not for dueling networks or distributions"
    if len(net.head.weight) != 3 or net.head.activation == "silu":
        return "kernels are for two hidden layers of tanh or relu"
    if not first.is_cpu or first.dtype != torch.float32:
        return "kernels are for float32 on the CPU"
    return "" if has_numba() else "Numba is not installed: pip install 'runnel[compiled]'"


class NumbaQ:
    """The kernels for a network of action values, on the `vector` `[P]` of its parameters."""

    def __init__(self, net: QNet, vector: Tensor) -> None:
        self._vector, self._address = vector.numpy(), vector.data_ptr()
        weights = net.head.weight
        self._leaf, self._relu = vector_leaf(net.env_spec, net.torso), net.head.activation == "relu"
        self._sizes = (net.head.num_inputs, *(w.shape[1] for w in weights))
        self._grad = np.zeros_like(self._vector)
        self._rows = tuple(np.empty(n, np.float32) for n in self._sizes[1:])
        self._memory: dict[int, tuple[Array, ...]] = {}

    def best(self, x: Array, mask: Array | None) -> Array | None:
        """The best action of each row, `[B, I] -> [B]`. None for more rows than `ACT_ROWS`: numpy is faster then."""
        from runnel.kernels.small.numba import steps as kernels

        if len(x) > ACT_ROWS:
            return None
        action = np.empty(len(x), np.int64)
        kernels.best_actions(self._vector, self._sizes, self._relu, x, _NO_MASK if mask is None else mask, action, *self._rows)
        return action

    def step(self, batch: Mapping[str, Tensor], target: Tensor, *, optimiser: Adam, config: DQNConfig) -> tuple[Tensor, Tensor]:
        """An optimiser step of DQN (`DQNLearner.step`): the numbers of `METRICS` `[4]`, and the error of each row `[B]`.

        `target` has the parameters of the target network `[P]`. A loss that is not finite changes nothing.
        """
        from runnel.kernels.small.numba import steps as kernels

        mask = batch.get("next_action_mask")
        obs = [batch[k].flatten(1).numpy() for k in (self._leaf, "next_" + self._leaf)]
        columns = (*obs, *(batch[k].numpy() for k in _COLUMNS), _NO_MASK if mask is None else mask.numpy())
        vector, mean, square, count = optimiser.on_host(1)
        assert vector.data_ptr() == self._address, "the optimiser of another network"
        error, numbers = np.empty(len(obs[0]), np.float32), np.zeros(4, np.float32)
        with one_blas_thread():
            kernels.q_step(
                self._vector,
                target.numpy(),
                self._grad,
                (mean.numpy(), square.numpy()),
                self._sizes,
                self._relu,
                config.double,
                np.float32(np.inf if config.huber is None else config.huber),
                columns,
                (optimiser.lr, *optimiser.betas, optimiser.eps, float(count), config.max_grad_norm),
                self._memory_for(len(error)),
                error,
                numbers,
            )
        return torch.from_numpy(numbers), torch.from_numpy(error)

    def _memory_for(self, num: int) -> tuple[Array, ...]:
        if num not in self._memory:
            _, first, second, scores = self._sizes
            widths = (first, second, first, second, scores, scores, scores, scores)
            self._memory[num] = tuple(np.zeros((num, width), np.float32) for width in widths)
        return self._memory[num]
