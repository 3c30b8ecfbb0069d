"""The turns of joined rows, as algorithms read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.llm.learning.batches import token_owner
from runnel.ops.credit import last_of_row
from runnel.ops.turns import turn_index, turn_sum


@dataclass(frozen=True)
class Turns:
    """Where turns are. `owner` is the trajectory of each one, `token` the turn of each token (-1: of none), `first` the place
    of each turn's first trained token (of its first token, where none is trained); turns with equal `key` saw the same."""

    owner: Tensor
    first: Tensor
    token: Tensor
    key: Tensor
    num_trajectories: int

    @staticmethod
    def of(rows: Mapping[str, Tensor]) -> Turns:
        """The turns of `batches.join_rows`. Where the stream has none, each trajectory is one turn, and all have one key."""
        mask, num = rows["loss_mask"], len(rows["group"])
        if "turn_row" not in rows:
            of_token, owner = torch.where(mask, token_owner(rows), -1), torch.arange(num)
            return Turns(owner, _first(torch.zeros_like(owner), of_token, mask), of_token, torch.zeros_like(owner), num)
        row = rows["turn_row"]
        start, end = (rows["row_start"][row] + rows[name] for name in ("turn_start", "turn_end"))
        if bool((start.diff() <= 0).any()):
            raise DataError("turns must be written in the order of their rows, and in each row in the order of time")
        token = turn_index(start, end, len(mask))
        if bool((mask & (token < 0)).any()):
            raise DataError(
                "tokens are trained that belong to no turn; loss_mask must hold between turn_start and turn_end only"
            )
        return Turns(rows["row_owner"][row], _first(start, token, mask), token, rows["turn_key"], num)

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def last(self) -> Tensor:
        """The last turn of each trajectory; -1 for one without turns. `[B]`"""
        return last_of_row(torch.ones(len(self), dtype=torch.bool), self.owner, self.num_trajectories)

    def ends(self, mask: Tensor) -> Tensor:
        """The place of each turn's last trained token; `first` where none is trained. `[U]`"""
        places = mask.nonzero().squeeze(1)
        return self.first.scatter_reduce(0, self.token[places], places, "amax")

    def trained(self, mask: Tensor) -> Tensor:
        """Whether any token of a turn is trained. `[U]`"""
        return turn_sum(mask.float(), self.token, len(self)) > 0

    def rewards(self, rows: Mapping[str, Tensor], channels: Mapping[str, float]) -> Tensor:
        """What each turn earns, over channels: those of turns and tokens where they are given, those of trajectories at the
        last turn. `[U]`"""
        out, last = torch.zeros(len(self)), self.last
        for channel, weight in channels.items():
            if (by_turn := rows.get(f"turn_rewards/{channel}")) is not None:
                out += weight * by_turn.nan_to_num(0.0)
            elif (by_token := rows.get(f"token_rewards/{channel}")) is not None:
                out += weight * turn_sum(by_token.nan_to_num(0.0), self.token, len(self))
            elif f"rewards/{channel}" in rows:
                out[last[last >= 0]] += weight * rows[f"rewards/{channel}"].nan_to_num(0.0)[last >= 0]
            else:
                raise DataError(
                    f"segments have no reward channel {channel!r}; name it in the stream, or leave it out of channels"
                )
        return out


def _first(start: Tensor, token: Tensor, mask: Tensor) -> Tensor:
    """The place of each turn's first trained token; `start` where it has none."""
    places = mask.nonzero().squeeze(1)
    return start.scatter_reduce(0, token[places], places, "amin", include_self=False)
