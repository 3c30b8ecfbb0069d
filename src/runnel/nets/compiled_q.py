"""Q-learning with a small network on the CPU, compiled: as `compiled.py`, for `QNet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.nets.compiled import ACT_ROWS, OnVector, has_numba, one_blas_thread
from runnel.ops.optimise import Adam, flat_view

if TYPE_CHECKING:
    from runnel.nets.q_nets import QNet

Array = NDArray[Any]
_NO_MASK = np.zeros((0, 0), np.bool_)
_COLUMNS = ("action", "rewards/env", "discount", "weight")


def compile_q(net: QNet) -> CompiledQ | None:
    """The kernels for `net`, if some serve it and its parameters lie one after the other (a learner's do)."""
    vector = flat_view(list(net.parameters())) if can_compile_q(net) else None
    return None if vector is None else CompiledQ(net, vector)


def can_compile_q(net: QNet) -> bool:
    """Whether the kernels serve this network: one float vector, two hidden layers, one number for each action, on the CPU."""
    plain = not net.dueling and net.num_atoms == 1 and bool(net.leaf) and len(net.head.weight) == 3
    first = net.head.weight[0]
    return plain and net.head.activation != "silu" and first.is_cpu and first.dtype == torch.float32 and has_numba()


class CompiledQ(OnVector):
    """The kernels for a network of action values."""

    def __init__(self, net: QNet, vector: Tensor) -> None:
        super().__init__(net, vector)
        weights = net.head.weight
        self._leaf, self._relu = net.leaf, net.head.activation == "relu"
        self._sizes = (net.head.num_inputs, *(w.shape[1] for w in weights))
        self._grad = np.zeros_like(self._vector)
        self._rows = tuple(np.empty(n, np.float32) for n in self._sizes[1:])
        self._memory: dict[int, tuple[Array, ...]] = {}

    def best(self, x: Array, mask: Array | None) -> Array | None:
        """The best action of rows `[B, I]` `-> [B]`; None for so many that numpy is faster."""
        from runnel.nets import compiled_kernels as kernels

        if len(x) > ACT_ROWS:
            return None
        action = np.empty(len(x), np.int64)
        kernels.best_actions(self._vector, self._sizes, self._relu, x, _NO_MASK if mask is None else mask, action, *self._rows)
        return action

    def step(
        self,
        batch: Mapping[str, Tensor],
        target: Tensor,
        *,
        double: bool,
        huber: float | None,
        optimiser: Adam,
        max_norm: float,
    ) -> tuple[Tensor, Tensor]:
        """An optimiser step along `huber_td_loss`, with `target` the parameters of the target network `[P]`: loss, mean error,
        mean Q, the gradient's norm; and the error of each row. A loss that is not finite changes nothing. `[4], [B]`"""
        from runnel.nets import compiled_kernels as kernels

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
                double,
                np.float32(np.inf if huber is None else huber),
                columns,
                (optimiser.lr, *optimiser.betas, optimiser.eps, float(count), max_norm),
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
