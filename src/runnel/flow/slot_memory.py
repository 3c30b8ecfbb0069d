"""The memory of a sample stream, and what its numbers mean: a few for the whole stream, some for each reader and each slot."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from runnel.core.records import Batch, StreamSpec
from runnel.core.state import State

FREE, RESERVED, FINISHED, FEEDBACK = range(4)
UNREAD, TAKEN, RELEASED, ANSWERED = range(4)
SHARED, GIVEN = -1, -2
"""Marks of segments that several ranks have taken: each rank has a part of the rows, or (`GIVEN - rank`) one has all."""
REASONS = (
    "stale",
    "evicted_unused",
    "orphaned",
    "lost_with_trainer",
    "env_failed",
    "reward_failed",
    "prompt_too_long",
    "no_signal",
    "worker_lost",
    "aborted",
    "skipped",
    "other",
)
REASONS_BEFORE = tuple(reason for reason in REASONS if reason != "skipped")
"""The reasons of checkpoints that do not name theirs: they were written before readers could be lossy."""
HEADER = (
    "sequence",
    "sample_id",
    "num_steps",
    "version_min",
    "version_max",
    "epoch",
    "writer",
    "agent",
    "group_id",
    "task_id",
    "required_version",
)
FEW = 64
"""Up to this number of slots, lists are faster than arrays."""
WRITER, SAMPLE_ID = HEADER.index("writer"), HEADER.index("sample_id")
NUMBERS = attrgetter(*HEADER)
VERSION, EPOCH, NEXT, DISPATCHED, STEPS, CONSUMED_SEGMENTS, CANCELLED = range(7)
GLOBALS = CANCELLED + len(REASONS)
PACE = 0
"""The index of the reader that paces the writers."""
CURSOR, CONSUMED, HELD, DROPPED = range(4)
PER_READER = DROPPED + len(REASONS)


def reason_index(reason: str) -> int:
    """`reward_failed: it raised` counts as `reward_failed`; an unknown reason counts as `other`."""
    name = reason.partition(":")[0].strip()
    return REASONS.index(name) if name in REASONS else REASONS.index("other")


Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class SlotMemory:
    """The memory of a stream: control numbers, and for each slot a batch of arrays and a batch of feedback arrays."""

    control: Numbers
    arrays: list[Batch]
    feedback: list[Batch]

    @staticmethod
    def control_size(spec: StreamSpec) -> int:
        per_slot = 1 + len(HEADER) + len(spec.variable) + len(spec.all_readers)
        return GLOBALS + PER_READER * len(spec.all_readers) + spec.num_writers + per_slot * spec.capacity + 1

    @staticmethod
    def local(spec: StreamSpec) -> SlotMemory:
        feedback = [
            Batch({k: torch.zeros(spec.shape(k), dtype=f.dtype) for k, f in spec.feedback.items()})
            for _ in range(spec.capacity)
        ]
        control = np.zeros(SlotMemory.control_size(spec), dtype=np.int64)
        arrays: list[Batch] = []
        for _ in range(spec.capacity // spec.side_by_side):
            shapes = {k: (spec.block_shape(k), f.dtype) for k, f in spec.fields.items()}
            arrays += spec.slots_of({k: torch.zeros(s, dtype=d, device=spec.device) for k, (s, d) in shapes.items()})
        return SlotMemory(control, arrays, feedback)


def rows_by_reason(counts: list[int]) -> dict[str, int]:
    """Numbers of rows in the order of `REASONS` -> those that are not 0, by name."""
    return {name: n for name, n in zip(REASONS, counts, strict=True) if n}


def consumed_in(state: State, reader: int, num_readers: int) -> int:
    """Rows that a reader had consumed when `SlotTable.snapshot` gave `state`."""
    reasons = tuple(state.get("reasons", REASONS_BEFORE))
    numbers = with_all_reasons(np.asarray(state["control"]), reasons, num_readers)
    return int(numbers[GLOBALS + reader * PER_READER + CONSUMED])


def with_all_reasons(control: Numbers, reasons: tuple[str, ...], num_readers: int) -> Numbers:
    """The numbers of a checkpoint that counts rows by `reasons`, with a column for each of today's."""
    at, parts = 0, list[Numbers]()
    for before in (CANCELLED, *[DROPPED] * num_readers):
        counts = np.zeros(len(REASONS), dtype=np.int64)
        for reason, rows in zip(reasons, control[at + before : at + before + len(reasons)].tolist(), strict=True):
            counts[reason_index(reason)] += rows
        parts += [control[at : at + before], counts]
        at += before + len(reasons)
    return np.concatenate([*parts, control[at:]])
