"""Placement, wiring and the rounds of one group, on an experiment that needs no environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes_plural import plural
from fakes_run import Adder, experiment, group_of, run
from torch import Tensor

from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import CheckpointError, ConfigError, DataError
from runnel.flow.slot_memory import RESERVED
from runnel.flow.staleness import StalenessConfig
from runnel.graphs.experiment import Experiment, describe
from runnel.graphs.run_config import PlacementConfig
from runnel.run.checkpoint import read_parts, write_parts
from runnel.run.group import ProcessGroup
from runnel.run.wiring import Edges, place

LAGS = [StalenessConfig("sync"), StalenessConfig("one_step"), StalenessConfig("window", max_lag=2)]


# ----------------------------------------------------------------------------------------------------------- placement
def test_in_process_is_one_group_in_the_order_of_polling() -> None:
    assert place(experiment()) == {"main": ["actor-0", "actor-1", "trainer", "evaluator"]}


def test_by_default_actors_and_policies_are_alone() -> None:
    e = experiment(launcher="local", placement=PlacementConfig(policy_workers=1))
    assert place(e) == {
        "actor-0": ["actor-0"],
        "actor-1": ["actor-1"],
        "policy-0": ["policy-0"],
        "trainer": ["trainer", "evaluator"],
    }


def test_groups_are_patterns_of_workers() -> None:
    e = experiment(launcher="local", placement=PlacementConfig(groups=("evaluator actor-1", "actor-*")))
    assert place(e) == {"actor-1": ["actor-1", "evaluator"], "actor-0": ["actor-0"], "trainer": ["trainer"]}
    whole = experiment(launcher="local", placement=PlacementConfig(groups=("*",)))
    assert place(whole) == {"trainer": ["actor-0", "actor-1", "trainer", "evaluator"]}


def test_a_group_that_matches_nobody_names_the_workers() -> None:
    e = experiment(launcher="local", placement=PlacementConfig(groups=("learner",)))
    with pytest.raises(ConfigError, match="'learner': matches no worker; the workers are actor-0, actor-1, trainer, evaluator"):
        place(e)


def test_edges_cross_only_between_groups() -> None:
    one = experiment()
    edges = Edges(one, place(one))
    assert (edges.streams, edges.mailbox_tables, edges.channels) == ({}, {}, [])
    two = experiment(launcher="local", placement=PlacementConfig(policy_workers=1, groups=("actor-* policy-0",)))
    edges = Edges(two, place(two))
    assert (set(edges.streams), edges.mailbox_tables, edges.channels) == ({"play"}, {}, ["policy"])
    three = experiment(launcher="local", placement=PlacementConfig(policy_workers=1))
    edges = Edges(three, place(three))
    assert (edges.mailbox_tables["policy"].num_clients, edges.mailbox_tables["policy"].num_servers) == (2, 1)


def test_the_graph_in_words() -> None:
    e = experiment(launcher="local", placement=PlacementConfig(policy_workers=1))
    text = describe(e, place(e))
    assert "actor-0, actor-1 --play[T=2 x B=1; 2 slots; shm]--> trainer" in text
    assert "actor-0, actor-1 ==ask policy==> policy-0" in text
    assert "inline" in describe(experiment(), place(experiment()))


def test_writers_that_do_not_match_the_stream_are_refused() -> None:
    e = experiment()
    e.check()
    with pytest.raises(ConfigError, match=r"play\.num_writers = 3: 2 workers write it"):
        replace(e, streams=(replace(e.streams[0], num_writers=3),)).check()
    with pytest.raises(ConfigError, match=r"play\.capacity = 1"):
        replace(e, streams=(replace(e.streams[0], capacity=1),)).check()


# -------------------------------------------------------------------------------------------------------------- rounds
@pytest.mark.parametrize("staleness", LAGS, ids=lambda s: s.mode)
def test_batch_k_is_made_by_version_k_minus_lag(staleness: StalenessConfig) -> None:
    group = group_of(experiment(staleness=staleness))
    group.start()
    lags = [e["metrics"]["staleness/max"] for e in run(group, 60) if e["kind"] == "update"]
    assert len(lags) == 20
    if staleness.mode == "window":
        assert max(lags) <= 2
    else:
        assert lags == [float(min(k, staleness.lag)) for k in range(20)]


def test_an_update_brings_the_accounts_with_it() -> None:
    group = group_of(experiment())
    group.start()
    events = run(group, 30)
    update = next(e for e in events if e["kind"] == "update")
    assert update["worker"] == "trainer"
    assert update["streams"]["play"]["consumed"] == 2
    evals = [e["version"] for e in events if e["kind"] == "eval"]
    assert evals[:3] == [2, 4, 6]
    assert set(group.stages()) >= {"actor-0/sample", "trainer/update", "evaluator/evaluate"}
    assert group.waits()["actor-0"] == "room on 'play'"


@pytest.mark.parametrize("staleness", LAGS, ids=lambda s: s.mode)
@pytest.mark.parametrize("cut", [1, 2, 5, 8, 13])
def test_a_run_that_is_saved_at_any_round_and_restored_goes_on_identically(
    staleness: StalenessConfig, cut: int, tmp_path: Path
) -> None:
    whole, half, again = (group_of(experiment(staleness=staleness)) for _ in range(3))
    whole.start()
    half.start()
    run(whole, cut)
    run(half, cut)
    parts = half.snapshot()
    write_parts(tmp_path, parts)
    run(half, 3)  # what the first life does after its checkpoint must not matter
    assert again.start(read_parts(tmp_path), epoch=1) == []
    wanted, found = run(whole, 30), run(again, 30)
    assert [e for e in found if e["kind"] != "eval"] == [e for e in wanted if e["kind"] != "eval"]
    assert [e["returns"] for e in found if e["kind"] == "eval"] == [e["returns"] for e in wanted if e["kind"] == "eval"]
    for name, table in whole.tables.items():
        assert np.array_equal(table.readers, again.tables[name].readers)
    assert all(torch.equal(a, b) for a, b in zip(final(whole), final(again), strict=True))


def final(group: ProcessGroup) -> list[Tensor]:
    assert group.trainer is not None
    return list(group.trainer.learner.params().values())


def test_a_lost_actor_is_cancelled_left_out_and_starts_afresh(tmp_path: Path) -> None:
    group = group_of(experiment())
    group.start()
    run(group, 4)
    group.workers[1].poll()
    rows = group.abandon("actor-1")
    group.check()
    assert group.accounting()["play"].cancelled == ({"worker_lost": rows} if rows else {})
    write_parts(tmp_path, group.snapshot(without="actor-1"))
    again = group_of(experiment())
    assert again.start(read_parts(tmp_path), epoch=1) == ["actor-1"]
    assert [e["version"] for e in run(again, 70) if e["kind"] == "update"][-1] == 20


def test_what_a_writer_had_reserved_that_is_not_in_the_checkpoint_is_given_up(tmp_path: Path) -> None:
    """It was lost after the stream was saved and before it had saved itself."""
    group = group_of(experiment())
    group.start()
    run(group, 4)
    group.workers[1].poll()
    held = int((group.tables["play"].state == RESERVED).sum())
    assert held
    parts = group.snapshot()
    del parts["worker-actor-1"]
    write_parts(tmp_path, parts)
    again = group_of(experiment())
    assert again.start(read_parts(tmp_path), epoch=1) == ["actor-1"]
    assert sum(again.accounting()["play"].cancelled.values()) > 0
    assert [e["version"] for e in run(again, 70) if e["kind"] == "update"][-1] == 20


def test_a_warm_start_publishes_the_parameters_of_the_other_run() -> None:
    group = group_of(experiment(staleness=StalenessConfig("one_step")))
    group.start()
    group.warm_start({"w": torch.tensor([5.0])}, "runs/other")
    first = next(e for e in run(group, 9) if e["kind"] == "update")
    assert first["metrics"]["mean"] == pytest.approx(50.5 + 5.0)
    with pytest.raises(CheckpointError, match="init_from 'runs/other': 'w' is missing or has another shape"):
        group.warm_start({"w": torch.zeros(2)}, "runs/other")


def test_every_reader_of_a_stream_is_checked() -> None:
    """The accounts of a second reader count as much as those of the first."""
    group = group_of(plural())
    group.start()
    group.round()
    group.tables["play"].readers[1, 1] += 7
    with pytest.raises(DataError, match="does not add up"):
        group.check()


# --------------------------------------------------------------------------------------------------------------- closing
class Held(Adder):
    """A policy that holds something."""

    def __init__(self, closed: list[str], name: str, fails: bool = False) -> None:
        super().__init__()
        self._closed, self._name, self._fails = closed, name, fails

    def close(self) -> None:
        self._closed.append(self._name)
        if self._fails:
            raise RuntimeError(f"{self._name} does not let go")


def holding(closed: list[str], *, fails: bool = False, **settings: object) -> Experiment:
    e = experiment(**settings)
    assert e.evaluation is not None
    inference = tuple(replace(s, make=lambda: Held(closed, "policy", fails)) for s in e.inference)
    return replace(e, inference=inference, evaluation=replace(e.evaluation, inferencer=lambda: Held(closed, "evaluator")))


def with_learner(e: Experiment, learner: Callable[[Collective], Learner]) -> Experiment:
    return replace(e, trainers=(replace(e.leader, learner=learner),))


def test_a_group_closes_the_policies_that_its_workers_own() -> None:
    closed: list[str] = []
    group_of(holding(closed)).close()
    assert closed == ["policy", "policy", "evaluator"]
    closed.clear()
    group_of(holding(closed, placement=PlacementConfig(policy_workers=1))).close()
    assert sorted(closed) == ["evaluator", "policy"]


def test_one_that_cannot_be_closed_keeps_none_of_the_others_open() -> None:
    closed: list[str] = []
    with pytest.raises(RuntimeError, match="policy does not let go"):
        group_of(holding(closed, fails=True)).close()
    assert closed == ["policy", "policy", "evaluator"]


def test_a_worker_that_cannot_be_built_closes_those_before_it() -> None:
    closed: list[str] = []

    def broken(ranks: Collective) -> Adder:
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        group_of(with_learner(holding(closed), broken))
    assert closed == ["policy", "policy"]
