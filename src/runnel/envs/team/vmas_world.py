"""Scenarios of VMAS by name (`vmas:balance`), and one world of them with PettingZoo's parallel API.

Training steps thousands of worlds at once (`vmas.py`). One world is for what looks at an environment: its spaces, checks, and
playing a policy by hand.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from runnel.core.errors import ConfigError
from runnel.envs.spaces import Action, Info, Obs

PREFIX = "vmas:"
MAX_STEPS = 100
"""Steps after which an episode is truncated, unless `max_steps` says otherwise. VMAS itself would never end most scenarios."""
_OURS = ("num_envs", "seed", "wrapper", "wrapper_kwargs", "dict_spaces", "terminated_truncated", "grad_enabled")
"""Arguments of `vmas.make_env` that are given here."""
RandomState = list[Any]
"""States of the three generators that VMAS uses: torch's, numpy's and Python's."""


def vmas_factory(target: str) -> Callable[..., VmasWorld]:
    """What makes one world of the scenario that `target` names."""
    return partial(VmasWorld, target)


def make_worlds(target: str, num_envs: int, options: dict[str, Any]) -> Any:
    """The simulator of `num_envs` worlds of a scenario, whose `options` are those of `vmas.make_env` and the scenario."""
    try:
        import vmas
    except ModuleNotFoundError as error:
        raise ConfigError("env", target, f'needs the package {error.name}: pip install "runnel[vmas]"') from error
    name, known = target.removeprefix(PREFIX), [*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or vmas.scenarios
        raise ConfigError("env", target, f"VMAS has no scenario {name!r}; it has {', '.join(close)}")
    if own := [option for option in options if option in _OURS]:
        raise ConfigError("env_kwargs", own[0], "runnel sets it itself; leave it out (num_envs and seed are settings of a run)")
    _check(options)
    with own_stream(), warnings.catch_warnings():
        # a warning of VMAS, where runnel refuses what nothing would read
        warnings.filterwarnings("error", message="Scenario kwargs", category=UserWarning)
        try:
            return vmas.make_env(name, num_envs=num_envs, terminated_truncated=True, **{"max_steps": MAX_STEPS, **options})
        except UserWarning as warning:
            raise ConfigError(
                "env_kwargs", options, f"scenario {name!r} does not read all of them; VMAS says: {warning}"
            ) from None


def _check(options: dict[str, Any]) -> None:
    """Refuse options of VMAS that it would take for something else."""
    max_steps, continuous = options.get("max_steps"), options.get("continuous_actions", True)
    if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
        raise ConfigError("env_kwargs.max_steps", max_steps, "use at least one step, or null for episodes without a limit")
    if not isinstance(continuous, bool):
        raise ConfigError("env_kwargs.continuous_actions", continuous, "use true or false")


@contextmanager
def own_stream(state: RandomState | None = None) -> Iterator[None]:
    """What VMAS draws meanwhile comes from `state`, which goes on with it (None: from a throw-away copy).

    All environments of VMAS in a process share one stream, so what one draws would depend on what others did before.
    """
    from vmas.simulator.environment import Environment

    shared, before = Environment.vmas_random_state, list(Environment.vmas_random_state)
    if state is not None:
        shared[:] = state
    try:
        yield
        if state is not None:
            state[:] = shared
    finally:
        shared[:] = before


def gym_space(space: Any) -> spaces.Space:
    """A space of Gym, which VMAS uses, as one of Gymnasium."""
    kind = type(space).__name__
    if kind == "Dict":
        return spaces.Dict({name: gym_space(inner) for name, inner in space.spaces.items()})
    if kind == "Box":
        return spaces.Box(
            np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape), space.shape, space.dtype
        )
    return spaces.Discrete(int(space.n)) if kind == "Discrete" else spaces.MultiDiscrete(space.nvec)


class VmasWorld(ParallelEnv):  # type: ignore[misc]
    """One world of a scenario. `options` are those of `vmas.make_env` and of the scenario."""

    def __init__(self, target: str, **options: Any) -> None:
        self.worlds = make_worlds(target, 1, options)
        self.metadata = {"name": target.removeprefix(PREFIX), "render_modes": []}
        self.possible_agents = [agent.name for agent in self.worlds.agents]
        seen, choices = self.worlds.observation_space, self.worlds.action_space
        self.observation_spaces = {a: gym_space(space) for a, space in zip(self.possible_agents, seen, strict=True)}
        self.action_spaces = {a: gym_space(space) for a, space in zip(self.possible_agents, choices, strict=True)}
        self.agents: list[str] = []
        self._random: RandomState | None = None

    def observation_space(self, agent: str) -> spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Obs], dict[str, Info]]:
        if self._random is None or seed is not None:
            self._random = seeded(seed or 0)
        with own_stream(self._random):
            obs = self.worlds.reset()
        self.agents = list(self.possible_agents)
        return self._by_agent(obs), {agent: {} for agent in self.agents}

    def _by_agent(self, values: Any) -> dict[str, Obs]:
        return {agent: _first(value) for agent, value in zip(self.possible_agents, values, strict=True)}

    def step(self, actions: dict[str, Action]) -> tuple[dict[str, Any], ...]:
        rows = [torch.as_tensor(np.asarray(actions[agent])).reshape(1, -1) for agent in self.possible_agents]
        with own_stream(self._random):
            obs, rewards, terminated, truncated, _ = self.worlds.step(rows)
        ended, cut = bool(terminated[0]), bool(truncated[0]) and not bool(terminated[0])
        everybody = self.possible_agents
        self.agents = [] if ended or cut else list(everybody)
        paid = {agent: float(reward) for agent, reward in zip(everybody, rewards, strict=True)}
        ends, cuts = dict.fromkeys(everybody, ended), dict.fromkeys(everybody, cut)
        return self._by_agent(obs), paid, ends, cuts, {agent: {} for agent in everybody}

    def close(self) -> None:
        """Nothing is open."""


def seeded(seed: int) -> RandomState:
    """Generators of VMAS that begin at `seed`; those of this process stay as they are."""
    import random

    state = np.random.RandomState(seed).get_state()
    return [torch.Generator().manual_seed(seed).get_state(), state, random.Random(seed).getstate()]


def _first(value: Any) -> Obs:
    """What the first of many worlds shows."""
    if isinstance(value, dict):
        return {name: _first(inner) for name, inner in value.items()}
    found: Obs = value[0].numpy(force=True)
    return found
