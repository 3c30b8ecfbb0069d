"""Placement lines, and whether a cluster has what they ask for."""

from __future__ import annotations

import pytest
from fakes_run import experiment

from runnel.core.errors import ConfigError
from runnel.run.experiment import ClusterConfig, PlacementConfig
from runnel.run.needs import Need, NodeRoom, describe_fit, fit, needs_of, parse_line
from runnel.run.wiring import place


def test_a_line_says_what_a_process_needs():
    assert parse_line("actor-*: 1 core, on cpu, spread", Need()) == (
        ["actor-*"],
        Need(1.0, labels={"pool": "cpu"}, spread=True),
    )
    names, need = parse_line("trainer: 4 cores, 1 gpu, 32 GiB, on zone=a, pack", Need())
    assert (names, need.cores, need.gpus, need.memory, need.labels) == (["trainer"], 4.0, 1.0, 32 << 30, {"zone": "a"})
    assert parse_line("x: 0.5 gpus", Need(cores=3.0))[1] == Need(cores=3.0, gpus=0.5), "what is not said stays"


@pytest.mark.parametrize("line", ["actor-*", ": 1 core", "actor-*: 1 coer", "actor-*: on", "actor-*: fast", "actor-*: -1 core"])
def test_a_line_that_is_not_understood_is_named(line):
    with pytest.raises(ConfigError, match=r"cluster\.place = "):
        parse_line(line, Need())


def test_the_first_line_that_matches_counts():
    lines = ("actor-1: 2 cores", "actor-*: 1 core, spread", "trainer: 3 cores")
    e = experiment(launcher="ray", cluster=ClusterConfig(place=lines), placement=PlacementConfig(threads=2))
    needs = needs_of(e, place(e))
    assert {g: n.cores for g, n in needs.items()} == {"actor-0": 1.0, "actor-1": 2.0, "trainer": 3.0}
    bad = experiment(launcher="ray", cluster=ClusterConfig(place=("learner: 1 core",)))
    with pytest.raises(ConfigError, match="matches no worker; the workers are actor-0"):
        needs_of(bad, place(bad))


def test_large_needs_go_first_and_kinds_are_spread_or_packed():
    nodes = [NodeRoom("a", 4), NodeRoom("b", 4), NodeRoom("c", 2, gpus=1)]
    needs = {f"actor-{i}": Need(1, spread=True) for i in range(4)} | {"trainer": Need(2, gpus=1)}
    found = fit(needs, nodes)
    assert found["trainer"] == "c"
    assert sorted(found[f"actor-{i}"] for i in range(4)) == ["a", "a", "b", "b"]
    packed = fit({f"actor-{i}": Need(1) for i in range(3)}, nodes)
    assert sorted(packed.values()) == ["a", "c", "c"] or len(set(packed.values())) <= 2
    text = describe_fit(needs, found, nodes)
    assert "node c (2 cores, 1 gpus free):\n    trainer: 2 cores, 1 gpu" in text


def test_what_a_cluster_lacks_is_said():
    nodes = [NodeRoom("abcdef", 2, labels={"pool": "cpu"})]
    with pytest.raises(
        ConfigError, match=r"needs 1 core, 1 gpu, and no node has that left \(abcdef has 2 cores, 0 gpus free\)"
    ):
        fit({"trainer": Need(1, gpus=1)}, nodes)
    with pytest.raises(ConfigError, match="no node has the label pool=gpu; start nodes with `ray start --labels pool=gpu`"):
        fit({"trainer": Need(1, labels={"pool": "gpu"})}, nodes)
    with pytest.raises(ConfigError, match="2 processes are without a place"):
        fit({f"actor-{i}": Need(1) for i in range(4)}, nodes)
