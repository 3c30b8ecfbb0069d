"""The fields of an environment trajectory, agreed once between sampler, replay and learner."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.spaces import ArraySpec, EnvSpec

CARRIED = "carried_return"
"""The discounted return of the episode that a segment begins in the middle of, `[B]`; 0 where one begins."""


def trajectory_stream(
    env: EnvSpec,
    *,
    num_steps: int,
    num_envs: int,
    name: str = "trajectories",
    logprob: bool = True,
    state: Mapping[str, ArraySpec] | None = None,
    carried_return: bool = False,
    batch_segments: int = 1,
    capacity: int = 2,
    num_writers: int = 1,
    reader: str = "trainer",
    device: str = "cpu",
) -> StreamSpec:
    """A stream of `[T, B]` segments: B environments for T steps.

    `obs` has T + 1 entries (the last one bootstraps). Where an episode ends inside the segment, `obs[t + 1]` is already the
    next episode's first; the observation that ended it is in `final_obs[f]`, with `final_index[f] = t * B + b`, and so is the
    mask there (`final_action_mask`): who bootstraps from a truncated episode may not count on a forbidden action.
    A device keeps the final observations of truncated episodes alone (a terminated one is never bootstrapped from).
    `rewards/env` is the environment's reward; other channels stand beside it. `state` names a policy's recurrent state
    (`state/h`): the segment holds what it was before step 0, zero at the start of an episode. With `carried_return`, and a
    sampler that knows the discount, a segment also says how much return its episodes bring along (`CARRIED`).
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
    )
