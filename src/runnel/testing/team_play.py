"""Plays an environment of several agents for its check: guards every call, looks at every value, and records the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runnel.core.action_codec import env_action, read_mask
from runnel.core.errors import DataError, RunnelError
from runnel.core.spaces import TeamSpec
from runnel.core.user_code import summary
from runnel.envs.spaces import MASK, Action, Info, Obs, mask_in_obs
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.turns import TakesTurns
from runnel.testing.env_play import SEED, History, digest, random_action
from runnel.testing.env_report import EnvReport
from runnel.testing.env_values import check_outcome, check_size, check_value

Shown = tuple[dict[str, Obs], dict[str, Info]]
"""Observations and infos by agent."""
PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


class Watched:
    """`env`, and what its last step returned, before anybody has read it."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.told: tuple[Mapping[str, Any], ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, actions: Mapping[str, Action]) -> tuple[Mapping[str, Any], ...]:
        self.told = self.env.step(actions)
        return self.told


def check_names(env: Any, before: tuple[str, ...], report: EnvReport) -> None:
    """All agents of `env` must be those that were named `before`."""
    if (now := tuple(env.possible_agents)) != before:
        text = f"`possible_agents` was {list(before)} and is {list(now)} after a reset"
        fix = "name all agents that may ever come in there, always in the same order"
        raise report.stop("agents", f"{text}; {fix}")


class TeamPlayer:
    """Plays `env` with random legal actions, and adds findings to `report`. `spec` is that of its agents."""

    def __init__(self, env: Any, spec: TeamSpec, report: EnvReport) -> None:
        self._watched = None if isinstance(env, TakesTurns) else Watched(env)
        self.env, self.report, self._spec = ParallelEnv(self._watched or env, report.name), report, spec
        self._raw = env
        self._spaces = {a: (env.observation_space(a), env.action_space(a)) for a in self.env.agents}
        self.history: list[History] = []
        self.waits = ""
        """An agent that waited without having ended; empty if there was none."""

    def play(
        self, num_steps: int, *, seed: int, same_seed: bool = True, until: Callable[[], bool] = lambda: False
    ) -> list[History]:
        """Play `num_steps` steps from a reset on, as `Player.play`."""
        rng = self._begin(seed)
        obs, infos = self.reset(seed)
        for _ in range(num_steps):
            obs, infos, over = self._step({agent: self._action(agent, obs, infos, rng) for agent in self.env.live})
            if over:
                self.report.num_episodes += 1
                seed += not same_seed
                obs, infos = self.reset(seed)
                if until():
                    break
        return self.history

    def go_on(self, start: Shown, num_steps: int) -> tuple[list[History], Shown]:
        """Go on from `start`, the present state, until an episode ends. The actions depend on `SEED` only."""
        rng, over = self._begin(SEED), False
        obs, infos = start
        for _ in range(num_steps):
            if not over and self.env.live:
                obs, infos, over = self._step({agent: self._action(agent, obs, infos, rng) for agent in self.env.live})
        return self.history, (obs, infos)

    def _begin(self, seed: int) -> np.random.Generator:
        """Forget the history; what draws the actions."""
        self.history = []
        for i, (_, actions) in enumerate(self._spaces.values()):
            actions.seed(seed + i)
        return np.random.default_rng(seed)

    def reset(self, seed: int) -> Shown:
        """Reset, and look at what comes."""
        obs, infos = self._called("reset(seed=...)", lambda: self.env.reset(seed=seed))
        check_names(self._raw, self.env.agents, self.report)
        self._look(obs)
        self.history.append({"first observation": digest(obs)})
        return obs, infos

    def _step(self, actions: dict[str, Action]) -> tuple[dict[str, Obs], dict[str, Info], bool]:
        self.report.num_steps += 1
        ended = set(self.env.ended)
        obs, _, over, _, infos = self._called("step", lambda: self.env.step(actions))
        if self._watched is not None:
            self._check_told(self._watched.told, actions, ended)
        if not over:
            silent = actions.keys() - set(self.env.live) - self.env.ended
            self.waits = self.waits or min(silent, default="")
        self._look(obs)
        self.history.append({"observation": digest(obs), "reward": digest(self.env.rewards), "end": sorted(self.env.ended)})
        return obs, infos, over

    def _called(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RunnelError as error:
            check_names(self._raw, self.env.agents, self.report)
            raise self.report.stop("contract", f"{self.report.name}: {what}: {error}") from error
        except (Exception, SystemExit) as error:
            raise self.report.stop("raised", f"{what} raised {summary(error)}") from error

    def _check_told(self, told: tuple[Mapping[str, Any], ...], actions: Mapping[str, Action], ended: set[str]) -> None:
        """Look at the five dicts of a step by `actions`; `ended` are those who had ended before it."""
        for name, part in zip(PARTS, told, strict=True):
            if dead := sorted(ended & part.keys()):
                text = f"step gave {name} of {dead[0]!r}, which had ended at an earlier step; what an agent gets then is lost"
                self.report.error(f"{name} dead", f"{text}. Leave it out of all five dicts once it has ended")
        for agent in actions:
            if lacks := [name for name, part in zip(PARTS[1:4], told[1:4], strict=True) if agent not in part]:
                text = f"step gave no {' and no '.join(lacks)} of {agent!r}, which decided in it; that counts as 0 or False"
                self.report.warn("lack", f"{text}. Give all five dicts an entry for every agent that decides")
        _, rewards, terminations, truncations, _ = told
        for agent in actions:
            check_outcome(rewards.get(agent, 0.0), terminations.get(agent, False), truncations.get(agent, False), self.report)

    def _look(self, obs: Mapping[str, Obs]) -> None:
        for agent in (*self.env.live, *self.env.flags):
            space = self._spaces[agent][0]
            check_value(space, obs[agent], f"the observation of {agent!r}", self.report)
            check_size(space, obs[agent], self.report)

    def _action(self, agent: str, obs: Mapping[str, Obs], infos: Mapping[str, Info], rng: np.random.Generator) -> Action:
        """A random action, one that the mask allows if there is a mask."""
        (seen, actions), spec, info = self._spaces[agent], self._spec.agents[agent], infos.get(agent, {})
        shown = mask_in_obs(seen)
        raw = obs[agent].get(MASK) if shown else info.get(MASK)
        if (raw is not None) != spec.has_mask:
            when = "none later" if spec.has_mask else "none at its first reset"
            text = f"action_mask of {agent!r} comes sometimes: the environment gave {when}. Put one into every info"
            raise self.report.stop("mask", text)
        if raw is None:
            return actions.sample()
        try:
            mask = read_mask(raw, spec.action)
        except (DataError, TypeError, ValueError, LookupError) as error:
            raise self.report.stop("mask", f"{self.report.name}: agent {agent!r}: {error}") from error
        return env_action(spec.action)(random_action(spec.action, mask, rng))
