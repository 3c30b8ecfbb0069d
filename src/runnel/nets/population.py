"""Several actor-critics that play and learn side by side, each on its own share of the environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.optim import flat_view

BEST = -1
"""`chosen` for the member with the highest recent return."""


class Population:
    """`members` of one shape. Of B rows the first B / members belong to the first member, the next to the second, and so on.

    With `chosen` all rows belong to that member. `BEST` is the member with the highest recent return by `tally` `[members, 2]`:
    the learner's fading sums of rewards and of episodes that ended.
    """

    def __init__(self, members: Sequence[ActorCritic], *, num_envs: int, chosen: int | None = None) -> None:
        if chosen is not None and not BEST <= chosen < len(members):
            raise ConfigError("member", chosen, f"use 0 to {len(members) - 1}, or -1 for the best")
        self.members, self.num_envs, self.chosen = list(members), num_envs, chosen
        self.env_spec, self.noise_size = members[0].env_spec, members[0].noise_size
        self.state_spec: Mapping[str, ArraySpec] = {}
        self.tally = torch.zeros(len(members), 2, dtype=torch.float64)

    def to(self, device: torch.device | str) -> Population:
        for member in self.members:
            member.to(device)
        self.tally = self.tally.to(device)
        return self

    @property
    def training(self) -> bool:
        """Whether members are in train mode."""
        return self.members[0].training

    def train(self, mode: bool = True) -> Population:
        for member in self.members:
            member.train(mode)
        return self

    def eval(self) -> Population:
        return self.train(False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of the first member, then those of the second, and so on."""
        return (p for member in self.members for p in member.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """One vector of weights for each member, its buffers, and the tally. After an optimiser was made, weights are the
        live ones."""
        state = {"tally": self.tally}
        for i, member in enumerate(self.members):
            weights = list(member.parameters())
            flat = flat_view(weights)
            state[f"member/{i}"] = torch.cat([w.detach().flatten() for w in weights]) if flat is None else flat
            state |= {f"member/{i}/{name}": x for name, x in member.named_buffers()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Tensor], *, assign: bool = False) -> None:
        """Copy the tensors of `state_dict`, or share their memory (`assign`)."""
        if assign:
            self.tally = state_dict["tally"]
        else:
            self.tally.copy_(state_dict["tally"])
        for i, member in enumerate(self.members):
            weights = list(member.parameters())
            parts = torch.split(state_dict[f"member/{i}"], [w.numel() for w in weights])
            names = [name for name, _ in member.named_parameters()]
            own = {name: part.view_as(w) for name, w, part in zip(names, weights, parts, strict=True)}
            own |= {name: state_dict[f"member/{i}/{name}"] for name, _ in member.named_buffers()}
            member.load_state_dict(own, assign=assign)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """Each member acts on its rows; see `ActorCritic.act`."""
        if self.chosen is not None:
            return self.members[self.chosen_member()].act(rows, greedy=greedy)
        return self.each(rows, lambda i, part: self.members[i].act(part, greedy=greedy))

    def each(self, rows: Batch, act: Callable[[int, Batch], Batch]) -> Batch:
        """Call `act` with each member's number and rows, and join the results."""
        parts = {k: x.chunk(len(self.members)) for k, x in rows.items()}
        return Batch.cat([act(i, Batch({k: p[i] for k, p in parts.items()})) for i in range(len(self.members))])

    def chosen_member(self) -> int:
        """The number of the member that acts on all rows."""
        assert self.chosen is not None, "every member acts on its own rows"
        return self.best() if self.chosen == BEST else self.chosen

    @torch.no_grad()
    def keep(self, rewards: Tensor, ended: Tensor) -> None:
        """Add the rewards and ends of a segment to `tally`. `[T, members * num_envs]` each"""
        per_member = [x.double().view(len(x), len(self.members), -1).sum((0, 2)) for x in (rewards, ended)]
        self.tally.mul_(0.9).add_(torch.stack(per_member, dim=1))

    def best(self) -> int:
        """The member with the highest recent return for an episode."""
        return int(self.returns().argmax())

    def returns(self) -> Tensor:
        """The recent return for an episode of each member. `[members]`"""
        return self.tally[:, 0] / self.tally[:, 1].clamp(min=1.0)
