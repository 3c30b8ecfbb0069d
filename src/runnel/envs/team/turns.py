"""Environments with PettingZoo's AEC API, in which one agent decides at a time, behind the calls of the parallel one.

An environment has `possible_agents`, `agents`, `agent_selection` (who decides next), `infos`, `reset(seed=)`, `step(action)`,
`last() -> observation, reward, terminated, truncated, info` of that agent, `observation_space(agent)` and
`action_space(agent)`. It is known by its methods: nothing of PettingZoo is imported.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from runnel.core.action_codec import flat_mask
from runnel.core.errors import DataError
from runnel.core.spaces import ActionSpec
from runnel.core.state import State
from runnel.core.worker import progressed
from runnel.envs.spaces import MASK, Action, Info, Obs, action_spec, mask_in_obs


@runtime_checkable
class TakesTurns(Protocol):
    """An environment in which one agent decides at a time."""

    def last(self, observe: bool = True) -> tuple[Obs, float, bool, bool, Info]: ...

    def observe(self, agent: str) -> Obs: ...


class Told(NamedTuple):
    """What a step of the parallel API returns, by agent."""

    obs: dict[str, Obs]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, Info]


class TurnsEnv:
    """`env` with the calls of the parallel API: a step is the decision of one agent, and all others wait.

    What an agent is paid while others decide is kept by the environment, and given to it at the step after which it decides
    again or ends, as `last()` says it. Agents that have ended take their leave (`step(None)`) in the step that ended them.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = getattr(env, "metadata", None) or {}
        self.possible_agents = tuple(env.possible_agents)
        self.agents: list[str] = []
        """The one that decides next; nobody once all have left. Kept, because wrappers of PettingZoo are slow to ask."""
        self._gone: set[str] = set()
        self._specs: dict[str, ActionSpec] = {}

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(agent)

    @property
    def state_space(self) -> Any:
        """The space of `state`, if the environment has one."""
        return self.env.state_space

    def state(self) -> Obs:
        """The global state, which critics may read."""
        return self.env.state()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Obs], dict[str, Info]]:
        """Infos are given of all agents, so that it shows who has masks: with one agent's in its info, all have them there."""
        self.env.reset(seed=seed)
        self._gone = set()
        told = self._go_on()
        shown = self.env.infos
        infos = {agent: dict(shown.get(agent, {})) for agent in self.possible_agents} | told.infos
        if any(MASK in info for info in infos.values()):
            for agent in self.possible_agents:
                if self._actions(agent).mask_size:
                    infos[agent].setdefault(MASK, None)
        return told.obs, infos

    def step(self, actions: Mapping[str, Action]) -> Told:
        """Play the action of the agent that decides."""
        (action,) = actions.values()
        self.env.step(action)
        return self._go_on()

    def _go_on(self) -> Told:
        """Let agents that have ended take their leave, until somebody decides or nobody is left."""
        told, self.agents = Told({}, {}, {}, {}, {}), []
        while self.env.agents:
            progressed()
            agent = self.env.agent_selection
            if agent in self._gone:
                fix = "an agent that has ended stays away until reset; give one that comes in later a name of its own"
                raise DataError(f"agent {agent!r} is to decide after it has ended; {fix}")
            obs, told.rewards[agent], told.terminations[agent], told.truncations[agent], info = self.env.last()
            if not (told.terminations[agent] or told.truncations[agent]):
                told.obs[agent], told.infos[agent], self.agents = obs, info, [agent]
                break
            # a copy: the environment goes on before anybody reads it
            told.obs[agent], told.infos[agent] = self._last_seen(agent, copy.deepcopy(obs), dict(info))
            self._leave(agent)
        return told

    def _leave(self, agent: str) -> None:
        self.env.step(None)
        self._gone.add(agent)
        if agent in self.env.agents:
            fix = "begin step with: if this agent has ended, return self._was_dead_step(action)"
            raise DataError(f"agent {agent!r} has ended, but step(None) did not take it out of `agents`; {fix}")

    def _last_seen(self, agent: str, obs: Obs, info: Info) -> tuple[Obs, Info]:
        """What an agent saw last. It decides nothing more: where its mask is closed, because it was not its turn, or is not
        given, it allows everything."""
        spec = self._actions(agent)
        shown = mask_in_obs(self.observation_space(agent))
        raw = obs[MASK] if shown else info.get(MASK)
        if not spec.mask_size or (raw is not None and flat_mask(raw, spec).any()):
            return obs, info
        everything = np.ones(spec.mask_size, np.int8)
        return ({**obs, MASK: everything}, info) if shown else (obs, {**info, MASK: everything})

    def _actions(self, agent: str) -> ActionSpec:
        if agent not in self._specs:
            self._specs[agent] = action_spec(self.action_space(agent))
        return self._specs[agent]

    def set_state(self, state: State) -> None:
        """Of a game that can save itself."""
        self.env.set_state(state)
        self._gone = set()
        self.agents = [self.env.agent_selection] if self.env.agents else []

    def close(self) -> None:
        self.env.close()
