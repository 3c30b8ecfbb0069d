"""Slots of one batch lie side by side: what two actors wrote is the training batch, without a copy."""

from __future__ import annotations

import pytest
import torch

from runnel.agents.base import merge_segments
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.flow.slots import TableReader, TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.transports.inproc import InprocTransport
from runnel.flow.transports.shm import Doorbells, ShmTransport

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))


def stream(capacity: int = 4):
    return trajectory_stream(SPEC, num_steps=5, num_envs=2, batch_segments=2, num_writers=2, capacity=capacity)


def table(kind: str, spec):
    policy = LagRule(lag=1, batch=2, exact=True)
    if kind == "inproc":
        return InprocTransport().samples(spec, policy)
    shm = ShmTransport(ShmTransport.allocate({spec.name: spec}, [], {}), Doorbells(Doorbells.make(["main"]), "main"))
    return shm.samples(spec, policy)


def write(slots, writer: int, number: int) -> None:
    end = TableWriter(slots, writer)
    slot = end.reserve()
    assert slot is not None
    for x in slot.arrays.values():
        x.copy_(torch.full_like(x, number))
    slot.arrays["final_index"][0] = 2 * writer + 1  # step `writer`, row 1
    slot.header.used = {"F": 1}
    slot.header.version_min = slot.header.version_max = max(slot.header.required_version, 0)
    end.commit(slot, num_steps=10)


@pytest.mark.parametrize("kind", ["inproc", "shm"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_batch_is_read_in_place(kind: str, order: tuple[int, int]) -> None:
    slots = table(kind, stream())
    for batch in range(3):
        for writer in order:
            write(slots, writer, 10 * batch + writer)
        reader = TableReader(slots, "trainer")
        segments = reader.take(2)
        merged = merge_segments(segments)
        assert merged["obs"].shape == (6, 4, 3)
        assert merged["obs"].is_contiguous()
        for name in ("obs", "action", "rewards/env", "terminated", "logprob"):
            assert merged[name].data_ptr() == segments[0].arrays[name].data_ptr()
        assert merged["obs"][0, :, 0].tolist() == [10.0 * batch] * 2 + [10.0 * batch + 1] * 2
        assert merged["final_index"].tolist() == [1, 4 + 2 + 1]  # [T, 4]: step 0 row 1, step 1 row 3
        reader.release(segments)
        reader.advance(batch + 1)


def test_segments_that_are_no_neighbours_are_copied() -> None:
    slots = table("inproc", stream(capacity=5))
    for writer in (0, 1):
        write(slots, writer, writer)
    segments = TableReader(slots, "trainer").take(2)
    merged = merge_segments(segments)
    assert merged["obs"].data_ptr() != segments[0].arrays["obs"].data_ptr()
    assert merged["obs"][0, :, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("capacity", [64, 65])
def test_without_turns_no_two_writers_have_one_number_however_many_slots_there_are(capacity: int) -> None:
    """Numbers are looked for in another way where there are many slots."""
    slots = InprocTransport().samples(stream(capacity), LagRule(lag=32, batch=2, exact=True, turns=False))
    numbers = [slot.header.sequence for _ in range(20) for writer in (0, 1) if (slot := slots.reserve(writer)) is not None]
    assert numbers == list(range(40))
