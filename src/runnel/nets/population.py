"""Several actor-critics that play and learn side by side, each on its own share of the environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError
from runnel.core.spaces import ArraySpec
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.fused import Fused, can_fuse
from runnel.ops.optimise import flat_view

BEST = -1


class Population(nn.Module):
    """`members` of one shape. Of B rows the first B / members belong to the first member, the next to the second, and so on.

    With `chosen` all rows belong to that one; `BEST` is the one with the highest return of late, as the learner keeps it in
    `tally` `[members, 2]`: rewards, and episodes that ended, each fading.
    """

    tally: Tensor

    def __init__(self, members: Sequence[ActorCritic], *, num_envs: int, chosen: int | None = None) -> None:
        super().__init__()
        if chosen is not None and not BEST <= chosen < len(members):
            raise ConfigError("member", chosen, f"use 0 to {len(members) - 1}, or -1 for the best")
        self.members, self.num_envs, self.chosen = nn.ModuleList(members), num_envs, chosen
        self.env_spec, self.noise_size = members[0].env_spec, members[0].noise_size
        self.state_spec: Mapping[str, ArraySpec] = {}
        self._fuses, self._kernels = members[0].fuses, cast(Fused | None, None)
        self.register_buffer("tally", torch.zeros(len(members), 2, dtype=torch.float64))
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def kernels(self) -> Fused | None:
        """What runs all members in one go (`nets/fused.py`); None where they run one after the other."""
        if self._kernels is None and self._fuses and can_fuse(self._member(0)):
            vector = flat_view(list(self.parameters()))
            self._kernels = None if vector is None else Fused(self._member(0), vector, members=len(self.members))
        return self._kernels

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """Each member acts on its rows; see `ActorCritic.act`."""
        if self.chosen is not None:
            return self._member(self.best() if self.chosen == BEST else self.chosen).act(rows, greedy=greedy)
        if not greedy and (kernels := self.kernels()) is not None:
            action, logprob = kernels.act(rows, rows["noise"])
            return Batch(action=action, logprob=logprob)
        parts = {k: x.chunk(len(self.members)) for k, x in rows.items()}
        own = [Batch({k: p[i] for k, p in parts.items()}) for i in range(len(self.members))]
        return Batch.cat([self._member(i).act(part, greedy=greedy) for i, part in enumerate(own)])

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The critics, on rows `[T, members * num_envs]` in a line. `[N, ...] -> [N]`"""
        kernels = self.kernels()
        assert kernels is not None, "members that run one after the other are asked by themselves"
        return kernels.values(obs, width=len(self.members) * self.num_envs)

    @torch.no_grad()
    def keep(self, rewards: Tensor, ended: Tensor) -> None:
        """Take the rewards and ends of a segment into `tally`. `[T, members * num_envs]` each"""
        per_member = [x.double().view(len(x), len(self.members), -1).sum((0, 2)) for x in (rewards, ended)]
        self.tally.mul_(0.9).add_(torch.stack(per_member, dim=1))

    def best(self) -> int:
        """The member with the highest return an episode, as far as the learner saw."""
        return int((self.tally[:, 0] / self.tally[:, 1].clamp(min=1.0)).argmax())

    def _member(self, index: int) -> ActorCritic:
        return cast(ActorCritic, self.members[index])


def _forget(module: nn.Module, incompatible: object) -> None:
    """Loaded parameters may lie elsewhere."""
    assert isinstance(module, Population)
    module._kernels = None
