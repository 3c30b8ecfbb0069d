"""Environments with PettingZoo's parallel API, which is known by its methods: nothing of PettingZoo is imported.

An environment has `possible_agents`, `agents` (those that decide next), `observation_space(agent)`, `action_space(agent)`,
`reset(seed=, options=) -> observations, infos` and `step(actions) -> observations, rewards, terminations, truncations, infos`,
all of them by agent. An agent that is not in `agents` and has not ended waits. Environments in which one agent decides at a
time, with PettingZoo's AEC API, get these calls from `turns.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runnel.core.checks import reward_number
from runnel.core.errors import DataError
from runnel.core.spaces import TeamSpec
from runnel.core.user_code import frames
from runnel.core.worker import progressed
from runnel.envs.rewind import Stateful
from runnel.envs.spaces import MASK, ZERO_SUM, Action, Info, Obs, env_spec
from runnel.envs.team.turns import TakesTurns, TurnsEnv

NEEDED = ("possible_agents", "reset", "step", "observation_space", "action_space")


def has_agents(env: object) -> bool:
    """Whether `env` is an environment of several agents; wrappers of PettingZoo give its names on demand."""
    return hasattr(env, "possible_agents")


class ParallelEnv:
    """One environment with the calls that vectors and replays use: an observation is a dict by agent, and so is an action.

    It also knows who has decided and who has ended in the present episode.
    """

    def __init__(self, env: Any, name: str) -> None:
        if missing := [part for part in NEEDED if not hasattr(env, part)]:
            fix = "it must have PettingZoo's parallel API"
            raise DataError(f"environment {name!r} ({type(env).__name__}) has no {missing[0]}; {fix}")
        self.env, self.name = (TurnsEnv(env) if isinstance(env, TakesTurns) else env), name
        self.agents: tuple[str, ...] = tuple(env.possible_agents)
        self.acted: set[str] = set()
        self.ended: set[str] = set()
        self._gone: set[str] = set()
        """Those who have ended, and are not in `agents` any longer."""
        self.rewards: dict[str, float] = {}
        self.flags: dict[str, tuple[bool, bool]] = {}
        """Of agents whose last step this was: terminated, truncated."""
        self.steps = 0
        """Steps since the episode began."""
        if isinstance(env, Stateful):  # then `envs/rewind.py` saves and loads it as any other
            self.get_state, self.set_state = env.get_state, self.env.set_state

    @property
    def live(self) -> list[str]:
        """The agents that decide next."""
        now: list[str] = self.env.agents
        return [agent for agent in now if agent not in self.ended] if self.ended else list(now)

    def spec(self) -> TeamSpec:
        """The spec of each agent. It makes one reset, because only that shows whether masks come in `info`."""
        try:
            _, infos = self.reset(seed=0)
        except (Exception, SystemExit) as error:
            said = f"environment {self.name!r} raised {type(error).__name__} at its first reset: {error}"
            raise DataError(f"{said}{frames(error)}") from error
        spaces = {agent: (self.env.observation_space(agent), self.env.action_space(agent)) for agent in self.agents}
        specs = {agent: env_spec(*both, has_mask=MASK in infos.get(agent, {})) for agent, both in spaces.items()}
        metadata = getattr(self.env, "metadata", None)
        return TeamSpec(specs, zero_sum=isinstance(metadata, Mapping) and bool(metadata.get(ZERO_SUM, False)))

    def reset(self, *, seed: int) -> tuple[dict[str, Obs], dict[str, Info]]:
        found = self.env.reset(seed=seed)
        if not _are_dicts(found, 2):
            raise DataError("reset must return (observations, infos), two dicts by agent")
        self.went_on((), (), steps=0)
        obs, infos = found
        if not self.live:
            raise DataError("no agent decides after reset: `agents` is empty")
        self._check(obs)
        return dict(obs), dict(infos)

    def went_on(self, acted: Collection[str], ended: Collection[str], *, steps: int) -> None:
        """The environment is `steps` into its episode, where these agents have decided and ended."""
        self.steps = steps
        self.acted, self.ended, self._gone, self.flags, self.rewards = set(acted), set(ended), set(), {}, {}

    def step(self, actions: Mapping[str, Action]) -> tuple[dict[str, Obs], float, bool, bool, dict[str, Info]]:
        """One step of the agents that decide now; other actions are left out. The third result: whether no agent is left."""
        chosen = {agent: actions[agent] for agent in self.live}
        self.acted |= chosen.keys()
        self.steps += 1
        found = self.env.step(chosen)
        progressed()
        if not _are_dicts(found, 5):
            raise DataError("step must return five dicts by agent: observations, rewards, terminations, truncations, infos")
        obs, rewards, terminations, truncations, infos = found
        if self.ended:
            self._check_gone(rewards, terminations, truncations)
        self.rewards = {a: reward_number(r) for a, r in rewards.items() if a not in self.ended}
        over = {a: (bool(terminations.get(a)), bool(truncations.get(a))) for a in self.agents if a not in self.ended}
        ended = {a: flags for a, flags in over.items() if any(flags)}
        self.ended = self.ended | ended.keys()
        # where an agent ends that has not decided in this episode, there is nothing to end
        self.flags = {a: flags for a, flags in ended.items() if a in self.acted}
        self._check(obs)
        return dict(obs), 0.0, self._over(), False, dict(infos)

    def _over(self) -> bool:
        if self.live:
            return False
        if silent := sorted(self.acted - self.ended):
            raise DataError(f"no agent is left, but {_names(silent)} never got terminated or truncated; flag every agent's end")
        return True

    def _check_gone(self, *told: Mapping[str, Any]) -> None:
        """Refuse what a step gives to agents that had ended before it: it would be lost."""
        for what, part in zip(("rewards", "terminations", "truncations"), told, strict=True):
            if dead := [agent for agent in part if agent in self.ended]:
                fix = "that would be lost. Leave it out of all five dicts"
                raise DataError(f"gave {what} of {_names(dead)}, which had ended at an earlier step; {fix}")

    def _check(self, obs: Mapping[str, Obs]) -> None:
        """Refuse an agent that is to decide, or that just ended, without an observation, an agent that nobody knows, and one
        that is back after it has left."""
        for agent in self.env.agents:
            if agent not in self.agents:
                fix = "name all agents that may ever come in there, always in the same order"
                text = f"is in `agents`, but not in `possible_agents` ({_names(self.agents)})"
                raise DataError(f"agent {agent!r} {text}; {fix}")
            if agent in self._gone:
                fix = "an agent that has ended comes back with the next episode; give one that comes in later a name of its own"
                raise DataError(f"agent {agent!r} is in `agents` again after it has ended; {fix}")
        self._gone = self.ended.difference(self.env.agents) if self.ended else self.ended
        if blind := [agent for agent in (*self.live, *self.flags) if agent not in obs]:
            fix = "give one to each agent in `agents`, and to each that ends in this step"
            raise DataError(f"gave no observation of {_names(blind)}; {fix}")


def _are_dicts(found: object, number: int) -> bool:
    """Whether `found` is a tuple of so many dicts."""
    return isinstance(found, tuple) and len(found) == number and all(map(_is_dict, found))


def _is_dict(part: object) -> bool:
    return part.__class__ is dict or isinstance(part, Mapping)  # the abstract class is slow to ask


def _names(agents: Sequence[str]) -> str:
    return ", ".join(repr(agent) for agent in agents)
