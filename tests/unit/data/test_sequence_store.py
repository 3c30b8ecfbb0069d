"""Replay of sequences: whole rows with their state, final observations and n-step returns, against a plain account."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import Player, expected

from runnel.core.contracts.samples import Feedback
from runnel.core.records import Header, Slot, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TaskSpace
from runnel.core.trajectories import trajectory_stream
from runnel.data.sequences import SequenceStore, sequence_stream
from runnel.data.store import ReplayConfig

SPEC = EnvSpec(
    {"obs/image": ArraySpec((3, 4, 4), torch.uint8, stack=3), "obs/x": ArraySpec((2,))},
    ActionSpec("discrete", num_actions=3),
    has_mask=True,
)
STATE = {"state/h": ArraySpec((2,)), "state/c": ArraySpec((2,))}


def source_of(steps, rows):
    return trajectory_stream(SPEC, num_steps=steps, num_envs=rows, logprob=False, state=STATE)


def slot(source, num):
    stream = sequence_stream(source, batch_size=num)
    stream.check()
    return Slot(0, stream, Header(), stream.allocate())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 6),
    rows=st.integers(1, 3),
    slots=st.integers(1, 3),
    inserts=st.integers(1, 5),
    n=st.integers(1, 4),
    end_chance=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_every_row_is_that_of_a_plain_account(seed, steps, rows, slots, inserts, n, end_chance):
    source = source_of(steps, rows)
    config = ReplayConfig(capacity=slots * rows * steps, n_step=n, prioritised=seed % 2 == 0)
    memory = SequenceStore(config, SPEC, source=source, gamma=0.9)
    player, account, states = Player(SPEC, source, seed, end_chance=end_chance), [], []
    for i in range(inserts):
        made, told = player.segment()
        memory.insert(made)
        account.append(told)
        states.append(made.arrays["state/c"].clone())
        out = slot(source, 4)
        memory.sample(out, make_rng(seed, i))
        arrays = trim(out.spec, out.arrays, out.header.used)
        ends = dict(zip(arrays["final_index"].tolist(), range(len(arrays["final_index"])), strict=True))
        for j, index in enumerate(arrays["index"].tolist()):
            number, b = divmod(index, rows)
            assert i - slots < number <= i
            row = account[number][b]
            assert torch.equal(arrays["state/c"][j], states[number][b])
            for t in range(steps):
                check_step(arrays, row, t, j, n=n, final=ends.pop(t * 4 + j, None))
        assert not ends


def check_step(arrays, row, t, j, *, n, final):
    want = expected(row, t, gamma=0.9, n=n)
    ended = row[t]["terminated"] or row[t]["truncated"]
    assert arrays["ended"][t, j] == ended
    assert (final is not None) == ended
    for key in (*SPEC.obs, "action_mask"):
        np.testing.assert_array_equal(arrays[key][t, j].numpy(), row[t]["obs"][key])
        after = arrays["final_" + key][final] if ended else arrays[key][t + 1, j]
        np.testing.assert_array_equal(after.numpy(), row[t]["next"][key])
    assert arrays["action"][t, j] == want["action"]
    assert arrays["last"][t, j] == want["last"]
    assert arrays["rewards/env"][t, j].item() == pytest.approx(want["reward"], abs=1e-5)
    assert arrays["discount"][t, j].item() == pytest.approx(want["discount"], abs=1e-6)


def test_what_is_not_replayed_is_no_field_of_a_batch():
    spec = replace(SPEC, tasks=TaskSpace((0.0,), (1.0,)))
    source = trajectory_stream(spec, num_steps=3, num_envs=2, logprob=False, state=STATE, tasks=True)
    assert {name for name in source.fields if name.startswith("task/")} == {"task/id", "task/params", "task/return"}
    assert not [name for name in sequence_stream(source, batch_size=2).fields if name.startswith("task/")]


def test_priorities_are_of_rows():
    source = source_of(5, 3)
    memory = SequenceStore(ReplayConfig(capacity=30, alpha=1.0, min_priority=0.0), SPEC, source=source, gamma=0.9)
    player = Player(SPEC, source, 0)
    for _ in range(2):
        memory.insert(player.segment()[0])
    assert (memory.held_rows(), memory.num_steps) == (6, 30)
    memory.feedback(Feedback(0, {"index": torch.arange(6), "priority": torch.tensor([0.0, 0.0, 1.0, 0.0, 3.0, 0.0])}))
    out = slot(source, 400)
    assert memory.sample(out, make_rng(0)) == 2
    counts = torch.bincount(out.arrays["index"], minlength=6)
    assert counts.tolist() == [0, 0, 100, 0, 300, 0]


def test_snapshot_goes_on_bit_for_bit():
    source = source_of(4, 2)
    first, second = (SequenceStore(ReplayConfig(capacity=16, n_step=2), SPEC, source=source, gamma=0.9) for _ in range(2))
    player = Player(SPEC, source, 3)
    for i in range(3):
        first.insert(player.segment()[0])
        first.sample(slot(source, 3), make_rng(i))
    second.restore(first.snapshot())
    for i in range(4):
        made, a, b = player.segment()[0], slot(source, 3), slot(source, 3)
        for memory, target in ((first, a), (second, b)):
            memory.insert(made)
            memory.sample(target, make_rng(i))
            memory.feedback(Feedback(0, {"index": target.arrays["index"], "priority": target.arrays["weight"]}))
        one, two = (trim(x.spec, x.arrays, x.header.used) for x in (a, b))
        assert all(torch.equal(x, two[k]) for k, x in one.items())
