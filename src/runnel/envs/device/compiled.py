# mypy: ignore-errors
"""Plays whole segments of a small environment with a small policy in one compiled call (Numba), on the CPU.

The observation of the environment must be its state, and its action discrete. `PLAYS` has one function for each environment,
because Numba can cache it on disk. A function that took the transition as an argument would be compiled in every process.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runnel.envs.device import cartpole as cartpole_file
from runnel.envs.device.cartpole import CartPole
from runnel.kernels.jit import forget_older
from runnel.kernels.small.numba import rows
from runnel.kernels.small.numba.rows import jit, jit_inline, pick, score_row, split

forget_older(__file__, rows.__file__, cartpole_file.__file__)


_C = CartPole
_SHARE = np.float32(_C.pole_mass * _C.half_length / _C.total_mass)
_FORCE = np.float32(_C.force / _C.total_mass)
_PER_GRAVITY = np.float32(1.0 / _C.gravity)
_INERTIA = np.float32(_C.half_length * 4.0 / 3.0 / _C.gravity)
_TAU, _X_LIMIT, _ANGLE_LIMIT = np.float32(_C.tau), np.float32(_C.x_limit), np.float32(_C.angle_limit)


@jit
def cartpole(now, action, following):
    """`CartPole.transition` for one row. Writes the next state; returns the reward and whether the pole fell."""
    sin, cos, spin = np.sin(now[2]), np.cos(now[2]), now[3]
    push = (_FORCE if action == 1 else -_FORCE) + _SHARE * spin * spin * sin
    fall = sin - _PER_GRAVITY * cos * push
    turn = fall / (_INERTIA - _SHARE * _PER_GRAVITY * cos * cos)
    following[0] = now[0] + _TAU * now[1]
    following[1] = now[1] + _TAU * (push - _SHARE * turn * cos)
    following[2] = now[2] + _TAU * spin
    following[3] = spin + _TAU * turn
    return np.float32(1.0), abs(following[0]) > _X_LIMIT or abs(following[2]) > _ANGLE_LIMIT


@jit_inline
def play(step, vector, sizes, relu, first, pool, marks, deadline, total, noise, memory, ends, log, rows):
    """Play a segment from step `first` on, until it is full or the pool of first states runs low. Returns the next step.

    `memory`: obs `[T + 1, B, I]`, action, logprob, reward, terminated, truncated `[T, B]`. `ends`: final observations and their
    index. `log`: environment, return and length of each episode. `marks`: the clock, the time limit, and the used parts of
    pool, ends and log, which this function updates.
    """
    _, w1, w2, wa, _, b1, b2, ba, _ = split(vector, sizes)
    obs, action, logprob, reward, terminated, truncated = memory
    final, final_index = ends
    h1, h2, scores = rows
    num_steps, num_envs = action.shape
    for t in range(first, num_steps):
        if pool.shape[0] - marks[2] < num_envs:  # all environments could end in this step; the caller draws more states
            return t
        marks[0] += 1
        for n in range(num_envs):
            score_row(obs[t, n], w1[0], w2[0], wa, b1[0], b2[0], ba, h1, h2, scores, relu)
            action[t, n], logprob[t, n] = pick(scores, noise[t, n, 0])
            after = obs[t + 1, n]
            reward[t, n], terminated[t, n] = step(obs[t, n], action[t, n], after)
            truncated[t, n] = deadline[n] == marks[0]
            total[n] += reward[t, n]
            if terminated[t, n] or truncated[t, n]:
                final[marks[3]] = after
                final_index[marks[3]] = t * num_envs + n
                log[0, marks[4]], log[1, marks[4]], log[2, marks[4]] = n, total[n], marks[0] + marks[1] - deadline[n]
                total[n], deadline[n] = 0.0, marks[0] + marks[1]
                after[:] = pool[marks[2]]
                marks[2] += 1
                marks[3] += 1
                marks[4] += 1
    return num_steps


@jit
def play_cartpole(vector, sizes, relu, first, pool, marks, deadline, total, noise, memory, ends, log, rows):
    """`play` of CartPole."""
    return play(cartpole, vector, sizes, relu, first, pool, marks, deadline, total, noise, memory, ends, log, rows)


PLAYS: dict[type, Callable[..., int]] = {CartPole: play_cartpole}
