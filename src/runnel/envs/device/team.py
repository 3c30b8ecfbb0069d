"""A tensor environment of several agents: pure functions on a batch of states, on any device.

The agents of an environment are columns, in the order of `spec.agents`. What belongs to every agent alike (rewards, ends, who
decides) is one array `[E, A]`. What has the shape of a space (observations, masks, actions) is one array for each *kind* of
agents: those whose specs are equal (`TeamSpec.kinds`). In most worlds all agents are of one kind: there is one array
`[E, A, ...]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec, TeamSpec
from runnel.core.state import Array as Picture
from runnel.envs.device.arrays import Array
from runnel.envs.device.base import ArrayEnv, Leaves


@runtime_checkable
class TensorTeamEnv(Protocol):
    """A world of A agents as pure functions. A state is a `Batch` of leaves `[E, ...]`. No function may wait for the device.

    All chance is in `initial`: what is drawn later (a card that is turned over) is drawn there, and lies in the state.
    The caller reads a returned array once and does not write to it, so it may be shared. A function never writes to its
    arguments. `TeamWorld` has what most worlds say of turns and of a global state.
    """

    name: str
    spec: TeamSpec
    max_steps: int
    """Episodes are truncated at this length, for every agent that is still there; 0: never."""
    state_spec: ArraySpec | None
    """The global state, which only critics read; None: what all agents see, joined, stands for it."""

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        """`num` first states, drawn from `generator`, on its device."""
        ...

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        """Next state, rewards `[E, A]` (float32) and terminated `[E, A]` (bool).

        `actions` has an array `[E, A_k, ...]` for each kind of agents, with zeros for agents that do not decide. An agent
        that terminates has left until its world begins anew; what is said of it later is not read. A world begins anew when
        all its agents have left, or at `max_steps`.
        """
        ...

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        """For each kind of agents, the observation leaves `[E, A_k, ...]` under the keys of its `spec.obs`, and with
        `spec.has_mask` the `action_mask` (bool) `[E, A_k, n]`. Rows of agents that do not decide are not shown to policies."""
        ...

    def active(self, state: Leaves) -> Array | None:
        """Who decides next, `[E, A]` (bool); None where everybody always does. Agents that have left need not be left out."""
        ...

    def global_state(self, state: Leaves) -> Array:
        """The global state `[E, *state_spec.shape]`; asked only where there is a `state_spec`."""
        ...


@runtime_checkable
class CountingTeam(TensorTeamEnv, Protocol):
    """A world that says numbers of a whole episode, beside what it paid (how far a box was moved). Each is a metric
    `episode/NAME` of training, and an `episode/NAME` of evaluations."""

    def episode_stats(self, state: Leaves) -> Leaves:
        """Numbers of episodes that end in `state`, `[E]` each, always under the same names."""
        ...


@runtime_checkable
class DrawnTeam(TensorTeamEnv, Protocol):
    """A world that draws itself, for videos with `fps` pictures a second."""

    fps: float

    def render(self, state: Leaves, index: int) -> Picture:
        """World `index` of many, `[H, W, 3]` uint8."""
        ...


def statistics_of(env: TensorTeamEnv, device: torch.device | str = "cpu") -> tuple[str, ...]:
    """The names of what a world says of whole episodes."""
    if not isinstance(env, CountingTeam):
        return ()
    return tuple(env.episode_stats(env.initial(1, torch.Generator(device=device))))


class TeamWorld:
    """What most worlds have in common: everybody decides at every step, and there is no global state but what the agents see.
    Worlds whose functions also take numpy arrays are `ArrayEnv`s, too."""

    state_spec: ArraySpec | None = None
    all_stay: bool = False
    """Whether nobody ever leaves before `max_steps`: a world then begins anew once in that time, and whoever plays many steps
    at once need not draw a first state for each."""

    def active(self, state: Leaves) -> Array | None:
        return None

    def global_state(self, state: Leaves) -> Array:
        raise NotImplementedError("a world with a state_spec says here what its global state is")


def in_numpy(env: TensorTeamEnv) -> TensorTeamEnv:
    """`env` for numpy arrays: itself, or if it takes tensors alone, in the same memory."""
    return env if isinstance(env, ArrayEnv) else _InNumpy(env)


class _InNumpy:
    """A world that takes tensors alone, for numpy arrays: the memory is the same."""

    def __init__(self, env: TensorTeamEnv) -> None:
        self._env = env
        self.name, self.spec, self.max_steps, self.state_spec = env.name, env.spec, env.max_steps, env.state_spec

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return self._env.initial(num, generator)

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        following, reward, terminated = self._env.transition(_tensors(state), [torch.from_numpy(x) for x in actions])
        return _arrays(following), reward.numpy(), terminated.numpy()

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [_arrays(leaves) for leaves in self._env.observe(_tensors(state))]

    def active(self, state: Leaves) -> Array | None:
        active = self._env.active(_tensors(state))
        return None if active is None else active.numpy()

    def global_state(self, state: Leaves) -> Array:
        return self._env.global_state(_tensors(state)).numpy()

    def episode_stats(self, state: Leaves) -> Leaves:
        assert isinstance(self._env, CountingTeam), "only such a world is asked"
        return _arrays(self._env.episode_stats(_tensors(state)))


def _tensors(leaves: Leaves) -> Batch:
    return Batch({k: torch.from_numpy(x) for k, x in leaves.items()})


def _arrays(leaves: Leaves) -> Leaves:
    return {k: x.numpy() for k, x in leaves.items()}
