from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runnel.core.accounting import Accounting
from runnel.core.clock import ManualClock
from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, FieldSpec, StreamSpec, trim
from runnel.core.routes import route
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.core.worker import StageTimer

SPEC = StreamSpec(
    "s",
    {"a": FieldSpec(("F", "B", 2)), "b": FieldSpec(("B", "F", "G"), torch.int64), "c": FieldSpec(("B",), torch.bool)},
    {"B": 3, "F": 5, "G": 4},
    variable=("F", "G"),
    feedback={"priority": FieldSpec(("B",))},
)


# ------------------------------------------------------------------------------------------------------------- records
def test_trim_cuts_every_variable_dim_without_a_copy() -> None:
    arrays = SPEC.allocate()
    cut = trim(SPEC, arrays, {"F": 2, "G": 0})
    assert {k: tuple(v.shape) for k, v in cut.items()} == {"a": (2, 3, 2), "b": (3, 2, 0), "c": (3,)}
    assert cut["a"].data_ptr() == arrays["a"].data_ptr()
    assert {k: tuple(v.shape) for k, v in trim(SPEC, arrays, {"F": 5, "G": 4}).items()} == {k: SPEC.shape(k) for k in arrays}
    fixed = replace(SPEC, variable=())
    assert trim(fixed, arrays, {}) is arrays


@pytest.mark.parametrize("used", [{}, {"F": 2}, {"F": 6, "G": 1}, {"F": -1, "G": 1}])
def test_trim_refuses_what_the_stream_cannot_hold(used: dict[str, int]) -> None:
    with pytest.raises(DataError, match=r"stream 's': segment uses .* of dim '[FG]', which holds [45]"):
        trim(SPEC, SPEC.allocate(), used)


def test_shapes_and_memory() -> None:
    assert SPEC.num_rows == 3
    assert SPEC.shape("b") == (3, 5, 4)
    assert SPEC.shape("b", {"F": 1}) == (3, 1, 4)
    assert SPEC.shape("priority") == (3,)
    memory = SPEC.allocate()
    assert {k: v.dtype for k, v in memory.items()} == {"a": torch.float32, "b": torch.int64, "c": torch.bool}
    SPEC.check()


@pytest.mark.parametrize(
    ("spec", "field", "fix"),
    [
        (replace(SPEC, fields={"a": FieldSpec(("Z",))}), "s.a", "dim 'Z' has no size"),
        (replace(SPEC, feedback={"p": FieldSpec(("Z",))}), "s.p", "dim 'Z' has no size"),
        (replace(SPEC, rows="Z"), "s.rows", "has no size"),
        (replace(SPEC, variable=("Z",)), "s.variable", "has no size"),
        (replace(SPEC, variable=("B",)), "s.rows", "make another dim variable"),
        (replace(SPEC, batch_segments=3), "s.capacity", "a batch needs 3 segments at once"),
    ],
)
def test_streams_that_cannot_work_are_refused(spec: StreamSpec, field: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        spec.check()
    assert error.value.field == field
    assert fix in error.value.fix


def test_accounting_says_how_many_rows_are_missing() -> None:
    account = Accounting(dispatched=10, consumed=3, dropped={"stale": 2}, cancelled={"aborted": 1}, in_flight=4)
    assert account.balance == 0
    account.check("s")
    account.in_flight = 1
    assert account.balance == 3
    with pytest.raises(DataError, match=r"stream 's' does not add up: .* leaves 3 rows unaccounted for"):
        account.check("s")


def test_trajectory_streams_hold_what_an_environment_needs() -> None:
    obs = {"obs/a": ArraySpec((4,)), "obs/b": ArraySpec((2, 2), torch.uint8)}
    env = EnvSpec(obs, ActionSpec("discrete", num_actions=3), has_mask=True)
    spec = trajectory_stream(env, num_steps=5, num_envs=2, num_writers=3, capacity=6, batch_segments=3, reader="buffer")
    spec.check()
    shapes = {k: spec.shape(k) for k in spec.fields}
    assert shapes["obs/b"] == (6, 2, 2, 2)
    assert shapes["final_obs/a"] == (10, 4)
    assert shapes["action_mask"] == (6, 2, 3)
    assert shapes["logprob"] == shapes["rewards/env"] == shapes["terminated"] == (5, 2)
    assert (spec.fields["obs/b"].dtype, spec.fields["truncated"].dtype) == (torch.uint8, torch.bool)
    assert (spec.num_rows, spec.variable, spec.readers, spec.num_writers) == (2, ("F",), ("buffer",), 3)
    assert "logprob" not in trajectory_stream(env, num_steps=5, num_envs=2, logprob=False).fields


# --------------------------------------------------------------------------------------------------------------- batch
def test_batches() -> None:
    b = Batch({"obs/a": torch.ones(2), "obs": torch.zeros(2), "obstacle": torch.zeros(2)})
    assert set(b.under("obs")) == {"obs/a", "obs"}
    assert b.map(lambda x: x + 1)["obs/a"].tolist() == [2.0, 2.0]
    assert b.to("cpu")["obs"].data_ptr() == b["obs"].data_ptr()
    assert Batch.cat([b])["obs"].data_ptr() == b["obs"].data_ptr()
    assert Batch.cat([b, b], dim=0)["obs/a"].tolist() == [1.0] * 4


# -------------------------------------------------------------------------------------------------------------- routes
def test_the_first_pattern_that_matches_the_whole_id_wins() -> None:
    routes = [AgentRoute("red_[0-9]+", "red"), AgentRoute("red.*", "pink"), AgentRoute("blue", "blue")]
    assert [route(routes, a).inference for a in ("red_12", "red_x", "reddish", "blue")] == ["red", "pink", "pink", "blue"]
    with pytest.raises(ConfigError, match=r"no pattern matches agent 'blue_1'.*'\.\*'"):
        route(routes, "blue_1")


# --------------------------------------------------------------------------------------------------------------- timer
def test_the_timer_adds_up_stages_and_knows_the_running_one() -> None:
    clock = ManualClock()
    timer = StageTimer(clock)
    assert timer.current == ("idle", 0.0)
    clock.advance(1.0)
    for seconds in (2.0, 3.0):
        with timer.stage("update"):
            clock.advance(seconds)
            assert timer.current[0] == "update"
            with timer.stage("publish"):
                clock.advance(0.5)
                assert timer.current == ("publish", clock.now() - 0.5)
            assert timer.current == ("update", clock.now())
    assert timer.current == ("idle", clock.now())
    assert timer.drain() == {"update": 6.0, "publish": 1.0}
    assert timer.drain() == {}


def test_a_stage_that_raises_is_counted_and_left() -> None:
    clock = ManualClock()
    timer = StageTimer(clock)

    def work() -> None:
        with timer.stage("update"):
            clock.advance(2.0)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        work()
    assert timer.drain() == {"update": 2.0}
    assert timer.current[0] == "idle"


def test_a_stage_is_known_once_it_has_ended_and_who_waits_for_others_says_since_when() -> None:
    clock = ManualClock()
    timer = StageTimer(clock)
    with timer.stage("update"):
        clock.advance(5.0)
        assert (timer.knows("update"), timer.held) == (False, None)
        with timer.wait():
            clock.advance(1.0)
            assert (timer.current[0], timer.held) == ("idle", 5.0)
    assert (timer.knows("update"), timer.held) == (True, None)
    assert timer.drain() == {"update": 5.0}
