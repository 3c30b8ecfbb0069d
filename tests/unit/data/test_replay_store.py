"""Replay: transitions by hand, priorities by frequency, row accounting against a model, exact resume."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.errors import ConfigError, DataError
from runnel.core.protocols import Feedback
from runnel.core.records import Header, Segment, Slot, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import ReplayConfig, ReplayStore, SumTree, replay_stream

SPEC = EnvSpec({"obs/x": ArraySpec((1,)), "obs/y": ArraySpec((), torch.int64)}, ActionSpec("discrete", num_actions=2))
SOURCE = trajectory_stream(SPEC, num_steps=3, num_envs=2, logprob=False)


def store(capacity=12, **kwargs):
    return ReplayStore(ReplayConfig(capacity=capacity, **kwargs), SPEC, source=SOURCE)


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


def slot(num=64):
    spec = replay_stream(SPEC, batch_size=num)
    return Slot(0, spec, Header(), spec.allocate())


def test_transitions_use_the_final_observation_where_an_episode_ended():
    memory, out = store(), slot()
    memory.insert(segment(ends=[(1, 0)], version=7))
    assert memory.sample(out, make_rng(0)) == 2
    a = out.arrays
    assert set(a["obs/x"].flatten().tolist()) == {0.0, 1.0, 2.0, 10.0, 11.0, 12.0}
    for now, after, y, reward, terminated in zip(
        a["obs/x"].flatten().tolist(),
        a["next_obs/x"].flatten().tolist(),
        a["next_obs/y"].tolist(),
        a["rewards/env"].tolist(),
        a["terminated"].tolist(),
        strict=True,
    ):
        assert after == y == (1001.0 if now == 1.0 else now + 1)
        assert terminated == (now == 1.0)
        assert reward == now / 2
    assert (out.header.version_min, out.header.version_max) == (7, 7)


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


def test_feedback_about_overwritten_transitions_is_ignored():
    memory, out = store(capacity=6), slot()
    memory.insert(segment(0))
    memory.sample(out, make_rng(0))
    memory.insert(segment(100))
    before = memory.snapshot()["priority"]
    memory.feedback(Feedback(0, {"index": out.arrays["index"], "priority": torch.full((64,), 50.0)}))
    assert np.array_equal(before, memory.snapshot()["priority"])
    memory.sample(out, make_rng(1))
    assert out.arrays["index"].min() >= 6
    memory.feedback(Feedback(0, {"index": out.arrays["index"], "priority": torch.full((64,), 50.0)}))
    assert memory.snapshot()["priority"].max() == pytest.approx(50.001**0.6)


def test_uniform_draws_have_weight_one_and_ignore_feedback():
    memory, out = store(prioritised=False), slot(6000)
    memory.insert(segment())
    memory.sample(out, make_rng(0))
    assert out.arrays["weight"].unique().tolist() == [1.0]
    assert torch.bincount(out.arrays["index"], minlength=6).min() > 850
    memory.feedback(Feedback(0, {"index": out.arrays["index"], "priority": out.arrays["weight"]}))


@pytest.mark.parametrize("prioritised", [True, False])
def test_snapshot_goes_on_bit_for_bit(prioritised):
    first, second = store(15, prioritised=prioritised), store(15, prioritised=prioritised)
    out = slot(5)
    for i in range(4):
        first.insert(segment(i))
        first.sample(out, make_rng(i))
        first.feedback(
            Feedback(0, {"index": out.arrays["index"], "priority": torch.rand(5, generator=torch.Generator().manual_seed(i))})
        )
    second.restore(first.snapshot())
    for i in range(4, 8):
        a, b = slot(5), slot(5)
        for memory, target in ((first, a), (second, b)):
            memory.insert(segment(i, ends=[(0, 1)]))
            memory.sample(target, make_rng(i))
            memory.feedback(Feedback(0, {"index": target.arrays["index"], "priority": target.arrays["weight"]}))
        assert all(torch.equal(x, b.arrays[k]) for k, x in a.arrays.items())
        assert first.held_rows() == second.held_rows()


def test_sum_tree_finds_what_a_running_sum_finds():
    rng = np.random.default_rng(0)
    tree, values = SumTree(13), rng.random(13)
    values[[3, 12]] = 0.0
    tree.set(np.arange(13), values)
    tree.set(np.array([5, 5]), np.array([1.0, 2.0]))
    values[5] = 2.0
    mass = rng.random(500) * tree.total
    assert tree.total == pytest.approx(values.sum())
    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(values.cumsum(), mass, side="right"))
    assert tree.find(np.array([tree.total * 2]))[0] == 11


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"replay\.capacity"):
        store(capacity=5)
    memory = store()
    with pytest.raises(DataError, match="nothing to sample"):
        memory.sample(slot(), make_rng(0))
    memory.insert(segment())
    with pytest.raises(DataError, match="not finite"):
        memory.feedback(Feedback(0, {"index": torch.tensor([0]), "priority": torch.tensor([float("nan")])}))
