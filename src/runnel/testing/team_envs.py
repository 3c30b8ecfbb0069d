"""The contract check for environments of several agents: tells the author what is wrong before a run fails on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from runnel.core.errors import ConfigError, RunnelError
from runnel.core.spaces import TeamSpec
from runnel.core.user_code import summary
from runnel.envs.rewind import Stateful
from runnel.envs.spaces import env_spec
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.turns import TakesTurns
from runnel.testing.env_play import SEED, difference
from runnel.testing.env_report import BrokenEnvError, EnvReport
from runnel.testing.env_values import check_layout
from runnel.testing.pettingzoo_tests import run_pettingzoo_tests
from runnel.testing.team_play import TeamPlayer, check_names

Make = Callable[[], Any]
_EPISODES = 5
_LONG_PLAY_S = 5.0
_STATE_STEPS = 16
_THEIR_STEPS = 200
_NOT_SEEDED = (
    "{name} is not deterministic under a seed: after reset(seed={seed}) and the same actions, {other}; draw all randomness "
    "from the seed of reset, and set back every attribute there. A run on it cannot be resumed exactly"
)
_NOT_RESET = (
    "{name} is not deterministic under a seed once it was played: a fresh one repeats what this one did, but after another "
    "reset(seed={seed}) and the same actions, {other}; set back every attribute in reset. A run on it cannot be resumed exactly"
)
_WAITS = (
    "PettingZoo's parallel_api_test was not run: agent {agent!r} waits (it is not in `agents` and has not ended), which runnel "
    "plays and that test does not know"
)


def check_team_env(target: Make | Any, name: str, *, num_steps: int = 64, max_steps: int = 2000) -> EnvReport:
    """Check an environment of several agents: an instance, or what makes one. As `check_env`, which calls this."""
    report = EnvReport(name)
    make: Make | None = target if callable(target) else None
    with suppress(BrokenEnvError):  # the report has what is wrong
        env = target if make is None else _made(make, report)
        spec = _spec(env, report)
        seconds, player = _play(env, spec, make, report, num_steps)
        _check_state(env, spec, report)
        _play_on(player, report, min(max_steps, int(_LONG_PLAY_S / max(seconds, 1e-9))))
        if player.waits and not isinstance(env, TakesTurns):
            report.hint("pettingzoo", _WAITS.format(agent=player.waits))
        elif not report:  # else it says the same once more, in other words
            masked = any(agent.has_mask for agent in spec.agents.values())
            steps = max(1, min(_THEIR_STEPS, int(_LONG_PLAY_S / max(seconds, 1e-9))))
            turns, again = isinstance(env, TakesTurns), env if make is None else make()
            run_pettingzoo_tests(make, again, report, turns=turns, masked=masked, num_steps=steps)
    return report


def _made(make: Make, report: EnvReport) -> Any:
    try:
        return make()
    except ConfigError:
        raise
    except RunnelError as error:
        raise report.stop("make", str(error)) from error


def _spec(env: Any, report: EnvReport) -> TeamSpec:
    """The spec of each agent; what cannot be read is told by agent."""
    try:
        team = ParallelEnv(env, report.name)
    except RunnelError as error:
        raise report.stop("api", str(error)) from error
    if strange := [agent for agent in team.agents if not isinstance(agent, str)]:
        kind = type(strange[0]).__name__
        raise report.stop("agents", f"agent ids are texts, and {strange[0]!r} is a {kind}; write 'agent_0'")
    if not team.agents or len(set(team.agents)) < len(team.agents):
        raise report.stop("agents", f"`possible_agents` is {list(team.agents)}; name each agent once, and at least one")
    for agent in team.agents:
        try:
            env_spec(team.env.observation_space(agent), team.env.action_space(agent))
        except RunnelError as error:
            raise report.stop("spaces", f"agent {agent!r}: {error}") from error
        check_layout(team.env.observation_space(agent), "the observation", report)
    try:
        return team.spec()
    except RunnelError as error:
        check_names(env, team.agents, report)
        raise report.stop("spec", str(error)) from error


def _play(env: Any, spec: TeamSpec, make: Make | None, report: EnvReport, num_steps: int) -> tuple[float, TeamPlayer]:
    """Play the same seed and actions twice, and once more in another instance. The seconds of a step, and the player."""
    player, start = TeamPlayer(env, spec, report), time.perf_counter()
    first = player.play(num_steps, seed=SEED)
    seconds = (time.perf_counter() - start) / max(num_steps, 1)
    again = difference(first, TeamPlayer(env, spec, report).play(num_steps, seed=SEED))
    fresh = again if make is None else difference(first, _fresh(make, spec, report).play(num_steps, seed=SEED))
    if (other := fresh or again) is not None:
        text = _NOT_SEEDED if fresh is not None else _NOT_RESET
        report.error("deterministic", text.format(name=report.name, seed=SEED, other=other))
    return seconds, player


def _fresh(make: Make, spec: TeamSpec, report: EnvReport) -> TeamPlayer:
    """A player of another instance, which must have the same agents and spaces."""
    env = _made(make, report)
    if (found := _spec(env, report)) != spec:
        text = f"two instances differ in their agents or spaces: {_unlike(spec, found)}; make all instances alike"
        raise report.stop("instances", text)
    return TeamPlayer(env, spec, report)


def _unlike(first: TeamSpec, second: TeamSpec) -> str:
    if list(first.agents) != list(second.agents):
        return f"{list(first.agents)} and {list(second.agents)}"
    agent = next(agent for agent in first.agents if first.agents[agent] != second.agents[agent])
    return f"agent {agent!r} has {first.agents[agent]} in one and {second.agents[agent]} in the other"


def _check_state(env: Any, spec: TeamSpec, report: EnvReport) -> None:
    """If the environment can save itself: go on twice from one saved state with the same actions, and compare."""
    if not isinstance(env, Stateful):
        return
    player = TeamPlayer(env, spec, EnvReport(report.name))
    try:
        _, here = player.go_on(player.reset(SEED), 2)
        state, acted, ended, steps = env.get_state(), set(player.env.acted), set(player.env.ended), player.env.steps
        first, _ = player.go_on(here, _STATE_STEPS)
        player.env.env.set_state(state)
        player.env.went_on(acted, ended, steps=steps)
        second, _ = player.go_on(here, _STATE_STEPS)
    except BrokenEnvError as error:
        raise report.stop("state", f"after set_state(get_state()), {error}") from error
    except Exception as error:
        report.error("state", f"get_state or set_state raised {summary(error)}")
        return
    if (other := difference(first, second)) is not None:
        fix = "the state must hold everything, generators included, and share no memory with the environment"
        report.error("state", f"set_state(get_state()) does not bring {report.name} back: with the same actions {other}; {fix}")


def _play_on(player: TeamPlayer, report: EnvReport, num_steps: int) -> None:
    """Play until a few episodes have ended, each under a seed of its own."""
    before = report.num_episodes
    player.play(num_steps, seed=SEED + 1, same_seed=False, until=lambda: report.num_episodes - before >= _EPISODES)
    if not report.num_episodes:
        text = f"no episode ended within {report.num_steps} random steps; truncate all agents after a number of steps"
        report.warn("endless", text)
