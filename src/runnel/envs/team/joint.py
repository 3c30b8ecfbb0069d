"""A whole team as one agent: a `TeamVector` behind the contract of vectors with one agent, for learners that value the team.

A row of this vector is an environment. What its A agents see, may do and choose lies side by side in it:

- `obs...` `[B, A, *shape]`, one place for each agent in the order of its side; `action_mask` `[B, A * n]`.
- `shared/active` `[B, A]`: who decides. An agent that has left or waits sees zeros, may do everything, and is not listened to.
- `shared/state...` or `shared/seen` `[B, *shape]`: the global state, where the rows of the team have it (`global_state.py`).
- the action: `[B, A]` choices, or the boxes of all agents `[B, A, *shape]`.
- the reward: what the team gets, once. Environments pay agents, so somebody has to say what the team gets (`TeamReward`).

The episode of a row ends when no agent is left, and is truncated if one of those that were there until the end was truncated.
The final observation has those alone: who terminated in the last step, or left before, is worth nothing from then on. An agent
that is truncated while others go on counts as one that left: nothing is bootstrapped from what it saw last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.routes import Side
from runnel.core.spaces import ActionLeaf, ActionSpec, ArraySpec, Channels, EnvSpec, multi_action
from runnel.core.state import State
from runnel.core.trajectories import AGENT, SHARED, TEAM_ACTIVE, own_reward
from runnel.envs.spaces import MASK
from runnel.envs.team.contract import TeamVector
from runnel.envs.vector.contract import Episode, Fault, StepOut, allocate

TeamReward = Literal["mean", "sum", "first"]
"""What the team gets of what its agents are paid in a step. mean: the mean over all agents, of whom those that have left get 0.
sum: the sum. first: what the first agent that decided is paid, for games that pay every agent what the team earned."""


def joint_spec(side: Side, *, own_rewards: bool = False) -> EnvSpec:
    """The spec of the agents of `side` as one agent; with `own_rewards` each has a channel of what it is paid itself."""
    num, spec = len(side.agents), side.spec
    obs: dict[str, ArraySpec] = {}
    for key, leaf in spec.obs.items():
        if not key.startswith(SHARED):
            obs[key] = ArraySpec((num, *leaf.shape), leaf.dtype)
        elif key != AGENT:  # which agent a row is; a row of this vector is all of them
            obs[key] = leaf
    obs[TEAM_ACTIVE] = ArraySpec((num,), torch.bool)
    names = tuple(own_reward(i).partition("/")[2] for i in range(num)) if own_rewards else ()
    return EnvSpec(obs, joint_action(spec.action, num), spec.has_mask, Channels(rewards=names))


def joint_action(action: ActionSpec, num_agents: int) -> ActionSpec:
    """The action of `num_agents` agents that have `action` each.

    >>> both = joint_action(ActionSpec("discrete", num_actions=5), 3)
    >>> both.shape, both.mask_size
    ((3,), 15)
    """
    if action.kind == "discrete":
        return multi_action((action,) * num_agents, [ActionLeaf((), (num_agents,), "int64", num_agents)])
    if action.kind == "continuous":
        low, high = action.low * num_agents, action.high * num_agents
        return replace(action, shape=(num_agents, *action.shape), low=low, high=high)
    raise ConfigError(
        "env", action.kind, "its agents have actions of several parts; as one agent, each needs one choice or one box"
    )


class JointVector:
    """The environments of `team`, which has one side, as a `VectorEnv`.

    What agents see, their masks and who is active are views of the team's memory, so a step copies little.
    """

    def __init__(self, team: TeamVector, *, team_reward: TeamReward = "mean", own_rewards: bool = False) -> None:
        if len(team.sides) != 1:
            fix = "a team as one agent has one policy for all agents; leave routes alone"
            raise ConfigError("teams", ", ".join(team.sides), fix)
        ((self._policy, side),) = team.sides.items()
        self.team, self.agents, self._reward, self._own = team, side.agents, team_reward, own_rewards
        self.name, self.num_envs, self.index0 = team.name, team.num_envs, team.index0
        self.spec = joint_spec(side, own_rewards=own_rewards)
        self._inner = team.outs[self._policy]
        assert self._inner.active is not None
        self._active = self._each(self._inner.active)
        self._paid = self._each(self._inner.reward)
        self._decided = self._active.clone()
        self._first_rows = torch.arange(self.num_envs, device=self._active.device) * len(self.agents)
        self.out = self._make_out()
        self._state = {key: self._inner.obs[key] for key in self.spec.obs if key.startswith(SHARED) and key != TEAM_ACTIVE}
        self._ended: list[Episode] = []
        self._faults: list[Fault] = []

    def _each(self, x: Tensor) -> Tensor:
        """Rows of the team as `[B, A, ...]`, in the same memory."""
        return x.view(self.num_envs, len(self.agents), *x.shape[1:])

    def _make_out(self) -> StepOut:
        inner = self._inner
        if inner.final_rows is None:
            raise ConfigError(
                "env", self.name, "environments on an accelerator are not joined to one agent yet; use device cpu"
            )
        out = allocate(self.spec, self.num_envs, lambda *size, dtype: torch.zeros(*size, dtype=dtype))
        out.obs.update({key: self._each(inner.obs[key]) for key in self.spec.obs if not key.startswith(SHARED)})
        out.obs[TEAM_ACTIVE] = self._active
        if inner.action_mask is not None:
            out.action_mask = inner.action_mask.view(self.num_envs, -1)
        if self._own:
            out.channels = Batch({own_reward(i): self._paid[:, i] for i in range(len(self.agents))})
        return out

    # ------------------------------------------------------------------------------------------------------------ steps
    def reset(self, seed: int | None = None) -> StepOut:
        self.team.reset(seed)
        self._ended, self._faults = [], []
        self._clear()
        self._share()
        return self.out

    def _clear(self) -> None:
        """Forget the last step: no reward, no end."""
        for x in (self.out.reward, self.out.terminated, self.out.truncated):
            x.zero_()
        self.out.final_rows = []

    def _share(self) -> None:
        """Read the global state where somebody is there to see it: the rows of others are blank."""
        if self._state:
            rows = self._first_rows + self._first_active(self._active)
            for key, seen in self._state.items():
                torch.index_select(seen, 0, rows, out=self.out.obs[key])

    @staticmethod
    def _first_active(active: Tensor) -> Tensor:
        """The number of the first agent that is active. `[B, A] -> [B]`"""
        return active.to(torch.uint8).argmax(-1)

    def send(self, actions: Tensor) -> None:
        self._decided.copy_(self._active)
        self.team.send({self._policy: actions.reshape(-1, *actions.shape[2:])})

    def ready(self) -> bool:
        return self.team.ready()

    def recv(self) -> StepOut:
        self.team.recv()
        self._clear()
        self.out.reward.copy_(self._team_reward())
        ended, faults = self.team.episodes(), self.team.faults()
        self._ended += ended
        self._faults += faults
        over = sorted({e.env - self.index0 for e in ended} | {f["env"] - self.index0 for f in faults})
        if self._own:
            self._check_nobody_waits(over)
        self._end(over)
        self._share()
        return self.out

    def step(self, actions: Tensor) -> StepOut:
        """`send`, then `recv`."""
        self.send(actions)
        return self.recv()

    def _team_reward(self) -> Tensor:
        if self._reward == "first":
            return self._paid.gather(1, self._first_active(self._decided).unsqueeze(1)).squeeze(1)
        return self._paid.sum(1) if self._reward == "sum" else self._paid.mean(1)

    def _check_nobody_waits(self, over: list[int]) -> None:
        """What an agent is paid while it waits belongs to its last decision, which is a step of its own here."""
        left = self._each(self._inner.terminated | self._inner.truncated)
        waits = self._decided & ~self._active & ~left
        waits[over] = False
        if bool(waits.any()):
            env, agent = waits.nonzero()[0].tolist()
            fix = "what it earns meanwhile would be lost to it; use a mixer (vdn, qmix), or recipe ippo"
            raise DataError(f"environment {self.name!r} (index {self.index0 + env}): agent {self.agents[agent]!r} waits; {fix}")

    # ------------------------------------------------------------------------------------------------------------- ends
    def _end(self, over: list[int]) -> None:
        """The final observations and flags of environments that ended in this step."""
        if not over:
            return
        envs, rows, num = torch.tensor(over), torch.tensor(self._inner.final_rows, dtype=torch.int64), len(self.agents)
        place = torch.full((self.num_envs,), -1)
        place[envs] = torch.arange(len(over))
        self.out.final_rows = over
        # of the team's final observations those of environments that are over, and of these those to go on from
        found = (place[rows // num] >= 0).nonzero().squeeze(-1)
        cut = found[~self._inner.terminated[rows[found]]]
        f, agent = place[rows[cut] // num], rows[cut] % num
        final, inner = self.out.final_obs, self._inner.final_obs
        for key, x in final.items():
            x[: len(over)] = key == MASK
        final[TEAM_ACTIVE][f, agent] = True
        for key, x in inner.items():
            if key == MASK:
                final[key].view(self.num_envs, num, -1)[f, agent] = x[cut]
            elif not key.startswith(SHARED):
                final[key][f, agent] = x[cut]
        # the agents of an environment that end together have one global state; where it broke, that of the first stands for all
        first = torch.full((len(over),), len(rows)).scatter_reduce_(0, place[rows[found] // num], found, "amin")
        some = first < len(rows)
        for key in self._state:
            final[key][: len(over)][some] = inner[key][first[some]]
        self.out.truncated[envs] = final[TEAM_ACTIVE][: len(over)].any(-1)
        self.out.terminated[envs] = ~self.out.truncated[envs]

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call. Their returns are means over agents, whatever the team's reward is."""
        ended, self._ended = self._ended, []
        return ended

    def faults(self) -> list[Fault]:
        faults, self._faults = self._faults, []
        return faults

    # ------------------------------------------------------------------------------------------------------------ state
    def snapshot(self) -> State:
        ended = [[e.env, e.total, e.length, dict(e.by_policy)] for e in self._ended]
        return {"team": self.team.snapshot(), "ended": ended}

    def restore(self, state: State) -> None:
        self.team.restore(state["team"])
        self._ended = [Episode(int(e), float(total), int(n), dict(by)) for e, total, n, by in state["ended"]]
        self._faults = []
        self._clear()
        self._share()

    def close(self) -> None:
        self.team.close()
