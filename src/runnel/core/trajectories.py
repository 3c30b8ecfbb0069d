"""The fields of an environment trajectory, which sampler, replay and learner share."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.spaces import ArraySpec, EnvSpec

CARRIED = "carried_return"
"""The discounted return of the episode before the segment starts, `[B]`; 0 if an episode starts with the segment."""
ACTIVE = "active"
"""Which rows decide at each step, `[T1, B]`: of agents that leave early or wait for their turn, not all do."""


def trajectory_stream(
    env: EnvSpec,
    *,
    num_steps: int,
    num_envs: int,
    name: str = "trajectories",
    logprob: bool = True,
    state: Mapping[str, ArraySpec] | None = None,
    carried_return: bool = False,
    active: bool = False,
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
    `rewards/env` is the environment's reward; other reward channels have other names. `state` names a policy's recurrent state
    (`state/h`): the segment holds its value before step 0, zero at the start of an episode. With `carried_return`, and a
    sampler that knows the discount, a segment also holds the return of its episodes before the segment (`CARRIED`).

    With `active` a row is one agent of an environment, and the field says where it decides. Row e * A + a is agent a of
    environment e, so `unit_rows` is A: ranks never part the agents of one environment.
    """
    for field, value in (("num_steps", num_steps), ("num_envs", num_envs)):
        if value < 1:
            raise ConfigError(field, value, "use at least 1")
    fields: dict[str, FieldSpec] = {}
    for key, leaf in env.obs.items():
        fields[key] = FieldSpec(("T1", "B", *leaf.shape), leaf.dtype)
        fields["final_" + key] = FieldSpec(("F", *leaf.shape), leaf.dtype)
    fields["final_index"] = FieldSpec(("F",), torch.int64)
    fields["action"] = FieldSpec(("T", "B", *env.action.shape), env.action.dtype)
    fields["rewards/env"] = FieldSpec(("T", "B"))
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
    if carried_return:
        fields[CARRIED] = FieldSpec(("B",))
    if active:
        fields[ACTIVE] = FieldSpec(("T1", "B"), torch.bool)
    return StreamSpec(
        name=name,
        fields=fields,
        sizes={"T": num_steps, "T1": num_steps + 1, "B": num_envs, "F": num_steps * num_envs},
        variable=("F",),
        rows="B",
        capacity=capacity,
        batch_segments=batch_segments,
        num_writers=num_writers,
        readers=(reader,),
        device=device,
        unit_rows=unit_rows,
    )
