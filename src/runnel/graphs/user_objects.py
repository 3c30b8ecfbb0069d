"""A user's own objects in a config: names for classes and functions, and placeholders for objects of this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from torch.nn import Module

from runnel.core.errors import ConfigError
from runnel.core.resolve import called, load_object, reference
from runnel.core.spaces import EnvSpec
from runnel.core.state import State
from runnel.envs.team.parallel import has_agents
from runnel.llm.tasks.text import TextTask

if TYPE_CHECKING:  # gymnasium is imported only where an environment is used
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec as GymSpec

_live: dict[str, object] = {}


def name_objects(settings: Mapping[str, object]) -> tuple[State, dict[str, object]]:
    """Replace classes and functions among `settings` by names. Returns the settings, and the objects by placeholder.

    An object that another process cannot load by name (a lambda) gets a placeholder, `live:FIELD`, which is valid in this
    process only. An environment that is made already is replaced by its id, or by a function that makes it again."""
    named: State = {}
    objects: dict[str, object] = {}
    given: State = {**settings}
    if has_agents(env := given.get("env")) and not callable(env):
        kind = type(env).__name__
        fix = f"is made already; a run makes its own: give the class (env={kind}) or a function (env=lambda: {kind}(...))"
        raise ConfigError("env", kind, fix)
    if is_env(given.get("env")):
        made, kwargs = remade(given["env"], given.get("env_kwargs") or {})
        given |= {"env": made, "env_kwargs": kwargs}
    if isinstance(task := given.get("task"), TextTask):
        given["task"] = lambda: task
    for key, value in given.items():
        if isinstance(value, list | tuple) and any(map(callable, value)):
            value = [_name_object(f"{key}[{i}]", one, objects) for i, one in enumerate(value)]
        named[key] = _name_object(key, value, objects)
    return named, objects


def _name_object(key: str, value: object, objects: dict[str, object]) -> object:
    """The name of a class or function; anything else as it is."""
    if not callable(value):
        return value
    name = reference(value)
    if name is None:
        name = f"live:{key}"
        objects[name] = value
    return name


@contextmanager
def live_objects(objects: Mapping[str, object], launcher: str) -> Iterator[None]:
    """Make in-process objects resolvable while a run lasts; refuse them where they cannot go."""
    for name, value in objects.items():
        if launcher != "inproc":
            field = name.removeprefix("live:")
            raise ConfigError(
                field,
                value,
                "lambdas and functions of a notebook live in this process only; put it in a file (path/to/file.py:name) or use "
                "launcher='inproc'",
            )
    before = dict(_live)
    _live.update(objects)
    try:
        yield
    finally:
        _live.clear()
        _live.update(before)


def resolve(target: str, field: str) -> Any:
    """The object behind `module:name`, `file.py:name`, or a name that stands for an in-process object."""
    found = resolve_live(target, field)
    return load_object(found, field) if isinstance(found, str) else found


def make_network(target: str, env_spec: EnvSpec, seed: int) -> Any:
    """The network of a user's own that `target` makes: it is called as `make(env_spec, seed)`."""
    make = resolve(target, "network")
    if isinstance(make, Module):
        fix = "is made already; give the function that makes it: network=lambda env_spec, seed: ..., or path/to/file.py:make"
        raise ConfigError("network", type(make).__name__, fix)
    return called(make, env_spec, seed, field="network", target=target, how="make(env_spec, seed)")


def resolve_live(target: str, field: str) -> Any:
    """`target` itself, or the in-process object that it stands for."""
    if not target.startswith("live:"):
        return target
    if target not in _live:
        raise ConfigError(field, target, f"the run was made with an in-process object; pass it again as {field}=...")
    return _live[target]


def is_env(value: object) -> TypeGuard[gym.Env | gym.vector.VectorEnv]:
    """Whether `value` is an environment, or a vector of them, that is made already."""
    import gymnasium as gym

    return isinstance(value, gym.Env | gym.vector.VectorEnv)


def remade(env: gym.Env | gym.vector.VectorEnv, kwargs: Mapping[str, object]) -> tuple[str | Callable[..., gym.Env], State]:
    """What makes `env` again, from the spec that Gymnasium keeps with it: its id and arguments, which any process can use, or,
    where it was wrapped or its limits were changed, a function. `kwargs` are arguments that are given beside it.

    How it shows itself (`render_mode`) is left out: a run draws nothing, and a recording asks for pictures itself.
    """
    import gymnasium as gym

    spec = None if isinstance(env, gym.vector.VectorEnv) else env.spec
    if spec is None or any(w.kwargs is None for w in spec.additional_wrappers):
        raise ConfigError("env", type(env).__name__, _fix(env))
    usual = gym.registry.get(spec.id)
    given = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    spec.kwargs = {**given, **kwargs}
    if usual is None or spec.additional_wrappers or spec.max_episode_steps != usual.max_episode_steps or not _plain(given):
        return _maker(spec), {}
    return spec.id, {k: v for k, v in spec.kwargs.items() if k not in usual.kwargs or usual.kwargs[k] != v}


def _maker(spec: GymSpec) -> Callable[..., gym.Env]:
    import gymnasium as gym

    def make(**more: object) -> gym.Env:
        return gym.make(spec, **more)

    make.__qualname__ = spec.id  # messages and run folders show it
    return make


def _plain(given: Mapping[str, object]) -> bool:
    """Whether arguments can stand in a config."""
    try:
        return bool(json.loads(json.dumps(given)) == given)
    except (TypeError, ValueError):
        return False


def _fix(env: gym.Env | gym.vector.VectorEnv) -> str:
    import gymnasium as gym

    if isinstance(env, gym.vector.VectorEnv):
        return "is a vector that is made already; give one environment (its id, its class or a function), and num_envs=..."
    name = type(env.unwrapped).__name__
    return (
        f"is made already, and cannot be made again from its spec; a run makes its own: give the class (env={name}) or a "
        f"function (env=lambda: {name}(...), with its wrappers)"
    )
