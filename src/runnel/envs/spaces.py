"""From Gymnasium spaces to flat arrays and back: what a network sees, and what `env.step` accepts.

This is the only file that knows Gymnasium's space classes. Observations become flat leaves (`obs`, `obs/a/b`, `obs/0`),
actions become one `ActionSpec`, and a mask (the key `action_mask` of a `Dict` observation) stands beside them. How a network's
action becomes a nested one again, and what a mask looks like, is in `core/actions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.core.actions import env_action_rows, join_masks
from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ActionLeaf, ActionSpec, ArraySpec, EnvSpec, multi_action

Array = NDArray[Any]
MASK = "action_mask"
_SUPPORTED = "supported: Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these; wrap the environment"


@dataclass(frozen=True)
class ObsLeaf:
    """One flat array of an observation: where it is (`path`), what it is (`spec`), how to encode it (None: as it is)."""

    key: str
    path: tuple[str | int, ...]
    spec: ArraySpec
    encode: Callable[[Any], Array] | None = None

    def pick(self, obs: Any) -> Any:
        """The raw value of this leaf inside `obs`."""
        for part in self.path:
            obs = obs[part]
        return obs

    def read(self, obs: Any) -> Array:
        """The encoded value; dimensions in front (a batch of observations) are kept."""
        raw = self.pick(obs)
        if self.encode is not None:
            return self.encode(raw)
        if self.spec.dtype != torch.uint8:
            return np.asarray(raw, dtype=np.float32)
        found = np.asarray(raw)
        self._check_bytes(found)
        return found.astype(np.uint8, copy=False)

    def check(self, obs: Any) -> None:
        """Refuse what an assignment would broadcast or wrap without a word: another shape, or no bytes where bytes belong."""
        raw = np.asarray(self.pick(obs))
        shape = raw.shape if self.encode is None else self.encode(raw).shape
        if shape != self.spec.shape:
            raise DataError(f"gave {self.key!r} of shape {shape}, but its space says {self.spec.shape}")
        if self.spec.dtype == torch.uint8:
            self._check_bytes(raw)

    def _check_bytes(self, raw: Array) -> None:
        with np.errstate(invalid="ignore"):  # NaN becomes some byte, and is not equal to it
            if raw.dtype != np.uint8 and (raw != raw.astype(np.uint8)).any():
                raise DataError(f"gave {self.key!r} as {raw.dtype} with values that are no bytes, but its space says uint8")


def obs_leaves(space: Any, key: str = "obs", path: tuple[str | int, ...] = ()) -> list[ObsLeaf]:
    """The leaves of a Gymnasium observation space, without its top-level `action_mask`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [(name, inner) for name, inner in space.spaces.items() if path or name != MASK]
        return [leaf for name, inner in parts for leaf in obs_leaves(inner, f"{key}/{name}", (*path, name))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in obs_leaves(inner, f"{key}/{i}", (*path, i))]
    if isinstance(space, spaces.Box):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return [ObsLeaf(key, path, ArraySpec(tuple(space.shape), dtype))]
    if isinstance(space, spaces.Discrete):
        size, start = int(space.n), int(space.start)
        return [ObsLeaf(key, path, ArraySpec((size,)), lambda x: one_hot(np.asarray(x) - start, size))]
    if isinstance(space, spaces.MultiBinary):
        return [ObsLeaf(key, path, ArraySpec(tuple(space.shape)))]
    if isinstance(space, spaces.MultiDiscrete):
        return [_multi_discrete(space, key, path)]
    raise ConfigError("env", space, f"observation space {type(space).__name__} at {key!r} is not supported; {_SUPPORTED}")


def one_hot(index: Any, size: int) -> Array:
    """`index` of any shape `[...]` as float32 `[..., size]`.

    >>> one_hot(np.array([1, 0]), 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    index = np.asarray(index)
    if index.dtype.kind == "f" and not (index == np.floor(index)).all():  # also NaN
        raise DataError(f"gave a discrete observation that is no whole number: {index}")
    inside = 0 <= int(index) < size if index.ndim == 0 else bool(((index >= 0) & (index < size)).all())
    if not inside:
        raise DataError(f"gave a discrete observation outside its space: {index} (counted from 0) of {size} values")
    hot: Array = np.equal(index[..., None], np.arange(size)).astype(np.float32)
    return hot


def _multi_discrete(space: Any, key: str, path: tuple[str | int, ...]) -> ObsLeaf:
    sizes = [int(n) for n in np.asarray(space.nvec).reshape(-1)]
    starts = np.asarray(space.start).reshape(-1)
    ndim = len(space.shape)

    def encode(x: Any) -> Array:
        raw = np.asarray(x)
        flat = raw.reshape(*raw.shape[: raw.ndim - ndim], len(sizes)) - starts
        return np.concatenate([one_hot(flat[..., i], n) for i, n in enumerate(sizes)], axis=-1)

    return ObsLeaf(key, path, ArraySpec((sum(sizes),)), encode)


def mask_in_obs(space: Any) -> bool:
    """Whether a mask comes inside the observation: a `Dict` with the key `action_mask`."""
    from gymnasium import spaces

    return isinstance(space, spaces.Dict) and MASK in space.spaces


def flatten_obs(space: Any) -> Callable[[Any], dict[str, Array]]:
    """A function from a raw observation (or a batch of them) to flat arrays, `action_mask` included where it has one."""
    leaves, masked = obs_leaves(space), mask_in_obs(space)

    def flatten(obs: Any) -> dict[str, Array]:
        flat: dict[str, Any] = {leaf.key: leaf.read(obs) for leaf in leaves}
        if masked:
            raw = obs[MASK]
            flat[MASK] = raw if isinstance(raw, Mapping) else join_masks(raw)
        return flat

    return flatten


def obs_writer(leaves: list[ObsLeaf], buffers: Mapping[str, Array]) -> Callable[[int, Any], None]:
    """A function `(row, raw observation)` that writes one row of `buffers`; one plain Box costs one numpy assignment."""
    if len(leaves) == 1 and leaves[0].encode is None and not leaves[0].path:
        plain: Callable[[int, Any], None] = buffers[leaves[0].key].__setitem__
        return plain
    parts = [(buffers[leaf.key], leaf.pick, leaf.encode) for leaf in leaves]

    def write(row: int, obs: Any) -> None:
        for buffer, pick, encode in parts:
            raw = pick(obs)
            buffer[row] = raw if encode is None else encode(raw)

    return write


def action_spec(space: Any) -> ActionSpec:
    """A Gymnasium action space as core sees it: one choice, one box, or several of them (`multi`)."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", num_actions=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        low, high = (tuple(float(v) for v in np.asarray(x).reshape(-1)) for x in (space.low, space.high))
        return ActionSpec("continuous", shape=tuple(space.shape), low=low, high=high, env_dtype=str(space.dtype))
    parts: list[ActionSpec] = []
    leaves: list[ActionLeaf] = []
    for path, leaf in _action_leaves(space, ()):
        found = _leaf_parts(leaf)
        parts += found
        leaves.append(ActionLeaf(path, tuple(leaf.shape), str(leaf.dtype), len(found)))
    if not parts:
        raise ConfigError("env", space, "the action space is empty; give at least one choice or box")
    return multi_action(parts, leaves)


def _action_leaves(space: Any, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], Any]]:
    """Every space inside a composite one that holds one array, with its path."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [leaf for name, inner in space.spaces.items() for leaf in _action_leaves(inner, (*path, name))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in _action_leaves(inner, (*path, i))]
    if isinstance(space, spaces.Discrete | spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return [(path, space)]
    where = f" at {'/'.join(map(str, path))!r}" if path else ""
    raise ConfigError("env", space, f"action space {type(space).__name__}{where} is not supported; {_SUPPORTED}")


def _leaf_parts(space: Any) -> list[ActionSpec]:
    """The parts of one array: a choice for each entry of `MultiDiscrete` (n_i values) and `MultiBinary` (2 values)."""
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete):
        pairs = zip(np.asarray(space.nvec).reshape(-1), np.asarray(space.start).reshape(-1), strict=True)
        return [ActionSpec("discrete", num_actions=int(n), start=int(start)) for n, start in pairs]
    if isinstance(space, spaces.MultiBinary):
        return [ActionSpec("discrete", num_actions=2)] * int(np.prod(space.shape))
    return [action_spec(space)]


def env_spec(observation_space: Any, action_space: Any, *, has_mask: bool = False) -> EnvSpec:
    """Both spaces as an `EnvSpec`; a mask needs a discrete action, or a discrete part."""
    action = action_spec(action_space)
    masked = has_mask or mask_in_obs(observation_space)
    if masked and not action.mask_size:
        raise ConfigError("env", action_space, "an action_mask needs a Discrete action space; drop the mask or the Box")
    leaves = obs_leaves(observation_space)
    if not leaves:
        raise ConfigError("env", observation_space, "the observation space is empty; give at least one array")
    return EnvSpec({leaf.key: leaf.spec for leaf in leaves}, action, has_mask=masked)


def action_converter(space: Any) -> Callable[[Tensor], list[Any]]:
    """A function from a batch of network actions `[B, ...]` to B actions that `env.step` accepts.

    `Discrete`: numpy integers, as Gymnasium's own vectors give, `start` added. `Box`: clipped to its bounds, in its dtype
    and shape (rounded where it holds integers). `MultiDiscrete`, `MultiBinary`: arrays in their dtype and shape. `Tuple` and
    `Dict`: nested as the space is.
    """
    spec = action_spec(space)
    if spec.kind == "discrete" and spec.start == 0:
        return lambda actions: list(actions.cpu().numpy())
    rows = env_action_rows(spec)
    if spec.kind == "continuous":
        return lambda actions: rows(actions.cpu().numpy().reshape(len(actions), *spec.shape))
    return lambda actions: rows(actions.cpu().numpy())
