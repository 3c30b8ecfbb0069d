"""Makes environments from what `env=` takes: a Gymnasium id, `module:Class`, `file.py:factory`, `tensor:CartPole-v1`,
`atari:Breakout`, `MinAtar/Breakout-v1`, `envpool:HalfCheetah-v4`, a class or a factory; environments of several agents
also by name (`envs/team/named.py`)."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import json
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from runnel.core.errors import ConfigError, DataError, RunnelError
from runnel.core.resolve import is_reference, load_object, own_name
from runnel.core.spaces import Channels, EnvSpec, TeamSpec
from runnel.core.state import Array, Settings
from runnel.core.user_code import called_wrongly, frames, place_of, summary
from runnel.envs.channels import try_channels
from runnel.envs.device import TENSOR_ENVS, TENSOR_TEAMS, TeamView, TensorEnv, TensorTeamEnv, TensorVector
from runnel.envs.known import KNOWN
from runnel.envs.spaces import Obs, flatten_obs
from runnel.envs.starts import Starts
from runnel.envs.team.named import is_team_name, team_factory
from runnel.envs.team.parallel import has_agents
from runnel.envs.vector import VectorConfig, VectorEnv, look_at
from runnel.envs.vector.build import build_vector
from runnel.envs.vector.choose import STEP_US, Choice, choose
from runnel.envs.vector.contract import mark_stack
from runnel.envs.vector.gym_vector import MakeVec
from runnel.envs.vector.host import num_cores
from runnel.envs.vector.source import EnvSource
from runnel.envs.wrapped import EnvWrapper, Wrapped, load_wrappers

if TYPE_CHECKING:
    import gymnasium as gym

Target = str | Callable[..., object]
"""What `env=` accepts."""

SEVERAL = "it has several agents: train it with a recipe for teams (runnel train ippo)"
_TENSOR, _POOL, _ATARI, _MINATAR = "tensor:", "envpool:", "atari:", "MinAtar/"


class SeveralAgentsError(ConfigError):
    """An environment of several agents where one of a single agent is needed."""


def is_tensor_env(target: Target) -> TypeGuard[str]:
    """Whether `target` names an environment of tensors (`tensor:CartPole-v1`, `tensor:file.py:Class`)."""
    return isinstance(target, str) and target.startswith(_TENSOR)


def env_name(target: Target) -> str:
    """A short name for messages and reports."""
    if isinstance(target, Wrapped):
        return env_name(target.target)
    return own_name(target) if isinstance(target, str) else str(getattr(target, "__qualname__", target))


def with_wrappers(target: Target, wrappers: Sequence[str | EnvWrapper]) -> Target:
    """`target` with a user's own wrappers around it, the first innermost. Refuses a target that cannot be wrapped."""
    why = why_not_wrapped(target)
    if wrappers and why:
        raise ConfigError("wrappers", list(wrappers), why)
    return Wrapped(target, load_wrappers(wrappers), make_env) if wrappers else target


def why_not_wrapped(target: Target) -> str:
    """The reason why `target` cannot be wrapped; empty if it can."""
    if is_tensor_env(target):
        return "a tensor environment has no Gymnasium form to wrap (the plain id has one)"
    if is_team_name(target):
        return "wrappers are of one agent, and it has several (wrap it in your own file)"
    if _special(target) in (_POOL, _ATARI):
        other = "ALE/NAME-v5" if _special(target) == _ATARI else "the Gymnasium id"
        return f"{target} steps all its copies at once in C++, where no wrapper reaches ({other} can be wrapped)"
    found: object = target
    if isinstance(target, str) and is_reference(target) and not _registered(target):
        found = load_object(target, "env")
    return "a class of vectors steps all its copies itself (wrap it in your own file)" if _is_vector_class(found) else ""


def make_env(
    target: Target,
    *,
    kwargs: Settings | None = None,
    frame_stack: int = 0,
    wrappers: Sequence[str | EnvWrapper] = (),
) -> gym.Env:
    """One Gymnasium environment, with `wrappers` around it and frames stacked outside of those.

    Gymnasium's wrappers that check the caller are left out: vectors keep the rules, and the checks cost time.
    """
    options, target = dict(kwargs or {}), with_wrappers(target, wrappers)
    if is_tensor_env(target):
        make_tensor_env(target, kwargs=options)  # which says of one of several agents that it is one
        raise ConfigError("env", target, "a tensor environment has no Gymnasium form; use make_vector, or the plain id")
    if is_team_name(target):
        raise SeveralAgentsError("env", target, SEVERAL)
    special = _special(target)
    if special:
        return _make_special(special, str(target), _with_frames(special, options, frame_stack), frame_stack)
    if isinstance(target, str) and (target.startswith(":") or target.endswith(":")):
        raise ConfigError("env", target, "write module:Class or path/to/file.py:factory, with a name on both sides")
    if not isinstance(target, str):
        env = _construct(target, target, options)
    elif is_reference(target) and not _registered(target):
        env = _construct(load_object(target, "env"), target, options)
    else:
        env = _from_gymnasium(target, options)
    return _stacked(env, frame_stack)


def _special(target: Target) -> str:
    """The prefix of a name that is no Gymnasium id and no reference; else empty."""
    return next((p for p in (_POOL, _ATARI, _MINATAR) if isinstance(target, str) and target.startswith(p)), "")


def _with_frames(special: str, options: Settings, frame_stack: int) -> Settings:
    """`options` with the number of frames, for Atari and EnvPool, which stack frames themselves."""
    names = {_ATARI: "frame_stack", _POOL: "stack_num"}
    return {**options, names[special]: frame_stack} if frame_stack and special in names else options


def _make_special(special: str, target: str, options: Settings, frame_stack: int) -> gym.Env:
    if special == _POOL:
        from runnel.envs.vector.envpool import OnePool

        return OnePool(target, options)
    if special == _ATARI:
        from runnel.envs.atari import make_arcade
        from runnel.envs.wrappers import OneOf

        return OneOf(make_arcade(target, 1, threads=1, kwargs={**options, "episodic_life": False}))
    from runnel.envs.minatar import MinAtar

    return _stacked(MinAtar(target, **options), frame_stack)


def _stacked(env: gym.Env, frame_stack: int) -> gym.Env:
    if not frame_stack:
        return env
    from runnel.envs.wrappers import FrameStack

    return FrameStack(env, frame_stack)


def evaluation_kwargs(target: Target, kwargs: Settings | None = None) -> dict[str, Any]:
    """`kwargs` for an evaluation: whole games and the unclipped score, where training ends episodes at lost lives.

    Only the Atari preset and EnvPool have these settings. Another environment may use such a name for something else.
    """
    options, whole_games = dict(kwargs or {}), {"episodic_life": False, "reward_clip": False}
    if _special(target) == _ATARI:
        return {**options, **whole_games}
    return {**options, **{k: v for k, v in whole_games.items() if k in options}} if _special(target) == _POOL else options


@contextmanager
def _told(target: Target, options: Settings, factory: object = None) -> Iterator[None]:
    """Raise an error of an environment's own constructor as one `DataError` with the lines of that code."""
    try:
        yield
    except RunnelError:
        raise
    except Exception as error:
        fix = frames(error)
        if isinstance(error, TypeError) and called_wrongly(error):
            given = f" (they are {dict(options)!r} now)" if options else ""
            at = f" ({place})" if (place := place_of(factory)) else ""
            fix = f"{at}; its arguments go into env_kwargs, --env-kwargs '{{\"name\": value}}'{given}"
        raise DataError(f"environment {env_name(target)!r}: making it raised {summary(error)}{fix}") from error


def check_command(target: Target, kwargs: Settings | None = None) -> str:
    """The command with which a user checks an environment."""
    if not isinstance(target, str):
        return "rl.check_env"
    options = f" --env-kwargs {shlex.quote(json.dumps(dict(kwargs), default=str))}" if kwargs else ""
    return f"runnel check-env {shlex.quote(target)}{options}"


def _construct(factory: Callable[..., object], target: Target, options: Settings) -> gym.Env:
    import gymnasium as gym

    if not callable(factory):
        raise ConfigError("env", target, "it is not callable; give an environment class or a function that makes one")
    if _is_vector_class(factory):
        from runnel.envs.wrappers import OneOf

        with _told(target, options, factory):
            return OneOf(_vector_maker(factory, options)(1))
    with _told(target, options, factory):
        env = factory(**options)
    if not isinstance(env, gym.Env):
        if has_agents(env):
            raise SeveralAgentsError("env", target, SEVERAL)
        raise ConfigError("env", target, f"it made a {type(env).__name__}; give a class or factory of gymnasium.Env")
    return env


def make_team_env(target: Target, *, kwargs: Settings | None = None) -> Any:
    """One environment of several agents, with PettingZoo's parallel or AEC API, from a name of a package
    (`pettingzoo:FAMILY.NAME`, `openspiel:GAME`), `tensor:NAME`, `module:Class`, `file.py:factory`, a class or a factory."""
    if is_tensor_env(target):
        return TeamView(make_tensor_team(target, kwargs=kwargs))
    options, factory = dict(kwargs or {}), _team_factory(target)
    if not callable(factory):
        raise ConfigError("env", target, "it is not callable; give an environment class or a function that makes one")
    with _told(target, options, factory):
        return factory(**options)


def _team_factory(target: Target) -> object:
    if not isinstance(target, str):
        return target
    if is_team_name(target):
        return team_factory(target)
    if not is_reference(target):
        fix = "write pettingzoo:FAMILY.NAME, openspiel:GAME, module:Class or path/to/file.py:factory"
        alone = "it has one agent: train it with ppo or another recipe for one; " if _registered(target) else ""
        raise ConfigError("env", target, f"{alone}environments of several agents have no ids; {fix}")
    return load_object(target, "env")


def _registered(target: str) -> bool:
    import gymnasium as gym

    return target in gym.registry


def _from_gymnasium(target: str, options: Settings) -> gym.Env:
    import gymnasium as gym
    from gymnasium import error

    if target.startswith("ALE/") and importlib.util.find_spec("ale_py") is not None:
        importlib.import_module("ale_py")  # which registers its games
    with _told(target, options):
        try:
            if target not in gym.registry:
                return gym.make(target, disable_env_checker=True, **options)
            plain = dataclasses.replace(gym.spec(target), order_enforce=False)
            return gym.make(plain, disable_env_checker=True, **options)
        except (error.Error, ImportError) as problem:
            raise ConfigError("env", target, _advice(target, problem)) from problem


def _advice(target: str, error: Exception) -> str:
    """The fix in the error about an environment that Gymnasium could not make."""
    import gymnasium as gym
    from gymnasium.error import DependencyNotInstalled

    problem, known = str(error).rstrip("."), _newest(target)
    if target.startswith("ALE/") and importlib.util.find_spec("ale_py") is None:
        return 'Atari is not installed; pip install "runnel[atari]"'
    if known is not None and str(known.entry_point).startswith("gymnasium.envs.mujoco"):
        return f'{problem}; pip install "runnel[mujoco]", and use the newest version (-v5)'
    if known is not None and isinstance(error, DependencyNotInstalled | ImportError):
        box2d = str(known.entry_point).startswith("gymnasium.envs.box2d")
        return 'needs Box2D: pip install "runnel[box2d]"' if box2d else f"needs what is not installed: {problem}{frames(error)}"
    if target.endswith(".py"):
        return "a file needs the name of what to make: path/to/file.py:factory"
    if "deprecated" in problem or isinstance(error, ImportError):
        return problem
    close = difflib.get_close_matches(target, {**gym.registry, **KNOWN}, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "run `runnel list` for a start."
    return f"no such environment; {hint} Or give module:Class, path/to/file.py:factory, a class or a function"


def _newest(target: str) -> gym.envs.registration.EnvSpec | None:
    """Gymnasium's newest version of an id, whichever version `target` names, if any; None if it has none."""
    import gymnasium as gym

    name = target.partition("-v")[0]
    return next((spec for spec in reversed(gym.registry.values()) if spec.name == name), None)


def make_tensor_env(target: str, *, kwargs: Settings | None = None) -> TensorEnv:
    """The `TensorEnv` behind `tensor:NAME` or `tensor:module:Class`."""
    env = _make_of_tensors(target, kwargs)
    if isinstance(getattr(env, "spec", None), TeamSpec):
        raise SeveralAgentsError("env", target, SEVERAL)
    if not isinstance(env, TensorEnv):
        raise ConfigError("env", target, "it lacks a part of runnel.envs.device.TensorEnv (initial, transition, observe, spec)")
    if env.spec.has_mask:
        raise ConfigError("env", target, "a tensor environment cannot give action masks; write it as a Gymnasium environment")
    return env


def make_tensor_team(target: str, *, kwargs: Settings | None = None) -> TensorTeamEnv:
    """The `TensorTeamEnv` behind `tensor:NAME` or `tensor:module:Class`."""
    env = _make_of_tensors(target, kwargs)
    if isinstance(getattr(env, "spec", None), EnvSpec):
        raise ConfigError("env", target, "it has one agent: train it with a recipe for one (runnel train ppo)")
    if not isinstance(env, TensorTeamEnv) or not isinstance(env.spec, TeamSpec):
        parts = "initial, transition, observe, active, global_state, state_spec, max_steps, a TeamSpec as spec"
        raise ConfigError("env", target, f"it lacks a part of runnel.envs.device.TensorTeamEnv ({parts}); inherit TeamWorld")
    return env


def _make_of_tensors(target: str, kwargs: Settings | None) -> object:
    """What `tensor:NAME` or `tensor:module:Class` makes."""
    name, known = target.removeprefix(_TENSOR), {**TENSOR_ENVS, **TENSOR_TEAMS}
    if name not in known and not is_reference(name):
        raise ConfigError("env", target, f"known tensor environments: {', '.join(_TENSOR + k for k in known)}")
    factory = known[name] if name in known else load_object(name, "env")
    with _told(target, kwargs or {}, factory):
        made: object = factory(**dict(kwargs or {}))
    return made


def _is_vector_class(found: object) -> bool:
    """Whether a user gave a class of `gymnasium.vector.VectorEnv`."""
    import gymnasium as gym

    return isinstance(found, type) and issubclass(found, gym.vector.VectorEnv)


def _vector_maker(found: Callable[..., gym.vector.VectorEnv], options: Settings) -> MakeVec:
    """A maker of a user's vector class, in the best reset mode that it takes: DISABLED, SAME_STEP, else its own default."""
    import inspect

    from gymnasium.vector import AutoresetMode

    def make(num_envs: int) -> gym.vector.VectorEnv:
        if "autoreset_mode" in inspect.signature(found).parameters and "autoreset_mode" not in options:
            for mode in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP):
                try:  # a class may have the parameter and refuse a mode
                    return found(num_envs=num_envs, autoreset_mode=mode, **options)
                except (ValueError, AssertionError, NotImplementedError):
                    continue
        return found(num_envs=num_envs, **options)

    return make


def _own_vector(target: Target, options: Settings) -> tuple[MakeVec | None, bool]:
    """A maker of the environment's own Gymnasium vector (None: it has none), and whether `target` is a vector only."""
    import gymnasium as gym

    if isinstance(target, str) and target in gym.registry:
        if gym.spec(target).vector_entry_point is None:
            return None, False
        return lambda n: _own_of_gymnasium(target, n, options), False
    found: Any = load_object(target, "env") if isinstance(target, str) and is_reference(target) else target
    return (_vector_maker(found, options), True) if _is_vector_class(found) else (None, False)


def _own_of_gymnasium(target: str, num_envs: int, options: Settings) -> gym.vector.VectorEnv:
    import gymnasium as gym
    from gymnasium import error

    try:
        return gym.make_vec(target, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
    except (error.Error, ImportError) as problem:
        raise ConfigError("vector.backend", "gymnasium", f"the vector of {target} cannot be made: {problem}") from problem


def make_source(
    target: Target, *, kwargs: Settings | None = None, frame_stack: int = 0, channels: Channels | None = None
) -> EnvSource:
    """The `EnvSource` of `target`: how to make one environment, or many at once, with `channels` beside the reward."""
    if is_team_name(target):
        raise SeveralAgentsError("env", target, SEVERAL)
    special = _special(target)
    options = _with_frames(special, dict(kwargs or {}), frame_stack)

    def look() -> EnvSpec:
        return probe_env(target, kwargs=kwargs, frame_stack=frame_stack, channels=channels)

    own = channels or Channels()
    if special in (_POOL, _ATARI):
        kind = "envpool" if special == _POOL else "atari"
        make = partial(make_env, target, kwargs=options)
        return EnvSource(str(target), kind, make, look, kwargs=options, channels=own)  # type: ignore[arg-type]
    make_vec, only = (None, False) if special else _own_vector(target, options)
    return EnvSource(
        env_name(target),
        "plain",
        lambda: make_env(target, kwargs=options, frame_stack=frame_stack),
        look,
        make_vec,
        options,
        only,
        _family(target),
        own,
        check_command(target, kwargs),
    )


def _family(target: Target) -> str:
    """The package of an environment, by its name in `STEP_US`; empty if it is not in that table."""
    import gymnasium as gym

    if isinstance(target, Wrapped):
        return _family(target.target)
    if not isinstance(target, str):
        return ""
    if target.startswith((_MINATAR, "ALE/")):
        return "minatar" if target.startswith(_MINATAR) else "ale_py"
    entry = gym.spec(target).entry_point if target in gym.registry else ""
    return next((name for name in STEP_US if isinstance(entry, str) and entry.startswith(f"{name}.")), "")


def make_vector(
    target: Target,
    num_envs: int,
    *,
    seed: int,
    index0: int = 0,
    device: str = "cpu",
    kwargs: Settings | None = None,
    config: VectorConfig | None = None,
    channels: Channels | None = None,
    tasks: bool = False,
    starts: Starts | None = None,
) -> VectorEnv:
    """`num_envs` environments behind the vector contract, which with `tasks` play what they are told (`StepOut.next_task`):
    with `starts`, from which state.

    `device` is for a tensor environment. `config` chooses the back end of all others; None: `serial`, or the environment's own
    vector where that is the only one. `channels` are the further rewards and costs to read from `info`; a tensor environment
    declares its own in its spec.
    """
    if num_envs < 1:
        raise ConfigError("num_envs", num_envs, "use at least one environment")
    if is_tensor_env(target):
        env = make_tensor_env(target, kwargs=kwargs)
        if starts is not None:
            env = starts.on_tensors(env)
        return TensorVector(env, num_envs, seed=seed, index0=index0, device=device, tasks=tasks)
    if starts is not None:
        if why := why_not_wrapped(target):
            raise ConfigError("env", env_name(target), f"its state cannot be saved in the middle of an episode: {why}")
        target = with_wrappers(target, [starts])
    frames = 0 if config is None else config.frame_stack
    source = make_source(target, kwargs=kwargs, frame_stack=frames, channels=channels)
    if config is None:
        config = choose(source, num_envs, VectorConfig(), cores=num_cores(), plain=True).config
    return build_vector(source, num_envs, config, seed=seed, index0=index0, tasks=tasks)


def choose_backend(
    target: Target,
    num_envs: int,
    *,
    config: VectorConfig | None = None,
    kwargs: Settings | None = None,
    cores: int = 0,
    plain: bool = False,
) -> Choice:
    """Choose the back end for `num_envs` environments: a resolved config and one line with the reason. Nothing is measured.

    `cores` 0: those of this machine. `plain`: the simplest back end that can step them.
    """
    config = config or VectorConfig()
    config.check()
    if is_tensor_env(target):
        return Choice(config.resolve("serial"), f"{env_name(target)} x {num_envs}: tensors, all at once")
    source = make_source(target, kwargs=kwargs, frame_stack=config.frame_stack)
    return choose(source, num_envs, config, cores=cores or num_cores(), plain=plain)


def probe_env(
    target: Target, *, kwargs: Settings | None = None, frame_stack: int = 0, channels: Channels | None = None
) -> EnvSpec:
    """The spec of an environment. Makes one, resets it once, and closes it; with `channels` it also makes a step, which must
    give them."""
    if is_tensor_env(target):
        return make_tensor_env(target, kwargs=kwargs).spec
    env = make_env(target, kwargs=kwargs, frame_stack=frame_stack)
    try:
        spec = mark_stack(look_at(env, env_name(target), check_command(target, kwargs)), _native_stack(target, env))
        if channels is not None and channels.names:
            try_channels(env, channels, env_name(target))
        return dataclasses.replace(spec, channels=channels or Channels())
    finally:
        env.close()


def _native_stack(target: Target, env: gym.Env) -> int:
    """Number of frames in the observation of an environment that stacks them itself; 0 for all others."""
    if _special(target) == _ATARI:
        return int(env.observation_space.shape[0])
    return int(env.num_frames) if _special(target) == _POOL else 0


def obs_flattener(
    target: Target, *, kwargs: Settings | None = None, frame_stack: int = 0, keys: Collection[str] | None = None
) -> Callable[[Obs], dict[str, Array]]:
    """The function `flatten_obs` for the observations of `target`, or for those of them in `keys`."""
    if is_tensor_env(target):
        (key,) = probe_env(target, kwargs=kwargs).obs
        return lambda obs: {key: np.asarray(obs, dtype=np.float32)}
    env = make_env(target, kwargs=kwargs, frame_stack=frame_stack)
    try:
        return flatten_obs(env.observation_space, keys)
    finally:
        env.close()
