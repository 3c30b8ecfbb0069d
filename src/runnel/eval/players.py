"""What plays in a match, and the player that knows nothing: random moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from runnel.core.action_codec import mask_parts
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec
from runnel.core.state import Array
from runnel.envs.spaces import MASK
from runnel.envs.team.contract import TeamVector

RANDOM = "random"


@dataclass(frozen=True)
class Sitting:
    """A player in one game. `answer` gives the actions (and recurrent states) of its policies, for rows named `policy/...`; by
    policy, what its network is asked with beside what it sees."""

    answer: Callable[[Batch], Batch]
    noise_sizes: Mapping[str, int]
    states: Mapping[str, Mapping[str, ArraySpec]] = field(default_factory=dict)


class MatchPlayer(Protocol):
    """Whoever plays: a policy, a program, or chance."""

    name: str

    def sit(self, vector: TeamVector, policies: Collection[str], *, seed: int) -> Sitting:
        """Take the seats of `policies`. A `ConfigError` says in words where it cannot play one of them."""
        ...


def rows_of(rows: Batch, policy: str) -> Batch:
    """The rows of one policy, without its name."""
    start = f"{policy}/"
    return Batch({key.removeprefix(start): x for key, x in rows.items() if key.startswith(start)})


class RandomPlayer:
    """Plays every allowed action with the same probability."""

    def __init__(self, name: str = RANDOM) -> None:
        self.name = name

    def sit(self, vector: TeamVector, policies: Collection[str], *, seed: int) -> Sitting:
        specs = {policy: vector.sides[policy].spec.action for policy in policies}

        def reply(rows: Batch) -> Batch:
            return Batch({f"{policy}/action": self._drawn(rows_of(rows, policy), spec) for policy, spec in specs.items()})

        return Sitting(reply, {policy: spec.noise_size for policy, spec in specs.items()})

    @staticmethod
    def _drawn(rows: Batch, spec: ActionSpec) -> Tensor:
        mask = rows[MASK].cpu().numpy() if MASK in rows else None
        drawn = random_actions(spec, rows["noise"].cpu().numpy(), mask)
        return torch.from_numpy(np.ascontiguousarray(drawn)).to(spec.dtype)


def has_bounds(spec: ActionSpec) -> bool:
    """Whether random actions can be drawn: every box has finite bounds.

    >>> has_bounds(ActionSpec("continuous", (1,), low=(0.0,), high=(math.inf,)))
    False
    """
    return all(map(math.isfinite, (*spec.low, *spec.high))) and all(map(has_bounds, spec.parts))


def random_actions(spec: ActionSpec, noise: Array, mask: Array | None = None) -> Array:
    """Actions `[B, *spec.shape]` that are uniform over what is allowed, made of uniform `noise` `[B, noise_size]` in [0, 1) and
    the mask `[B, mask_size]`.

    >>> spec = ActionSpec("discrete", num_actions=3)
    >>> random_actions(spec, np.array([[0.1], [0.9]]), np.array([[True, False, True]] * 2)).tolist()
    [0, 2]
    """
    if spec.kind == "discrete":
        allowed = np.ones((len(noise), spec.num_actions), bool) if mask is None else mask
        place = np.floor(noise[:, 0] * allowed.sum(axis=1)).astype(np.int64)
        return np.asarray((allowed.cumsum(axis=1) == place[:, None] + 1).argmax(axis=1))
    if spec.kind == "continuous":
        low, high = np.asarray(spec.low), np.asarray(spec.high)
        if not has_bounds(spec):
            raise ConfigError(
                "players", "random", "an action has no bounds here, so none is drawn; give players that know better"
            )
        return np.asarray(low + noise * (high - low), np.float32).reshape(len(noise), *spec.shape)
    masks = iter([None] * len(spec.parts) if mask is None else mask_parts(mask, spec))
    found, column = [], 0
    for part in spec.parts:
        own = noise[:, column : column + part.noise_size]
        drawn = random_actions(part, own, next(masks) if part.mask_size else None)
        found.append(drawn.reshape(len(noise), -1))
        column += part.noise_size
    return np.concatenate(found, axis=1).astype(np.int64 if spec.dtype == torch.int64 else np.float32)
