"""A tensor environment behind the vector contract."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from runnel.core.checks import check_tensor_env
from runnel.core.contracts.inference import RowPolicy
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.envs.device.base import ArrayEnv, TensorEnv
from runnel.envs.device.numpy_engine import NumpyEngine
from runnel.envs.device.started import state_bytes
from runnel.envs.device.torch_engine import Act, Played, TorchEngine
from runnel.envs.vector.contract import Episode, Fault, StepOut, allocate
from runnel.envs.vector.cpu_base import load_tasks, save_tasks


class TensorVector:
    """`num_envs` copies of a `TensorEnv` on `device`.

    On the CPU, an `ArrayEnv` is stepped in numpy, with sparse final observations. Otherwise everything is tensors, only
    `episodes` waits for the device, and final observations are dense. With `tasks`, episodes play what `out.next_task` says.
    """

    def __init__(
        self, env: TensorEnv, num_envs: int, *, seed: int, index0: int = 0, device: str = "cpu", tasks: bool = False
    ) -> None:
        self.num_envs, self._seed, self.index0 = num_envs, seed, index0
        self.name, self.spec, self.device = env.name, env.spec, torch.device(device)
        check_tensor_env(env, self.device)
        self.generator = torch.Generator(device=self.device)
        self._seed_generator()
        in_numpy = self.device.type == "cpu" and isinstance(env, ArrayEnv)
        self.out = allocate(env.spec, num_envs, partial(torch.zeros, device=self.device), tasks=tasks)
        self._engine = (NumpyEngine if in_numpy else TorchEngine)(env, num_envs, self.generator, self.out)
        self.out.final_rows = None if self._engine.dense else []
        self._engine.show(self.out.obs)

    def _seed_generator(self) -> None:
        self.generator.manual_seed(make_seed(self._seed, "tensor_env", self.index0))

    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._seed_generator()
        self._engine.begin()
        for x in (self.out.reward, self.out.terminated, self.out.truncated):
            x.zero_()
        self.out.final_rows = None if self._engine.dense else []
        self._engine.show(self.out.obs)
        return self.out

    def send(self, actions: Tensor) -> None:
        self._engine.step(actions, self.out)

    def ready(self) -> bool:
        return True

    def recv(self) -> StepOut:
        return self.out

    def step(self, actions: Tensor) -> StepOut:
        self._engine.step(actions, self.out)
        return self.out

    def play(self, arrays: Batch, act: Act, noise: Tensor, rows: RowPolicy | None = None) -> Played:
        """Fill the arrays of a whole `[T, B]` segment with the policy `act` (or the same as `rows`) and `noise` `[T, B, n]`.

        `out` is not updated. `episodes` does not return what is in `Played.records`.
        """
        if rows is not None and isinstance(self._engine, NumpyEngine) and self._engine.compiles:
            return self._engine.play_compiled(arrays, rows, noise)
        return self._engine.play(arrays, act, noise)

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call, at most a fixed number (`episodes.py`)."""
        return self._engine.episodes(self.index0)

    def faults(self) -> list[Fault]:
        return []

    def snapshot(self) -> State:
        state = {"seed": self._seed, "generator": self.generator.get_state(), "engine": self._engine.save()}
        return state | ({"tasks": save_tasks(self.out)} if self.out.task else {})

    def restore(self, state: State) -> None:
        self._seed = state["seed"]
        self.generator.set_state(state["generator"])
        self._engine.load(state["engine"])
        load_tasks(self.out, state.get("tasks", {}))
        self._engine.show(self.out.obs)

    def save_state(self, row: int) -> bytes:
        """The state of the environment in `row`, as start states are."""
        return state_bytes(self._engine.save()["state"], row)

    def close(self) -> None:
        """Nothing is open."""
