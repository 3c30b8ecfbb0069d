"""The common part of all vectors in CPU memory: output memory, episode records and faults."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError, RunnelError
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array, State
from runnel.core.user_code import called_wrongly, frames, place_of, summary
from runnel.envs.spaces import MASK
from runnel.envs.vector.contract import Episode, Fault, StepOut, allocate
from runnel.envs.vector.memory import check_memory

if TYPE_CHECKING:
    import gymnasium as gym


def explained_by(check: str, method: object, error: BaseException | None = None) -> str:
    """The end of a message about an environment that broke the contract: the place of `method` and the command `check`.

    Empty where `error` came from the environment's own lines, which the message shows already.
    """
    if error is not None and not called_wrongly(error):
        return ""
    place = place_of(method)
    found = [f"see {place}"] if place else []
    found += [f"`{check}` explains what is wrong"] if check else []
    return f"\n  {'; '.join(found)}" if found else ""


def _step_of(env: gym.Env) -> object:
    return getattr(type(getattr(env, "unwrapped", env)), "step", None)


class CpuVector:
    """The part of the contract that is the same for all back ends. A step is done when `send` returns, unless overridden."""

    name: str
    out: StepOut

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        *,
        seed: int,
        index0: int,
        name: str,
        out: StepOut | None = None,
        check: str = "",
    ) -> None:
        """`check` is the command that explains what is wrong with an environment. `out`: memory to use; None allocates it."""
        self.check = check
        check_memory(spec, num_envs, num_steps=0, num_segments=0)
        self.spec, self.num_envs, self.index0, self.name = spec, num_envs, index0, name
        self._seed, self._clock = seed, 0
        self._ended: list[Episode] = []
        self._faults: list[Fault] = []
        self.out = out = allocate(spec, num_envs) if out is None else out
        self._obs = {k: x.numpy() for k, x in out.obs.items()}
        self._final = {k: x.numpy() for k, x in out.final_obs.items()}
        self._reward, self._terminated, self._truncated = out.reward.numpy(), out.terminated.numpy(), out.truncated.numpy()
        self._mask = None if out.action_mask is None else out.action_mask.numpy()
        self._now = {k: x.numpy() for k, x in out_arrays(out).items()}
        self._num_actions = spec.action.num_actions if spec.action.kind == "discrete" else 0
        self._action_size = num_envs * prod(spec.action.shape)

    def send(self, actions: Tensor) -> None:
        raise NotImplementedError

    def _check_actions(self, actions: Array) -> None:
        """Refuse all but one action for each row, and a choice outside its space, as Gymnasium would."""
        if actions.size != self._action_size or len(actions) != self.num_envs:
            raise DataError(
                f"{self.num_envs} environments {self.name!r} were given actions of shape {actions.shape}, not "
                f"{(self.num_envs, *self.spec.action.shape)}"
            )
        if not self._num_actions:
            return
        if actions.dtype.kind not in "iu":
            raise DataError(f"environment {self.name!r} was given actions as {actions.dtype}; a choice is an integer")
        chosen = actions.tolist()  # Python's min and max beat numpy's up to thousands of rows
        if min(chosen) < 0 or max(chosen) >= self._num_actions:
            row = next(i for i, a in enumerate(chosen) if not 0 <= a < self._num_actions)
            raise DataError(
                f"environment {self.name!r} (index {self.index0 + row}) was given action {chosen[row]}, outside of its "
                f"space: there are {self._num_actions} actions, counted from 0"
            )

    def _error(self, where: str, error: BaseException, env: gym.Env, after: str = "") -> DataError:
        """The error about an environment: where, what, the lines of its own code, and `explained_by`."""
        what = str(error) if isinstance(error, RunnelError) else f"raised {summary(error)}"
        return DataError(f"{where} {what}{after}{frames(error)}{explained_by(self.check, _step_of(env), error)}")

    def ready(self) -> bool:
        return True

    def recv(self) -> StepOut:
        return self.out

    def step(self, actions: Tensor) -> StepOut:
        self.send(actions)
        return self.recv()

    def episodes(self) -> list[Episode]:
        ended, self._ended = self._ended, []
        return ended

    def faults(self) -> list[Fault]:
        faults, self._faults = self._faults, []
        return faults

    def _clear_flags(self) -> None:
        self._terminated.fill(False)
        self._truncated.fill(False)
        self.out.final_rows = []

    def _keep_last(self, row: int) -> None:
        """Truncate the episode of `row` now, with reward 0 and the last good observation as its final one."""
        rows = self.out.final_rows
        assert rows is not None
        for key, final in self._final.items():
            final[len(rows)] = self._now[key][row]
        self._reward[row], self._terminated[row], self._truncated[row] = 0.0, False, True
        rows.append(row)

    def _save_outputs(self) -> State:
        return {
            "seed": self._seed,
            "clock": self._clock,
            "out": {k: x.clone() for k, x in out_arrays(self.out).items()},
            "ended": [[e.env, e.total, e.length] for e in self._ended],
        }

    def _load_outputs(self, state: State) -> None:
        self._seed, self._clock = state["seed"], state["clock"]
        self._ended = [Episode(int(e), float(r), int(n)) for e, r, n in state["ended"]]
        for key, x in out_arrays(self.out).items():
            x.copy_(torch.as_tensor(np.asarray(state["out"][key])))
        self._reward.fill(0.0)
        self._clear_flags()


def out_arrays(out: StepOut) -> dict[str, Tensor]:
    """The arrays of the next decision: observation leaves and mask."""
    return {**out.obs, **({} if out.action_mask is None else {MASK: out.action_mask})}
