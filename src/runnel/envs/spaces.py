"""Turns Gymnasium spaces into flat arrays for a network.

An observation becomes flat leaves (`obs`, `obs/a/b`, `obs/0`), an action space becomes one `ActionSpec`, and a mask (the key
`action_mask` of a `Dict` observation) is kept apart from the leaves. `core/action_codec.py` turns a network's action back into
a nested one and reads masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from runnel.core.action_codec import join_masks
from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ActionLeaf, ActionSpec, ArraySpec, EnvSpec, multi_action
from runnel.core.state import Array

if TYPE_CHECKING:
    import gymnasium as gym

Obs = Any
"""What an environment shows: an array or a number, or a dict or tuple of such, nested as its space is."""
Action = Any
"""What `env.step` takes, nested as the action space is."""
Info = dict[str, Any]
"""What an environment gives beside its observation; `action_mask` is the one key that is read here."""
StepResult = tuple[Obs, float, bool, bool, Info]
"""What `env.step` returns: observation, reward, terminated, truncated, info."""
Path = tuple[str | int, ...]
"""The keys that lead from a nested value to one inside it."""
MASK = "action_mask"
ZERO_SUM = "zero_sum"
"""Entry of the `metadata` of an environment of several agents: whatever some of them win, the others lose."""
_SUPPORTED = "supported: Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these; wrap the environment"


@dataclass(frozen=True)
class ObsLeaf:
    """One flat array of an observation: its place (`path`), its shape and type (`spec`), and its encoding (None: unchanged)."""

    key: str
    path: Path
    spec: ArraySpec
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Shape and type of the raw value in the space."""
    encode: Callable[[ArrayLike], Array] | None = None
    exact: bool = False
    """Whether the space holds whole numbers only."""
    low: Array | None = None
    high: Array | None = None
    """Bounds of the space; None where every value of the type is in it."""

    def pick(self, obs: Obs) -> Obs:
        """The raw value of this leaf inside `obs`."""
        for part in self.path:
            obs = obs[part]
        return obs

    def read(self, obs: Obs) -> Array:
        """The encoded value of this leaf in `obs`. Leading dimensions (a batch of observations) are kept."""
        raw = np.asarray(self.pick(obs))
        if wrong := self._wrong_kind(raw):
            raise DataError(f"an observation has {wrong}")
        if self.encode is not None:
            return self.encode(raw)
        return raw.astype(np.uint8 if self.spec.dtype == torch.uint8 else np.float32, copy=False)

    def checked(self, raw: ArrayLike, front: tuple[int, ...] = ()) -> Array:
        """The raw value as an array of shape `[*front, *self.shape]`.

        A numpy assignment would silently broadcast another shape, round a fraction, or wrap a number that is no byte. Such
        values are refused here.
        """
        value = np.asarray(raw)
        if value.shape != (*front, *self.shape):
            each = f" for each of {front[0]}" if front else ""
            raise DataError(f"gave {self.key!r} of shape {value.shape}, but its space says {self.shape}{each} ({self.about})")
        if value.dtype is not self.dtype and (wrong := self._wrong_kind(value)):
            raise DataError(f"gave {wrong}")
        return value

    def _wrong_kind(self, value: Array) -> str:
        """What is wrong with the type of a value (a cast would change it silently); empty if nothing is."""
        if value.dtype.kind not in ("iub" if self.exact else "iubf"):
            return f"{self.key!r} as {value.dtype}, but its space holds {self.dtype} ({self.about}); give it in that type"
        if self.spec.dtype != torch.uint8 or value.dtype in (np.uint8, np.bool_) or not value.size:
            return ""
        if value.min() >= 0 and value.max() <= 255:  # a wider integer type may hold bytes
            return ""
        return f"{self.key!r} as {value.dtype} with values that are no bytes, but its space says uint8 ({self.about})"

    @property
    def about(self) -> str:
        """The space in a few words, for messages."""
        if self.low is None or self.high is None:
            return f"{self.dtype} {self.shape}"
        return f"{self.dtype} {self.shape} from {self.low.min():g} to {self.high.max():g}"


def _walk(space: gym.Space, path: Path = ()) -> Iterator[tuple[Path, gym.Space]]:
    """Every space inside a `Dict` or a `Tuple` that is neither of them, with its path."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        for name, inner in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from _walk(inner, (*path, name))
    else:
        yield path, space


def obs_leaves(space: gym.Space) -> list[ObsLeaf]:
    """The leaves of a Gymnasium observation space, without its top-level `action_mask`."""
    return [_leaf(inner, "/".join(map(str, ("obs", *path))), path) for path, inner in _walk(space) if path[:1] != (MASK,)]


def _leaf(space: gym.Space, key: str, path: Path) -> ObsLeaf:
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return _box(space, key, path)
    if isinstance(space, spaces.Discrete):
        size, start = int(space.n), int(space.start)
        spec = ArraySpec((size,))
        return ObsLeaf(key, path, spec, (), space.dtype, lambda x: one_hot(np.asarray(x) - start, size), exact=True)
    if isinstance(space, spaces.MultiBinary):
        shape, bounds = tuple(space.shape), [np.full(space.shape, x, np.float32) for x in (0.0, 1.0)]
        return ObsLeaf(key, path, ArraySpec(shape), shape, space.dtype, low=bounds[0], high=bounds[1])
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete(space, key, path)
    raise ConfigError("env", space, f"observation space {type(space).__name__} at {key!r} is not supported; {_SUPPORTED}")


def _box(space: gym.Space, key: str, path: Path) -> ObsLeaf:
    """The leaf of a Box. Its bounds are rounded to the type of the observations: rounding keeps the order of numbers."""
    dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
    spec = ArraySpec(tuple(space.shape), torch.uint8 if dtype == np.uint8 else torch.float32)
    least, most = (-np.inf, np.inf) if space.dtype.kind == "f" else _range_of(space.dtype)
    bounds = (None, None)
    if (space.low > least).any() or (space.high < most).any():
        bounds = (space.low.astype(dtype), space.high.astype(dtype))
    return ObsLeaf(key, path, spec, spec.shape, space.dtype, None, space.dtype.kind in "iu", *bounds)


def _range_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and greatest number of an integer type."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def one_hot(index: ArrayLike, size: int) -> Array:
    """`index` of any shape `[...]` as float32 `[..., size]`.

    >>> one_hot(np.array([1, 0]), 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    index = np.asarray(index)
    if index.dtype.kind == "f" and not (index == np.floor(index)).all():  # a NaN is not equal to itself: also refused
        raise DataError(f"gave a discrete observation that is no whole number: {index}")
    inside = 0 <= int(index) < size if index.ndim == 0 else bool(((index >= 0) & (index < size)).all())
    if not inside:
        raise DataError(f"gave a discrete observation outside its space: {index} (counted from 0) of {size} values")
    hot: Array = np.equal(index[..., None], np.arange(size)).astype(np.float32)
    return hot


def _multi_discrete(space: gym.Space, key: str, path: Path) -> ObsLeaf:
    sizes = [int(n) for n in np.asarray(space.nvec).reshape(-1)]
    starts = np.asarray(space.start).reshape(-1)
    ndim = len(space.shape)

    def encode(x: ArrayLike) -> Array:
        raw = np.asarray(x)
        flat = raw.reshape(*raw.shape[: raw.ndim - ndim], len(sizes)) - starts
        return np.concatenate([one_hot(flat[..., i], n) for i, n in enumerate(sizes)], axis=-1)

    return ObsLeaf(key, path, ArraySpec((sum(sizes),)), tuple(space.shape), space.dtype, encode, exact=True)


def mask_in_obs(space: gym.Space) -> bool:
    """Whether a mask comes inside the observation: a `Dict` with the key `action_mask`."""
    from gymnasium import spaces

    return isinstance(space, spaces.Dict) and MASK in space.spaces


def flatten_obs(space: gym.Space, keys: Collection[str] | None = None) -> Callable[[Obs], dict[str, Array]]:
    """A function from a raw observation (or a batch of them) to flat arrays by name, with `action_mask` if there is one.

    With `keys` only those are read; the raw observation may lack the others.
    """
    leaves, masked = [leaf for leaf in obs_leaves(space) if keys is None or leaf.key in keys], mask_in_obs(space)

    def flatten(obs: Obs) -> dict[str, Array]:
        flat: dict[str, Obs] = {leaf.key: leaf.read(obs) for leaf in leaves}
        if masked:
            raw = obs[MASK]
            flat[MASK] = raw if isinstance(raw, Mapping) else join_masks(raw)
        return flat

    return flatten


def action_spec(space: gym.Space) -> ActionSpec:
    """The `ActionSpec` of a Gymnasium action space: one choice, one box, or several of them (`multi`)."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", num_actions=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        low, high = (tuple(float(v) for v in np.asarray(x).reshape(-1)) for x in (space.low, space.high))
        return ActionSpec("continuous", shape=tuple(space.shape), low=low, high=high, env_dtype=str(space.dtype))
    parts: list[ActionSpec] = []
    leaves: list[ActionLeaf] = []
    for path, leaf in _walk(space):
        found = _leaf_parts(leaf, path)
        parts += found
        leaves.append(ActionLeaf(path, tuple(leaf.shape), str(leaf.dtype), len(found)))
    if not parts:
        raise ConfigError("env", space, "the action space is empty; give at least one choice or box")
    return multi_action(parts, leaves)


def _leaf_parts(space: gym.Space, path: Path) -> list[ActionSpec]:
    """The parts of one array: a choice for each entry of a `MultiDiscrete` (n_i values) or `MultiBinary` (2 values)."""
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete):
        pairs = zip(np.asarray(space.nvec).reshape(-1), np.asarray(space.start).reshape(-1), strict=True)
        return [ActionSpec("discrete", num_actions=int(n), start=int(start)) for n, start in pairs]
    if isinstance(space, spaces.MultiBinary):
        return [ActionSpec("discrete", num_actions=2)] * int(np.prod(space.shape))
    if isinstance(space, spaces.Discrete | spaces.Box):
        return [action_spec(space)]
    where = f" at {'/'.join(map(str, path))!r}" if path else ""
    raise ConfigError("env", space, f"action space {type(space).__name__}{where} is not supported; {_SUPPORTED}")


def env_spec(observation_space: gym.Space, action_space: gym.Space, *, has_mask: bool = False) -> EnvSpec:
    """The `EnvSpec` of both spaces. A mask needs a discrete action or a discrete part."""
    action = action_spec(action_space)
    masked = has_mask or mask_in_obs(observation_space)
    if masked and not action.mask_size:
        raise ConfigError("env", action_space, "an action_mask needs a Discrete action space; drop the mask or the Box")
    leaves = obs_leaves(observation_space)
    if not leaves:
        raise ConfigError("env", observation_space, "the observation space is empty; give at least one array")
    return EnvSpec({leaf.key: leaf.spec for leaf in leaves}, action, has_mask=masked)
