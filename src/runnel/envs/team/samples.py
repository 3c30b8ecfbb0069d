"""What the agents of one policy write to one sample stream, segment after segment."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from runnel.core.contracts.evaluation import SampleRoute
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Slot
from runnel.core.state import State
from runnel.core.trajectories import REWARD, TASK_RETURN, own_steps
from runnel.envs.segments import CarriedSums, SegmentWriter, SlotWriters
from runnel.envs.vector import StepOut


class SampleLane:
    """Fills the segments of one stream: `bind` a slot, `begin`, then `ask`, `answer` and `step` for every step, then `finish`.

    `now` is the policy's recurrent state, by name, at every moment: fixed memory of its `PolicyLane`. Of a stream with burn-in,
    the last steps of each segment are kept for the next one, with the state before them.
    """

    def __init__(self, sample: SampleRoute, out: StepOut, now: Mapping[str, Tensor], *, gamma: float | None) -> None:
        self.stream, self._out, self._now = sample.stream, out, now
        self._writers = SlotWriters(out)
        self.segment: SegmentWriter | None = None
        self.begun = False
        """Whether `segment` is being filled; if not, it waits for slots of other streams."""
        self.played = 0
        """Steps of the segment that are done, without its burn-in."""
        num_rows = len(out.reward)
        self._sums = CarriedSums(num_rows, {} if gamma is None else {REWARD: gamma}, device=out.reward.device)
        self._totals = CarriedSums(num_rows, {REWARD: 1.0}, device=out.reward.device, field=lambda _: TASK_RETURN)
        """Returns so far, without discount, for streams that have them: who has won an episode."""
        self._early: dict[str, Tensor] = {}
        """The recurrent state before the steps that the next segment gets as its burn-in."""
        self._tail: dict[str, Tensor] = {}
        self._tail_versions: list[int] = []

    @property
    def num_steps(self) -> int:
        """Steps of the open segment, without its burn-in."""
        return own_steps(self._open.slot.spec)

    @property
    def left(self) -> int:
        """Steps until the segment is full."""
        return self.num_steps - self.played

    @property
    def _open(self) -> SegmentWriter:
        assert self.segment is not None, "a lane plays only while all its segments are open"
        return self.segment

    @property
    def need(self) -> int:
        """The version that must act; -1 for any."""
        return -1 if self.segment is None else self.segment.slot.header.required_version

    def reserve(self, writer: SampleWriter) -> bool:
        """Get a slot; False while there is none."""
        slot = writer.reserve()
        if slot is None:
            return False
        self.bind(slot)
        return True

    def bind(self, slot: Slot) -> None:
        """Fill `slot` from now on."""
        found, num_rows = slot.spec.sizes["B"], len(self._out.reward)
        if found != num_rows:
            fix = f"stream {slot.spec.name!r} has {found} rows, and the policy that writes it has {num_rows}; make them equal"
            raise ConfigError("num_envs", found, fix)
        self.segment = self._writers.begin(slot)

    def begin(self) -> None:
        """The first step of the segment comes next."""
        segment, arrays = self._open, self._open.slot.arrays
        self.begun, self.played = True, 0
        self._sums.begin(arrays)
        if TASK_RETURN in arrays:
            self._totals.begin(arrays)
        if segment.burn_in and not self._tail:
            self._tail = _nothing(segment, self._now)
            self._tail_versions = [-1] * segment.burn_in
        for key, x in (self._tail if segment.burn_in else self._now).items():
            (arrays[key] if key in self._now else arrays[key][: segment.burn_in]).copy_(x)
        segment.versions = list(self._tail_versions)

    def ask(self) -> None:
        """Record what is seen before a step."""
        segment = self._open
        segment.write_obs(segment.burn_in + self.played)
        if segment.burn_in and self.left == segment.burn_in:
            self._early = {key: x.clone() for key, x in self._now.items()}

    def answer(self, rows: Batch, version: int) -> None:
        """Record what the policy answered."""
        self._open.write_reply(self._open.burn_in + self.played, rows, version)

    def step(self) -> None:
        """Record what the environments gave for it."""
        self._open.write_step(self._open.burn_in + self.played)
        self.played += 1

    def finish(self) -> SegmentWriter:
        """All steps are there: what the segment says as a whole is written."""
        segment, arrays = self._open, self._open.slot.arrays
        segment.finish()
        self._sums.end(arrays, burn_in=segment.burn_in)
        if TASK_RETURN in arrays:
            self._totals.end(arrays, burn_in=segment.burn_in)
        if segment.burn_in:
            first, last = segment.num_steps - segment.burn_in, segment.num_steps
            self._tail = {key: arrays[key][first:last].clone() for key in _by_step(segment)} | self._early
            self._tail_versions = segment.versions[first:]
        self.segment, self.begun = None, False
        return segment

    def save(self) -> State:
        segment = None
        if self.segment is not None:
            segment = {"index": self.segment.slot.index, **(self.segment.save() if self.begun else {})}
        return {
            "segment": segment,
            "begun": self.begun,
            "played": self.played,
            "returns": self._sums.save(),
            "totals": self._totals.save(),
            "early": {key: x.clone() for key, x in self._early.items()},
            "tail": {key: x.clone() for key, x in self._tail.items()},
            "tail_versions": list(self._tail_versions),
        }

    def load(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        """Undo `save`."""
        self.segment, self.begun, self.played = None, state["begun"], state["played"]
        self._sums.load(state["returns"])
        self._totals.load(state.get("totals"))  # older checkpoints have none
        self._early = {key: torch.as_tensor(x) for key, x in state["early"].items()}
        self._tail = {key: torch.as_tensor(x) for key, x in state["tail"].items()}
        self._tail_versions = list(state["tail_versions"])
        if state["segment"] is not None:
            self.bind(writers[self.stream].reclaim(state["segment"]["index"]))
        if self.begun:
            self._open.load(state["segment"])


def _by_step(segment: SegmentWriter) -> list[str]:
    """The fields that have an entry for every step."""
    return [key for key, field in segment.slot.spec.fields.items() if field.dims[0] in ("T", "T1") and key != "policy_version"]


def _nothing(segment: SegmentWriter, now: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands in the burn-in of the very first segment: rows in which nobody decides, so that the state stays zero."""
    arrays = segment.slot.arrays
    steps = {key: torch.zeros_like(arrays[key][: segment.burn_in]) for key in _by_step(segment)}
    return steps | {key: torch.zeros_like(x) for key, x in now.items()}
