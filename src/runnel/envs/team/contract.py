"""The contract of vectors whose environments have several agents.

As `envs/vector/contract.py`, with one `StepOut` for each policy. A row is one agent of one environment, row = e * A + a for
agent a of the A agents that the policy serves. All rows of all policies step together.

`active[b]` says that row b decides next. A row is inactive for one of two reasons:

- Its agent has left. Its last step has `terminated` or `truncated` and its final observation. Then it gets reward 0 until its
  environment begins anew.
- Its agent waits (for its turn, or to come in). It has no flag. What it is paid meanwhile is recorded at the step that paid
  it, and credit adds it to the agent's last decision (`ops/decisions.py`). If the episode ends meanwhile, that step has the
  flag.

Observations of inactive rows are zeros and their masks allow everything, so that no policy meets a stale or undefined number.
An environment begins anew, in the same step, once none of its agents is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from runnel.core.routes import Side
from runnel.core.state import State
from runnel.envs.vector.contract import Episode, Fault, StepOut


@runtime_checkable
class TeamVector(Protocol):
    """E environments that step together. `outs` is the fixed memory, by policy, that `reset` and a step fill; `index0` is the
    global number of the first environment."""

    name: str
    num_envs: int
    index0: int
    sides: Mapping[str, Side]
    outs: Mapping[str, StepOut]

    def reset(self, seed: int | None = None) -> None:
        """Start every environment at episode 0 of `seed` (None: the seed of the constructor)."""
        ...

    def send(self, actions: Mapping[str, Tensor]) -> None:
        """Start one step of every environment with the network actions `[E * A, ...]` of each policy. Those of inactive rows
        are not read."""
        ...

    def ready(self) -> bool:
        """Whether `recv` would return without waiting."""
        ...

    def recv(self) -> None:
        """Wait for the step that `send` started."""
        ...

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call, with the return of each agent."""
        ...

    def faults(self) -> list[Fault]:
        """Faults since the last call."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...
