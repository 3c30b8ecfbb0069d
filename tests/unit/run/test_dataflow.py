"""The graph of a run as data: who is there, in which process, and what connects them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fakes_run import experiment

from runnel.graphs.experiment import Experiment, describe
from runnel.graphs.run_config import PlacementConfig
from runnel.run import registry
from runnel.run.dataflow import dataflow
from runnel.run.wiring import place


def graph(e: Experiment) -> dict[str, Any]:
    return dataflow(e, place(e))


def test_one_process_has_only_edges_inside() -> None:
    found = graph(experiment())
    assert [(w["name"], w["kind"], w["process"]) for w in found["workers"]] == [
        ("actor-0", "actor", "main"),
        ("actor-1", "actor", "main"),
        ("trainer", "trainer", "main"),
        ("evaluator", "evaluator", "main"),
    ]
    play, policy, versions = found["streams"]
    assert play == {
        "name": "play",
        "kind": "samples",
        "from": ["actor-0", "actor-1"],
        "to": ["trainer"],
        "capacity": 2,
        "transport": "inproc",
    }
    assert (policy["kind"], policy["from"], policy["to"]) == ("inference", ["actor-0", "actor-1"], []), "answered inline"
    assert (versions["from"], versions["to"]) == (["trainer"], ["actor-0", "actor-1", "evaluator"])
    assert versions["kind"] == "params"


def test_edges_between_processes_say_what_they_are_made_of() -> None:
    e = experiment(launcher="local", placement=PlacementConfig(policy_workers=2))
    found = graph(e)
    kinds = {w["name"]: (w["kind"], w["process"]) for w in found["workers"]}
    assert kinds["policy-1"] == ("policy", "policy-1")
    assert kinds["evaluator"] == ("evaluator", "trainer")
    streams = {s["name"]: s for s in found["streams"]}
    assert streams["policy"]["to"] == ["policy-0", "policy-1"]
    assert streams["policy"]["capacity"] == 4
    assert {s["transport"] for s in found["streams"]} == {"shm"}
    far = replace(e, config=replace(e.config, launcher="ray"))
    assert {s["transport"] for s in graph(far)["streams"]} == {"ray"}


def test_workers_that_only_a_scaling_starts_are_marked() -> None:
    recipe = registry.load_recipe("ppo")
    config = registry.configure(recipe, {"launcher": "local", "num_actors": 1, "placement.max_actors": 2})
    e = registry.build("ppo", config)
    lines = describe(e, place(e)).splitlines()
    assert "  process actor-1: actor-1   (room for it; runnel scale starts it)" in lines
    assert "  process actor-0: actor-0" in lines
