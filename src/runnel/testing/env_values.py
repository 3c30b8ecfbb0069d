"""Checks single values of an environment against its spaces: observations, rewards and flags. Also looks at the spaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from runnel.core.spaces import channel_axis
from runnel.testing.env_report import EnvReport

if TYPE_CHECKING:
    import gymnasium as gym

_HUGE = 1e3
_SMALLEST_IMAGE = 16
_MOST_CHANNELS = 16


def check_value(space: gym.Space, value: object, name: str, report: EnvReport) -> None:
    """Report where `value` is no member of `space`; `name` is its name in the report."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        _check_dict(space, value, name, report)
    elif isinstance(space, spaces.Tuple):
        _check_tuple(space, value, name, report)
    elif isinstance(space, spaces.Discrete):
        _check_number(space, value, name, report)
    else:
        _check_array(space, value, name, report)


def _check_dict(space: gym.Space, value: object, name: str, report: EnvReport) -> None:
    keys = list(space.spaces)
    if not isinstance(value, Mapping):
        report.error(f"{name} kind", f"{name} is a {_type(value)}; its space is a Dict: return a dict with the keys {keys}")
        return
    for key in keys:
        if key in value:
            check_value(space.spaces[key], value[key], f"{name}[{key!r}]", report)
        else:
            report.error(
                f"{name} {key} lacks", f"{name} lacks {key!r} of its space; return the same keys at every reset and step"
            )
    more = [key for key in value if key not in space.spaces]
    if more:
        report.warn(f"{name} more", f"{name} has {more}, which its space does not name; they are left out of training")


def _check_tuple(space: gym.Space, value: object, name: str, report: EnvReport) -> None:
    if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        found = f"{len(value)} parts" if isinstance(value, tuple | list) else f"a {_type(value)}"
        report.error(f"{name} parts", f"{name} is {found}; its space says a tuple of {len(space.spaces)}")
        return
    for i, inner in enumerate(space.spaces):
        check_value(inner, value[i], f"{name}[{i}]", report)


def _check_number(space: gym.Space, value: object, name: str, report: EnvReport) -> None:
    low, high = int(space.start), int(space.start) + int(space.n) - 1
    array = np.asarray(value)
    if array.shape != ():
        _complain_of_shape(array, (), name, report)
    elif array.dtype.kind not in "iu":
        report.error(
            f"{name} dtype", f"{name} is a {_type(value)}; its space says a whole number: return int({name.split()[-1]})"
        )
    elif not low <= int(array) <= high:
        report.error(f"{name} bounds", f"{name} is {int(array)}, outside of its space {space}: it holds {low} to {high}")


def _check_array(space: gym.Space, value: object, name: str, report: EnvReport) -> None:
    """Check a value of a Box, MultiBinary or MultiDiscrete."""
    shape = tuple(space.shape)
    if not isinstance(value, np.ndarray | np.generic):
        value = _as_array(space, value, name, report)
        if value is None:
            return
    array = np.asarray(value)
    if array.shape != shape:
        _complain_of_shape(array, shape, name, report)
        return
    if not np.can_cast(array.dtype, space.dtype) and not _is_binary(space):
        cast = f"return it as .astype(np.{space.dtype}), or change the space"
        report.error(f"{name} dtype", f"{name} has dtype {array.dtype}, its space says {space.dtype}; {cast}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index, found = _first(array, ~np.isfinite(array))
        fix = "look for a division by 0, a logarithm or a root in what makes it"
        report.error(f"{name} finite", f"{name} is not finite: {found}{index}; {fix}")
        return
    _check_bounds(space, array, name, report)


def _as_array(space: gym.Space, value: object, name: str, report: EnvReport) -> np.ndarray | None:
    try:
        array = np.asarray(value, dtype=space.dtype) if isinstance(value, list | tuple | int | float) else None
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None:
        report.error(f"{name} kind", f"{name} is a {_type(value)}; return a numpy array of shape {tuple(space.shape)}")
        return None
    text = f"{name} is a {_type(value)}; a numpy array of dtype {space.dtype} is faster, and its type is certain"
    report.hint(f"{name} kind", text)
    return array


def _check_bounds(space: gym.Space, array: np.ndarray, name: str, report: EnvReport) -> None:
    low, high = _bounds(space)
    for bad, bound, side in ((array < low, low, "below"), (array > high, high, "above")):
        if bad.any():
            index, found = _first(array, bad)
            limit = _first(np.broadcast_to(bound, array.shape), bad)[1]
            where = f"{found}{index} is {side} {limit}"
            report.error(
                f"{name} bounds", f"{name} is outside of its space {_short(space)}: {where}; clip it, or widen the space"
            )


def _bounds(space: gym.Space) -> tuple[np.ndarray | int, np.ndarray | int]:
    if _is_binary(space):
        return 0, 1
    if hasattr(space, "nvec"):
        return space.start, space.start + (space.nvec - 1)
    return space.low, space.high


def _is_binary(space: gym.Space) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.MultiBinary)


def _complain_of_shape(array: np.ndarray, shape: tuple[int, ...], name: str, report: EnvReport) -> None:
    if array.size == int(np.prod(shape)):
        fix = f"return it as .reshape{shape}, or change the space" if shape else "return the number in it"
    else:
        fix = "return that shape, or change the space"
    report.error(f"{name} shape", f"{name} has shape {array.shape}, its space says {shape}; {fix}")


def check_outcome(reward: object, terminated: object, truncated: object, report: EnvReport) -> None:
    """Check reward and flags of a step."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            report.error(name, f"{name} is a {_type(flag)}; it must be a bool: return bool(...)")
    if not isinstance(reward, float | int | np.floating | np.integer) or isinstance(reward, bool):
        report.error("reward", f"reward is a {_type(reward)}; it must be a float: return float(...)")
    elif not np.isfinite(reward):
        fix = "look for a division by 0 or a logarithm; a failure is better told by terminated=True"
        report.error("reward finite", f"reward is not finite: {reward}; {fix}")
    elif abs(float(reward)) > _HUGE:
        text = f"a reward of {float(reward):.3g} is large for a critic; divide by a constant, or train with normalise_reward"
        report.hint("reward size", text)


def check_size(space: gym.Space, value: object, report: EnvReport) -> None:
    """Give hints about the magnitude of numbers in an observation."""
    for name, inner, array in numeric_leaves(space, value, "the observation"):
        if array.dtype.kind != "f" or not array.size:
            continue
        largest = float(np.abs(array).max())
        is_picture = len(inner.shape) == 3 and sum(n >= _SMALLEST_IMAGE for n in inner.shape) >= 2
        if is_picture and 1.5 < largest <= 255.0:
            text = (
                f"{name} has pixels up to {largest:.3g} as {array.dtype}: only bytes are scaled to 0..1 for the network; "
                "return uint8, which also takes a quarter of the memory"
            )
            report.warn(f"{name} pixels", text)
        elif np.isfinite(largest) and largest > _HUGE:
            text = f"{name} has numbers up to {largest:.3g}; scale it to about 1, or train with normalise_obs"
            report.hint(f"{name} size", text)


def numeric_leaves(space: gym.Space, value: object, name: str) -> Iterator[tuple[str, gym.Space, np.ndarray]]:
    """Name, space and array of each Box in `value`. Parts that do not fit their space are left out."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            if isinstance(value, Mapping) and key in value:
                yield from numeric_leaves(inner, value[key], f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if isinstance(value, tuple | list):
            for i, (inner, part) in enumerate(zip(space.spaces, value, strict=False)):
                yield from numeric_leaves(inner, part, f"{name}[{i}]")
    elif isinstance(space, spaces.Box) and isinstance(value, np.ndarray) and value.shape == space.shape:
        yield name, space, value


def check_layout(space: gym.Space, name: str, report: EnvReport) -> None:
    """Give hints about the layout of an observation space, of images above all."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(space.spaces)))
        for key in keys:
            check_layout(space.spaces[key], f"{name}[{key!r}]", report)
    elif isinstance(space, spaces.Box):
        shape, wide = tuple(space.shape), [n for n in space.shape if n >= _SMALLEST_IMAGE]
        if len(shape) == 2 and len(wide) == 2 and space.dtype == np.uint8:
            text = f"{name} of shape {shape} looks like an image without channels; give it the shape {(1, *shape)}"
            report.hint(f"{name} layout", text)
        elif len(shape) == 3 and len(wide) >= 2:
            _check_picture(space, shape, name, report)


def _check_picture(space: gym.Space, shape: tuple[int, ...], name: str, report: EnvReport) -> None:
    axis = channel_axis(shape)
    if axis is None:
        fix = "set net.channels to first (C, H, W) or last (H, W, C)"
        report.hint(f"{name} layout", f"{name} of shape {shape} does not tell where its channels are; {fix}")
    elif shape[axis] > _MOST_CHANNELS:
        side = "first (C, H, W)" if axis == 0 else "last (H, W, C)"
        text = f"{name} of shape {shape} is taken to have its {shape[axis]} channels {side}; if not, set net.channels"
        report.hint(f"{name} layout", text)
    if np.issubdtype(space.dtype, np.floating):
        text = f"{name} of shape {shape} looks like pixels as {space.dtype}; uint8 takes a quarter of the memory, and is scaled"
        report.hint(f"{name} bytes", text)


def _first(array: np.ndarray, bad: np.ndarray) -> tuple[str, str]:
    """Place of the first bad entry in words (empty for a single number), and its value."""
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return (f" at index {list(place)}" if array.size > 1 else ""), f"{array[place]:.6g}"


def _short(space: gym.Space) -> str:
    text = str(space)
    return text if len(text) <= 80 else text[:77] + "..."


def _type(value: object) -> str:
    return type(value).__name__
