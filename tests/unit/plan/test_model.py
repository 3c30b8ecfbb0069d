"""The model of a placement: facts that must hold, agreement with the simulator, the search over placements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runnel.core.errors import ConfigError
from runnel.flow.staleness import StalenessConfig
from runnel.plan.costs import Costs, LinearCost
from runnel.plan.model import Placement, predict
from runnel.plan.search import Cluster, NodeKind, best_of_each, on_accelerators, placements, search, train_flags
from runnel.plan.simulate import NetworkConfig, SimConfig, simulate
from runnel.run import registry

SYNC, ONE, WINDOW = StalenessConfig(), StalenessConfig(mode="one_step"), StalenessConfig(mode="window", max_lag=2)
COSTS = Costs(
    num_steps=10,
    step=LinearCost(0.0, 0.01),
    infer=LinearCost(0.0, 0.01),
    serve=LinearCost(0.002, 0.0),
    message_s=0.0,
    update=LinearCost(0.1, 0.0),
    publish_s=0.0,
    load_s=0.0,
)
"""A segment takes 0.2 s in the actor, an update 0.1."""


def seconds(costs: Costs = COSTS, **settings: object) -> float:
    """Of one update."""
    return 1.0 / predict(costs, replace(Placement(cores=8), **settings)).updates_per_s  # type: ignore[arg-type]


def test_phases() -> None:
    assert seconds(one_process=True) == pytest.approx(0.3)
    assert seconds(one_process=True, actors=2, batch_segments=2) == pytest.approx(0.5)
    assert seconds(staleness=SYNC) == pytest.approx(0.3)
    assert seconds(staleness=ONE) == pytest.approx(0.2)
    assert seconds(staleness=WINDOW, actors=4, batch_segments=1) == pytest.approx(0.1)  # two batches ahead, two actors at work
    assert seconds(staleness=SYNC, actors=2, batch_segments=3) == pytest.approx(0.5)  # two rounds


def test_cores_are_shared() -> None:
    crowded = {"staleness": WINDOW, "actors": 8, "batch_segments": 8, "cores": 2}
    assert seconds(**crowded) == pytest.approx((8 * 0.2 + 0.1) / 2)
    asleep = replace(COSTS, step_cpu=0.0)
    assert seconds(asleep, **crowded) == pytest.approx((8 * 0.1 + 0.1) / 2)
    assert predict(COSTS, replace(Placement(), **crowded)).bottleneck == "cores"  # type: ignore[arg-type]


def test_a_remote_answer_is_part_of_the_step() -> None:
    apart = {"inference": "split", "servers": 1}
    assert seconds(staleness=SYNC, **apart) == pytest.approx(10 * 0.012 + 0.1)
    long = replace(COSTS, serve=LinearCost(0.03, 0.0), update=LinearCost(0.0, 0.0))
    assert seconds(long, staleness=WINDOW, **apart) == pytest.approx(10 * 0.04)
    ringed = seconds(long, staleness=WINDOW, num_env_groups=8, batch_segments=8, **apart)
    assert ringed == pytest.approx(8 * 10 * 0.01, rel=0.01)  # the ring hides the answer


def test_replay_paces_by_its_ratio() -> None:
    replay = replace(COSTS, update_ratio=0.4, update_units=64.0, update=LinearCost(0.01, 0.0), insert_s=0.001, select_s=0.0)
    assert seconds(replay, one_process=True) * 4 == pytest.approx(0.2 + 0.001 + 4 * 0.01)  # ten steps pay for four updates
    slow = replace(replay, update=LinearCost(0.06, 0.0))
    four = StalenessConfig(mode="window", max_lag=4)
    assert seconds(slow, staleness=SYNC) * 4 == pytest.approx(0.2 + 0.001 + 0.24)
    assert seconds(slow, staleness=four, actors=2) * 4 == pytest.approx(0.241)  # the learner is the longer one


def test_staleness() -> None:
    assert predict(COSTS, Placement(staleness=SYNC)).staleness == 0
    assert predict(COSTS, Placement(staleness=ONE, cores=2)).staleness == 1
    slow = replace(COSTS, update=LinearCost(1.0, 0.0))
    assert predict(slow, Placement(staleness=WINDOW, cores=2)).staleness == WINDOW.max_lag  # the queue is full
    assert predict(COSTS, Placement(staleness=WINDOW, cores=2)).staleness == pytest.approx(1.0)


def test_links_bound_the_rate() -> None:
    network = NetworkConfig(gbps=0.8, latency_us=0.0, actors_per_node=1)
    heavy = replace(COSTS, segment_bytes=10**8, param_bytes=0)
    found = predict(heavy, Placement(actors=4, batch_segments=4, staleness=WINDOW, cores=8, network=network))
    assert found.bottleneck == "sample path"
    assert found.updates_per_s == pytest.approx(1 / 4.0)
    wide = replace(COSTS, param_bytes=10**8, segment_bytes=0)
    found = predict(wide, Placement(actors=4, batch_segments=4, staleness=WINDOW, cores=8, network=network))
    assert found.bottleneck == "parameter path"


@pytest.mark.parametrize("inference", ["inline", "split", "central"])
@pytest.mark.parametrize("actors", [15, 120])
@pytest.mark.parametrize("staleness", [SYNC, WINDOW])
def test_model_and_simulation_agree(inference: str, actors: int, staleness: StalenessConfig) -> None:
    num_env_groups = 1 if inference == "inline" else 4
    p = Placement(
        actors=actors,
        inference=inference,  # type: ignore[arg-type]
        servers={"inline": 0, "split": 2, "central": 1}[inference],
        num_env_groups=num_env_groups,
        batch_segments=actors * num_env_groups,
        staleness=staleness,
        devices=True,
        cores=actors,
        network=NetworkConfig(),
    )
    same = SimConfig(
        actors=p.actors,
        inference=p.inference,
        servers=p.servers,
        num_env_groups=p.num_env_groups,
        batch_segments=p.batch_segments,
        updates=4,
        jitter=0.0,
        staleness=p.staleness,
        network=NetworkConfig(),
    )
    played = simulate(same, Costs())
    assert predict(Costs(), p).units_per_s == pytest.approx(played.steps_per_s, rel=0.15)


# -------------------------------------------------------------------------------------------------------------- search
def test_the_best_placement_is_the_best_of_all() -> None:
    cluster = Cluster((NodeKind(2, 64, 2),))
    ranked = search(Costs(), cluster, WINDOW)
    assert ranked[0].units_per_s >= 0.94 * max(q.units_per_s for q in ranked)
    assert {q.placement.inference for q in best_of_each(ranked)} == {"inline", "split", "central"}
    for p in placements(Costs(), cluster, WINDOW):
        assert p.actors <= cluster.cores
        assert p.trainers + (p.servers if p.inference == "split" else 0) <= cluster.gpus


def test_a_policy_that_is_slow_on_a_core_goes_to_accelerators() -> None:
    cluster = Cluster((NodeKind(1, 64, 2),))
    quick = replace(Costs(), infer=LinearCost(0.0, 1e-5), serve=LinearCost(0.05, 1e-4))
    assert search(Costs(), cluster, WINDOW)[0].placement.inference in ("split", "central")
    assert search(quick, cluster, WINDOW)[0].placement.inference == "inline"


def test_environments_and_the_batch_of_a_language_model_stay() -> None:
    eight = replace(Costs(), rows=8.0)
    for p in placements(eight, Cluster((NodeKind(1, 8, 0),)), SYNC):
        if not p.one_process:
            assert p.rows * p.num_env_groups == 8 or p.inference == "inline"
    tokens = replace(Costs(), unit="tokens", rows=32.0)
    for p in placements(tokens, Cluster((NodeKind(1, 8, 0),)), SYNC):
        if not p.one_process:
            assert p.rows * p.actors == 32


def test_flags_that_train_takes() -> None:
    recipe = registry.load_recipe("appo")
    p = Placement(actors=4, inference="split", servers=1, num_env_groups=2, batch_segments=8, staleness=WINDOW)
    flags = dict(zip(*[iter(train_flags(p, recipe.Config()))] * 2, strict=True))  # type: ignore[call-overload]
    assert flags["--num-actors"] == "4"
    assert flags["--placement.policy-workers"] == "1"
    assert flags["--num-segments"] == "8"
    assert train_flags(replace(p, one_process=True), recipe.Config()) == ["--launcher", "inproc"]


def test_costs_survive_a_file(tmp_path: Path) -> None:
    costs = replace(COSTS, notes=("a", "b"))
    costs.save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json") == costs
    with pytest.raises(ConfigError, match=r"costs\.steps"):
        Costs.of({"steps": 1})
    with pytest.raises(ConfigError, match="runnel plan"):
        Costs.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: search(COSTS, Cluster((NodeKind(1, 0, 0),)), SYNC), "cores"),
        (lambda: search(COSTS, Cluster((NodeKind(1, 1, 0),)), SYNC) and Cluster.of({"node": []}), "cluster"),
        (lambda: on_accelerators(COSTS, 0.0), "gpu-speedup"),
        (lambda: predict(COSTS, Placement(inference="split")), "servers"),
    ],
)
def test_what_cannot_be_is_refused(make: object, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        make()  # type: ignore[operator]
