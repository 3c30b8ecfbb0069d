"""Environments whose state is tensors on any device, stepped all at once and without a host synchronisation.

A `TensorEnv` is three pure functions on a batch of states; `TensorVector` adds what every environment needs: resets drawn
from a generator on the device, time limits, same-step autoreset and episode records. Final observations are dense (every
row, every step), because knowing which episodes ended would need the host.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.protocols import State
from runnel.core.rng import make_seed
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.vector import Episode, StepOut


@runtime_checkable
class TensorEnv(Protocol):
    """An environment as pure functions. A state is a `Batch` of leaves `[B, ...]`; nothing here may wait for the device."""

    name: str
    spec: EnvSpec
    max_steps: int
    """Episodes are truncated at this length; 0 for never."""

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        """`num` first states, drawn from `generator`, on its device."""
        ...

    def transition(self, state: Batch, action: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """Next state, reward `[B]` and terminated `[B]` (bool)."""
        ...

    def observe(self, state: Batch) -> Batch:
        """The observation leaves of a state, under the keys of `spec.obs`."""
        ...


class CartPole:
    """Gymnasium's CartPole-v1 (Barto, Sutton and Anderson 1983; Euler steps), in float32."""

    name = "tensor:CartPole-v1"
    max_steps = 500
    gravity, pole_mass, total_mass, half_length, force, tau = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    x_limit, angle_limit = 2.4, 12 * 2 * math.pi / 360

    def __init__(self) -> None:
        self.spec = EnvSpec({"obs": ArraySpec((4,))}, ActionSpec("discrete", num_actions=2))

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return Batch(state=torch.rand(num, 4, generator=generator, device=generator.device) * 0.1 - 0.05)

    def transition(self, state: Batch, action: Tensor) -> tuple[Batch, Tensor, Tensor]:
        x, x_dot, angle, angle_dot = state["state"].unbind(-1)
        sin, cos = torch.sin(angle), torch.cos(angle)
        moment = self.pole_mass * self.half_length
        push = (action * (2 * self.force) - self.force + moment * angle_dot.square() * sin) / self.total_mass
        inertia = self.half_length * (4.0 / 3.0 - self.pole_mass * cos.square() / self.total_mass)
        angle_acc = (self.gravity * sin - cos * push) / inertia
        x_acc = push - moment * angle_acc * cos / self.total_mass
        rates = torch.stack((x_dot, x_acc, angle_dot, angle_acc), dim=-1)
        following = state["state"] + self.tau * rates
        terminated = (following[:, 0].abs() > self.x_limit) | (following[:, 2].abs() > self.angle_limit)
        return Batch(state=following), torch.ones_like(x), terminated

    def observe(self, state: Batch) -> Batch:
        return Batch(obs=state["state"])


class TensorVector:
    """`num_envs` copies of a `TensorEnv` on `device`; keeps the vector contract, with dense final observations."""

    def __init__(self, env: TensorEnv, num_envs: int, *, seed: int, index0: int = 0, device: str = "cpu") -> None:
        self._env, self.num_envs, self._seed, self.index0 = env, num_envs, seed, index0
        self.name, self.spec, self.device = env.name, env.spec, torch.device(device)
        self._generator = torch.Generator(device=self.device)
        self._seed_generator()
        self._state = env.initial(num_envs, self._generator)
        obs = env.observe(self._state)
        flags = [torch.zeros(num_envs, dtype=torch.bool, device=self.device) for _ in range(2)]
        reward = torch.zeros(num_envs, device=self.device)
        self.out = StepOut(obs.map(torch.clone), reward, flags[0], flags[1], obs.map(torch.clone), None)
        self._total = torch.zeros(num_envs, dtype=torch.float64, device=self.device)
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._log: list[tuple[Tensor, Tensor, Tensor]] = []

    def _seed_generator(self) -> None:
        self._generator.manual_seed(make_seed(self._seed, "tensor_env", self.index0))

    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._seed_generator()
        self._state = self._env.initial(self.num_envs, self._generator)
        self._total.zero_()
        self._length.zero_()
        self._log = []
        for x in (self.out.reward, self.out.terminated, self.out.truncated):
            x.zero_()
        self._show(self.out.obs, self._state)
        return self.out

    def step(self, actions: Tensor) -> StepOut:
        out = self.out
        following, reward, terminated = self._env.transition(self._state, actions)
        self._length += 1
        self._total += reward
        out.reward.copy_(reward)
        out.terminated.copy_(terminated)
        if self._env.max_steps:
            torch.ge(self._length, self._env.max_steps, out=out.truncated)
        self._show(out.final_obs, following)
        ended = out.terminated | out.truncated
        self._log.append((ended, self._total.clone(), self._length.clone()))
        fresh = self._env.initial(self.num_envs, self._generator)
        self._state = Batch({k: torch.where(_like(ended, x), fresh[k], x) for k, x in following.items()})
        self._total.masked_fill_(ended, 0.0)
        self._length.masked_fill_(ended, 0)
        self._show(out.obs, self._state)
        return out

    def _show(self, into: Batch, state: Batch) -> None:
        for key, x in self._env.observe(state).items():
            into[key].copy_(x)

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call. The one place that waits for the device."""
        if not self._log:
            return []
        ended, total, length = (torch.stack(column) for column in zip(*self._log, strict=True))
        self._log = []
        rows = torch.stack((ended.double(), total, length.double())).cpu().numpy()
        times, places = np.nonzero(rows[0])
        columns = (places + self.index0, rows[1, times, places], rows[2, times, places].astype(np.int64))
        return [Episode(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]

    def snapshot(self) -> State:
        return {
            "seed": self._seed,
            "generator": self._generator.get_state(),
            "state": dict(self._state.map(torch.clone)),
            "total": self._total.clone(),
            "length": self._length.clone(),
            "log": [[x.clone() for x in entry] for entry in self._log],
        }

    def restore(self, state: State) -> None:
        self._seed = state["seed"]
        self._generator.set_state(state["generator"])
        self._state = Batch(state["state"]).to(self.device).map(torch.clone)
        self._total.copy_(state["total"])
        self._length.copy_(state["length"])
        self._log = [(e.to(self.device), r.to(self.device), n.to(self.device)) for e, r, n in state["log"]]
        self._show(self.out.obs, self._state)

    def close(self) -> None:
        """Nothing is open."""


def _like(flag: Tensor, x: Tensor) -> Tensor:
    """`flag` `[B]` with as many dimensions as `x` `[B, ...]`."""
    return flag.view(-1, *([1] * (x.dim() - 1)))


TENSOR_ENVS: dict[str, type[TensorEnv]] = {"CartPole-v1": CartPole}
