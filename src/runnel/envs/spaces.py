"""From Gymnasium spaces to flat arrays and back: what a network sees, and what `env.step` accepts.

This is the only file that knows Gymnasium's space classes. Observations become flat leaves (`obs`, `obs/a/b`, `obs/0`),
actions become one `ActionSpec`, and a mask (the key `action_mask` of a `Dict` observation) stands beside them. How a network's
action becomes a nested one again, and what a mask looks like, is in `core/action_codec.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.core.action_codec import env_action_rows, join_masks
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
    shape: tuple[int, ...]
    dtype: Any
    """Shape and type of the raw value, as the space says them."""
    encode: Callable[[Any], Array] | None = None
    exact: bool = False
    """Whether the space holds whole numbers, so that a fraction is none of its values."""
    low: Array | None = None
    high: Array | None = None
    """What lies between them is in the space; None where it is all that the type can hold."""

    def pick(self, obs: Any) -> Any:
        """The raw value of this leaf inside `obs`."""
        for part in self.path:
            obs = obs[part]
        return obs

    def read(self, obs: Any) -> Array:
        """The encoded value; dimensions in front (a batch of observations) are kept."""
        raw = np.asarray(self.pick(obs))
        if wrong := self._wrong_kind(raw):
            raise DataError(f"an observation has {wrong}")
        if self.encode is not None:
            return self.encode(raw)
        return raw.astype(np.uint8 if self.spec.dtype == torch.uint8 else np.float32, copy=False)

    def checked(self, raw: Any, front: tuple[int, ...] = ()) -> Array:
        """The raw value as an array. Refuses what an assignment would broadcast, round or wrap without a word: another shape
        (`front` stands before the leaf's own), a fraction among whole numbers, no byte where bytes belong."""
        value = np.asarray(raw)
        if value.shape != (*front, *self.shape):
            each = f" for each of {front[0]}" if front else ""
            raise DataError(f"gave {self.key!r} of shape {value.shape}, but its space says {self.shape}{each} ({self.about})")
        if value.dtype is not self.dtype and (wrong := self._wrong_kind(value)):
            raise DataError(f"gave {wrong}")
        return value

    def _wrong_kind(self, value: Array) -> str:
        """What is wrong with the type of a value, if anything: a cast would change it without a word."""
        if value.dtype.kind not in ("iub" if self.exact else "iubf"):
            return f"{self.key!r} as {value.dtype}, but its space holds {self.dtype} ({self.about}); give it in that type"
        if self.spec.dtype != torch.uint8 or value.dtype in (np.uint8, np.bool_) or not value.size:
            return ""
        if value.min() >= 0 and value.max() <= 255:  # other integers are fine as long as they are bytes
            return ""
        return f"{self.key!r} as {value.dtype} with values that are no bytes, but its space says uint8 ({self.about})"

    @property
    def about(self) -> str:
        """The space in a few words."""
        if self.low is None or self.high is None:
            return f"{self.dtype} {self.shape}"
        return f"{self.dtype} {self.shape} from {self.low.min():g} to {self.high.max():g}"


def obs_leaves(space: Any, key: str = "obs", path: tuple[str | int, ...] = ()) -> list[ObsLeaf]:
    """The leaves of a Gymnasium observation space, without its top-level `action_mask`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [(name, inner) for name, inner in space.spaces.items() if path or name != MASK]
        return [leaf for name, inner in parts for leaf in obs_leaves(inner, f"{key}/{name}", (*path, name))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in obs_leaves(inner, f"{key}/{i}", (*path, i))]
    if isinstance(space, spaces.Box):
        return [_box(space, key, path)]
    if isinstance(space, spaces.Discrete):
        size, start = int(space.n), int(space.start)
        spec = ArraySpec((size,))
        return [ObsLeaf(key, path, spec, (), space.dtype, lambda x: one_hot(np.asarray(x) - start, size), exact=True)]
    if isinstance(space, spaces.MultiBinary):
        shape, bounds = tuple(space.shape), [np.full(space.shape, x, np.float32) for x in (0.0, 1.0)]
        return [ObsLeaf(key, path, ArraySpec(shape), shape, space.dtype, low=bounds[0], high=bounds[1])]
    if isinstance(space, spaces.MultiDiscrete):
        return [_multi_discrete(space, key, path)]
    raise ConfigError("env", space, f"observation space {type(space).__name__} at {key!r} is not supported; {_SUPPORTED}")


def _box(space: Any, key: str, path: tuple[str | int, ...]) -> ObsLeaf:
    """A Box. Its bounds are kept in the type in which observations are: rounding keeps the order of numbers."""
    dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
    spec = ArraySpec(tuple(space.shape), torch.uint8 if dtype == np.uint8 else torch.float32)
    least, most = (-np.inf, np.inf) if space.dtype.kind == "f" else _range_of(space.dtype)
    bounds = (None, None)
    if (space.low > least).any() or (space.high < most).any():
        bounds = (space.low.astype(dtype), space.high.astype(dtype))
    return ObsLeaf(key, path, spec, spec.shape, space.dtype, None, space.dtype.kind in "iu", *bounds)


def _range_of(dtype: Any) -> tuple[int, int]:
    """The numbers that an integer type can hold."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


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

    return ObsLeaf(key, path, ArraySpec((sum(sizes),)), tuple(space.shape), space.dtype, encode, exact=True)


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
