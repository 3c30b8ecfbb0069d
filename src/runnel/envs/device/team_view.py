"""One tensor world of several agents with PettingZoo's parallel API, to look at and to play in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.state import Array, State
from runnel.envs.device.base import Leaves
from runnel.envs.device.numpy_engine import columnwise, plain
from runnel.envs.device.team import TensorTeamEnv, in_numpy
from runnel.envs.spaces import MASK, ZERO_SUM, Action, Info, Obs

ByAgent = dict[str, Any]


class TeamView:
    """One world of `env`. `agents` are those that decide next; others wait, or have left (`docs/guides/teams.md`).

    Legal moves come in `infos[agent]["action_mask"]`. The global state, if there is one, is `state()`.
    """

    def __init__(self, env: TensorTeamEnv) -> None:
        from gymnasium import spaces

        self.world, self._env = env, in_numpy(env)
        self.metadata = {"name": "tensor_team", "render_modes": [], ZERO_SUM: env.spec.zero_sum}
        self.possible_agents = list(env.spec.agents)
        self.agents: list[str] = []
        self._places = _places(env)
        self._spaces = {agent: (_space(spec), _actions(spec)) for agent, spec in env.spec.agents.items()}
        self._generator = torch.Generator()
        self._state: Leaves = {}
        self._gone: set[str] = set()
        self._length = 0
        if env.state_spec is not None:
            self.state_space: spaces.Space = _box(env.state_spec)
            self.state = lambda: self._env.global_state(self._state)[0]

    def observation_space(self, agent: str) -> Any:
        """The space of what an agent sees."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        """The space of what an agent does."""
        return self._spaces[agent][1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Obs], dict[str, Info]]:
        if seed is not None:
            self._generator.manual_seed(make_seed(seed, "tensor_env", 0))
        self._state = columnwise(self._env.initial(1, self._generator))
        self._gone, self._length = set(), 0
        self.agents = self._deciding()
        return self._seen(self.possible_agents)

    def step(self, actions: Mapping[str, Action]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """One step of the world. Rewards and ends are told of all agents that had not left before."""
        here = [agent for agent in self.possible_agents if agent not in self._gone]
        self._state, reward, ended = self._env.transition(self._state, self._joined(actions))
        self._length += 1
        over = {agent: bool(ended[0, i]) for i, agent in enumerate(self.possible_agents) if agent in here}
        cut = bool(self._env.max_steps) and self._length >= self._env.max_steps
        truncated = {agent: cut and not over[agent] for agent in here}
        self._gone |= {agent for agent in here if over[agent] or truncated[agent]}
        self.agents = self._deciding()
        obs, infos = self._seen(here)
        rewards = {agent: float(reward[0, self.possible_agents.index(agent)]) for agent in here}
        return obs, rewards, over, truncated, infos

    def _joined(self, actions: Mapping[str, Action]) -> list[Array]:
        """The actions of one step, by kind; those of agents that do not decide are zeros."""
        specs, found = self._env.spec, []
        for kind in specs.kinds:
            names = [self.possible_agents[i] for i in kind]
            action = specs.agents[names[0]].action
            raw = torch.zeros(1, len(kind), *action.shape, dtype=action.dtype).numpy()
            for i, agent in enumerate(names):
                if agent in actions:
                    raw[0, i] = actions[agent]
            found.append(raw)
        return found

    def _deciding(self) -> list[str]:
        active = self._env.active(self._state)
        names = self.possible_agents
        return [agent for i, agent in enumerate(names) if agent not in self._gone and (active is None or active[0, i])]

    def _seen(self, agents: list[str]) -> tuple[dict[str, Obs], dict[str, Info]]:
        seen, obs, infos = self._env.observe(self._state), {}, {}
        for agent in agents:
            kind, place = self._places[agent]
            leaves = {key: np.array(seen[kind][key][0, place]) for key in self._env.spec.agents[agent].obs}
            obs[agent] = leaves["obs"] if "obs" in leaves else {key.removeprefix("obs/"): x for key, x in leaves.items()}
            infos[agent] = self._info(agent, seen[kind], place)
        return obs, infos

    def _info(self, agent: str, leaves: Leaves, place: int) -> Info:
        if not self._env.spec.agents[agent].has_mask:
            return {}
        mask = np.array(leaves[MASK][0, place], np.int8)
        return {MASK: mask if agent in self.agents else np.ones_like(mask)}

    def get_state(self) -> State:
        """Everything, as plain data."""
        numbers = {"gone": sorted(self._gone), "agents": list(self.agents), "length": self._length}
        return {"state": plain(self._state), **numbers, "generator": self._generator.get_state()}

    def set_state(self, state: State) -> None:
        """Undo `get_state`."""
        self._state, self._gone, self._length = columnwise(state["state"]), set(state["gone"]), int(state["length"])
        self.agents = list(state["agents"])
        self._generator.set_state(torch.as_tensor(state["generator"]))

    def close(self) -> None:
        """Nothing is open."""


def _places(env: TensorTeamEnv) -> dict[str, tuple[int, int]]:
    """The kind of each agent, and its place among those of its kind."""
    names = list(env.spec.agents)
    return {names[i]: (k, place) for k, kind in enumerate(env.spec.kinds) for place, i in enumerate(kind)}


def _space(spec: EnvSpec) -> Any:
    from gymnasium import spaces

    if "obs" in spec.obs:
        return _box(spec.obs["obs"])
    return spaces.Dict([(key.removeprefix("obs/"), _box(leaf)) for key, leaf in spec.obs.items()])


def _box(leaf: ArraySpec) -> Any:
    from gymnasium import spaces

    if leaf.dtype == torch.uint8:
        return spaces.Box(0, 255, leaf.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)


def _actions(spec: EnvSpec) -> Any:
    from gymnasium import spaces

    action = spec.action
    if action.kind == "discrete":
        return spaces.Discrete(action.num_actions)
    if action.kind == "multi":
        return spaces.MultiDiscrete([part.num_actions for part in action.parts])
    low, high = (np.array(bound, np.float32).reshape(action.shape) for bound in (action.low, action.high))
    return spaces.Box(low, high)
