"""Replay: transitions against a plain account, priorities by frequency, row accounting against a model, exact resume."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import Player, expected

from runnel.core.contracts.samples import Feedback
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Header, Segment, Slot, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.state import SealedChunk
from runnel.core.trajectories import trajectory_stream
from runnel.data.memory import Memory, free_memory
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream

SPEC = EnvSpec({"obs/x": ArraySpec((1,)), "obs/y": ArraySpec((), torch.int64)}, ActionSpec("discrete", num_actions=2))
SOURCE = trajectory_stream(SPEC, num_steps=3, num_envs=2, logprob=False)
PIXELS = EnvSpec(
    {"obs/image": ArraySpec((4, 5, 6), torch.uint8, stack=4), "obs/x": ArraySpec(())},
    ActionSpec("discrete", num_actions=3),
    has_mask=True,
)


def store(capacity=12, gamma=0.99, total_steps=None, total_updates=None, **kwargs):
    config = ReplayConfig(capacity=capacity, **kwargs)
    return ReplayStore(config, SPEC, source=SOURCE, gamma=gamma, total_steps=total_steps, total_updates=total_updates)


def segment(base=0, *, ends=(), version=0):
    """Observation at (t, b) is base + 10 b + t; `ends` are (t, b) of terminated episodes with final observation 1000 + ..."""
    arrays = SOURCE.allocate()
    grid = base + torch.arange(4.0)[:, None] + 10.0 * torch.arange(2.0)
    arrays["obs/x"].copy_(grid[..., None])
    arrays["obs/y"].copy_(grid)
    arrays["rewards/env"].copy_(0.5 * grid[:3])
    for f, (t, b) in enumerate(ends):
        arrays["terminated"][t, b] = True
        arrays["final_index"][f] = t * 2 + b
        arrays["final_obs/x"][f] = 1000 + grid[t, b]
        arrays["final_obs/y"][f] = int(1000 + grid[t, b])
    used = {"F": len(ends)}
    return Segment(0, SOURCE, Header(used=used, version_min=version), trim(SOURCE, arrays, used))


def slot(num=64, spec=SPEC):
    stream = replay_stream(spec, batch_size=num)
    return Slot(0, stream, Header(), stream.allocate())


def test_transitions_use_the_final_observation_where_an_episode_ended():
    memory, out = store(gamma=0.9), slot()
    memory.insert(segment(ends=[(1, 0)]))
    assert memory.sample(out, make_rng(0)) == 2
    a = out.arrays
    assert set(a["obs/x"].flatten().tolist()) == {0.0, 1.0, 2.0, 10.0, 11.0, 12.0}
    for now, after, y, reward, discount in zip(
        a["obs/x"].flatten().tolist(),
        a["next_obs/x"].flatten().tolist(),
        a["next_obs/y"].tolist(),
        a["rewards/env"].tolist(),
        a["discount"].tolist(),
        strict=True,
    ):
        assert after == y == (1001.0 if now == 1.0 else now + 1)
        assert discount == (0.0 if now == 1.0 else pytest.approx(0.9))
        assert reward == now / 2


def test_two_step_returns_by_hand():
    """Rewards 0, 0.5, 1 in row 0, which terminates at t = 1; 5, 5.5, 6 in row 1, which the end of the segment cuts."""
    memory, out = store(gamma=0.5, n_step=2, prioritised=False), slot(200)
    memory.insert(segment(ends=[(1, 0)]))
    memory.sample(out, make_rng(0))
    a = out.arrays
    found = {
        now: (reward, discount, after)
        for now, reward, discount, after in zip(
            a["obs/x"].flatten().tolist(),
            a["rewards/env"].tolist(),
            a["discount"].tolist(),
            a["next_obs/x"].flatten().tolist(),
            strict=True,
        )
    }
    assert found == {
        0.0: (0.25, 0.0, 1001.0),
        1.0: (0.5, 0.0, 1001.0),
        2.0: (1.0, 0.5, 3.0),
        10.0: (5.0 + 0.5 * 5.5, 0.25, 12.0),
        11.0: (5.5 + 0.5 * 6.0, 0.25, 13.0),
        12.0: (6.0, 0.5, 13.0),
    }


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 7),
    rows=st.integers(1, 3),
    slots=st.integers(1, 3),
    inserts=st.integers(1, 6),
    n=st.integers(1, 5),
    end_chance=st.sampled_from([0.0, 0.2, 0.9]),
    compress=st.booleans(),
    fresh_stack=st.booleans(),
)
def test_every_transition_is_that_of_a_plain_account(seed, steps, rows, slots, inserts, n, end_chance, compress, fresh_stack):
    """Masks, final observations, frame stacks and returns of n steps, while the ring turns; images bit for bit."""
    source = trajectory_stream(PIXELS, num_steps=steps, num_envs=rows, logprob=False)
    config = ReplayConfig(capacity=slots * rows * steps, n_step=n, compress_frames=compress, prioritised=seed % 2 == 0)
    memory = ReplayStore(config, PIXELS, source=source, gamma=0.9)
    player = Player(PIXELS, source, seed, end_chance=end_chance, fresh_stack=fresh_stack)
    account = []
    for i in range(inserts):
        made, told = player.segment()
        memory.insert(made)
        account.append(told)
        out = slot(16, PIXELS)
        memory.sample(out, make_rng(seed, i))
        for j, index in enumerate(out.arrays["index"].tolist()):
            number, place = divmod(index, steps * rows)
            assert i - slots < number <= i
            want = expected(account[number][place % rows], place // rows, gamma=0.9, n=n)
            for key in (*PIXELS.obs, "action_mask"):
                np.testing.assert_array_equal(out.arrays[key][j].numpy(), want["obs"][key])
                np.testing.assert_array_equal(out.arrays["next_" + key][j].numpy(), want["next"][key])
            assert out.arrays["action"][j] == want["action"]
            assert out.arrays["rewards/env"][j].item() == pytest.approx(want["reward"], abs=1e-5)
            assert out.arrays["discount"][j].item() == pytest.approx(want["discount"], abs=1e-6)


def test_a_final_mask_of_the_stream_is_used():
    source = trajectory_stream(PIXELS, num_steps=1, num_envs=1, logprob=False)
    player = Player(PIXELS, source, 0, end_chance=2.0)
    made, _ = player.segment()
    made.arrays["final_action_mask"] = torch.tensor([[False, True, False]])
    memory, out = ReplayStore(ReplayConfig(), PIXELS, source=source, gamma=0.9), slot(1, PIXELS)
    memory.insert(made)
    memory.sample(out, make_rng(0))
    assert out.arrays["next_action_mask"].tolist() == [[False, True, False]]


def test_a_stack_costs_one_frame_a_step():
    source = trajectory_stream(PIXELS, num_steps=20, num_envs=2, logprob=False)
    memory = ReplayStore(ReplayConfig(capacity=80), PIXELS, source=source, gamma=0.9)
    player = Player(PIXELS, source, 0, end_chance=0.0)
    for _ in range(5):
        memory.insert(player.segment()[0])
    frames = memory._leaves["obs/image"]._frames
    assert frames.stop - frames.first == 2 * 2 * (20 + 4)
    assert frames.size <= 2 * 2 * (21 + 3) * 33 // 32


def test_rows_are_counted_once():
    memory = store(capacity=12)  # four rows
    assert memory.insert(segment(0)) == 0
    assert memory.insert(segment(100)) == 0
    assert (memory.held_rows(), memory.num_steps) == (4, 12)
    assert memory.insert(segment(200)) == 2
    assert memory.sample(slot(), make_rng(0)) == 4
    assert memory.sample(slot(), make_rng(1)) == 0
    assert memory.held_rows() == 0
    assert memory.insert(segment(300)) == 0
    assert memory.held_rows() == 2


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["insert", "sample"]), max_size=20), st.integers(0, 1000), st.booleans())
def test_accounting_adds_up(actions, seed, prioritised):
    memory, rng, inserted, consumed, evicted = store(15, prioritised=prioritised), make_rng(seed), 0, 0, 0
    for action in actions:
        if action == "insert":
            evicted += memory.insert(segment())
            inserted += 2
        elif inserted:
            consumed += memory.sample(slot(3), rng)
        assert inserted == consumed + evicted + memory.held_rows()


def test_priorities_shape_the_draws_and_weights_undo_them():
    memory, out = store(alpha=1.0, beta=1.0, min_priority=0.0), slot(6000)
    memory.insert(segment())
    index = torch.arange(6)
    memory.feedback(Feedback(0, {"index": index, "priority": torch.tensor([1.0, 2, 3, 4, 0, 10])}))
    memory.sample(out, make_rng(0))
    counts = torch.bincount(out.arrays["index"], minlength=6) / 6000
    torch.testing.assert_close(counts, torch.tensor([1.0, 2, 3, 4, 0, 10]) / 20, atol=2e-3, rtol=0)
    weight = {int(i): w for i, w in zip(out.arrays["index"], out.arrays["weight"].tolist(), strict=True)}
    assert {k: round(v, 5) for k, v in sorted(weight.items())} == {0: 1.0, 1: 0.5, 2: 0.33333, 3: 0.25, 5: 0.1}


def test_the_exponent_of_weights_follows_its_schedule():
    """Priorities 1 and 4: the smaller weight is 4^-beta, and beta goes from 0 to 1 over 24 steps, 6 a segment."""
    memory, out = store(alpha=1.0, beta="linear(0, 1)", min_priority=0.0, total_steps=24), slot(64)
    for i in range(4):
        memory.insert(segment())
        index = torch.arange(6) + 6 * i
        memory.feedback(Feedback(0, {"index": index, "priority": torch.tensor([1.0, 4, 4, 4, 4, 4])}))
        memory.sample(out, make_rng(i))
        assert out.arrays["weight"].min().item() == pytest.approx(4.0 ** -((i + 1) / 4), rel=1e-5)


def test_the_exponent_of_weights_follows_a_budget_of_updates():
    """The same over 4 draws, of which the last two come after a restart."""
    settings = {"alpha": 1.0, "beta": "linear(0, 1)", "min_priority": 0.0, "total_updates": 4}
    memory, twin, out = store(**settings), store(**settings), slot(64)
    memory.insert(segment())
    memory.feedback(Feedback(0, {"index": torch.arange(6), "priority": torch.tensor([1.0, 4, 4, 4, 4, 4])}))
    for i in range(4):
        memory.sample(out, make_rng(i))
        assert out.arrays["weight"].min().item() == pytest.approx(4.0 ** -(i / 4), rel=1e-5)
        if i == 1:
            twin.restore(memory.snapshot())
            memory = twin


def test_feedback_about_overwritten_transitions_is_ignored():
    memory, out = store(capacity=6), slot()
    memory.insert(segment(0))
    memory.sample(out, make_rng(0))
    memory.insert(segment(100))
    before = memory.snapshot()["priorities"]["priority"]
    memory.feedback(Feedback(0, {"index": out.arrays["index"], "priority": torch.full((64,), 50.0)}))
    assert np.array_equal(before, memory.snapshot()["priorities"]["priority"])
    memory.sample(out, make_rng(1))
    assert out.arrays["index"].min() >= 6
    memory.feedback(Feedback(0, {"index": out.arrays["index"], "priority": torch.full((64,), 50.0)}))
    assert memory.snapshot()["priorities"]["priority"].max() == pytest.approx(50.001**0.6)


def test_uniform_draws_have_weight_one_and_ignore_feedback():
    memory, out = store(prioritised=False), slot(6000)
    memory.insert(segment())
    memory.sample(out, make_rng(0))
    assert out.arrays["weight"].unique().tolist() == [1.0]
    assert torch.bincount(out.arrays["index"], minlength=6).min() > 850
    memory.feedback(Feedback(0, {"index": out.arrays["index"], "priority": out.arrays["weight"]}))


@pytest.mark.parametrize("prioritised", [True, False])
@pytest.mark.parametrize("mmap_bytes", [0, 1 << 40])
def test_snapshot_goes_on_bit_for_bit(prioritised, mmap_bytes):
    """The second store was full of other things before; one of both lives in files."""
    source = trajectory_stream(PIXELS, num_steps=4, num_envs=2, logprob=False)

    def make(**kwargs):
        config = ReplayConfig(capacity=25, prioritised=prioritised, n_step=2, **kwargs)
        return ReplayStore(config, PIXELS, source=source, gamma=0.9)

    first, second = make(mmap_bytes=mmap_bytes), make()
    player, out = Player(PIXELS, source, 1, end_chance=0.5), slot(5, PIXELS)
    for i in range(5):
        first.insert(player.segment()[0])
        second.insert(player.segment()[0])
        first.sample(out, make_rng(i))
        priority = torch.rand(5, generator=torch.Generator().manual_seed(i))
        first.feedback(Feedback(0, {"index": out.arrays["index"], "priority": priority}))
    second.restore(first.snapshot())
    for i in range(5, 12):
        a, b = slot(5, PIXELS), slot(5, PIXELS)
        made, _ = player.segment()
        for memory, target in ((first, a), (second, b)):
            memory.insert(made)
            memory.sample(target, make_rng(i))
            memory.feedback(Feedback(0, {"index": target.arrays["index"], "priority": target.arrays["weight"]}))
        assert all(torch.equal(x, b.arrays[k]) for k, x in a.arrays.items())
        assert first.held_rows() == second.held_rows()


def test_a_memory_that_does_not_fit_says_what_would(monkeypatch):
    with pytest.raises(ConfigError, match=r"replay\.capacity = 1000000000000: needs .* GiB, and memory has .*use at most \d+"):
        ReplayStore(
            ReplayConfig(capacity=10**12, mmap_bytes=1 << 60),
            PIXELS,
            source=trajectory_stream(PIXELS, num_steps=4, num_envs=2),
            gamma=0.9,
        )
    assert 0 < free_memory() < 1 << 50
    monkeypatch.setattr("runnel.data.memory.free_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"needs 2\.0 GiB, and memory has 1\.0 GiB free; use at most 45, or"):
        Memory(2 << 30, mmap_bytes=1 << 60).check("replay.capacity", 100)
    with pytest.raises(ConfigError, match="the disk of"):
        Memory(1 << 60, mmap_bytes=1).check("replay.capacity", 100)


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"replay\.capacity"):
        store(capacity=5)
    for bad in ({"n_step": 0}, {"beta": "linear(1)"}, {"alpha": -1.0}):
        with pytest.raises(ConfigError, match=rf"replay\.{next(iter(bad))}"):
            store(**bad)
    memory = store()
    with pytest.raises(DataError, match="nothing to sample"):
        memory.sample(slot(), make_rng(0))
    memory.insert(segment())
    with pytest.raises(DataError, match="not finite"):
        memory.feedback(Feedback(0, {"index": torch.tensor([0]), "priority": torch.tensor([float("nan")])}))


def test_full_pieces_of_the_memory_are_frozen_and_keep_their_names(monkeypatch):
    """Pieces of two slots in a ring of seven: those that are full and not being overwritten keep their name."""
    monkeypatch.setattr("runnel.data.store.PIECE_BYTES", 1)
    source = trajectory_stream(PIXELS, num_steps=4, num_envs=2, logprob=False)

    def make():
        memory = ReplayStore(ReplayConfig(capacity=7 * 8), PIXELS, source=source, gamma=0.9)
        memory._piece_slots = 2
        return memory

    memory, player, before = make(), Player(PIXELS, source, 1, end_chance=0.5), {}
    for i in range(1, 20):
        memory.insert(player.segment()[0])
        pieces = memory.snapshot()["pieces"]
        names = {start: piece.name for start, _, piece in pieces if isinstance(piece, SealedChunk)}
        head = i % 7
        assert sorted(names) == [a for a in (0, 2, 4) if a + 2 <= min(i, 7) and not a < head < a + 2]
        touched = (i - 1) % 7 // 2 * 2
        assert all(before[a] == name for a, name in names.items() if a in before and a != touched)
        assert before.get(touched) != names.get(touched, "open")
        before |= names
        again = make()
        again.restore(memory.snapshot())
        a, b = slot(16, PIXELS), slot(16, PIXELS)
        for store_, target in ((memory, a), (again, b)):
            store_.sample(target, make_rng(i))
        assert all(torch.equal(x, b.arrays[k]) for k, x in a.arrays.items())
