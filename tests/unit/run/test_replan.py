"""Which numbers of workers a run sets, from stages of a made-up run whose fastest numbers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.flow.staleness import StalenessConfig
from runnel.graphs.run_config import RunConfig
from runnel.plan.model import Placement, predict
from runnel.run.balance import CLOSED, Change
from runnel.run.replan import Layout, Reading, Replan, costs_of

WINDOW = StalenessConfig(mode="window", max_lag=4)
PERIOD = 10.0
SEGMENT, BATCH = 32.0, 2
"""Steps of a segment (8 requests of 4 rows), segments of a batch."""


class MadeUp:
    """A run whose actor takes `play` seconds for a step, whose policy worker takes `serve`, and whose trainer takes `train` for
    an update. `ledger` stands in for the run's ledger."""

    def __init__(self, *, play: float, train: float, serve: float = 0.0, cores: int = 64, computes: float = 1.0) -> None:
        self.play, self.train, self.serve, self.computes, self.cores = play, train, serve, computes, cores
        self.now, self.version, self.steps, self.tokens = 0.0, 0, 0, 0
        self.spent: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.pace: dict[str, Any] = {"idle": {}}
        self._updates = 0.0

    def layout(self, *, servers: int = 0) -> Layout:
        inference = "split" if servers else "inline"
        start = Placement(inference=inference, servers=servers, batch_segments=BATCH, staleness=WINDOW, cores=self.cores)
        return Layout(start, 8.0, 0.0, False, False, "trainer", {"main": ["trainer", "evaluator"]}, own_cores=False)

    def rate(self, numbers: dict[str, int]) -> float:
        """Updates a second: of actors that wait for nobody, of policy workers, of the trainer, of the cores."""
        units = SEGMENT * BATCH
        limits = [numbers["actor"] / (units * (self.play + self.serve)), 1 / self.train]
        limits += [numbers["policy"] / (units * self.serve)] if self.serve else []
        return min(*limits, self.cores / (units * (self.play * self.computes + self.serve) + self.train))

    def advance(self, seconds: float, numbers: dict[str, int], rate: float | None = None) -> None:
        rate = self.rate(numbers) if rate is None else rate
        self.now += seconds
        self._updates += seconds * rate
        done, self.version = int(self._updates) - self.version, int(self._updates)
        units = done * SEGMENT * BATCH
        self.steps += int(units)
        for kind, each in (("actor", self.play), ("policy", self.serve)):
            for i in range(numbers.get(kind, 0)):
                work = units * each / numbers[kind]
                self.spent[f"{kind}-{i}"] = self.spent.get(f"{kind}-{i}", 0.0) + work
                self.cpu[f"{kind}-{i}"] = self.cpu.get(f"{kind}-{i}", 0.0) + work * self.computes
        for counts in (self.spent, self.cpu):
            name = "trainer" if counts is self.spent else "main"
            counts[name] = counts.get(name, 0.0) + done * self.train


def played(run: MadeUp, it: Replan, periods: int) -> list[Change]:
    """The changes of a run that is looked at once a second."""
    found = []
    for _ in range(round(periods * PERIOD) + 1):
        if change := it.look(run.now, run):  # type: ignore[arg-type]
            found.append(change)
        run.advance(1.0, it.numbers)
    return found


def replan(run: MadeUp, *, most: int, policy: int = 0) -> Replan:
    kinds = {"actor": 1} | ({"policy": policy} if policy else {})
    return Replan(run.layout(servers=policy), kinds, dict.fromkeys(kinds, most), PERIOD)


def test_the_known_best_is_set_at_once_and_told_with_its_rates() -> None:
    """Actors make 6.25 updates a second each, the trainer 25: four actors are enough, and more would only wait."""
    run = MadeUp(play=0.0025, train=0.04)
    it = replan(run, most=8)
    first, second = played(run, it, 2)
    assert first.numbers == {"actor": 4}
    assert (first.about["workers"], first.about["next_workers"]) == ({"actor": 1}, {"actor": 4})
    assert first.about["predicted"] is None, "nobody had predicted"
    assert first.about["reached"] == pytest.approx(400, rel=0.05)
    assert first.about["next_predicted"] == pytest.approx(1600, rel=0.05)
    assert "1 actor reached 396.8 steps/s; limited by actors: predicted are 396.8 with these" in first.why
    assert "with 4 actors, which are set now" in first.why
    assert second.numbers == {}
    assert second.about["predicted"] == first.about["next_predicted"]
    assert second.about["reached"] == pytest.approx(second.about["predicted"], rel=0.05)
    assert "no other number of workers should be 10% faster" in second.why


def test_a_gain_below_the_threshold_changes_nothing() -> None:
    """The trainer makes 6.6 updates a second and one actor 6.25: a second actor would bring 6 %."""
    run = MadeUp(play=0.0025, train=1 / 6.6)
    assert [change.numbers for change in played(run, replan(run, most=8), 3)] == [{}, {}, {}]


def test_cores_bound_the_actors_that_compute_and_not_those_that_sleep() -> None:
    computing = MadeUp(play=0.0025, train=0.01, cores=2)
    assert played(computing, replan(computing, most=8), 1)[0].numbers == {"actor": 2}
    sleeping = MadeUp(play=0.0025, train=0.01, cores=2, computes=0.1)
    assert played(sleeping, replan(sleeping, most=8), 1)[0].numbers == {"actor": 8}


def test_policy_workers_that_hold_all_up_get_more() -> None:
    run = MadeUp(play=0.0001, serve=0.0024, train=0.04)
    it = replan(run, most=6, policy=1)
    (first,) = played(run, it, 1)
    assert set(first.numbers) <= {"actor", "policy"}
    assert it.numbers["policy"] > 1
    assert run.rate(it.numbers) > 2 * run.rate({"actor": 1, "policy": 1})


def test_what_makes_the_run_slower_is_taken_back_and_not_tried_again_soon() -> None:
    run, numbers = MadeUp(play=0.0025, train=0.04), []
    it = replan(run, most=2)
    for _ in range(round((CLOSED + 2.5) * PERIOD)):
        if (change := it.look(run.now, run)) and change.numbers:  # type: ignore[arg-type]
            numbers.append((run.now, change))
        run.advance(1.0, it.numbers, 6.25 if it.numbers["actor"] == 1 else 5.0)
    times, changes = zip(*numbers, strict=True)
    assert [c.numbers["actor"] for c in changes] == [2, 1, 2]
    assert "of the rate before the change, so it is taken back" in changes[1].why
    assert times[2] - times[1] == pytest.approx(CLOSED * PERIOD)


def test_a_person_decides_first_and_a_run_without_updates_waits() -> None:
    run = MadeUp(play=0.0025, train=0.04)
    it = replan(run, most=8)
    run.pace = {}
    assert played(run, it, 2) == [], "no update yet"
    run.pace = {"idle": {}}
    it.hear({"op": "scale", "numbers": {"actor": 3, "policy": 2}})
    assert it.numbers == {"actor": 3}
    run.advance(1.0, it.numbers)
    assert it.look(run.now, run) is None  # type: ignore[arg-type]
    slow = MadeUp(play=1.0, train=0.04)
    assert "0 updates in 5 s are too few to plan by" in played(slow, replan(slow, most=2), 1)[0].why


@given(
    play=st.floats(1e-4, 1e-2),
    train=st.floats(1e-3, 1.0),
    actors=st.integers(1, 6),
    computes=st.floats(0.0, 1.0),
)
def test_the_formula_gives_back_the_rate_that_its_costs_were_measured_at(
    play: float, train: float, actors: int, computes: float
) -> None:
    run, numbers = MadeUp(play=play, train=train, computes=computes), {"actor": actors}
    run.advance(1000 / run.rate(numbers), numbers)
    span = Reading.of(run, run.now, tokens=False)  # type: ignore[arg-type]
    layout = run.layout()
    found = predict(costs_of(layout, numbers, span), layout.placement(numbers))
    assert found.units_per_s == pytest.approx(span.units / span.time, rel=0.02)


def test_waits_for_others_count_where_the_trainer_waits() -> None:
    """The environments are in other processes: the actor itself is at work for a tenth of the time."""
    run = MadeUp(play=0.0025, train=0.04)
    run.advance(100.0, {"actor": 1})
    run.spent["actor-0"] /= 10
    span = Reading.of(run, run.now, tokens=False)  # type: ignore[arg-type]
    costs = costs_of(run.layout(), {"actor": 1}, span)
    assert costs.step(1) == pytest.approx(0.0025, rel=0.02)
    split = replace(run.layout(), start=replace(run.layout().start, inference="split", servers=1))
    costs = costs_of(split, {"actor": 1, "policy": 1}, span)
    there = predict(costs, split.placement({"actor": 1, "policy": 1}))
    assert there.units_per_s == pytest.approx(span.units / span.time, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"placement.max_actors": 0}, "placement.replan_s = 60.0: there is room for no other number of workers"),
        ({"staleness.balance": "auto"}, "placement.replan_s = 60.0: staleness.balance auto sets the same numbers; use one"),
        ({"staleness.mode": "sync"}, "placement.replan_s = 60.0: is of a window; set staleness.mode window"),
        ({"launcher": "inproc"}, "launcher = 'inproc': one process cannot grow; use local or ray"),
        ({"deterministic": True}, "placement.max_actors = 4: a deterministic run keeps its actors"),
        ({"placement.replan_s": -1.0}, "placement.replan_s = -1.0: must be at least 0"),
        ({"placement.replan_s": 0.5}, "placement.replan_s = 0.5: is too short"),
        ({"placement.replan_s": float("nan")}, "placement.replan_s = nan: NaN compares with nothing"),
        ({"placement.predicted_per_s": -1.0}, "placement.predicted_per_s = -1.0: must be at least 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(changes: dict[str, Any], text: str) -> None:
    good = {"staleness.mode": "window", "launcher": "local", "placement": {"max_actors": 4, "replan_s": 60.0}}
    config = override(RunConfig(total_steps=100), good)
    config.check()
    with pytest.raises(ConfigError) as error:
        override(config, changes).check()
    assert str(error.value).startswith(text)
