"""The frozen policies of a league, where they lie in memory, and what is known of them: results and ratings.

Frozen parameters are copies, verified by checksums. A place is written anew only when no episode of who was there is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from runnel.agents.outcomes import Games, Outcomes
from runnel.core.contracts.learning import Learner
from runnel.core.errors import CheckpointError
from runnel.core.lineups import number_of, role_and_version
from runnel.core.state import State
from runnel.nets.pool import DRAW as DRAW_OF
from runnel.nets.pool import FROZEN, NUMBERS, SHARES, checksum_of, packed
from runnel.ops.matchmaking import DRAW, ELO_START, LOSS, WIN, Standing, rate, win_rates

FIRST = 0
"""The version of the first member, which always stays: the anchor of all ratings."""


class FrozenPool:
    """`places` for frozen copies of the parameters of `roles`; tables of results have a row for each role and a column for each
    role and place.

    `params` are the tensors that are published: members, probabilities, memory. They are written in place.
    """

    def __init__(self, roles: Mapping[str, Learner], *, places: int, seats: int) -> None:
        self.roles, self.places = list(roles), places
        num = len(self.roles) + places
        vectors = packed(next(iter(roles.values())).params())
        self._memory = {FROZEN + kind: torch.stack([torch.zeros_like(x)] * places) for kind, x in vectors.items()}
        device = next(iter(vectors.values())).device
        self._numbers = torch.zeros(num, dtype=torch.int64, device=device)
        self._draw = torch.zeros(len(self.roles), num, dtype=torch.float64, device=device)
        self._shares = torch.zeros(len(self.roles), dtype=torch.float64, device=device)
        self._live = [number_of(i, -1, len(self.roles)) for i in range(len(self.roles))]
        self._numbers[: len(self.roles)] = torch.tensor(self._live)
        self._at: dict[int, int] = {number: i for i, number in enumerate(self._live)}
        """The place of each live policy, and of each frozen one whose episodes are not all over."""
        self._retired: dict[int, int] = {}
        """Who has left the pool, and the first version at which it is not drawn any more."""
        self._checksums: dict[int, str] = {}
        self.ratings: dict[int, float] = dict.fromkeys(self._live, ELO_START)
        self._games = torch.zeros(len(self.roles), num, seats, 3, dtype=torch.float64)
        self._recent = torch.zeros_like(self._games)
        self._payoffs = torch.zeros(num, num, dtype=torch.float64)

    # ----------------------------------------------------------------------------------------------------------- members
    def frozen(self) -> list[int]:
        """The members of the pool, oldest first."""
        return sorted(n for n in self._at if n not in self._live and n not in self._retired)

    def order(self) -> list[int]:
        """Their places, in the same order."""
        return [self._at[number] for number in self.frozen()]

    def name(self, number: int) -> str:
        """`main` for a live policy, `main@40` for its copy of version 40."""
        role, version = role_and_version(number, len(self.roles))
        return self.roles[role] + ("" if version < 0 else f"@{version}")

    def make_room(self, size: int, draw: Tensor, outcomes: Outcomes, version: int) -> bool:
        """Find a place for a new member, and take the one that is drawn least (`draw` `[R + K]`) out of a full pool. False: all
        places are of members whose episodes go on; ask again after the next update."""
        for number, since in list(self._retired.items()):
            if outcomes.is_over(number, since=since):
                self._clear(number)
        if len(self._at) == len(self._numbers):
            return False
        members = self.frozen()
        if len(members) >= size:
            anchor = number_of(0, FIRST, len(self.roles))
            last = min((n for n in members if n != anchor), key=lambda n: (float(draw[self._at[n]]), n))
            self._retired[last] = version
        return True

    def _clear(self, number: int) -> None:
        place = self._at.pop(number)
        self._numbers[place] = 0
        self._retired.pop(number, None)
        self._checksums.pop(number, None)
        self.ratings.pop(number, None)
        self._games[:, place], self._recent[:, place] = 0.0, 0.0
        self._payoffs[place], self._payoffs[:, place] = 0.0, 0.0

    @torch.no_grad()
    def freeze(self, role: int, params: Mapping[str, Tensor], *, version: int) -> None:
        """Copy `params` into a free place, as a new member."""
        number = number_of(role, version, len(self.roles))
        if number in self._at:  # the first member, of a run that starts from another
            self._clear(number)
        taken = set(self._at.values())
        place = next(i for i in range(len(self.roles), len(self._numbers)) if i not in taken)
        for kind, vector in packed(params).items():
            self._memory[FROZEN + kind][place - len(self.roles)].copy_(vector)
        result = 2.0 * win_rates(self._recent[role]) - 1.0
        places = self.order()
        self._payoffs[place, places], self._payoffs[places, place] = result[places], -result[places]
        self._at[number], self._numbers[place] = place, number
        self._checksums[number] = self._checksum(place)
        is_anchor = number == number_of(0, FIRST, len(self.roles))
        self.ratings[number] = ELO_START if is_anchor else self.ratings[self._live[role]]

    def _checksum(self, place: int) -> str:
        return checksum_of({kind: x[place - len(self.roles)] for kind, x in self._memory.items()})

    def verify(self) -> None:
        """Raise a `CheckpointError` for a frozen policy whose parameters are not those that were frozen."""
        for number, checksum in self._checksums.items():
            found = self._checksum(self._at[number])
            if found != checksum:
                raise CheckpointError(
                    f"member {self.name(number)} of the pool has changed since it was frozen: its checksum is {found}, not "
                    f"{checksum}; go back to a checkpoint that is whole"
                )

    # ----------------------------------------------------------------------------------------------------------- results
    def add_games(self, games: Games, *, window: int) -> None:
        """Count games of live policies, fade older ones, and move ratings."""
        new = torch.zeros_like(self._games)
        played: dict[tuple[int, int], tuple[float, int]] = {}
        for (a, b, seat, result), num in games.items():
            if a not in self._live or b not in self._at:
                continue
            new[self._at[a], self._at[b], seat, result] += num
            if a < b:  # once for a pair of live policies; a frozen one has a higher number than any live one
                points, count = played.get((a, b), (0.0, 0))
                score = {WIN: 1.0, DRAW: 0.5, LOSS: 0.0}[result]
                played[a, b] = points + score * num, count + num
        self._games += new
        self._recent = self._recent * (1.0 - 1.0 / window) ** new.sum(-1, keepdim=True) + new
        rate(self.ratings, played, fixed=number_of(0, FIRST, len(self.roles)))

    def forget_results(self, role: int) -> None:
        """A role begins anew: what it did before says nothing of it now."""
        self._recent[role], self._recent[:, role] = 0.0, 0.0
        self.ratings[self._live[role]] = ELO_START

    def standing(self, role: int, power: float = 2.0, floor: float = 0.1) -> Standing:
        """What is known of the members, as opponents of a role."""
        places = self.order()
        return Standing(win_rates(self._recent[role])[places], self._payoffs[places][:, places], power, floor)

    def wins_against_main(self, role: int) -> float:
        """How often a role beats the live main policy."""
        return float(win_rates(self._recent[role, 0]))

    def set_draw(self, draw: Tensor, shares: Tensor) -> None:
        """The probabilities of the next episodes: `[R, R + K]`, and the share of each role `[R]`."""
        self._draw.copy_(draw)
        self._shares.copy_(shares)

    def row(self, version: int, draw: Tensor) -> State:
        """A row of league.jsonl: members, results since the start, ratings, and the probability of each as main's opponent."""
        there = [*self._live, *self.frozen()]
        # who has just left is no member any more, but this is the first row that can tell of its last games
        pairs = [(a, b) for a in self._live for b in (*there, *sorted(self._retired)) if a != b]
        by_seat: dict[str, dict[str, list[list[int]]]] = {}
        for a, b in pairs:
            counts: list[list[int]] = self._games[self._at[a], self._at[b]].long().tolist()
            by_seat.setdefault(self.name(a), {})[self.name(b)] = counts
        games = {
            a: {b: [*map(sum, zip(*seats, strict=True)), sum(map(sum, seats))] for b, seats in others.items()}
            for a, others in by_seat.items()
        }
        return {
            "version": version,
            "members": [self._described(number) for number in there],
            "games": games,
            "by_seat": by_seat,
            "elo": {self.name(number): self.ratings[number] for number in there},
            "picked": {self.name(number): float(draw[self._at[number]]) for number in there},
        }

    def _described(self, number: int) -> State:
        role, version = role_and_version(number, len(self.roles))
        about: State = {"name": self.name(number), "role": self.roles[role].rstrip("-0123456789"), "live": version < 0}
        if version < 0:
            return about
        return {**about, "version": version, "parent": self.roles[role], "checksum": self._checksums[number]}

    # ------------------------------------------------------------------------------------------------------------- state
    def params(self) -> dict[str, Tensor]:
        """What is published: the same tensors at every call."""
        return {**self._memory, NUMBERS: self._numbers, DRAW_OF: self._draw, SHARES: self._shares}

    def state_dict(self) -> State:
        return {
            "memory": {key: x.clone() for key, x in self._memory.items()},
            "at": _by_text(self._at),
            "retired": _by_text(self._retired),
            "checksums": _by_text(self._checksums),
            "ratings": _by_text(self.ratings),
            "games": self._games.clone(),
            "recent": self._recent.clone(),
            "payoffs": self._payoffs.clone(),
        }

    def load_state_dict(self, state: State) -> None:
        for key, x in self._memory.items():
            x.copy_(torch.as_tensor(state["memory"][key]))
        self._at = {int(n): int(place) for n, place in state["at"].items()}
        self._retired = {int(n): int(since) for n, since in state["retired"].items()}
        self._checksums = {int(n): str(text) for n, text in state["checksums"].items()}
        self.ratings = {int(n): float(x) for n, x in state["ratings"].items()}
        self._games.copy_(torch.as_tensor(state["games"]))
        self._recent = torch.as_tensor(state["recent"]).clone()
        self._payoffs.copy_(torch.as_tensor(state["payoffs"]))
        self._numbers.zero_()
        for number, place in self._at.items():
            self._numbers[place] = number
        self.verify()


def _by_text(values: Mapping[int, object]) -> dict[str, object]:
    return {str(number): x for number, x in values.items()}
