"""A recipe over Ray gives what it gives in one process: on one node, and on three that share no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray_cluster import Nodes, nothing_is_left, wait_until
from safetensors.torch import load
from test_team_runs import RECURRENT, TEAM
from test_team_runs import content as content_of_team
from tiny_slices import content, settings
from torch.testing import assert_close

import runnel as rl

FAULTY = str(Path(__file__).parents[1] / "system" / "rank_faults.py")
APART = {"actor-*": "b", "policy-*": "c", "trainer*": "a", "reference-*": "c"}
"""Every kind of worker on a node of its own; engines and references share one."""


def train(name: str, out: Path, **extra: Any) -> rl.Run:
    recipe, tiny = settings(name, **extra)
    return rl.train(recipe, out=str(out), **tiny)


def apart(*patterns: str) -> dict[str, Any]:
    return {"place": tuple(f"{p}: 1 core, on {APART[p]}" for p in patterns)}


def balanced(run: rl.Run) -> None:
    streams = run.rows()[-1]["streams"]
    for account in streams.values():
        gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
        assert account["dispatched"] == account["consumed"] + gone + account["in_flight"]


def test_on_one_node_that_the_run_starts_itself(tmp_path: Path) -> None:
    extra = {"deterministic": True, "num_actors": 2}
    inproc = train("ppo", tmp_path / "inproc", **extra)
    over_ray = train("ppo", tmp_path / "ray", launcher="ray", **extra)
    assert content(over_ray.path, by_arrival=False) == content(inproc.path, by_arrival=False)
    balanced(over_ray)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(3)
    yield made
    assert wait_until(nothing_is_left)
    made.close()


def test_a_team_on_two_nodes_bit_for_bit(nodes: Nodes, tmp_path: Path) -> None:
    """Two policies, each with a sample stream and an inference stream, between an actor and a trainer that share no memory.
    The policies are recurrent, with segments of two lengths: what others send is a part of what these send."""
    settings = {**TEAM, **RECURRENT}
    inproc = rl.train("ippo", out=str(tmp_path / "inproc"), **settings)
    cluster = apart("actor-*", "trainer*")
    over_ray = rl.train("ippo", out=str(tmp_path / "ray"), launcher="ray", cluster=cluster, **settings)
    assert content_of_team(over_ray) == content_of_team(inproc)
    balanced(over_ray)


def test_on_two_nodes_bit_for_bit(nodes: Nodes, tmp_path: Path) -> None:
    extra = {"deterministic": True, "num_actors": 2}
    inproc = train("ppo", tmp_path / "inproc", **extra)
    over_ray = train("ppo", tmp_path / "ray", launcher="ray", cluster=apart("actor-*", "trainer*"), **extra)
    assert content(over_ray.path, by_arrival=False) == content(inproc.path, by_arrival=False)
    balanced(over_ray)


def test_a_buffer_on_a_node_of_its_own(nodes: Nodes, tmp_path: Path) -> None:
    """Rows go to a buffer, batches to the trainer, priorities back."""
    place = {"place": ("actor-*: 1 core, on b", "buffer: 1 core, on c", "trainer*: 1 core, on a")}
    extra = {"deterministic": True, "total_steps": 400, "eval": {"episodes": 0}}
    inproc = train("dqn", tmp_path / "inproc", **extra)
    over_ray = train("dqn", tmp_path / "ray", launcher="ray", cluster=place, placement={"groups": ("buffer",)}, **extra)
    assert content(over_ray.path, by_arrival=False) == content(inproc.path, by_arrival=False)
    balanced(over_ray)


def test_two_trainers_and_a_transform_on_three_nodes(nodes: Nodes, tmp_path: Path) -> None:
    """Labels cross to the node of the second trainer, its versions cross back, and the account of every reader adds up."""
    cluster = {"place": ("actor-*: 1 core, on b", "taste: 1 core, on c", "trainer*: 1 core, on a")}
    run = train("guided", tmp_path, launcher="ray", cluster=cluster, eval={"episodes": 0})
    assert (run.status, run.version) == ("finished", 12)
    balanced(run)
    streams = run.rows("end")[-1]["streams"]
    assert set(streams) == {"trajectories", "trajectories:labels", "labels"}
    assert streams["labels"]["consumed"] > 0
    assert run.rows()[-1]["metrics"]["taste/version"] >= 1


def test_a_language_model_served_from_another_node(nodes: Nodes, tmp_path: Path) -> None:
    """Actor, engine and trainer on three nodes: requests are relayed, and answers are those of an engine inline. The
    reference is asked from another node too."""
    kept: dict[str, Any] = {"deterministic": True, "grpo": {"kl_coef": 1.0}, "total_updates": 6, "eval": {"episodes": 0}}
    inproc = train("grpo", tmp_path / "inproc", placement={"reference_workers": 1, "threads": 1}, **kept)
    placement = {"policy_workers": 1, "reference_workers": 1, "threads": 1}
    cluster = apart("actor-*", "policy-*", "reference-*", "trainer*")
    over_ray = train("grpo", tmp_path / "ray", launcher="ray", placement=placement, cluster=cluster, **kept)
    assert content(over_ray.path)[1] == content(inproc.path)[1]
    balanced(over_ray)


def test_ranks_on_two_nodes_take_the_steps_of_one_and_survive_a_loss(nodes: Nodes, tmp_path: Path) -> None:
    """Each rank is on a node of its own, where one is killed: the run goes back to its checkpoint, and ends where one does."""
    tiny: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_updates": 12, "track": ()}
    tiny |= {"eval": {"episodes": 0}, "vector": {"backend": "serial"}, "checkpoint": {"every": 4}, "deterministic": True}
    one = rl.train(FAULTY, out=str(tmp_path / "one"), name="run", **tiny)
    tiny |= {"fault": "dies once", "at": 10, "placement": {"trainers": 2, "groups": ("actor-* trainer",)}}
    place = ("trainer: 1 core, on a, spread", "trainer-1: 1 core, on b, spread")
    two = rl.train(FAULTY, out=str(tmp_path / "two"), name="run", launcher="ray", cluster={"place": place}, **tiny)
    assert (two.status, two.version) == ("finished", 12)
    assert (tmp_path / "two" / "died").read_text().startswith("127.0.0.2:"), "rank 0 listens on its node's own address"
    (rows, last), (rows_of_one, last_of_one) = (content(run.path, by_arrival=False) for run in (two, one))
    assert_close(load(last), load(last_of_one), rtol=1e-4, atol=1e-6)
    assert [row["sample_ids"] for row in rows] == [row["sample_ids"] for row in rows_of_one]
    assert any("trainer-1" in event["text"] for event in two.rows("event"))
    balanced(two)


def test_an_asynchronous_window_on_three_nodes(nodes: Nodes, tmp_path: Path) -> None:
    tiny = {"env": "CartPole-v1", "num_actors": 2, "num_envs": 2, "num_steps": 8, "total_updates": 40, "track": ()}
    tiny |= {"eval": {"episodes": 0}, "vector": {"backend": "serial"}, "checkpoint": {"every": 15}, "name": "run"}
    run = rl.train("appo", out=str(tmp_path), launcher="ray", cluster=apart("actor-*", "trainer*"), **tiny)
    assert (run.status, run.version) == ("finished", 40)
    assert [row["version"] for row in run.rows()] == list(range(1, 41))
    balanced(run)
