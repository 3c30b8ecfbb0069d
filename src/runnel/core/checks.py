"""Checks of what a user's own objects return: shapes, numbers, and whether numbers are finite.

Networks, rewards, environments and texts are checked here. An error names the object (file:name), what it returned, what was
expected, and what to do. This module imports only the standard library when it is loaded, because processes that compute
rewards start without numpy and torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.resolve import reference

if TYPE_CHECKING:
    import torch

    from runnel.core.spaces import EnvSpec

_ROWS = 3
"""Number of rows on which a new network is tried. It is not 1, because 1 broadcasts to anything."""
_SHOWN = 60
_LARGEST = 3.4e38
"""What a number of 32 bits can hold: rewards are stored so."""


def name_of(obj: object) -> str:
    """The file (or module) and the name of a function, of a class, or of the class of an object.

    >>> name_of(math.sqrt), name_of(Sequence)
    ('math:sqrt', 'collections.abc:Sequence')
    """
    kind = obj if hasattr(obj, "__qualname__") else type(obj)
    return reference(kind) or f"{getattr(kind, '__module__', '?')}:{kind.__qualname__}"


# ------------------------------------------------------------------------------------------------------------- numbers
def as_number(value: object) -> float | None:
    """`value` as a float if it is one number (of Python or numpy, or an array or tensor without dimensions); else None.

    >>> import numpy as np
    >>> as_number(np.float32(0.5)), as_number(np.array(2)), as_number("1"), as_number(np.ones(1))
    (0.5, 2.0, None, None)
    """
    if isinstance(value, (float, Real)):  # float first: it is the usual one, and the abstract class is slow to ask
        return float(value)
    inner = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else None
    return float(inner) if isinstance(inner, Real) else None


def wrong_number(value: object) -> str | None:
    """Say why `value` is not one finite number that 32 bits can hold, as the end of a sentence; None if it is one.

    >>> wrong_number("1"), wrong_number(float("nan")), wrong_number(1)
    ("is '1' (str); expected one finite number", 'is nan', None)
    """
    number = as_number(value)
    if number is not None:
        if math.isfinite(number) and abs(number) > _LARGEST:
            return f"is {number}; numbers of 32 bits end at {_LARGEST}"
        return None if math.isfinite(number) else f"is {number}"
    shape = tuple(getattr(value, "shape", ()))
    kind = f"{type(value).__name__}{f' of shape {shape}' if shape else ''}"
    return f"is {short(value)} ({kind}); expected one finite number"


def short(value: object) -> str:
    """`repr(value)` in one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."


def reward_number(value: object) -> float:
    """The reward of one step as a float. NaN and infinity pass: the sampler finds them and names the step."""
    number = as_number(value)
    if number is None:
        raise DataError(f"gave a reward that {wrong_number(value)}; return float(reward) from step()")
    return number


def check_rewards(rewards: object, num_envs: int) -> None:
    """Refuse rewards that are not one number for each environment of the batch: numpy would broadcast or parse them."""
    import numpy as np

    found = np.asarray(rewards)
    if found.shape != (num_envs,) or found.dtype.kind not in "fiub":
        gave = f"gave rewards of shape {found.shape} and type {found.dtype}"
        raise DataError(f"{gave}; expected {num_envs} numbers, ({num_envs},)")


def check_tensor_env(env: Any, device: torch.device | str) -> None:
    """Try a new tensor environment: one step of a few copies, whose arrays must have the declared shapes and types.

    The check never waits for the device, and it draws only from a generator of its own.
    """
    import torch

    spec: EnvSpec = env.spec
    state = env.initial(_ROWS, torch.Generator(device=device).manual_seed(0))
    actions = torch.zeros(_ROWS, *spec.action.shape, dtype=spec.action.dtype, device=device)
    following, reward, terminated = env.transition(state, actions)
    for when in (state, following):
        shown = env.observe(when)
        for key, leaf in spec.obs.items():
            _check_array(env, f"observe(state)[{key!r}]", shown.get(key), leaf.shape, leaf.dtype)
        for name in spec.channels.names:
            _check_array(env, f"the state's leaf {name!r}", when.get(name), (), torch.float32)
    _check_array(env, "the reward of transition", reward, (), torch.float32)
    _check_array(env, "terminated of transition", terminated, (), torch.bool)


def check_tensor_team(env: Any) -> None:
    """As `check_tensor_env`, for a world of several agents (`envs/device/team.py`), on the CPU."""
    import torch

    specs, kinds = list(env.spec.agents.values()), env.spec.kinds
    state = env.initial(_ROWS, torch.Generator().manual_seed(0))
    actions, team = [], (len(specs),)
    for places, leaves in zip(kinds, _check_seen(env, state), strict=True):
        action = specs[places[0]].action
        first = torch.zeros(_ROWS, len(places), *action.shape, dtype=action.dtype)
        if specs[places[0]].has_mask and action.kind == "discrete":
            first = leaves["action_mask"].long().argmax(dim=-1)
        actions.append(first)
    following, reward, terminated = env.transition(state, actions)
    _check_seen(env, following)
    _check_array(env, "the rewards of transition", reward, team, torch.float32)
    _check_array(env, "terminated of transition", terminated, team, torch.bool)
    for when in (state, following):
        if (active := env.active(when)) is not None:
            _check_array(env, "active(state)", active, team, torch.bool)
        if (shared := env.state_spec) is not None:
            _check_array(env, "global_state(state)", env.global_state(when), shared.shape, shared.dtype)


def _check_seen(env: Any, state: Any) -> Any:
    """What the agents of each kind see, which is as the specs say."""
    specs, kinds, seen = list(env.spec.agents.values()), env.spec.kinds, env.observe(state)
    if not isinstance(seen, Sequence) or len(seen) != len(kinds):
        gave = f"a list of {len(seen)}" if isinstance(seen, Sequence) else f"a {type(seen).__name__}"
        wanted = f"one dict of leaves for each kind of agents ({len(kinds)})"
        raise DataError(f"environment {name_of(env)}: observe(state) is {gave}, expected a list with {wanted}")
    import torch

    for places, leaves in zip(kinds, seen, strict=True):
        spec: EnvSpec = specs[places[0]]
        for key, leaf in spec.obs.items():
            what = f"observe(state)[{kinds.index(places)}][{key!r}]"
            _check_array(env, what, leaves.get(key), (len(places), *leaf.shape), leaf.dtype)
        if spec.has_mask:
            what, size = f"observe(state)[{kinds.index(places)}]['action_mask']", spec.action.mask_size
            _check_array(env, what, leaves.get("action_mask"), (len(places), size), torch.bool)
    return seen


def _check_array(env: object, what: str, found: Any, shape: Sequence[int], dtype: torch.dtype) -> None:
    if getattr(found, "dtype", None) != dtype or tuple(found.shape) != (_ROWS, *shape):
        known = hasattr(found, "shape") and hasattr(found, "dtype")
        gave = f"{list(found.shape)} of {found.dtype}" if known else short(found)
        wanted = f"{[_ROWS, *shape]} of {dtype}"
        raise DataError(f"environment {name_of(env)}: {what} is {gave} for {_ROWS} copies, expected {wanted}")


# ------------------------------------------------------------------------------------------------------------ networks
def check_body(body: object, env_spec: EnvSpec, num_scores: int) -> None:
    """Try a user's own new network on rows of zeros, in eval mode. The random generators keep their state.

    Only shapes are checked: zeros may be no valid input of the network, and then its numbers mean nothing.
    """
    import torch

    who = name_of(body)
    if not isinstance(body, torch.nn.Module):
        raise ConfigError("network", who, "must be a torch.nn.Module with policy(obs) and value(obs)")
    for method in ("policy", "value"):
        if not callable(getattr(body, method, None)):
            raise ConfigError("network", who, f"has no {method}(obs); a network needs policy(obs) and value(obs)")
    device = next((p.device for p in body.parameters()), torch.device("cpu"))
    rows = {k: torch.zeros(_ROWS, *leaf.shape, dtype=leaf.dtype, device=device) for k, leaf in env_spec.obs.items()}
    training, net = body.training, cast(Any, body.eval())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        check_output(body, "policy(obs)", net.policy(rows), (_ROWS, num_scores), finite=False)
        check_output(body, "value(obs)", net.value(rows), (_ROWS,), finite=False)
    body.train(training)


def check_output(net: object, method: str, found: object, shape: Sequence[int], *, finite: bool = True) -> None:
    """Refuse an output of a user's network that does not have `shape`, or (`finite`, on the host) holds NaN or infinity.

    Numbers on a GPU are not checked here, because the check would wait for the GPU. The code that reads them checks them.
    """
    from torch import Tensor

    if not isinstance(found, Tensor) or found.shape != tuple(shape):
        gave = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        extra = isinstance(found, Tensor) and found.shape[:-1] == tuple(shape) and found.shape[-1:] == (1,)
        fix = "; end it with .squeeze(-1)" if extra else "; one score for each action" if method.startswith("policy") else ""
        raise DataError(f"network {name_of(net)}: {method} gave {gave}, expected {list(shape)}{fix}")
    # one sum is cheaper than a mask; a finite row can overflow its sum, so the mask then decides
    if finite and not found.is_cuda and not math.isfinite(found.detach().sum().item()) and not bool(found.isfinite().all()):
        raise NonFiniteError(f"{method} of network {name_of(net)}", None)


# --------------------------------------------------------------------------------------------------------------- texts
def check_text(value: object, what: str) -> None:
    """Refuse half a surrogate pair (`\\ud83d` alone): JSON can write it, but no tokenizer can read it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x}"
            fix = "the text was cut inside of a character; write it again, or leave the row out"
            raise DataError(f"{what} has half a character ({half}, a lone surrogate) at place {error.start}; {fix}") from error
    elif isinstance(value, Mapping):
        for part in (*value.keys(), *value.values()):
            check_text(part, what)
    elif isinstance(value, list | tuple):
        for part in value:
            check_text(part, what)
