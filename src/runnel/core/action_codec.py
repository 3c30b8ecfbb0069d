"""Convert a network's action to what `env.step` accepts, and an environment's masks to one row of flags.

Both need only an `ActionSpec`, so a policy that was loaded from a run builds a nested action without the environment. A network
counts choices from 0 and knows no bounds. The functions here add the first value of each choice, and clip and round boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter

import numpy as np

from runnel.core.errors import DataError
from runnel.core.spaces import ActionSpec
from runnel.core.state import Array, Plain

Path = tuple[str | int, ...]


def env_action(spec: ActionSpec) -> Callable[[Array], Plain]:
    """A function from network actions `[..., *spec.shape]` to the environment's form. Leading dimensions are kept.

    One row gives one action. `[B, ...]` gives what a Gymnasium vector environment accepts: a dict or tuple of arrays whose
    first dimension is B.

    >>> env_action(ActionSpec("discrete", num_actions=3, start=5))(np.array([0, 2])).tolist()
    [5, 7]
    """
    if spec.kind == "discrete":
        return lambda actions: actions + spec.start
    if spec.kind == "continuous":
        return _box(spec)
    split, nest = _splitter(spec), _nester([(leaf.path, i) for i, leaf in enumerate(spec.leaves)])
    return lambda actions: nest(split(actions))


def env_action_rows(spec: ActionSpec) -> Callable[[Array], list[Plain]]:
    """A function from `[B, *spec.shape]` to a list of B actions that `env.step` accepts."""
    if spec.kind != "multi":
        convert = env_action(spec)
        return lambda actions: list(convert(actions))
    split, nest = _splitter(spec), _nester([(leaf.path, i) for i, leaf in enumerate(spec.leaves)])
    return lambda actions: [nest(values) for values in zip(*split(actions), strict=True)]


def _box(spec: ActionSpec) -> Callable[[Array], Array]:
    dtype = np.dtype(spec.env_dtype)
    integers = dtype.kind in "iu"
    bounds = np.float64 if integers else dtype  # values are clipped first, then made integers
    low, high = (np.asarray(x, dtype=bounds).reshape(spec.shape) for x in (spec.low, spec.high))

    def convert(actions: Array) -> Array:
        return np.clip(np.rint(actions) if integers else actions, low, high).astype(dtype)

    return convert


def _splitter(spec: ActionSpec) -> Callable[[Array], list[Array]]:
    """`[..., K] ->` the array of each leaf, `[..., *leaf.shape]`."""
    steps: list[Callable[[Array], Array]] = []
    part, column = 0, 0
    for leaf in spec.leaves:
        parts = spec.parts[part : part + leaf.num_parts]
        width = sum(p.noise_size for p in parts)
        steps.append(_leaf_reader(parts, slice(column, column + width), leaf.shape, leaf.dtype))
        part, column = part + leaf.num_parts, column + width
    return lambda actions: [read(actions) for read in steps]


def _leaf_reader(parts: Sequence[ActionSpec], columns: slice, shape: tuple[int, ...], dtype: str) -> Callable[[Array], Array]:
    if parts[0].kind == "continuous":
        box = _box(parts[0])
        return lambda actions: box(actions[..., columns].reshape((*actions.shape[:-1], *shape)))
    start = np.asarray([p.start for p in parts], dtype=np.int64).reshape(shape)

    def choices(actions: Array) -> Array:
        return (actions[..., columns].reshape((*actions.shape[:-1], *shape)).astype(np.int64) + start).astype(dtype)

    return choices


def _nester(paths: Sequence[tuple[Path, int]]) -> Callable[[Sequence[object]], Plain]:
    """A function from the values of all leaves to the nested structure. `paths` has the path and the index of each leaf."""
    if paths[0][0] == ():
        return itemgetter(paths[0][1])
    groups: dict[str | int, list[tuple[Path, int]]] = {}
    for path, index in paths:
        groups.setdefault(path[0], []).append((path[1:], index))
    inner = {key: _nester(group) for key, group in groups.items()}
    if isinstance(paths[0][0][0], int):
        makers = tuple(inner.values())
        return lambda values: tuple(make(values) for make in makers)
    return lambda values: {key: make(values) for key, make in inner.items()}


def join_masks(raw: object) -> Array:
    """One array of flags: `raw` itself, or the masks of parts (a tuple or list of arrays, nested or not) concatenated.

    >>> join_masks(([1, 0], [1, 1, 0])).tolist()
    [True, False, True, True, False]
    """
    if isinstance(raw, tuple | list) and any(isinstance(part, tuple | list | np.ndarray) for part in raw):
        return np.concatenate([join_masks(part) for part in raw], axis=-1)
    return np.asarray(raw, dtype=bool)


def flat_mask(raw: object, spec: ActionSpec) -> Array:
    """An `action_mask` as the environment gives it, as bool `[..., spec.mask_size]` (nothing is checked here).

    The flags of all choices are concatenated: `MultiDiscrete([2, 3])` has 5, `MultiBinary(2)` has 4 (off, on, off, on), and a
    box has none. The environment may also give one mask for each part, in a tuple or list. If the action is a dict, it may
    give a dict of masks under the same names; in a part that the dict leaves out, every choice is allowed.
    """
    if not isinstance(raw, Mapping):
        return join_masks(raw)
    masks, part = [], 0
    for leaf in spec.leaves:
        size = sum(p.mask_size for p in spec.parts[part : part + leaf.num_parts])
        part += leaf.num_parts
        found = _follow(raw, leaf.path)
        if size:
            masks.append(np.ones(size, dtype=bool) if found is None else join_masks(found))
    front = np.broadcast_shapes(*(mask.shape[:-1] for mask in masks))
    return np.concatenate([np.broadcast_to(mask, (*front, mask.shape[-1])) for mask in masks], axis=-1)


def _follow(raw: Plain, path: Path) -> Plain:
    """The value at `path` inside nested masks; None if a dict does not have the name."""
    for key in path:
        if raw is None or (isinstance(raw, Mapping) and key not in raw):
            return None
        raw = raw[key]
    return raw


def read_mask(raw: object, spec: ActionSpec) -> Array:
    """`flat_mask` of one decision, checked: bool `[mask_size]`, with at least one allowed choice in each discrete part."""
    mask = flat_mask(raw, spec)
    if mask.shape != (spec.mask_size,):
        raise DataError(f"gave an action_mask of shape {mask.shape}; {_rule(spec)}")
    shut = [i for i, part in enumerate(mask_parts(mask, spec)) if not part.any()]
    if shut:
        raise DataError(f"gave {_shut(mask, spec, shut[0])}; {_rule(spec)}")
    return mask


def final_mask(raw: object, spec: ActionSpec, *, terminated: bool) -> Array:
    """The mask at the observation that ended an episode; `raw` is None where the environment gave none.

    After a terminated episode the policy decides nothing, so every choice is allowed, whatever the environment says (often
    nothing, or zeros). The learner bootstraps from a truncated episode, so there the mask is checked as at any decision.
    """
    if terminated:
        return np.ones(spec.mask_size, dtype=bool)
    if raw is None:
        raise DataError("truncated an episode without an action_mask; put one into every info, also the last of an episode")
    return read_mask(raw, spec)


def read_masks(raw: object, spec: ActionSpec, num_rows: int) -> Array:
    """`read_mask` of many decisions at once: bool `[num_rows, mask_size]`."""
    mask = flat_mask(raw, spec)
    if isinstance(raw, Mapping):  # a dict may leave out every part, and then the mask is one row
        mask = np.broadcast_to(mask, (num_rows, mask.shape[-1]))
    if mask.shape != (num_rows, spec.mask_size):
        raise DataError(f"gave an action_mask of shape {mask.shape} for {num_rows} environments; {_rule(spec)}")
    for i, part in enumerate(mask_parts(mask, spec)):
        if not (open_rows := part.any(axis=-1)).all():
            row = int(np.argmin(open_rows))
            raise DataError(f"gave its row {row} {_shut(mask[row], spec, i)}; {_rule(spec)}")
    return mask


def _shut(mask: Array, spec: ActionSpec, part: int) -> str:
    where = f" (part {part} of the action has none)" if spec.kind == "multi" else ""
    return f"the action_mask {mask.tolist()}{where}"


def _rule(spec: ActionSpec) -> str:
    each = " in each of its parts" if spec.kind == "multi" else ""
    return (
        f"it needs one flag for each of {spec.mask_size} actions, and at least one open action{each} (where none is left, end "
        "the episode)"
    )


def mask_parts(mask: Array, spec: ActionSpec) -> list[Array]:
    """The flags of each discrete part. `[..., mask_size] -> [..., n_i]` each, views."""
    if spec.kind != "multi":
        return [mask]
    ends = list(accumulate(part.num_actions for part in spec.parts if part.kind == "discrete"))
    return [mask[..., first:end] for first, end in zip([0, *ends], ends, strict=False)]
