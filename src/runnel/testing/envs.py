"""The contract check for environments: tells the author what is wrong with one before a run fails on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings
from runnel.envs.registry import SeveralAgentsError, Target, env_name, make_env, make_team_env, with_wrappers
from runnel.envs.rewind import stateful_part
from runnel.envs.spaces import Action, env_spec
from runnel.envs.team.parallel import has_agents
from runnel.envs.vector.serial import task_space_of
from runnel.envs.wrapped import EnvWrapper
from runnel.testing.env_play import SEED, History, Player, difference, step_seconds
from runnel.testing.env_report import BrokenEnvError, EnvReport
from runnel.testing.env_values import check_layout
from runnel.testing.team_envs import check_team_env

if TYPE_CHECKING:
    import gymnasium as gym

_EPISODES = 5
_LONG_PLAY_S = 5.0
_STATE_STEPS = 16
_TASK_STEPS = 64
_NOT_SEEDED = (
    "{name} is not deterministic under a seed: after reset(seed={seed}) and the same actions, {other}; draw all randomness "
    "from self.np_random, call super().reset(seed=seed), and set back every attribute in reset. A run on it cannot be resumed "
    "exactly"
)
_NOT_RESET = (
    "{name} is not deterministic under a seed once it was played: a fresh one repeats what this one did, but after another "
    "reset(seed={seed}) and the same actions, {other}; set back every attribute in reset. A run on it cannot be resumed exactly"
)


def check_env(
    target: Target | gym.Env,
    *,
    kwargs: Settings | None = None,
    num_steps: int = 64,
    max_steps: int = 2000,
    wrappers: Sequence[str | EnvWrapper] = (),
) -> EnvReport:
    """Check an environment (an instance, or what `env=` takes, in `wrappers`). Returns a list of errors, empty for a pass.

    The report also has `warnings` and `hints`, and prints all of them as text. The check plays random actions: `num_steps`
    twice under one seed, to check every value and to compare the two; then on until a few episodes have ended, for at most
    `max_steps` steps or five seconds. An environment of several agents also takes PettingZoo's own tests, where PettingZoo is
    installed.
    """
    if has_agents(target) and not callable(target):
        return _check_team(target, type(target).__name__, num_steps, max_steps, wrappers)
    try:
        return _check_one(target, kwargs, num_steps, max_steps, wrappers)
    except SeveralAgentsError:
        pass  # it was not even begun
    return _check_team(partial(make_team_env, target, kwargs=kwargs), _name(target), num_steps, max_steps, wrappers)


def _check_one(
    target: Target | gym.Env, kwargs: Settings | None, num_steps: int, max_steps: int, wrappers: Sequence[str | EnvWrapper]
) -> EnvReport:
    """Check an environment of one agent."""
    import gymnasium as gym

    report = EnvReport(_name(target))
    made = not isinstance(target, gym.Env)
    if wrappers and not made:
        raise ConfigError("wrappers", list(wrappers), "wrap the instance yourself, or give what `env=` takes")
    target = with_wrappers(target, wrappers) if made else target
    with suppress(BrokenEnvError):  # the report has what is wrong
        env = _make(target, kwargs, report) if made else target
        try:
            _examine(env, None if not made else lambda: make_env(target, kwargs=kwargs), report, num_steps, max_steps)
        finally:
            if made:
                _close(env, report)
    return report


def _check_team(target: object, name: str, num_steps: int, max_steps: int, wrappers: Sequence[str | EnvWrapper]) -> EnvReport:
    if wrappers:
        fix = "wrappers are of one agent, and it has several (wrap it in your own file)"
        raise ConfigError("wrappers", list(wrappers), fix)
    return check_team_env(target, name, num_steps=num_steps, max_steps=max_steps)


def _name(target: Target | gym.Env) -> str:
    import gymnasium as gym

    return type(target.unwrapped).__name__ if isinstance(target, gym.Env) else env_name(target).rpartition("<locals>.")[2]


def _make(target: Target, kwargs: Settings | None, report: EnvReport) -> gym.Env:
    try:
        return make_env(target, kwargs=kwargs)
    except ConfigError:
        raise
    except DataError as error:
        raise report.stop("make", str(error)) from error


def _close(env: gym.Env, report: EnvReport) -> None:
    try:
        env.close()
    except Exception as error:
        report.warn("close", f"close() raised {type(error).__name__}: {error}; a run closes its environments at the end")


def _examine(env: gym.Env, again: Callable[[], gym.Env] | None, report: EnvReport, num_steps: int, max_steps: int) -> None:
    _check_spaces(env, report)
    first, seconds = step_seconds(Player(env, report), num_steps)
    _check_repeat(env, again, report, first, num_steps)
    _check_state(env, report)
    _check_tasks(env, report)
    _play_on(env, report, min(max_steps, int(_LONG_PLAY_S / max(seconds, 1e-9))))
    _check_outside(env, report)


def _check_spaces(env: gym.Env, report: EnvReport) -> None:
    missing = [name for name in ("observation_space", "action_space") if not hasattr(env, name)]
    if missing:
        raise report.stop("spaces", f"{report.name} has no {' and no '.join(missing)}; set it in __init__")
    try:
        env_spec(env.observation_space, env.action_space)
    except ConfigError as error:
        raise report.stop("spaces", str(error)) from error
    check_layout(env.observation_space, "the observation", report)
    accepts = inspect.signature(env.unwrapped.reset).parameters
    if "options" not in accepts and all(p.kind is not p.VAR_KEYWORD for p in accepts.values()):
        report.hint("options", "reset takes no options; Gymnasium's wrappers pass it: reset(self, *, seed=None, options=None)")


def _check_repeat(
    env: gym.Env, again: Callable[[], gym.Env] | None, report: EnvReport, first: list[History], num_steps: int
) -> None:
    """Play the same seed and actions again. If the result differs, try a fresh environment, to tell the two mistakes apart."""
    other = difference(first, Player(env, report).play(num_steps))
    if other is None:
        return
    if again is not None:
        fresh = again()
        same = difference(first, Player(fresh, report).play(num_steps)) is None
        fresh.close()
        if same:
            report.error("deterministic", _NOT_RESET.format(name=report.name, seed=SEED, other=other))
            return
    report.error("deterministic", _NOT_SEEDED.format(name=report.name, seed=SEED, other=other))


def _check_state(env: gym.Env, report: EnvReport) -> None:
    """If the environment can save itself: go on twice from one saved state with the same actions, and compare."""
    part = stateful_part(env)
    if part is None:
        return
    player = Player(part, EnvReport(report.name))
    try:
        _, here = player.go_on(player.reset(SEED), 2)
        state = part.get_state()
        first, _ = player.go_on(here, _STATE_STEPS)
        part.set_state(state)
        second, _ = player.go_on(here, _STATE_STEPS)
    except BrokenEnvError as error:
        raise report.stop("state", f"after set_state(get_state()), {error}") from error
    except Exception as error:
        report.error("state", f"get_state or set_state raised {type(error).__name__}: {error}")
        return
    other = difference(first, second)
    if other is not None:
        text = (
            f"set_state(get_state()) does not bring {report.name} back: with the same actions {other}. The state must hold "
            "everything, the generator self.np_random included, and share no memory with the environment"
        )
        report.error("state", text)


def _check_tasks(env: gym.Env, report: EnvReport) -> None:
    """If the environment declares tasks: it must play other episodes when it is told other ones, and the same for the same."""
    try:
        space = task_space_of(env, report.name)
    except DataError as error:
        raise report.stop("tasks", str(error)) from error
    if space is None:
        return
    low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
    played = []
    for task in (low, high, low):
        played.append(Player(env, report, task=task).play(_TASK_STEPS))
    if (other := difference(played[0], played[2])) is not None:
        text = f"{report.name} is told the same task twice, with the same seed and actions, but {other}"
        report.error("tasks", f"{text}; what reset(options) sets must not depend on the episodes before")
    if difference(played[0], played[1]) is None:
        text = (
            f"{report.name} ignores its tasks: with the same seed and actions, the lowest and the highest task of task_space "
            f"play the same {_TASK_STEPS} steps. Read options['task'] in reset(self, *, seed=None, options=None), or take "
            "task_space away"
        )
        report.error("tasks", text)


def _play_on(env: gym.Env, report: EnvReport, num_steps: int) -> None:
    """Play until a few episodes have ended, each under a seed of its own."""
    player = Player(env, report, record=False)
    player.play(num_steps, seed=SEED + 1, same_seed=False, until=lambda: len(player.episodes) >= _EPISODES)
    ends = player.episodes
    if not report.num_episodes and not _time_limit(env):
        text = (
            f"no episode ended within {report.num_steps} random steps. If none ever does, there are no returns to report: set "
            "truncated=True after a number of steps, or wrap it in gymnasium.wrappers.TimeLimit"
        )
        report.warn("endless", text)
    if len(ends) >= 3 and all(e.terminated for e in ends) and {e.length for e in ends} == {ends[0].length} != {1}:
        text = (
            f"{len(ends)} of {len(ends)} episodes ended as terminated after exactly {ends[0].length} steps. If that is a time "
            "limit, say truncated=True instead: terminated tells the critic that nothing comes after"
        )
        report.hint("limit", text)


def _time_limit(env: gym.Env) -> bool:
    """Whether a Gymnasium wrapper truncates long episodes."""
    from gymnasium import Wrapper
    from gymnasium.wrappers import TimeLimit

    while isinstance(env, Wrapper):
        if isinstance(env, TimeLimit):
            return True
        env = env.env
    return False


def _check_outside(env: gym.Env, report: EnvReport) -> None:
    """Play one action outside the space, as the last step: it should raise. Boxes are left out, because many clip."""
    from gymnasium import spaces

    space = env.action_space
    if isinstance(space, spaces.Discrete):
        beyond: Action = np.int64(int(space.start) + int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        beyond = (space.start + space.nvec).astype(space.dtype)
    else:
        return
    env.reset(seed=SEED)
    try:
        env.step(beyond)
    except Exception:  # any error will do
        return
    text = f"step accepted the action {beyond} in silence, outside of {space}; raise, so that a mistake elsewhere shows"
    report.hint("outside", text)
