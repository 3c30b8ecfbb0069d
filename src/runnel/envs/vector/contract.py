"""The vector contract: B environments that step together, on any back end.

A vector steps B environments in lock-step with same-step autoreset. Where an episode ends, `obs` is already the first
observation of the next episode, and `final_obs` has the last one of the old episode, with its mask. The tensors of a `StepOut`
are the same memory at every step, so that a sampler looks them up once.

A step has two halves: `send` starts it and may return early, `recv` waits for it. Between the two, `out` belongs to the vector.
So an actor with several vectors keeps their simulators busy while it waits for its policy's actions for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.spaces import EnvSpec
from runnel.core.state import State, WorkerEvent
from runnel.core.trajectories import TASK_ID, TASK_PARAMS
from runnel.envs.spaces import MASK

TASKS_AHEAD = 8
"""Tasks of a row that are chosen together, for the episodes that begin within one segment."""
BEGUN = "task/begun"
MAX_FAILURES = 5
"""An environment that fails in more consecutive episodes than this is not replaced again: the run stops."""


@dataclass
class Episode:
    """A finished episode of environment `env`: the sum of its rewards and its number of steps.

    With several agents these are means: `total` over the agents that are trained, `by_policy` over those of each policy.
    `channels` are the sums of further rewards and of costs, by field (`costs/hazard`). `statistics` are further numbers of
    the episode, where a world says some (`envs/device/team.py`).
    """

    env: int
    total: float
    length: int
    by_policy: Mapping[str, float] = field(default_factory=dict)
    channels: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class StepOut:
    """The result of a step: fixed memory that the next step overwrites.

    `obs` leaves `[B, ...]` and `action_mask` `[B, A]` belong to the next decision; `reward` (float32), `terminated` and
    `truncated` (bool) are `[B]`. `final_rows` names the environments whose episode just ended, and `final_obs[key][f]`
    is the last observation of `final_rows[f]`; where there are masks, so is `final_obs["action_mask"]`. Dense vectors
    (`final_rows` None) give `final_obs` `[B, ...]` for every row: the observation that followed the action, before any reset.
    `active` (bool `[B]`, only with several agents) says which rows decide next: see `envs/team/contract.py`. `channels` are
    the step's further rewards and costs, by field (`costs/hazard`, float32 `[B]`).

    Of a vector that plays given tasks, `task` says what each row plays (`task/id` `[B]`, `task/params` `[B, d]`). `next_task`
    says what the next episodes of each row play, one after another and then again (`task/id` `[B, K]`, `task/params`
    `[B, K, d]`), and how many of them have begun (`task/begun` `[B]`): whoever chooses writes there, between two steps and
    before `reset`.
    """

    obs: Batch
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Batch
    final_rows: list[int] | None
    action_mask: Tensor | None = None
    active: Tensor | None = None
    channels: Batch = field(default_factory=Batch)
    task: Batch = field(default_factory=Batch)
    next_task: Batch = field(default_factory=Batch)


Fault = WorkerEvent
"""A failure that the vector survived: `kind`, `env`, `episode`, `step`, `seed`, `error`. Kinds: `env_failed` (it raised, died
or hung), `env_lost` (its process died because of another environment), `env_restarted` (a resume could not restore
`num_envs`)."""


@runtime_checkable
class VectorEnv(Protocol):
    """B environments that step together. `out` is the fixed memory that `reset` and a step fill and return;
    `index0` is the global number of the first one."""

    name: str
    num_envs: int
    index0: int
    spec: EnvSpec
    out: StepOut

    def reset(self, seed: int | None = None) -> StepOut:
        """Start every environment at episode 0 of `seed` (None: the seed of the constructor)."""
        ...

    def send(self, actions: Tensor) -> None:
        """Start one step of every environment with network actions `[B, ...]` (counted from 0, not clipped).

        The caller may overwrite `actions` when this returns.
        """
        ...

    def ready(self) -> bool:
        """Whether `recv` would return without waiting."""
        ...

    def recv(self) -> StepOut:
        """Wait for the step that `send` started."""
        ...

    def step(self, actions: Tensor) -> StepOut:
        """`send`, then `recv`."""
        ...

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call."""
        ...

    def faults(self) -> list[Fault]:
        """Faults since the last call."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


def allocate(spec: EnvSpec, num_envs: int, zeros: Callable[..., Tensor] = torch.zeros, *, tasks: bool = False) -> StepOut:
    """Output memory of a vector, with room for `tasks`. `zeros` decides where it lies; it is called like `torch.zeros`."""
    obs, final = (Batch({k: zeros(num_envs, *x.shape, dtype=x.dtype) for k, x in spec.obs.items()}) for _ in range(2))
    mask = None
    if spec.has_mask:
        mask, final[MASK] = (zeros(num_envs, spec.action.mask_size, dtype=torch.bool).fill_(True) for _ in range(2))
    reward, terminated, truncated = (zeros(num_envs, dtype=x) for x in (torch.float32, torch.bool, torch.bool))
    channels = Batch({name: zeros(num_envs, dtype=torch.float32) for name in spec.channels.names})
    task, next_task = Batch(), Batch()
    if tasks:
        assert spec.tasks is not None, "an environment without tasks is refused before"
        for each, size in ((task, (num_envs,)), (next_task, (num_envs, TASKS_AHEAD))):
            each[TASK_ID] = zeros(*size, dtype=torch.int64)
            each[TASK_PARAMS] = zeros(*size, spec.tasks.size, dtype=torch.float32)
        next_task[BEGUN] = zeros(num_envs, dtype=torch.int64)
    return StepOut(obs, reward, terminated, truncated, final, [], mask, channels=channels, task=task, next_task=next_task)


def mark_stack(spec: EnvSpec, num_frames: int) -> EnvSpec:
    """`spec` with its images marked as stacks of `num_frames` frames."""
    if not num_frames:
        return spec
    return replace(spec, obs={k: replace(x, stack=num_frames) if len(x.shape) == 3 else x for k, x in spec.obs.items()})
