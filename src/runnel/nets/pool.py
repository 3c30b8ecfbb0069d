"""Live policies and frozen members of a pool as one network: who acts for a row is part of the row's state.

An environment of A seats has a lineup: the number of the member that plays each seat. It is drawn when an episode begins, from
noise that travels with the request and probabilities that travel with the parameters, and lies in the recurrent state of the
environment's rows (`LINEUP`), which is zero where an episode ended. So requests, segments and checkpoints carry it without
knowing of it, and a member that plays an episode plays it to its end.

A row whose member is not at hand is an error: nobody else acts for it.

On an accelerator every network answers every row, and of each row one answer is taken: which rows are whose only the device
knows, and a CUDA graph (`kernels/graphs.py`) could not wait to be told. The answers are the same.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError, DataError
from runnel.core.lineups import LINEUP, MEMBER, OPENING, RANDOM, role_and_version
from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.stacked import StackedActors

NUMBERS, DRAW, SHARES = "league.numbers", "league.draw", "league.shares"
"""What is published beside the parameters: the member at each place, the probability that a role (row) plays against it, and
the share of episodes that belongs to each role."""
FROZEN = "frozen."
"""How the names of the frozen members' memory begin; the type of its numbers follows."""
_DIGITS = 12
"""Digits of a checksum that are kept."""


def packed(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All parameters as one vector for each type of numbers, in the order of their names.

    >>> packed({"b": torch.ones(2), "a": torch.zeros(1, 2), "n": torch.ones((), dtype=torch.int64)})["float32"].tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    kinds: dict[str, list[Tensor]] = {}
    for name in sorted(params):
        kinds.setdefault(str(params[name].dtype).removeprefix("torch."), []).append(params[name].detach().reshape(-1))
    return {kind: torch.cat(parts) for kind, parts in kinds.items()}


def unpacked(vectors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `packed`: views of `vectors`, with the names and shapes of `like`."""
    found, at = {}, dict.fromkeys(vectors, 0)
    for name in sorted(like):
        kind, num = str(like[name].dtype).removeprefix("torch."), like[name].numel()
        found[name] = vectors[kind][at[kind] : at[kind] + num].view(like[name].shape)
        at[kind] += num
    return found


def checksum_of(vectors: Mapping[str, Tensor]) -> str:
    """The checksum of a frozen policy, by its vectors (`packed`): 12 digits.

    >>> checksum_of({"float32": torch.zeros(2)}) == checksum_of({"float32": torch.ones(2)})
    False
    """
    digest = hashlib.blake2b()
    for kind in sorted(vectors):
        digest.update(vectors[kind].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_DIGITS]


def stacked(memory: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same views of a memory of K rows, `[K, *shape]` each; names of `memory` begin with `FROZEN`."""
    found, at = {}, dict.fromkeys(memory, 0)
    for name in sorted(like):
        kind, num = FROZEN + str(like[name].dtype).removeprefix("torch."), like[name].numel()
        rows = memory[kind]
        found[name] = rows[:, at[kind] : at[kind] + num].view(len(rows), *like[name].shape)
        at[kind] += num
    return found


class PoolNet:
    """`live` policies by role, and `places` for frozen copies of them, which play environments of `seats` agents.

    Rows are environment-major (row = e * A + a). A reply says which member acted (`MEMBER`). With `greedy` the live policies
    take their most probable action, frozen ones still draw: an evaluation meets them as training does. Up to `openings` moves
    of each seat at the beginning of an episode are uniform over what is allowed; how many is drawn for each seat.
    """

    def __init__(self, live: Mapping[str, ActorCritic], *, places: int, seats: int, openings: int = 0) -> None:
        if seats < 2:
            raise ConfigError("env", f"{seats} agent", "self-play is for games of at least two agents")
        self.live, self.seats, self.openings = dict(live), seats, openings
        first = next(iter(self.live.values()))
        self.env_spec, self._first = first.env_spec, first
        self.own_noise = first.noise_size
        """Columns of the noise that an action needs; behind them are those of the draw."""
        self.noise_size = first.noise_size + seats + 2 + bool(openings)
        self.state_spec: Mapping[str, ArraySpec] = {**first.state_spec, LINEUP: ArraySpec((seats,), torch.int64)}
        if openings:
            self.state_spec = {**self.state_spec, OPENING: ArraySpec((), torch.int64)}
        self._copies = [copy.deepcopy(first) for _ in range(places)]
        num_roles, num = len(self.live), len(self.live) + places
        self._league = {
            NUMBERS: torch.zeros(num, dtype=torch.int64),
            DRAW: torch.zeros(num_roles, num, dtype=torch.float64),
            SHARES: torch.zeros(num_roles, dtype=torch.float64),
        }
        vectors = packed(first.state_dict())
        self._memory = {FROZEN + kind: torch.stack([x] * places) for kind, x in vectors.items()}
        self._view()

    def _view(self) -> None:
        """Make the frozen networks views of their rows of the memory."""
        like = self._first.state_dict()
        for i, net in enumerate(self._copies):
            rows = {key.removeprefix(FROZEN): x[i] for key, x in self._memory.items()}
            net.load_state_dict(unpacked(rows, like), assign=True)
            net.requires_grad_(False)
        self._stacked = StackedActors(self._first, stacked(self._memory, like)) if StackedActors.fits(self._first) else None

    # ------------------------------------------------------------------------------------------------------------ acting
    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """Each row's member acts for it; environments without a lineup draw one."""
        lineup = self._lineups(rows)
        member = lineup.flatten()
        places, lost = self._places(member)
        recorded = is_recording(member)
        if not recorded and bool(lost.any()):
            self._refuse(int(member[lost][0]))
        left = self._opening(rows) if self.openings else torch.zeros_like(member)
        inner = Batch({key: x for key, x in rows.items() if key not in (LINEUP, OPENING, "noise")})
        if "noise" in rows:
            inner["noise"] = rows["noise"][:, : self.own_noise]
        answer = self._by_place if on_host(member) else self.of_all
        found = answer(inner, places.masked_fill(left > 0, -1), greedy=greedy)
        if recorded:  # nobody can be told now; that a number is not finite is seen by whoever reads the segment
            found["logprob"] = found["logprob"].masked_fill(lost, torch.nan)
        numbers = self._league[NUMBERS]
        number = torch.where(places < 0, member, numbers[places.clamp(min=0)])
        found[MEMBER] = torch.where(left > 0, -number, number)
        found[LINEUP] = lineup.unsqueeze(1).expand(-1, self.seats, -1).reshape(-1, self.seats)
        if self.openings:
            found[OPENING] = (left - 1).clamp(min=0)
        return found

    def _opening(self, rows: Batch) -> Tensor:
        """Uniform moves that each row still has to make, the next one included; drawn at the row's first decision. `-> [B]`"""
        new = ~rows[LINEUP].ne(0).any(1)
        drawn = (rows["noise"][:, -1].double() * (self.openings + 1)).long().clamp(max=self.openings)
        return torch.where(new, drawn, rows[OPENING])

    def _lineups(self, rows: Batch) -> Tensor:
        """The lineup of each environment: that of any of its rows that has one, else a new one. `-> [E, A]`"""
        told = rows[LINEUP].view(-1, self.seats, self.seats)
        has = told.ne(0).any(-1)
        # who comes into an episode later takes the lineup of those who are there
        first = has.to(torch.int8).argmax(1)
        mine = told[torch.arange(len(told), device=told.device), first]
        new = ~has.any(1)
        if on_host(new) and not bool(new.any()):
            return mine
        columns = slice(self.own_noise, self.own_noise + self.seats + 2)
        noise = rows["noise"].view(len(told), self.seats, -1)[:, 0, columns].double()
        return torch.where(new.unsqueeze(1), self._draw(noise), mine)

    def _draw(self, noise: Tensor) -> Tensor:
        """Lineups by noise `[E, A + 2]`: the role to which the episode belongs, its seat, and an opponent for every other seat.
        `-> [E, A]`"""
        role = _choose(self._league[SHARES].expand(len(noise), -1), noise[:, :1])
        seat = (noise[:, 1:2] * self.seats).long().clamp(max=self.seats - 1)
        others = _choose(self._league[DRAW][role.squeeze(1)], noise[:, 2:])
        return self._league[NUMBERS][others.scatter(1, seat, role)]

    def _places(self, member: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each row's member, -1 for `RANDOM` and for a place that is empty; and where a member is not there.
        `[B] -> [B], [B]`"""
        numbers = self._league[NUMBERS]
        same = member.unsqueeze(1) == numbers
        found = torch.where(same.any(1), same.to(torch.int8).argmax(1), -1)
        code = (-2 - member).clamp(min=0)
        coded = (member < RANDOM) & (numbers[code.clamp(max=len(numbers) - 1)] > 0)
        found = torch.where(coded, code, found)
        return found, (found < 0) & (member > 0)

    def _refuse(self, number: int) -> None:
        """Raise for a member that is to act and is not there."""
        role, version = role_and_version(number, len(self.live))
        name = f"{list(self.live)[role]}@{version}"
        there = sorted(n for n in self._league[NUMBERS].tolist() if n)
        raise DataError(
            f"an episode is played by member {name} (number {number}), which is no longer in the pool (numbers {there}); "
            "another opponent must not finish it. Please report this as a bug"
        )

    def _by_place(self, rows: Batch, places: Tensor, *, greedy: bool) -> Batch:
        """The replies of all rows, each by the network at its place."""
        # frozen members of a form that allows it act at once, as if they were one
        groups = places if self._stacked is None else places.clamp(max=len(self.live))
        at = torch.unique(groups).tolist()
        found = Batch()
        for place in at:
            if len(at) == 1:
                return self._answer(rows, place, places, greedy=greedy)
            index = (groups == place).nonzero().squeeze(1)
            part = self._answer(rows.map(lambda x, index=index: x[index]), place, places[index], greedy=greedy)  # type: ignore[misc]
            for key, x in part.items():
                if key not in found:
                    found[key] = x.new_zeros((len(places), *x.shape[1:]))
                found[key][index] = x
        return found

    def of_all(self, rows: Batch, places: Tensor, *, greedy: bool) -> Batch:
        """`_by_place`, in which every network answers every row."""
        num_roles, found = len(self.live), self._at_random(rows)
        given = [(places == i, net.act(rows, greedy=greedy)) for i, net in enumerate(self.live.values())]
        if self._stacked is not None:
            given.append((places >= num_roles, self._stacked.of_all(rows, (places - num_roles).clamp(min=0))))
        else:
            given += [(places == i, net.act(rows)) for i, net in enumerate(self._copies, start=num_roles)]
        for mine, reply in given:
            for key, x in found.items():
                found[key] = torch.where(mine.view(-1, *[1] * (x.dim() - 1)), reply[key], x)
        return found

    def _answer(self, rows: Batch, place: int, places: Tensor, *, greedy: bool) -> Batch:
        if place < 0:
            return self._at_random(rows)
        num_roles = len(self.live)
        if place < num_roles:
            return list(self.live.values())[place].act(rows, greedy=greedy)
        if self._stacked is not None:
            return self._stacked.act(rows, places - num_roles)
        return self._copies[place - num_roles].act(rows)

    def _at_random(self, rows: Batch) -> Batch:
        """Actions that nothing has been learned for: uniform over those that are allowed, of numbers a normal one."""
        head, num = self._first.head, len(next(iter(rows.values())))
        scores = torch.zeros(num, head.num_scores, device=rows["noise"].device)
        log_std = torch.zeros(head.num_log_std, device=scores.device) if head.num_log_std else None
        action, logprob = head.sample(scores, rows["noise"], rows.get("action_mask"), log_std)
        return Batch({"action": action, "logprob": logprob, **{key: rows[key] for key in self._first.state_spec}})

    # -------------------------------------------------------------------------------------------------------- parameters
    def state_dict(self) -> dict[str, Tensor]:
        """Live parameters under the name of their role, the memory of the frozen ones, and how opponents are drawn."""
        live = {f"{role}/{key}": x for role, net in self.live.items() for key, x in net.state_dict().items()}
        return {**live, **self._memory, **self._league}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Tensor], *, assign: bool = False) -> None:
        """Copy what a version has, or share its memory (`assign`)."""
        for role, net in self.live.items():
            start = f"{role}/"
            mine = {key.removeprefix(start): x for key, x in state_dict.items() if key.startswith(start)}
            net.load_state_dict(mine, assign=assign)
        for own in (self._memory, self._league):
            for key, x in own.items():
                if assign:
                    own[key] = state_dict[key]
                else:
                    x.copy_(state_dict[key])
        if assign:
            self._view()

    @property
    def training(self) -> bool:
        """Whether a network is in train mode."""
        return any(net.training for net in self._nets())

    def eval(self) -> PoolNet:
        """Put all networks into eval mode."""
        for net in self._nets():
            net.eval()
        return self

    def to(self, device: torch.device | str) -> PoolNet:
        """Move all parameters to a device."""
        for net in self.live.values():
            net.to(device)
        self._memory = {key: x.to(device) for key, x in self._memory.items()}
        self._league = {key: x.to(device) for key, x in self._league.items()}
        for net in self._copies:
            net.to(device)
        self._view()
        return self

    def _nets(self) -> list[Any]:
        nets: list[nn.Module] = [*self.live.values(), *self._copies]
        return nets


def on_host(x: Tensor) -> bool:
    """Whether it costs nothing to look at `x`."""
    return x.device.type == "cpu"


def is_recording(x: Tensor) -> bool:
    """Whether a CUDA graph is being recorded on the device of `x`."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _choose(weights: Tensor, noise: Tensor) -> Tensor:
    """Places drawn by `weights` `[E, M]` with `noise` `[E, n]` in (0, 1); never one of weight 0. `-> [E, n]`"""
    sums = weights.cumsum(1)
    return torch.searchsorted(sums, noise * sums[:, -1:], right=True).clamp(max=weights.shape[1] - 1)
