"""What an environment looks like to a network: flat observation leaves and one action description.

Plain data, made by `envs` from Gymnasium spaces, so that `nets` and `agents` never import an environment library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of one array, without batch dimensions."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    stack: int = 0
    """Frames that lie side by side in the first dimension, oldest first; 0: it is not a stack. Replay may keep the newest."""


def channel_axis(shape: Sequence[int]) -> int | None:
    """Which axis of an image `[C, H, W]` or `[H, W, C]` holds its channels, 0 or 2; None where the shape does not tell.

    Sides of a board or an image are often equal: two neighbours of one size are height and width. Else the channels are the
    smaller end, if it is at most half of either other size.

    >>> [channel_axis(s) for s in ((4, 84, 84), (84, 84, 3), (8, 8, 17), (17, 8, 8), (210, 160, 3), (6, 7, 2))]
    [0, 2, 2, 0, 2, 2]
    >>> [channel_axis(s) for s in ((8, 8, 8), (6, 7, 12), (84, 4, 84))]
    [None, None, None]
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return 2 if first == middle else 0
    least = min(first, last)
    if first == last or 2 * least > min(middle, max(first, last)):
        return None
    return 0 if first < last else 2


@dataclass(frozen=True)
class ActionLeaf:
    """One array of a composite action: the next `num_parts` parts, at `path` of what `env.step` takes.

    In a path a name enters a dict and a number a tuple; `()` is the action itself. A box is one part, an array of choices
    has one part an entry.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: str
    num_parts: int


@dataclass(frozen=True)
class ActionSpec:
    """One agent's action: `discrete` (a number below `num_actions`), `continuous` (a box), or `multi` (several of these).

    A `multi` action is stored as one array `[K]`, the numbers of its parts side by side: int64 where all parts are discrete,
    else float32, in which choices are whole numbers. `core/action_codec.py` makes what the environment takes of it.
    """

    kind: Literal["discrete", "continuous", "multi"]
    shape: tuple[int, ...] = ()
    num_actions: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    start: int = 0
    """First value of a Gymnasium `Discrete` space; networks count from 0, the environment wrapper adds it."""
    env_dtype: str = "float32"
    """Type that `env.step` accepts for a box action. Values for a box of integers are rounded."""
    parts: tuple[ActionSpec, ...] = ()
    """The choices and boxes of a `multi` action, in the order of their numbers."""
    leaves: tuple[ActionLeaf, ...] = ()
    """Where the parts of a `multi` action go in the environment's own structure."""

    @property
    def dtype(self) -> torch.dtype:
        if self.kind == "multi":
            discrete = all(part.kind == "discrete" for part in self.parts)
        else:
            discrete = self.kind == "discrete"
        return torch.int64 if discrete else torch.float32

    @property
    def size(self) -> int:
        """Width of a network's output head for this action: number of actions, or of coordinates, over all parts."""
        if self.kind == "multi":
            return sum(part.size for part in self.parts)
        if self.kind == "discrete":
            return self.num_actions
        return int(torch.Size(self.shape).numel())

    @property
    def noise_size(self) -> int:
        """Uniform numbers a policy needs to sample one action (see `Sampler`: noise travels with the request)."""
        if self.kind == "multi":
            return sum(part.noise_size for part in self.parts)
        return 1 if self.kind == "discrete" else self.size

    @property
    def mask_size(self) -> int:
        """Flags of an `action_mask`: one for each choice of each discrete part, in order; boxes have none."""
        if self.kind == "multi":
            return sum(part.mask_size for part in self.parts)
        return self.num_actions if self.kind == "discrete" else 0


def multi_action(parts: Sequence[ActionSpec], leaves: Sequence[ActionLeaf]) -> ActionSpec:
    """A composite action of `parts`, each discrete or continuous, laid out as `leaves`.

    >>> choices = (ActionSpec("discrete", num_actions=3), ActionSpec("discrete", num_actions=2))
    >>> spec = multi_action(choices, [ActionLeaf((), (2,), "int64", 2)])
    >>> spec.shape, spec.size, spec.noise_size, spec.mask_size
    ((2,), 5, 2, 5)
    """
    num_scalars = sum(part.noise_size for part in parts)
    return ActionSpec("multi", shape=(num_scalars,), parts=tuple(parts), leaves=tuple(leaves))


@dataclass(frozen=True)
class Channels:
    """The numbers that each step has beside its reward: further rewards, and costs, by name.

    >>> Channels(rewards=("forward",), costs=("hazard",)).names
    ('rewards/forward', 'costs/hazard')
    """

    rewards: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a stream that hold them."""
        return (*(f"rewards/{name}" for name in self.rewards), *(f"costs/{name}" for name in self.costs))


@dataclass(frozen=True)
class TaskSpace:
    """The parameters by which an environment is told what to play: numbers between `low` and `high`."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many numbers a task has."""
        return len(self.low)


@dataclass(frozen=True)
class EnvSpec:
    """Observations (flat keys `obs` or `obs/name`), the action, whether an `action_mask` comes with each step, what each step
    has beside its reward, and the tasks of an environment that takes some."""

    obs: Mapping[str, ArraySpec]
    action: ActionSpec
    has_mask: bool = False
    channels: Channels = field(default_factory=Channels)
    tasks: TaskSpace | None = None


@dataclass(frozen=True)
class TeamSpec:
    """What an environment with several agents looks like to networks: the spec of each agent, by its id."""

    agents: Mapping[str, EnvSpec]
    zero_sum: bool = False
    """Whether it is known that what all agents are paid sums up to 0 in every episode."""

    @property
    def kinds(self) -> list[tuple[int, ...]]:
        """The places of agents whose specs are equal, kind after kind, in the order in which kinds first appear.

        >>> cat, mouse = (EnvSpec({"obs": ArraySpec((n,))}, ActionSpec("discrete", num_actions=2)) for n in (2, 3))
        >>> TeamSpec({"cat_0": cat, "mouse": mouse, "cat_1": cat}).kinds
        [(0, 2), (1,)]
        """
        specs = list(self.agents.values())
        first = [specs.index(spec) for spec in specs]
        return [tuple(i for i, f in enumerate(first) if f == kind) for kind in dict.fromkeys(first)]
