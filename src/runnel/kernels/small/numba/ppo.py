"""Compiled small actor-critics on the CPU: an optimiser step of PPO is one call (`steps.py` has the kernels).

On a few hundred rows torch and numpy spend most of an update between their operations. Numba compiles forward pass, loss,
backward pass and Adam into one function, which is three times as fast for two layers of 64. It works on the flat vector that
holds the parameters (`nets/optim.py`), so it sees every update, also those of other code.

Results agree with torch's to float32 rounding. The first run on a machine compiles for some 20 seconds. Numba keeps the
compiled code beside the source (or in NUMBA_CACHE_DIR), and later runs load it in half a second.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.agents.ppo import PPOConfig
from runnel.core.contracts.inference import RowPolicy
from runnel.core.state import Array
from runnel.kernels.small.numpy_act import why_not_plain
from runnel.nets.actor_critic import ActorCritic, SeparateBody
from runnel.nets.layers import Torso
from runnel.nets.optim import Adam
from runnel.ops.distributions import UNIFORM_MARGIN, ContinuousHead

METRICS = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "grad_norm")
"""The numbers of an optimiser step that `passes` returns."""
ACT_ROWS = 128
"""Up to this number of rows, compiled code that acts row by row is faster than products of matrices."""
CHUNK = 1024
"""Rows that go through all layers together: their values between layers then stay in the cache."""
MOST_THREADS = 16
_WIDEST = 256
_NO_FLOATS, _NO_MASK = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.bool_)


def why_not(net: ActorCritic) -> str:
    """The reason why the kernels cannot serve this network, or an empty text.

    They are for two fully connected hidden layers of tanh or relu over vectors, on the CPU.
    """
    if reason := why_not_plain(net):
        return reason
    body, first = net.body, next(net.parameters())
    assert isinstance(body, SeparateBody)
    if type(body.torso) is not Torso or body.torso.convolves:
        return "the network has convolutions"
    widths = [w.shape[-1] for w in body.nets.weight][:-2]
    if len(widths) != 2 or max(widths) > _WIDEST:
        return f"kernels are for two hidden layers of at most {_WIDEST}, and the network has {widths}"
    if body.nets.activation not in ("tanh", "relu"):
        return f"kernels are for tanh and relu, not for {body.nets.activation}"
    if not first.is_cpu or first.dtype != torch.float32:
        return "kernels are for float32 on the CPU"
    return "" if has_numba() else "Numba is not installed: pip install 'runnel[compiled]'"


@cache
def has_numba() -> bool:
    """Whether the packages of compiled kernels are installed (`pip install 'runnel[compiled]'`)."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "scipy", "threadpoolctl"))


def is_cached(kernel: str) -> bool:
    """Whether an earlier run on this machine has compiled this function of `steps.py`."""
    folder = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__"
    return next(Path(folder).rglob(f"steps.{kernel}-*.nbi"), None) is not None


class NumbaActorCritic:
    """The kernels for an actor-critic. They work on `vector` `[P]`, which holds its parameters one after the other: the
    optimiser of a learner makes such a vector."""

    def __init__(self, net: ActorCritic, vector: Tensor) -> None:
        self._vector, self._address = vector.numpy(), vector.data_ptr()
        assert isinstance(net.body, SeparateBody)
        nets, self._net, self._torso = net.body.nets, net, net.body.torso
        self._action_shape, self._gauss = net.env_spec.action.shape, isinstance(net.head, ContinuousHead)
        self._sizes = (nets.num_inputs, nets.weight[0].shape[-1], nets.weight[1].shape[-1], net.head.num_scores, self._gauss)
        self._relu = nets.activation == "relu"
        self._memories: dict[tuple[int, int], tuple[Array, ...]] = {}
        self._pool = ThreadPoolExecutor(max_workers=MOST_THREADS, thread_name_prefix="compiled")
        self._rows = tuple(np.empty(n, np.float32) for n in self._sizes[1:4])

    def act(self, obs: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probabilities `[B, *action.shape], [B]`."""
        # imported at first use, here and below: Numba is optional and slow to import
        from runnel.kernels.small.numba import steps as kernels

        num, mask = len(noise), obs.get("action_mask")
        if self._gauss:
            noise = torch.special.ndtri(noise.clamp(UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN))
        action, logprob = np.empty(0 if self._gauss else num, np.int64), np.empty(num, np.float32)
        moves = np.empty((num, self._sizes[3]), np.float32) if self._gauss else _NO_FLOATS
        layers, seen = (self._vector, self._sizes, self._relu), self._features(obs)
        open_ = _NO_MASK if mask is None else mask.numpy()
        if num <= ACT_ROWS:
            kernels.act(*layers, seen, noise.numpy(), open_, action, moves, logprob, *self._rows)
        else:
            self._act_in_chunks(layers, seen, noise.numpy(), open_, (action, moves, logprob))
        found = moves.reshape(num, *self._action_shape) if self._gauss else action
        return torch.from_numpy(found), torch.from_numpy(logprob)

    def _act_in_chunks(self, layers: tuple[Any, ...], seen: Array, noise: Array, mask: Array, found: tuple[Array, ...]) -> None:
        from runnel.kernels.small.numba import steps as kernels

        num, workers = len(seen), self._workers(len(seen))

        def run(worker: int) -> None:
            rows = slice(worker * num // workers, (worker + 1) * num // workers)
            # what this network has not is empty
            parts = [x[rows] if len(x) else x for x in (mask, *found)]
            kernels.act_in_chunks(*layers, seen[rows], noise[rows], *parts, self._memory(worker, CHUNK))

        with one_blas_thread():
            self._spread(run, workers)

    def row_policy(self) -> RowPolicy:
        """The network for compiled code that calls it row by row."""
        return RowPolicy(self._vector, self._sizes, self._relu)

    def values(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The critic. Obs leaves `[..., *shape] -> [...]`"""
        from runnel.kernels.small.numba import steps as kernels

        seen = self._features(obs)
        x = seen.reshape(-1, seen.shape[-1])
        out, workers = np.empty(len(x), np.float32), self._workers(len(x))

        def run(worker: int) -> None:
            rows = slice(worker * len(x) // workers, (worker + 1) * len(x) // workers)
            kernels.values(self._vector, self._sizes, self._relu, x[rows], self._memory(worker, CHUNK), out[rows])

        with one_blas_thread():
            self._spread(run, workers)
        return torch.from_numpy(out.reshape(seen.shape[:-1]))

    def passes(self, batch: Mapping[str, Tensor], orders: Tensor, *, size: int, optimiser: Adam, config: PPOConfig) -> Tensor:
        """Take the optimiser steps of PPO (`PPOLearner.step`): the numbers of `METRICS` for each step, `[steps, 7]`.

        There is one step for each `size` rows of `batch` `[N, ...]` in each of `orders` `[epochs, N]`. A step whose loss is not
        finite changes nothing.
        """
        from runnel.kernels.small.numba import steps as kernels

        data = (self._sizes, self._relu, self._features(batch), self._columns(batch))
        c = config  # a clip of 0 is none
        settings = (c.clip_range, c.dual_clip, c.value_clip, c.value_coef, c.entropy_coef)
        coefs = tuple(np.float32(x or 0.0) for x in settings)
        steps = orders.numpy().reshape(-1, size)
        vector, mean, square, count = optimiser.on_host(len(steps))
        assert vector.data_ptr() == self._address, "the optimiser of another network"
        moments, numbers = (mean.numpy(), square.numpy()), np.zeros((len(steps), 7), np.float32)
        # one gradient for each chunk, added in the order of chunks: the sum does not depend on the number of threads
        num_chunks, workers = -(-size // CHUNK), self._workers(size)
        grads, parts = np.zeros((num_chunks, len(self._vector)), np.float32), np.zeros((num_chunks, 7), np.float32)
        memory = self._memory(0, min(size, CHUNK))

        def run(worker: int) -> None:
            span = (worker * num_chunks // workers, (worker + 1) * num_chunks // workers)
            kernels.gradients(self._vector, grads, *data, order, *span, coefs, self._memory(worker, CHUNK), parts)

        with one_blas_thread():
            for i, order in enumerate(steps):
                adam = (optimiser.lr, *optimiser.betas, optimiser.eps, float(count + i), c.max_grad_norm)
                if workers == 1:
                    kernels.step(self._vector, grads, moments, *data, order, coefs, adam, memory, parts, numbers[i])
                else:
                    self._spread(run, workers)
                    kernels.descend(self._vector, grads, moments, adam, parts, numbers[i])
        return torch.from_numpy(numbers)

    def _workers(self, num_rows: int) -> int:
        """The number of threads for `num_rows` rows; compiled code releases Python's lock."""
        return max(1, min(torch.get_num_threads(), num_rows // (2 * CHUNK)))

    def _spread(self, run: Callable[[int], None], workers: int) -> None:
        others = [self._pool.submit(run, worker) for worker in range(1, workers)]
        run(0)
        for other in others:
            other.result()

    def _features(self, obs: Mapping[str, Tensor]) -> Array:
        """The input of the layers, `[N, I]`: leaves side by side, normalised where that is on."""
        x: Array = self._torso(self._net.observe(obs)).numpy()
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)

    def _columns(self, batch: Mapping[str, Tensor]) -> tuple[Array, ...]:
        action, mask = batch["action"].numpy(), batch.get("action_mask")
        actions = action.reshape(len(action), -1) if self._gauss else _NO_FLOATS
        rest = (batch[k].numpy() for k in ("logprob", "advantage", "return", "value"))
        taken = np.zeros(0, np.int64) if self._gauss else action
        return taken, actions, _NO_MASK if mask is None else mask.numpy(), *rest

    def _memory(self, worker: int, num: int) -> tuple[Array, ...]:
        """Memory of one thread for the values between layers of `num` rows."""
        if (worker, num) not in self._memories:
            (inputs, first, second, scores, _), float32 = self._sizes, np.float32
            layers: list[tuple[int, ...]] = [(2, num, first), (2, num, second)]
            outputs: list[tuple[int, ...]] = [(num, scores), (num,)]
            floats = [np.zeros(shape, float32) for shape in ((num, inputs), *layers, *layers, *outputs, *outputs)]
            masked = self._net.env_spec.has_mask
            extra = (
                np.zeros(num, np.int64),
                np.zeros((num, scores), float32),
                np.zeros((num, scores) if masked else (0, 0), bool),
            )
            self._memories[worker, num] = (*floats, *extra, np.zeros((4, num), float32))
        return self._memories[worker, num]


@cache
def _blas() -> list[Any]:
    """The BLAS libraries of this process, with SciPy's, which Numba calls."""
    import scipy.linalg.cython_blas  # noqa: F401  (the import loads SciPy's)
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run matrix products on one thread."""
    # for small products BLAS's threads wait for each other longer than the product takes
    before = [library.get_num_threads() for library in _blas()]
    try:
        for library in _blas():
            library.set_num_threads(1)
        yield
    finally:
        for library, num in zip(_blas(), before, strict=True):
            library.set_num_threads(num)
