"""The streams of a team's policies as what they are: one round of the same environments.

Every policy writes a stream of its own. Learners whose update crosses policies (one critic for all, one policy after the other)
need to know which rows of these streams belong together. Segment n of each stream is of the same actor and the same round, and
row e * A + a of a stream is agent a of environment e, so place (t, e) is one moment of one environment in all of them.

A moment counts for the team when any of its agents decides there. The team's reward is the mean over all its agents, so that
one that everybody gets counts once. Its episode ends when its environment begins anew, which the clock of the episode tells:
an agent that has left or that waits does not end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.agents.base import merge_segments
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Segment
from runnel.core.trajectories import ACTIVE, AGENT, BURN_IN, CLOCK, SHARED

_OUT_OF_STEP = "streams of a team are not of the same environments and steps; actors must write in turn"


@dataclass(frozen=True)
class Joint:
    """One round of E environments: what all policies have in common at each step, and the segments of each."""

    members: Mapping[str, Batch]
    """The rows of each policy, `[T, E * A, ...]` (`core/trajectories.py`)."""
    agents: Mapping[str, int]
    """A of each policy."""
    state: Mapping[str, Tensor]
    """The global state, `[T + 1, E, ...]` by leaf; zeros where no agent decides."""
    rewards: Tensor
    """The mean over all agents. `[T, E]`"""
    terminated: Tensor
    truncated: Tensor
    """Where the environment's episode ended: it is truncated if that is so for any agent whose last step it was. `[T, E]`"""
    active: Tensor
    """Where any agent decides. `[T + 1, E]`"""
    final_state: Mapping[str, Tensor]
    final_index: Tensor
    """The global state behind each truncated step (`[F, ...]`, maybe several times the same), and its place t * E + e. `[F]`"""

    def of_team(self, policy: str, x: Tensor) -> Tensor:
        """Rows of a policy by environment and agent. `[T, E * A, ...] -> [T, E, A, ...]`"""
        num = self.agents[policy]
        return x.view(x.shape[0], x.shape[1] // num, num, *x.shape[2:])

    def for_rows(self, policy: str, x: Tensor) -> Tensor:
        """Numbers of environments for each row of a policy. `[T, E] -> [T, E * A]`"""
        return x.repeat_interleave(self.agents[policy], dim=1)

    @property
    def places(self) -> Tensor:
        """The number t * E + e of each moment. `[T, E]`"""
        return torch.arange(self.rewards.numel(), device=self.rewards.device).view_as(self.rewards)


def join(segments: Mapping[str, Sequence[Segment]], *, device: torch.device) -> Joint:
    """The segments of all policies, by stream, as one round. Refuses streams that are not of the same steps."""
    _check(segments)
    agents = {policy: group[0].spec.unit_rows for policy, group in segments.items()}
    members = {policy: merge_segments(group).to(device) for policy, group in segments.items()}
    parts = [PolicyPart(data, agents[policy]) for policy, data in members.items()]
    num_steps, num_envs = parts[0].rewards.shape[:2]
    if wrong := [p for p, part in zip(members, parts, strict=True) if part.rewards.shape[:2] != (num_steps, num_envs)]:
        raise DataError(f"{_OUT_OF_STEP} (stream {wrong[0]!r})")
    state = {key: x for key, x in _state(parts).items() if key not in (CLOCK, AGENT)}
    active = torch.stack([part.active.any(-1) for part in parts]).any(0)
    over = _ends(_state(parts, [CLOCK])[CLOCK], active)
    cut = over & torch.stack([part.truncated.any(-1) for part in parts]).any(0)
    rewards = torch.stack([part.rewards.sum(-1) for part in parts]).sum(0) / sum(agents.values())
    finals = [part.finals(cut, state) for part in parts]
    final_index = torch.cat([index for index, _ in finals])
    final_state = {key: torch.cat([found[key] for _, found in finals]) for key in state}
    return Joint(members, agents, state, rewards, over & ~cut, cut, active, final_state, final_index)


class PolicyPart:
    """The rows of one policy by environment and agent: `[T, E, A]`."""

    def __init__(self, data: Batch, num_agents: int) -> None:
        self.data, self.num_agents = data, num_agents
        self.rewards, self.truncated, self.active = (self.split(data[k]) for k in ("rewards/env", "truncated", ACTIVE))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.num_agents, *x.shape[2:])

    def finals(self, cut: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The places `[F]` of the truncated steps in `cut` `[T, E]` that its rows tell of, and the state behind them."""
        index = self.data["final_index"]
        keep = self.data["truncated"].flatten()[index] & cut.flatten()[index // self.num_agents]
        return index[keep] // self.num_agents, {key: self.data[f"final_{key}"][keep] for key in state}


def _check(segments: Mapping[str, Sequence[Segment]]) -> None:
    """Refuse streams whose segments cannot be of one round."""
    first, *others = segments.values()
    for group in (first, *others):
        spec = group[0].spec
        if CLOCK not in spec.fields or ACTIVE not in spec.fields:
            fix = "its rows have no clock of their episode; make the task with global_state=True, clock=True"
            raise ConfigError("global_state", spec.name, fix)
        if spec.sizes.get(BURN_IN, 0) or spec.sizes["T"] != first[0].spec.sizes["T"]:
            fix = "policies that learn together have segments of one length, without burn-in; leave these options out"
            raise ConfigError("teams", spec.name, fix)
        if [s.header.writer for s in group] != [s.header.writer for s in first]:
            raise DataError(f"{_OUT_OF_STEP} (stream {spec.name!r})")


def _state(parts: Sequence[PolicyPart], keys: Sequence[str] = ()) -> dict[str, Tensor]:
    """The leaves of the global state, from the agents that decide; all of them must hold the same. `[T + 1, E, ...]`"""
    found: dict[str, Tensor] = {}
    for key in keys or [key for key in parts[0].data if key.startswith(SHARED)]:
        columns = [
            (part.split(part.data[key])[:, :, a], part.active[:, :, a]) for part in parts for a in range(part.num_agents)
        ]
        whole, known = torch.zeros_like(columns[0][0]), torch.zeros_like(columns[0][1])
        for x, active in columns:
            shown = _like(active, x)
            if key != AGENT and bool((_like(active & known, x) & (x != whole)).any()):
                raise DataError(f"{_OUT_OF_STEP} ({key!r} differs between agents)")
            whole, known = torch.where(shown, x, whole), known | active
        found[key] = whole
    return found


def _ends(clock: Tensor, active: Tensor) -> Tensor:
    """Where the episode of an environment ended, from the step of its episode at each moment. `[T + 1, E] twice -> [T, E] bool`

    At a moment t with clock c the episode began at step t - c, so the one before it ended with step t - c - 1.
    """
    last = torch.arange(len(clock), device=clock.device).unsqueeze(1) - clock.long() - 1
    there = active & (last >= 0)
    over = torch.zeros(clock.shape, dtype=torch.bool, device=clock.device)
    env = torch.arange(clock.shape[1], device=clock.device).expand_as(clock)
    over[last[there], env[there]] = True
    return over[:-1]


def _like(flags: Tensor, x: Tensor) -> Tensor:
    return flags.view(*flags.shape, *[1] * (x.dim() - flags.dim()))
