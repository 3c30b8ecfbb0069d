"""An environment with a user's own wrappers around it: Gymnasium wrappers, or functions from an environment to one.

`Wrapped` is a factory of environments like any other, so back ends, evaluation, videos and checks take it without more code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runnel.core.errors import ConfigError
from runnel.core.resolve import load_object, own_name

if TYPE_CHECKING:
    import gymnasium as gym

EnvWrapper = Callable[[Any], Any]
FIELD = "wrappers"


@dataclass(frozen=True)
class Wrapped:
    """Makes `target` (what `env=` takes) by `make` and puts `wrappers` around it, the first innermost."""

    target: str | Callable[..., object]
    wrappers: tuple[tuple[str, EnvWrapper], ...]
    make: Callable[..., gym.Env]

    def __call__(self, **options: Any) -> gym.Env:
        env = self.make(self.target, kwargs=options)
        for name, wrapper in self.wrappers:
            env = _put_around(env, name, wrapper)
        return env


def load_wrappers(given: Sequence[str | EnvWrapper]) -> tuple[tuple[str, EnvWrapper], ...]:
    """The wrappers that `module:Class` and `file.py:function` name, with their names. A callable is taken as it is."""
    return tuple(_load(one) for one in given)


def _load(given: str | EnvWrapper) -> tuple[str, EnvWrapper]:
    found = load_object(given, FIELD) if isinstance(given, str) else given
    if not callable(found):
        raise ConfigError(FIELD, given, "it is not callable; give a wrapper class, or a function from an environment to one")
    return own_name(given) if isinstance(given, str) else str(getattr(given, "__qualname__", given)), found


def _put_around(env: gym.Env, name: str, wrapper: EnvWrapper) -> gym.Env:
    import gymnasium as gym

    try:
        inspect.signature(wrapper).bind(env)
    except TypeError as error:
        fix = f"it is called with the environment alone ({error}); write a function in a file that gives it the rest"
        raise ConfigError(FIELD, name, fix) from error
    found = wrapper(env)
    if not isinstance(found, gym.Env):
        raise ConfigError(FIELD, name, f"it gave a {type(found).__name__}; a wrapper returns an environment")
    return found
