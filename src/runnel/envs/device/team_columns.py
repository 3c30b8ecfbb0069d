"""The agents of one policy on a device: which columns of a team are its own, what they see, and what came of it.

The same as `team_rows.py`, as functions of tensors that never wait for the device: what is not there is blanked by `where`, and
no index is made of what a tensor holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.routes import Side
from runnel.core.spaces import TeamSpec
from runnel.core.trajectories import ACTIVE, AGENT, REWARD, SHARED
from runnel.envs.device.team_rows import TeamRows
from runnel.envs.device.torch_engine import Act
from runnel.envs.segments import check_reply
from runnel.envs.spaces import MASK


@dataclass
class Playing:
    """What a policy brings to a segment: how it acts, its noise `[T, B, n]`, its recurrent state `[B, ...]` before the segment
    (and behind it: the memory is written), and the arrays that it fills (None: nothing is learned from it), with the fields of
    its `replies` in them."""

    act: Act
    noise: Tensor
    state: Mapping[str, Tensor]
    arrays: Batch | None = None
    replies: Sequence[str] = ()


@dataclass
class Shown:
    """What a team sees at one moment: leaves `[E, A_k, ...]` of each kind, the global state `[E, ...]` by name, and who decides
    `[E, A]`."""

    kinds: Sequence[Mapping[str, Tensor]]
    shared: Mapping[str, Tensor]
    active: Tensor


@dataclass
class AskedRows:
    """The rows `[B, ...]` that a policy is asked about, and which of them decide `[B]`."""

    seen: Batch
    active: Tensor


class PolicyColumns:
    """The columns of one policy in arrays of a team of `num_envs` worlds; row e * A + a is agent a of world e."""

    def __init__(self, side: Side, spec: TeamSpec, num_envs: int, device: torch.device) -> None:
        rows = TeamRows(side, spec)
        self.side, self.width, self.kind, self.num_envs = side, rows.width, rows.kind, num_envs
        self.num_rows = num_envs * rows.width
        self._of_team, self.of_kind = _on(rows.of_team, device), _on(rows.of_kind, device)
        self._which = torch.eye(rows.width, device=device).unsqueeze(0)
        dtypes = {leaf.dtype for leaf in side.spec.obs.values()}
        # a tensor without dimensions, because `where` writes into given memory only from tensors
        self._zero = {dtype: torch.zeros((), dtype=dtype, device=device) for dtype in dtypes}

    def of_team(self, x: Tensor, dim: int = 1) -> Tensor:
        """Its columns of a team's array, whose agents are dimension `dim`."""
        return pick(x, self._of_team, dim)

    def _leaf(self, key: str, shown: Shown) -> Tensor:
        """What its agents see under `key`, whether they decide or not. `[E, A, ...]`"""
        if not key.startswith(SHARED):
            return pick(shown.kinds[self.kind][key], self.of_kind, 1)
        if key == AGENT:
            return self._which.expand(len(shown.active), -1, -1)
        x = shown.shared[key]
        return x.unsqueeze(1).expand(-1, self.width, *x.shape[1:])

    def show(self, shown: Shown, t: int, arrays: Batch | None) -> AskedRows:
        """What the agents see at step `t`, written into the `arrays` of the segment if there are any. Who does not decide has
        zeros, and a mask that allows everything."""
        active, seen = self.of_team(shown.active), Batch()
        for key in self.side.spec.obs:
            x = self._leaf(key, shown)
            into = None if arrays is None else self._by_agent(arrays[key][t])
            found = torch.where(_beside(active, x), x, self._zero[x.dtype], out=into)
            if not key.startswith(SHARED):
                seen[key] = found.flatten(0, 1)
        if self.side.spec.has_mask:
            mask = pick(shown.kinds[self.kind][MASK], self.of_kind, 1)
            into = None if arrays is None else self._by_agent(arrays[MASK][t])
            seen[MASK] = torch.logical_or(mask, ~active.unsqueeze(-1), out=into).flatten(0, 1)
        if arrays is not None:
            self._by_agent(arrays[ACTIVE][t]).copy_(active)
        return AskedRows(seen, active.flatten())

    def _by_agent(self, x: Tensor) -> Tensor:
        """Rows by world and agent, in the same memory. `[B, ...] -> [E, A, ...]`"""
        return x.view(self.num_envs, self.width, *x.shape[1:])

    def actions(self, reply: Batch) -> Tensor:
        """`[E, A, ...]`"""
        return self._by_agent(reply["action"])

    def write(self, arrays: Batch, earned: Tensor, terminated: Tensor, truncated: Tensor) -> None:
        """Write what came of all steps, `[T, E, A]` of the whole team."""
        for key, x in ((REWARD, earned), ("terminated", terminated), ("truncated", truncated)):
            arrays[key].view(len(x), self.num_envs, self.width).copy_(self.of_team(x, dim=2))

    def finals(self, arrays: Batch, shown: Shown, when: Tensor | None) -> int:
        """Write what truncated agents saw last, and where. Returns the number of places.

        `shown` is what is behind the step `when` `[E]` of each world, in which its agents were truncated if they were in this
        segment at all; or (None) behind every step of all worlds, `[T * E]` one after the other. Who was not truncated repeats
        what stands in the segment anyhow.
        """
        num_steps, num_rows = arrays["truncated"].shape
        index = torch.arange(num_steps * num_rows, device=arrays["truncated"].device)
        if when is None:
            cut, places, following = arrays["truncated"].flatten(), index, slice(1, None)
            kept = {key: arrays[key][following].flatten(0, 1) for key in self._kept}
        else:
            own = when.unsqueeze(1).expand(-1, self.width).reshape(-1)
            cut = arrays["truncated"].gather(0, own.unsqueeze(0)).squeeze(0)
            places = torch.where(cut, own, num_steps - 1) * num_rows + index[:num_rows]
            kept = {key: arrays[key][-1] for key in self._kept}
        num = len(places)
        arrays["final_index"][:num].copy_(places)
        for key in self._kept:
            x = self._last_mask(shown) if key == MASK else self._leaf(key, shown)
            x = x.flatten(0, 1)
            torch.where(_beside(cut, x), x, kept[key], out=arrays["final_" + key][:num])
        return num

    @property
    def _kept(self) -> list[str]:
        """What final observations have."""
        return [*self.side.spec.obs, *([MASK] if self.side.spec.has_mask else [])]

    def _last_mask(self, shown: Shown) -> Tensor:
        """The masks behind the last step: an agent that waits there has no choice to make."""
        return pick(shown.kinds[self.kind][MASK], self.of_kind, 1) | ~self.of_team(shown.active).unsqueeze(-1)

    def total(self, part: Playing, num_final: int) -> Tensor:
        """A sum that is finite only if all is that a segment has of this policy. `[]`"""
        assert part.arrays is not None
        obs, arrays = self.side.spec.obs, part.arrays
        found = [arrays[REWARD], *(arrays[key] for key in (*obs, *part.replies))]
        found += [arrays["final_" + key][:num_final] for key in obs]
        return torch.stack([x.sum() for x in found if x.is_floating_point()]).sum()


def write_replies(part: Playing, replies: Sequence[Batch]) -> None:
    """Write what a policy answered at all steps, each field stacked once."""
    assert part.arrays is not None
    for key in part.replies:
        if key not in replies[0]:
            fix = f"the stream declares {key!r}, but the policy answers only {sorted(replies[0])}"
            raise DataError(f"{fix}; return it from the policy, or leave it out of the stream")
        check_reply(key, replies[0][key], part.arrays[key][0])
        torch.stack([reply[key] for reply in replies], out=part.arrays[key])


def pick(x: Tensor, columns: slice | Tensor, dim: int) -> Tensor:
    """Some columns of dimension `dim`. A list as an index would be copied from the host at every call."""
    if isinstance(columns, slice):
        return x.narrow(dim, columns.start, columns.stop - columns.start)
    return x.index_select(dim, columns)


def _on(columns: slice | list[int], device: torch.device) -> slice | Tensor:
    return columns if isinstance(columns, slice) else torch.tensor(columns, device=device)


def _beside(flags: Tensor, x: Tensor) -> Tensor:
    """Flags with as many dimensions as `x`, whose first ones they have."""
    return flags.view(*flags.shape, *[1] * (x.dim() - flags.dim()))
