"""Placement lines, and whether a cluster has what they ask for."""

from __future__ import annotations

import pytest
from fakes_run import experiment

from runnel.core.errors import ConfigError
from runnel.graphs.run_config import ClusterConfig, PlacementConfig
from runnel.run.needs import Need, NodeRoom, describe_fit, fit, needs_of, on_one_node, parse_line, rank_groups
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


def ranks(*lines: str, trainers: int = 2):
    e = experiment(launcher="ray", cluster=ClusterConfig(place=lines), placement=PlacementConfig(trainers=trainers))
    groups = place(e)
    needs, found = needs_of(e, groups), rank_groups(e, groups)
    return needs, found, on_one_node(found, needs)


def test_ranks_are_on_one_node_unless_they_are_spread():
    needs, found, together = ranks("trainer*: 2 cores")
    assert found == together == ["trainer", "trainer-1"]
    nodes = [NodeRoom("a", 3), NodeRoom("b", 4), NodeRoom("c", 3)]
    places = fit(needs, nodes, together)
    assert places["trainer"] == places["trainer-1"] == "b"
    assert "meet" not in describe_fit(needs, places, nodes, found)
    with pytest.raises(ConfigError, match=r"trainer and trainer-1.*needs 4 cores, and no node has that left.*add `spread` to"):
        fit(needs, [NodeRoom("a", 3), NodeRoom("c", 3)], together)
    assert ranks(trainers=1)[1:] == ([], [])


def test_ranks_that_are_spread_are_on_several_nodes_and_the_dry_run_says_so():
    needs, found, together = ranks("trainer*: 2 cores, spread")
    assert together == []
    nodes = [NodeRoom("a", 4), NodeRoom("b", 4)]
    places = fit(needs, nodes, together)
    assert {places["trainer"], places["trainer-1"]} == {"a", "b"}
    said = "ranks are on 2 nodes: they meet over the network; each opens ports without a password on its node's own address"
    assert said in describe_fit(needs, places, nodes, found)
    one = {**places, "trainer": "a", "trainer-1": "a"}
    assert "ranks are on 1 node: they meet on the loopback" in describe_fit(needs, one, nodes, found)


def test_ranks_on_nodes_of_different_kinds_must_be_asked_for():
    lines = "trainer: 1 core, on a", "trainer-1: 1 core, on b"
    nodes = [NodeRoom(name, 4, labels={"pool": name}) for name in "ab"]
    needs, _, together = ranks(*lines)
    with pytest.raises(ConfigError, match=r"on pool=a, on pool=b.*ask for it: add `spread`"):
        fit(needs, nodes, together)
    needs, _, together = ranks(*(f"{line}, spread" for line in lines))
    assert fit(needs, nodes, together)["trainer-1"] == "b"


@pytest.mark.parametrize("order", [("a", "c"), ("c", "a")])
def test_who_may_be_anywhere_leaves_room_to_those_who_may_not(order: tuple[str, str]) -> None:
    nodes = [NodeRoom(name, 2, labels={"pool": name}) for name in order]
    named = Need(1, labels={"pool": "c"})
    assert fit({"demos-0": Need(1), "policy-0": named, "reference-0": named}, nodes) == {
        "demos-0": "a",
        "policy-0": "c",
        "reference-0": "c",
    }
