"""Worlds of VMAS (Bettini et al. 2022, arXiv:2207.03530), stepped all at once: no world ever passes through a list.

VMAS cannot save a world. So a snapshot has the actions since the oldest open episode began, with the resets between them and
what the generators held then. A resume plays them once more, and compares what it sees with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError, RunnelError
from runnel.core.rng import make_seed
from runnel.core.routes import Side
from runnel.core.spaces import ActionSpec
from runnel.core.state import Array, State
from runnel.core.trajectories import AGENT, CLOCK
from runnel.core.user_code import frames, summary
from runnel.core.worker import progressed
from runnel.envs.spaces import ObsLeaf, obs_leaves
from runnel.envs.team.base import RowMemory, TeamBase, team_out
from runnel.envs.team.global_state import SEEN, has_shared
from runnel.envs.team.vmas_world import RandomState, gym_space, make_worlds, own_stream, seeded
from runnel.envs.vector.contract import Episode

Actions = Mapping[str, Array]
"""Network actions of each policy."""
_PRUNE_AT = 256


@dataclass
class _Past:
    """A step, and the worlds that began anew behind it, so that both can be done again."""

    actions: Actions | None
    """None at the first reset, which no step led to."""
    begun: list[int]
    random: RandomState | None
    """What the generators held before these worlds began; None where none did."""


class VmasTeam(TeamBase):
    """A `TeamVector` of `num_envs` worlds of the scenario `target`, whose agents follow `sides`.

    All agents of a world begin and end together. `seed` and `index0` give the one stream that all draws of these worlds come
    from, so an episode cannot be repeated without the others.
    """

    def __init__(
        self,
        target: str,
        num_envs: int,
        *,
        sides: Mapping[str, Side],
        seed: int,
        index0: int = 0,
        name: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._worlds = make_worlds(target, num_envs, dict(options or {}))
        self._rows = {policy: RowMemory(side, team_out(side, num_envs)) for policy, side in sides.items()}
        super().__init__(self._rows, num_envs, seed=seed, index0=index0, name=name or target)
        places = {agent.name: i for i, agent in enumerate(self._worlds.agents)}
        self._columns = {policy: [places[agent] for agent in side.agents] for policy, side in sides.items()}
        """The places of each policy's agents in what VMAS gives."""
        self._leaves = [obs_leaves(gym_space(space)) for space in self._worlds.observation_space]
        self._to_env = {policy: _simulator_action(side.spec.action) for policy, side in sides.items()}
        self._shared = [policy for policy, side in sides.items() if has_shared(side.spec)]
        for policy in self._shared:
            self._mark(policy)
        self._totals = {policy: torch.zeros(num_envs, len(side.agents), dtype=torch.float64) for policy, side in sides.items()}
        self._starts = np.zeros(num_envs, np.int64)
        self._past: list[_Past] = []
        self._prune_at = _PRUNE_AT
        self._random = seeded(0)

    def _mark(self, policy: str) -> None:
        """Write which agent of its policy each row is; that never changes."""
        out, width = self.outs[policy], len(self.sides[policy].agents)
        for rows in (out.obs[AGENT], out.final_obs[AGENT]):
            rows.view(self.num_envs, width, width).copy_(torch.eye(width))

    # ------------------------------------------------------------------------------------------------------------ steps
    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended, self._past = 0, [], []
        self._random = seeded(make_seed(self._seed, "vmas", self.index0))
        for totals in self._totals.values():
            totals.zero_()
        self._starts.fill(0)
        self._clear()
        for rows in self._rows.values():
            rows.now.active.fill(True)
        self._show(self._begin(list(range(self.num_envs)), None))

    def _begin(self, worlds: list[int], actions: Actions | None) -> list[Any]:
        """Begin episodes of these worlds, behind the step of `actions`; what the agents of all worlds see then."""
        self._past.append(_Past(actions, worlds, list(self._random)))
        with own_stream(self._random):
            if len(worlds) == self.num_envs:
                everything: list[Any] = self._worlds.reset()
                return everything
            for world in worlds:
                self._worlds.reset_at(world, return_observations=False)
            (obs,) = self._worlds.get_from_scenario(get_observations=True, get_rewards=False, get_infos=False, get_dones=False)
        progressed()
        found: list[Any] = obs
        return found

    def send(self, actions: Mapping[str, Tensor]) -> None:
        raw = {policy: actions[policy].cpu().numpy() for policy in self._rows}
        for policy, rows in self._rows.items():
            rows.check_actions(raw[policy])
            rows.clear()
        self._clock += 1
        obs, rewards, terminated, truncated = self._play(raw)
        self._pay(rewards)
        ended: list[int] = np.flatnonzero(terminated | truncated).tolist()
        done = {policy: x.copy() for policy, x in raw.items()}
        if ended:
            self._end(ended, obs, terminated, truncated)
            obs = self._begin(ended, done)
        else:
            self._past.append(_Past(done, [], None))
        self._show(obs)
        self._prune()

    def _play(self, raw: Actions) -> tuple[list[Any], list[Tensor], Array, Array]:
        """A step of the simulator: observations and rewards by agent, then the ends by world."""
        try:
            with own_stream(self._random):
                obs, rewards, terminated, truncated, _ = self._worlds.step(self._by_agent(raw))
        except Exception as error:
            if isinstance(error, RunnelError):
                raise
            where = f"{self.num_envs} worlds of {self.name!r} (step {self._clock})"
            raise DataError(f"{where} raised {summary(error)}{frames(error)}") from error
        progressed()
        over = terminated.numpy(force=True)
        return obs, rewards, over, truncated.numpy(force=True) & ~over

    def _by_agent(self, raw: Actions) -> list[Tensor]:
        """The actions of each agent in all worlds, as the simulator takes them."""
        found: dict[int, Tensor] = {}
        for policy, columns in self._columns.items():
            ready = self._to_env[policy](torch.from_numpy(raw[policy]))
            found |= zip(columns, ready.view(self.num_envs, len(columns), -1).unbind(1), strict=True)
        return [found[column] for column in range(len(found))]

    def _pay(self, rewards: list[Tensor]) -> None:
        for policy, columns in self._columns.items():
            paid = self.outs[policy].reward.view(self.num_envs, -1)
            # some scenarios give [E, 1]
            torch.stack([rewards[column].reshape(-1).cpu() for column in columns], dim=1, out=paid)
            self._totals[policy] += paid

    def _end(self, ended: list[int], obs: list[Any], terminated: Array, truncated: Array) -> None:
        """Write the last observations of the worlds that ended, count their episodes, and forget their returns."""
        for policy, rows in self._rows.items():
            width = len(rows.side.agents)
            rows.now.terminated.reshape(-1, width)[:] = terminated[:, None]
            rows.now.truncated.reshape(-1, width)[:] = truncated[:, None]
            rows.out.final_rows = [world * width + i for world in ended for i in range(width)]
            final = {
                key: x[: len(ended) * width].view(len(ended), width, *x.shape[1:]) for key, x in rows.out.final_obs.items()
            }
            self._write(policy, final, obs, worlds=ended)
        self._count(ended)
        self._starts[ended] = self._clock
        for totals in self._totals.values():
            totals[ended] = 0.0

    def _count(self, ended: list[int]) -> None:
        """Returns as `team_return` has them, of all these worlds at once."""
        means = {policy: totals[ended].mean(dim=1).tolist() for policy, totals in self._totals.items()}
        trained = torch.cat([self._totals[policy][ended] for policy, side in self.sides.items() if side.trains], dim=1)
        lengths = (self._clock - self._starts[ended]).tolist()
        for i, (world, total, length) in enumerate(zip(ended, trained.mean(dim=1).tolist(), lengths, strict=True)):
            by_policy = {policy: mean[i] for policy, mean in means.items()}
            self._ended.append(Episode(self.index0 + world, total, length, by_policy))

    def _show(self, obs: list[Any]) -> None:
        """Write what all agents see before their next decision."""
        for policy, rows in self._rows.items():
            width = len(rows.side.agents)
            now = {key: x.view(self.num_envs, width, *x.shape[1:]) for key, x in rows.out.obs.items()}
            self._write(policy, now, obs, worlds=None)

    def _write(self, policy: str, to: Mapping[str, Tensor], obs: list[Any], *, worlds: list[int] | None) -> None:
        """Write what agents of a policy see into `to` `[worlds, agents, ...]`: of all worlds, or of some of them."""
        columns = self._columns[policy]
        for places in zip(*(self._leaves[column] for column in columns), strict=True):
            seen = [leaf.pick(obs[column]) for leaf, column in zip(places, columns, strict=True)]
            picked = seen if worlds is None else [x[worlds] for x in seen]
            torch.stack([x.cpu() for x in picked], dim=1, out=to[places[0].key])
        if policy in self._shared:
            together = _joined(self._leaves, obs)
            to[SEEN].copy_((together if worlds is None else together[worlds])[:, None].expand_as(to[SEEN]))
            if CLOCK in to:
                ages = torch.from_numpy(self._clock - self._starts)
                to[CLOCK].copy_((ages if worlds is None else ages[worlds])[:, None].expand_as(to[CLOCK]))

    def ready(self) -> bool:
        return True

    def recv(self) -> None:
        """A step is done when `send` returns."""

    def close(self) -> None:
        """Nothing is open."""

    # ------------------------------------------------------------------------------------------------------------ state
    def _prune(self) -> None:
        """Forget what lies before the oldest open episode."""
        if len(self._past) > self._prune_at:
            self._past = self._past_of_open_episodes()
            self._prune_at = max(_PRUNE_AT, 2 * len(self._past))

    def _past_of_open_episodes(self) -> list[_Past]:
        return self._past[len(self._past) - 1 - int(self._clock - self._starts.min()) :]

    def snapshot(self) -> State:
        first, *steps = self._past_of_open_episodes()
        return {
            **self._save_outputs(),
            "totals": {policy: totals.clone() for policy, totals in self._totals.items()},
            "starts": self._starts.copy(),
            "random": _as_data(self._random),
            "first": {"begun": first.begun, "random": _as_data(first.random)},
            "begun": [step.begun for step in steps],
            "actions": {policy: np.array([step.actions[policy] for step in steps if step.actions]) for policy in self._rows},
        }

    def restore(self, state: State) -> None:
        self._load_outputs(state)
        for rows in self._rows.values():
            rows.now.active.fill(True)
        self._starts[:] = state["starts"]
        for policy, totals in self._totals.items():
            totals.copy_(torch.as_tensor(state["totals"][policy]))
        shown = {policy: {k: x.clone() for k, x in rows.arrays().items()} for policy, rows in self._rows.items()}
        self._show(self._replay(state))
        self._random = _from_data(state["random"])
        for policy, rows in self._rows.items():
            if bad := [key for key, x in rows.arrays().items() if not torch.equal(x, shown[policy][key])]:
                raise DataError(
                    f"a replay of the open episodes of {self.name!r} shows policy {policy!r} another {bad[0]!r} than the "
                    "checkpoint: worlds of this scenario are not independent, or keep something of the episode before, so no "
                    "run on it can be resumed exactly"
                )

    def _replay(self, state: State) -> list[Any]:
        """Play the open episodes once more. A world whose episode began later plays anything until it begins."""
        first = state["first"]
        self._random, self._past = _from_data(first["random"]), []
        obs = self._begin([int(world) for world in first["begun"]], None)
        for t, begun in enumerate(state["begun"]):
            raw = {policy: np.asarray(x)[t] for policy, x in state["actions"].items()}
            obs, *_ = self._play(raw)
            if begun:
                obs = self._begin([int(world) for world in begun], raw)
            else:
                self._past.append(_Past(raw, [], None))
        return obs


def _simulator_action(spec: ActionSpec) -> Callable[[Tensor], Tensor]:
    """A function from network actions to those of VMAS: numbers within their bounds, or choices as they are."""
    if spec.kind != "continuous":
        return lambda actions: actions
    low, high = (torch.from_numpy(np.array(bound, np.float32)).reshape(spec.shape) for bound in (spec.low, spec.high))
    return lambda actions: actions.clamp(low, high)


def _joined(leaves: list[list[ObsLeaf]], obs: list[Any]) -> Tensor:
    """What all agents see in each world, and a flag for each agent, as `envs/team/global_state.py` says: all are there."""
    num_worlds = len(leaves[0][0].pick(obs[0]))
    parts = [leaf.pick(seen).reshape(num_worlds, -1) for mine, seen in zip(leaves, obs, strict=True) for leaf in mine]
    return torch.cat([part.float().cpu() for part in parts] + [torch.ones(num_worlds, len(obs))], dim=1)


def _as_data(random: RandomState | None) -> State:
    assert random is not None, "worlds began here"
    torch_state, (kind, words, place, has_gauss, gauss), (version, numbers, after) = random
    return {
        "torch": torch_state.clone(),
        "numpy": [kind, words.copy(), int(place), int(has_gauss), float(gauss)],
        "python": [int(version), np.array(numbers, np.int64), after],
    }


def _from_data(state: State) -> RandomState:
    kind, words, place, has_gauss, gauss = state["numpy"]
    version, numbers, after = state["python"]
    return [
        torch.as_tensor(state["torch"]).clone(),
        (kind, np.array(words, np.uint32), int(place), int(has_gauss), float(gauss)),
        (int(version), tuple(int(x) for x in np.asarray(numbers)), after),
    ]
