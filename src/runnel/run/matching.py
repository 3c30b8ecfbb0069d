"""`rl.match`: players meet in an environment of several agents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from runnel.core.contracts.evaluation import AgentRoute, Progress, SampleRoute
from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.core.spaces import TeamSpec
from runnel.envs.registry import Target, is_tensor_env
from runnel.eval.matches import Match, Rules, play_match, seats_of
from runnel.graphs.team_config import TeamConfig
from runnel.graphs.team_task import EVAL_ENVS, TeamTask
from runnel.graphs.user_objects import live_objects, name_objects
from runnel.run import api
from runnel.run.players import Named, find_player, is_player

TENSOR_ENVS = 256


def match(
    players: Sequence[object] | Mapping[str, object],
    env: Target | None = None,
    *,
    episodes: int = 100,
    seed: int = 0,
    seats: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    greedy: bool = False,
    openings: int = 0,
    cross_play: bool | None = None,
    duplicate: bool | None = None,
    max_steps: int = 27_000,
    num_envs: int = 0,
    best: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Match:
    """Let every two of `players` play `episodes` episodes in each way in which they can sit, and return the `Match`.

    A player is a run or its folder, `run:FOLDER@WHICH#POLICY`, a policy that `rl.load` gave, `"random"`, or a function
    `play(agent, obs, mask, rng)` (as an object, or `module:function`); a mapping gives names. `env` may be left out where all
    runs were trained on one. `seats`: a pattern of agents for each seat; without, see `rl.eval.seats_of`. Policies draw their
    actions as in training; `greedy` takes the most probable ones, and the first `openings` steps of each episode are random.
    `cross_play`: players are partners, the mean return of all agents counts, and each also plays with itself (None: where all
    seats always get the same). `duplicate`: a win is that of a round, which is one seed in all seatings (None: where seats
    differ in their agents). `num_envs` environments step together (0: up to 16, of tensor environments 256).
    """
    for field, value, least in (
        ("episodes", episodes, 1),
        ("seed", seed, 0),
        ("openings", openings, 0),
        ("num_envs", num_envs, 0),
    ):
        if value < least:
            raise ConfigError(field, value, f"use {least} or more")
    if max_steps < 1:
        raise ConfigError("max_steps", max_steps, "use at least 1")
    named = _named(players)
    if len(named) < (1 if cross_play else 2):
        raise ConfigError("players", list(named), "a match needs two players; one alone plays with itself in cross_play")
    found = [find_player(given, name, best=best, greedy=greedy, trust=trust) for name, given in named.items()]
    target, options = _agreed(found, env, kwargs)
    settings, objects = name_objects({"env": target, "env_kwargs": options})
    width = num_envs or min(episodes, TENSOR_ENVS if is_tensor_env(target) else EVAL_ENVS)
    with live_objects(objects, "inproc"):
        config = TeamConfig(total_updates=1, env=str(settings["env"]), env_kwargs=dict(settings["env_kwargs"]))
        task = TeamTask(config, routes=_each)
        sat = seats_of(list(task.spec.agents), seats)
        vector = task.vector(width, seed=make_seed(seed, "match"), acting=True)
        try:
            rules = Rules(episodes, seed, max_steps, openings)
            playing = [one.player for one in found]
            judged = {"cross_play": cross_play, "duplicate": duplicate}
            played = play_match(task.name, playing, sat, vector, rules, **judged, progress=progress)
            versions = {one.player.name: one.version for one in found if one.version is not None}
            return replace(played, versions=versions)
        finally:
            vector.close()


def _each(spec: TeamSpec) -> list[AgentRoute]:
    """A policy for each agent: who plays it changes from seating to seating."""
    return [AgentRoute(re.escape(agent), f"agent-{i}", (SampleRoute(f"agent-{i}"),)) for i, agent in enumerate(spec.agents)]


def _named(players: Sequence[object] | Mapping[str, object]) -> dict[str, object]:
    """The players by name."""
    if isinstance(players, Mapping):
        return {str(name): _path_of(given) for name, given in players.items()}
    if isinstance(players, str | Path):
        raise ConfigError("players", str(players), "give a list of players")
    given = [_path_of(one) for one in players]
    names = names_of(given)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError("players", twice, "stands twice among the players; give each a name: {'a': ..., 'b': ...}")
    return dict(zip(names, given, strict=True))


def _path_of(given: object) -> object:
    return given.path if isinstance(given, api.Run) else given


def names_of(players: Sequence[object]) -> list[str]:
    """Short names of players: of paths as many of their last parts as tell all of them apart.

    >>> names_of(["runs/a/seed-1", "runs/b/seed-1", "random", "run:runs/c@3"])
    ['a/seed-1', 'b/seed-1', 'random', 'runs/c@3']
    """
    texts = [_text(one) for one in players]
    names = texts
    for parts in range(1, 1 + max((len(PurePath(text).parts) for text in texts), default=0)):
        names = ["/".join(PurePath(text).parts[-parts:]) for text in texts]
        if len(set(names)) == len(set(texts)):
            break
    return names


def _text(given: object) -> str:
    if isinstance(given, str | Path):
        return str(given).removeprefix("run:").rstrip("/")
    return given.name if is_player(given) else str(getattr(given, "__name__", type(given).__name__))


def _agreed(found: Sequence[Named], env: Target | None, kwargs: Mapping[str, Any] | None) -> tuple[Target, Mapping[str, Any]]:
    """What is played: what was asked for, or what the runs of all players were trained on."""
    if env is not None:
        return env, dict(kwargs or {})
    tasks = {json.dumps(one.task, default=str, sort_keys=True): one for one in found if one.task is not None}
    if not tasks:
        raise ConfigError("env", None, "none of these players comes from a run; name what they play with --env (env=...)")
    if len(tasks) > 1:
        first, second = list(tasks.values())[:2]
        played = f"{first.player.name} was trained on {first.task}, and {second.player.name} on {second.task}"
        raise ConfigError("env", None, f"{played}; name one with --env (env=...)")
    (task,) = (one.task for one in tasks.values())
    assert task is not None
    return task[0], dict(task[1] if kwargs is None else kwargs)
