"""The fields of an environment trajectory, which sampler, replay and learner share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch, FieldSpec, Segment, SegmentView, StreamSpec
from runnel.core.spaces import ArraySpec, EnvSpec

CARRIED = "carried_return"
"""The discounted return of the episode before the segment starts, `[B]`; 0 if an episode starts with the segment."""
REWARD = "rewards/env"
"""The reward that `env.step` returns; other rewards and costs are further channels (`core/spaces.Channels`)."""
TASK_ID, TASK_PARAMS = "task/id", "task/params"
"""The task that each row plays at each step: its id `[T1, B]`, and its numbers `[T1, B, d]`."""
TASK_RETURN = "task/return"
"""The return of the episode before the segment starts, without discount, `[B]`; 0 if an episode starts with the segment."""
ACTIVE = "active"
"""Which rows decide at each step, `[T1, B]`: of agents that leave early or wait for their turn, not all do."""

SHARED = "shared/"
"""How the names of observations begin that the critics of a team read and no policy does: the global state."""
AGENT, CLOCK = f"{SHARED}agent", f"{SHARED}clock"
"""Beside the global state: which agent of its policy a row is, and the step of its environment's episode."""

TEAM_ACTIVE = f"{SHARED}active"
"""Where a row is a whole team: which of its agents decide, `[A]` (`envs/team/joint.py`)."""

DECISIONS = "decisions"
"""In batches from a replay memory of a team: how many decisions of agents are in the steps that came in since the batch before.
They stand in the first row; the others have 0. `[B]` int64"""

OF_TEAMS = frozenset((ACTIVE, TEAM_ACTIVE, DECISIONS))
"""Fields that segments of a team have one of."""

BURN_IN = "burn_in"
"""The size of a stream that says how many steps of `T` are those of the segment before, for a recurrent state alone."""


def own_steps(spec: StreamSpec) -> int:
    """Steps of a segment, without its burn-in."""
    return spec.sizes["T"] - spec.sizes.get(BURN_IN, 0)


def decisions_in(spec: StreamSpec, arrays: Mapping[str, Tensor]) -> int | None:
    """The steps of agents that decided in a segment, or since the batch before (`DECISIONS`); None where it is of no team."""
    if DECISIONS in arrays:
        return int(arrays[DECISIONS].sum())
    key = next((key for key in (ACTIVE, TEAM_ACTIVE) if key in arrays and spec.fields[key].dims[0] == "T1"), None)
    if key is None:
        return None
    # behind the last step of a segment, and in its burn-in, are decisions that another segment has
    return int(arrays[key][-own_steps(spec) - 1 : -1].count_nonzero())


def own_reward(agent: int) -> str:
    """Where a row is a whole team: the channel of what agent number `agent` is paid itself.

    >>> own_reward(2)
    'rewards/agent_2'
    """
    return f"rewards/agent_{agent}"


def carried_field(channel: str) -> str:
    """The field of what a channel summed up to before the segment starts.

    >>> carried_field("rewards/env"), carried_field("costs/hazard")
    ('carried_return', 'carried_costs/hazard')
    """
    return CARRIED if channel == REWARD else f"carried_{channel}"


def channel_metric(channel: str) -> str:
    """The name of an episode's sum of a channel in metrics and evaluations.

    >>> channel_metric("costs/hazard"), channel_metric("rewards/forward")
    ('cost/hazard', 'return/forward')
    """
    group, name = channel.split("/", 1)
    return f"{'cost' if group == 'costs' else 'return'}/{name}"


def episode_metric(name: str) -> str:
    """The name of what a world says of a whole episode in metrics and evaluations.

    >>> episode_metric("num_box_lock")
    'episode/num_box_lock'
    """
    return f"episode/{name}"


def trajectory_stream(
    env: EnvSpec,
    *,
    num_steps: int,
    num_envs: int,
    name: str = "trajectories",
    logprob: bool = True,
    state: Mapping[str, ArraySpec] | None = None,
    burn_in: int = 0,
    carried: Collection[str] = (),
    active: bool = False,
    tasks: bool = False,
    unit_rows: int = 1,
    batch_segments: int = 1,
    capacity: int = 2,
    num_writers: int = 1,
    reader: str = "trainer",
    device: str = "cpu",
) -> StreamSpec:
    """A stream of `[T, B]` segments: B environments for T steps.

    `obs` has T + 1 entries (the last one bootstraps). Where an episode ends inside the segment, `obs[t + 1]` is already the
    first observation of the next episode. The observation that ended the episode is in `final_obs[f]`, with
    `final_index[f] = t * B + b`. Its mask is in `final_action_mask`: a target for a truncated episode must not count on a
    forbidden action. On a GPU only truncated episodes have final observations (a terminated one is never bootstrapped from).
    `rewards/env` is the environment's reward; `rewards/NAME` and `costs/NAME` are its further channels. `state` names a
    policy's recurrent state (`state/h`): the segment holds its value before step 0, zero at the start of an episode. Of the
    channels in `carried`, for which a sampler knows the discount, a segment also holds the discounted sum of its episodes
    before the segment (`carried_field`).

    With `burn_in` a segment has that many steps more, at its beginning: the last of the segment before it (`BURN_IN`). Nothing
    is learned from them, final observations and `CARRIED` are of the steps behind them, and the very first segment has idle
    rows in their place.

    With `active` a row is one agent of an environment, and the field says where it decides. Row e * A + a is agent a of
    environment e, so `unit_rows` is A: ranks never part the agents of one environment.

    With `tasks` a segment says what each row plays (`TASK_ID`, `TASK_PARAMS`), and the returns so far (`TASK_RETURN`).
    """
    for field, value in (("num_steps", num_steps), ("num_envs", num_envs)):
        if value < 1:
            raise ConfigError(field, value, "use at least 1")
    if burn_in and not active:
        raise ConfigError("burn_in", burn_in, "is for streams that say which rows decide; use active=True")
    fields: dict[str, FieldSpec] = {}
    for key, leaf in env.obs.items():
        fields[key] = FieldSpec(("T1", "B", *leaf.shape), leaf.dtype)
        fields["final_" + key] = FieldSpec(("F", *leaf.shape), leaf.dtype)
    fields["final_index"] = FieldSpec(("F",), torch.int64, index_of=("T", "B"))
    fields["action"] = FieldSpec(("T", "B", *env.action.shape), env.action.dtype)
    for channel in (REWARD, *env.channels.names):
        fields[channel] = FieldSpec(("T", "B"))
    fields["terminated"] = FieldSpec(("T", "B"), torch.bool)
    fields["truncated"] = FieldSpec(("T", "B"), torch.bool)
    fields["policy_version"] = FieldSpec(("T",), torch.int64)
    if logprob:
        fields["logprob"] = FieldSpec(("T", "B"))
    if env.has_mask:
        fields["action_mask"] = FieldSpec(("T1", "B", env.action.mask_size), torch.bool)
        fields["final_action_mask"] = FieldSpec(("F", env.action.mask_size), torch.bool)
    for key, leaf in (state or {}).items():
        fields[key] = FieldSpec(("B", *leaf.shape), leaf.dtype)
    for channel in carried:
        fields[carried_field(channel)] = FieldSpec(("B",))
    if tasks:
        fields |= _task_fields(env)
    if active:
        fields[ACTIVE] = FieldSpec(("T1", "B"), torch.bool)
    sizes = {"T": burn_in + num_steps, "T1": burn_in + num_steps + 1, "B": num_envs, "F": num_steps * num_envs}
    return StreamSpec(
        name=name,
        fields=fields,
        sizes=sizes | ({BURN_IN: burn_in} if burn_in else {}),
        variable=("F",),
        rows="B",
        capacity=capacity,
        batch_segments=batch_segments,
        num_writers=num_writers,
        readers=(reader,),
        device=device,
        unit_rows=unit_rows,
    )


def _task_fields(env: EnvSpec) -> dict[str, FieldSpec]:
    assert env.tasks is not None, "an environment without tasks is refused before"
    played = {TASK_ID: FieldSpec(("T1", "B"), torch.int64), TASK_PARAMS: FieldSpec(("T1", "B", env.tasks.size))}
    return {**played, TASK_RETURN: FieldSpec(("B",))}


def weighted_reward(weights: Mapping[str, float]) -> SegmentView | None:
    """A view of segments whose reward is a weighted sum of channels; None for no weights.

    `rewards/env` of the view is the sum over channels c of `weights[c] * c`, and what it carries is their sum likewise. The
    sum of a slot is always in the same memory, so that an update can be captured in a graph.
    """
    home: dict[tuple[str, int], Tensor] = {}

    def view(segment: Segment) -> Segment:
        arrays = Batch(segment.arrays)
        for into, name_of in ((REWARD, str), (CARRIED, carried_field)):
            if into not in segment.arrays:
                continue
            parts = [weight * segment.arrays[name_of(channel)] for channel, weight in weights.items()]
            key = (into, segment.arrays[into].data_ptr())
            if key not in home or home[key].shape != parts[0].shape:
                home[key] = torch.empty_like(parts[0])
            arrays[into] = torch.sum(torch.stack(parts), dim=0, out=home[key])
        return replace(segment, arrays=arrays)

    return view if weights else None
