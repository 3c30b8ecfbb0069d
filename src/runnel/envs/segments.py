"""Filling one `[T, B]` segment of a trajectory stream, step by step, on the host or on a device.

`SegmentWriter` writes with tensor copies and never waits for a device; `HostWriter` does the same with numpy views, which
cost a quarter of a torch call. Views are made once per slot and reused, because a slot's memory never moves.

`CarriedSums` gives a segment the discounted sums so far of the episodes that go on in it: of rewards, for learners that scale
rewards by them, and of costs, for learners that hold them under a limit. A learner cannot compute them: only a sampler sees
every step of each episode in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.tasks import TaskSource
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Slot, StreamSpec
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE, BURN_IN, REWARD, SHARED, TASK_RETURN, TEAM_ACTIVE, carried_field
from runnel.envs.spaces import MASK
from runnel.envs.vector import StepOut
from runnel.ops.returns import returns_so_far

SMALLEST_NOISE = 2.0**-25
"""Noise is never exactly 0: a policy may take its logarithm."""
_OURS = ("terminated", "truncated")


class SegmentWriter:
    """Fills one slot: call `write_obs(t)`, `write_reply(t, ...)` and `write_step(t)` for each t, then `finish()`."""

    def __init__(self, slot: Slot, out: StepOut) -> None:
        self.slot, self.out = slot, out
        self.num_steps, self.num_envs = slot.spec.sizes["T"], slot.spec.sizes["B"]
        self.burn_in = slot.spec.sizes.get(BURN_IN, 0)
        """Steps at the beginning that are those of the segment before; who has them writes them (`envs/team/samples.py`)."""
        self.versions: list[int] = []
        self.final_index: list[int] = []
        arrays = slot.arrays
        self._reply = [(k, arrays[k].unbind(0)) for k in reply_fields(slot.spec)]
        obs = [(arrays[k], x) for k, x in out.obs.items()]
        if out.action_mask is not None:
            obs.append((arrays[MASK], out.action_mask))
        if out.active is not None:
            obs.append((arrays[ACTIVE], out.active))
        obs += [(arrays[k], x) for k, x in out.task.items()]
        outcome = [(arrays[REWARD], out.reward), *((arrays[k], x) for k, x in out.channels.items())]
        outcome += [(arrays["terminated"], out.terminated), (arrays["truncated"], out.truncated)]
        self._bind(obs, outcome)

    def _bind(self, obs: list[tuple[Tensor, Tensor]], outcome: list[tuple[Tensor, Tensor]]) -> None:
        self._obs = [(to.unbind(0), source) for to, source in obs]
        self._outcome = [(to.unbind(0), source) for to, source in outcome]
        self._final = []
        for key, source in self.out.final_obs.items():
            to = self.slot.arrays["final_" + key]
            self._final.append((to.view(-1, self.num_envs, *to.shape[1:]).unbind(0), source))

    @property
    def dense(self) -> bool:
        """Whether every step has a final observation for every row."""
        return self.out.final_rows is None

    @property
    def num_final(self) -> int:
        return len(self.versions) * self.num_envs if self.dense else len(self.final_index)

    def begin(self, slot: Slot) -> None:
        """Start over in the same memory."""
        self.slot, self.versions, self.final_index = slot, [], []

    def write_obs(self, t: int) -> None:
        """Record the observations of step t."""
        for views, source in self._obs:
            views[t].copy_(source, non_blocking=True)

    def write_reply(self, t: int, rows: Batch, version: int) -> None:
        """Record the policy's reply: the action, and every other field of the stream that is in the reply."""
        if t == self.burn_in:
            self._check_reply(rows)
        for key, views in self._reply:
            views[t].copy_(rows[key], non_blocking=True)
        self.versions.append(version)

    def _check_reply(self, rows: Batch) -> None:
        missing = [key for key, _ in self._reply if key not in rows]
        if missing:
            raise DataError(
                f"stream {self.slot.spec.name!r} declares {missing}, but the policy answers only {sorted(rows)}; "
                "return them from the policy, or leave them out of the stream"
            )
        for key, views in self._reply:
            check_reply(key, rows[key], views[0])

    def write_step(self, t: int) -> None:
        """Record the environments' step: rewards, flags, and the final observations of episodes that ended."""
        for views, source in self._outcome:
            views[t].copy_(source, non_blocking=True)
        rows = self.out.final_rows
        if rows is None:
            for views, source in self._final:
                views[t].copy_(source, non_blocking=True)
        elif rows:
            self._sparse_finals(t, rows)

    def _sparse_finals(self, t: int, rows: list[int]) -> None:
        start, stop = len(self.final_index), len(self.final_index) + len(rows)
        for key, source in self.out.final_obs.items():
            self.slot.arrays["final_" + key][start:stop].copy_(source[: len(rows)], non_blocking=True)
        self.final_index += [t * self.num_envs + row for row in rows]

    def finish(self) -> None:
        """Complete the segment: the bootstrap observation, versions, and the index of final observations."""
        self.write_obs(self.num_steps)
        arrays, header = self.slot.arrays, self.slot.header
        made = self.versions[self.burn_in :] if self.burn_in else self.versions
        header.version_min, header.version_max = min(made), max(made)
        header.used = {"F": self.num_final}
        if header.version_min == header.version_max and not self.burn_in:
            arrays["policy_version"].fill_(header.version_min)
        else:
            arrays["policy_version"].copy_(torch.tensor(self.versions))
        self._write_index()

    def _write_index(self) -> None:
        index = self.slot.arrays["final_index"]
        if self.dense:
            torch.arange(self.num_final, out=index)
        elif self.final_index:
            index[: self.num_final].copy_(torch.tensor(self.final_index))

    def is_of_reply(self, field: str) -> bool:
        """Whether `field` comes from the policy's reply."""
        return any(key == field for key, _ in self._reply)

    def first_bad(self) -> tuple[str, int, int] | None:
        """Field, time and row of the first NaN or infinity in the segment; None if there is none. Waits for the device once."""
        parts = self._written()
        ok = torch.stack([torch.isfinite(x).all() for _, x in parts]).tolist()
        bad = [self._locate(name, x) for (name, x), fine in zip(parts, ok, strict=True) if not fine]
        return min(bad, key=lambda b: b[1:]) if bad else None

    def _written(self) -> list[tuple[str, Tensor]]:
        steps, arrays = len(self.versions), self.slot.arrays
        obs = [(k, arrays[k][: steps + 1]) for k in self.out.obs]
        final = [("final_" + k, arrays["final_" + k][: self.num_final]) for k in self.out.obs]
        reply = [(k, arrays[k][:steps]) for k, _ in self._reply]
        rewards = [(k, arrays[k][:steps]) for k in (REWARD, *self.out.channels)]
        parts = [*obs, *final, *rewards, *reply]
        return [(k, x) for k, x in parts if x.is_floating_point()]

    def _locate(self, name: str, x: Tensor) -> tuple[str, int, int]:
        first = (~torch.isfinite(x)).nonzero()[0].tolist()
        if not name.startswith("final_"):
            return name, first[0], first[1]
        place = first[0] if self.dense else self.final_index[first[0]]
        return name.removeprefix("final_"), place // self.num_envs + 1, place % self.num_envs

    def save(self) -> State:
        """The part that is written so far, as plain data."""
        return {
            "versions": list(self.versions),
            "final_index": list(self.final_index),
            "arrays": {k: self.slot.arrays[k][:n].clone() for k, n in self._progress().items()},
        }

    def load(self, state: State) -> None:
        """Undo `save`, into this slot."""
        self.versions, self.final_index = list(state["versions"]), list(state["final_index"])
        for key, n in self._progress().items():
            self.slot.arrays[key][:n].copy_(torch.as_tensor(state["arrays"][key]))

    def _progress(self) -> dict[str, int]:
        """The number of entries written so far along the first dim of each field."""
        steps = len(self.versions)
        far: dict[Any, int] = {"T": steps, "T1": steps + 1, "F": self.num_final, "B": self.num_envs}
        return {k: far[f.dims[0]] for k, f in self.slot.spec.fields.items() if f.dims[0] in far}


class HostWriter(SegmentWriter):
    """A segment in host memory, filled from host environments."""

    def _bind(self, obs: list[tuple[Tensor, Tensor]], outcome: list[tuple[Tensor, Tensor]]) -> None:
        self._host_obs = [(to.numpy(), source.numpy()) for to, source in obs]
        self._host_outcome = [(to.numpy(), source.numpy()) for to, source in outcome]
        self._host_reply = [(k, self.slot.arrays[k].numpy()) for k, _ in self._reply]

    def write_reply(self, t: int, rows: Batch, version: int) -> None:
        if t == self.burn_in:
            self._check_reply(rows)
        for key, view in self._host_reply:
            view[t] = rows[key].numpy()
        self.versions.append(version)

    def write_obs(self, t: int) -> None:
        for view, source in self._host_obs:
            view[t] = source

    def write_step(self, t: int) -> None:
        for view, source in self._host_outcome:
            view[t] = source
        if self.out.final_rows:
            self._sparse_finals(t, self.out.final_rows)

    def first_bad(self) -> tuple[str, int, int] | None:
        # a sum costs a tenth of a full check and is finite if all numbers are, unless it overflows: then check them all
        with np.errstate(all="ignore"):
            total = sum(float(x.numpy().sum()) for _, x in self._written())
        if math.isfinite(total):
            return None
        return super().first_bad()


def reply_fields(spec: StreamSpec) -> list[str]:
    """The fields of a stream that a policy's replies fill, step by step."""
    ours = ("rewards/", "costs/")
    return [k for k, f in spec.fields.items() if f.dims[:2] == ("T", "B") and k not in _OURS and not k.startswith(ours)]


def make_writer(slot: Slot, out: StepOut) -> SegmentWriter:
    """The writer that fits where the slot and the environments lie."""
    on_host = all(x.device.type == "cpu" for x in (slot.arrays["rewards/env"], out.reward))
    return HostWriter(slot, out) if on_host and out.final_rows is not None else SegmentWriter(slot, out)


class SlotWriters:
    """The writers of the slots that a vector has filled so far, each with its views, which are made once."""

    def __init__(self, out: StepOut) -> None:
        self._out = out
        self._known: dict[int, tuple[int, SegmentWriter]] = {}

    def begin(self, slot: Slot) -> SegmentWriter:
        """The writer of `slot`, at the start of a segment."""
        address = slot.arrays["final_index"].data_ptr()
        known = self._known.get(slot.index)
        if known is None or known[0] != address:
            known = self._known[slot.index] = (address, make_writer(slot, self._out))
        known[1].begin(slot)
        return known[1]


class SegmentRequests:
    """The request of each step, made once: what a policy sees, mask and recurrent `state` are fixed memory, and the noise of a
    step is a view of that of the segment. Noise is drawn for every row, so that it never depends on what happens."""

    def __init__(self, out: StepOut, noise_size: int, rng: np.random.Generator, state: Mapping[str, Tensor]) -> None:
        self._out, self._noise_size, self.rng, self._state = out, noise_size, rng, state
        self.rows: list[Batch] = []
        self._noise = self._sent = torch.zeros(0)

    def prepare(self, num_steps: int) -> None:
        """Make the requests of `num_steps` steps, where that is still to be done."""
        if self.rows:
            return
        out = self._out
        self._noise = torch.zeros(num_steps, len(out.reward), self._noise_size)
        self._sent = self._noise.to(out.reward.device)
        # what only critics read stays here: it is in the segment, and in no request. Who of a team decides is no secret
        seen = {key: x for key, x in out.obs.items() if not key.startswith(SHARED) or key == TEAM_ACTIVE}
        fixed = {**seen, **self._state} if out.action_mask is None else {**seen, **self._state, MASK: out.action_mask}
        self.rows = [Batch({**fixed, "noise": noise}) for noise in self._sent.unbind(0)]

    def draw(self) -> None:
        """Uniform numbers in (0, 1) for the whole segment."""
        noise = self._noise.numpy()
        self.rng.random(dtype=np.float32, out=noise)
        np.maximum(noise, SMALLEST_NOISE, out=noise)
        self._send()

    def _send(self) -> None:
        if self._sent is not self._noise:
            self._sent.copy_(self._noise)

    def save(self) -> Tensor:
        """The noise of the segment."""
        return self._noise.clone()

    def load(self, noise: State | Tensor) -> None:
        """Undo `save`."""
        self._noise.copy_(torch.as_tensor(noise))
        self._send()


class CarriedSums:
    """Discounted sums so far of the episodes that the environments of one vector are in, of each channel in `discounts`.

    A checkpoint keeps `now`, by channel `[B]`. `field` says where a segment holds what a channel summed up to before.
    """

    def __init__(
        self,
        num_envs: int,
        discounts: Mapping[str, float],
        *,
        device: torch.device,
        field: Callable[[str], str] = carried_field,
    ) -> None:
        self._channels = [(channel, field(channel), gamma) for channel, gamma in discounts.items()]
        self.now = {channel: torch.zeros(num_envs, device=device) for channel in discounts}

    def begin(self, arrays: Batch) -> None:
        """Write the sums so far into a segment that begins."""
        for channel, field, _ in self._channels:
            arrays[field].copy_(self.now[channel], non_blocking=True)

    def end(self, arrays: Batch, *, burn_in: int = 0) -> None:
        """Add the steps of a segment, which are all written; those of its burn-in are added already."""
        ended = (arrays["terminated"] | arrays["truncated"])[burn_in:]
        for channel, field, gamma in self._channels:
            sums: Tensor = returns_so_far(arrays[channel][burn_in:], ended, arrays[field], gamma=gamma)
            self.now[channel].copy_(sums[-1].masked_fill(ended[-1], 0.0))

    def save(self) -> State:
        """`now`, as plain data."""
        return {channel: now.clone() for channel, now in self.now.items()}

    def load(self, state: State | Tensor | None) -> None:
        """Undo `save`. Older checkpoints have no sums, or those of the reward alone."""
        saved = {} if state is None else state if isinstance(state, Mapping) else {REWARD: state}
        for channel, now in self.now.items():
            if channel in saved:
                now.copy_(torch.as_tensor(saved[channel]))


def task_returns(num_envs: int, source: TaskSource | None, *, device: torch.device) -> CarriedSums:
    """Returns so far, without discount, by which tasks are judged; nothing is summed where no task is given."""
    return CarriedSums(num_envs, {} if source is None else {REWARD: 1.0}, device=device, field=lambda _: TASK_RETURN)


def check_rows(spec: StreamSpec, num_envs: int) -> None:
    """Refuse a stream whose segments have another number of rows than there are environments."""
    if spec.sizes["B"] != num_envs:
        raise ConfigError("num_envs", num_envs, f"stream {spec.name!r} has {spec.sizes['B']} rows; make them equal")


def check_reply(key: str, found: Tensor, like: Tensor) -> None:
    """Refuse a field of a policy's answer that would be broadcast or rounded into its place on the stream."""
    rounds = found.is_floating_point() and not like.is_floating_point()
    if found.shape != like.shape or rounds:
        wanted = f"{list(like.shape)} of {like.dtype}"
        raise DataError(
            f"the policy answered {key!r} as {list(found.shape)} of {found.dtype}, expected {wanted}; see its act()"
        )
