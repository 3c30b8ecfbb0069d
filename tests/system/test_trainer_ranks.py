"""Trainers of several ranks on the local launcher: they learn, add up, resume in any number; who is lost or slow is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from tiny_slices import content
from torch.testing import assert_close

import runnel as rl

FAULTY = str(Path(__file__).parent / "rank_faults.py")
PPO: dict[str, Any] = {
    "env": "CartPole-v1",
    "launcher": "local",
    "deterministic": True,
    "num_envs": 6,
    "num_steps": 16,
    "vector": {"backend": "serial"},
    "track": (),
    "checkpoint": {"every": 0},
    "eval": {"episodes": 0},
    "name": "run",
}
SHUFFLED: dict[str, Any] = {"lr": 1e-3, "num_minibatches": 2, "num_epochs": 2, "normalise_obs": True}
"""Each rank shuffles its rows, so what it draws matters."""


def settled(run: rl.Run) -> bool:
    """Whether the accounts of every row add up, up to the end."""
    accounts = [row["streams"]["trajectories"] for row in (*run.rows(), *run.rows("end"))]
    return all(
        a["dispatched"] == a["consumed"] + sum(a["dropped"].values()) + sum(a["cancelled"].values()) + a["in_flight"]
        for a in accounts
    )


def test_two_ranks_learn_and_account_for_every_row(tmp_path: Path) -> None:
    settings = {**PPO, "num_actors": 2, "num_envs": 8, "num_steps": 16, "eval": {"episodes": 20}}
    ppo = {"num_minibatches": 2, "num_epochs": 6, "lr": 3e-3}
    run = rl.train("ppo", total_steps=10_240, ppo=ppo, placement={"trainers": 2}, out=str(tmp_path), **settings)
    assert run.eval is not None
    assert run.eval["mean"] > 60.0, "a policy that knows nothing gets 22"
    assert settled(run)
    assert run.rows("end")[-1]["streams"]["trajectories"]["consumed"] == run.steps // 16
    for row in run.rows():
        assert row["time"]["ranks"].keys() == {"excess_s", "slowest", "wait_s"}


def test_a_run_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    """With as many it is the uninterrupted run, bit for bit; with others it is another run of the same accounts."""
    placement = {"trainers": 2, "groups": ("actor-* trainer",)}
    two: dict[str, Any] = {**PPO, "ppo": SHUFFLED, "placement": placement, "checkpoint": {"every": 5}, "total_updates": 30}
    whole = rl.train("ppo", out=str(tmp_path / "whole"), **two)
    parted = rl.train("ppo", out=str(tmp_path / "parted"), on_update=lambda row: row["version"] < 6, **two)
    assert parted.status == "stopped"
    assert 6 <= parted.version < 30
    parted = rl.resume(parted.path)
    assert content(parted.path, by_arrival=False) == content(whole.path, by_arrival=False)
    for trainers, updates in ((1, 32), (3, 34)):
        run = rl.resume(parted.path, total_updates=updates, placement={"trainers": trainers})
        assert (run.status, run.version, run.steps) == ("finished", updates, updates * 6 * 16)
        assert settled(run)
    settings = {**two, "total_updates": 2, "init_from": str(run.path), "out": str(tmp_path / "from")}
    assert rl.train("ppo", **settings).version == 2, "all ranks start from the other run's parameters"


def test_two_ranks_give_the_parameters_that_one_gives(tmp_path: Path) -> None:
    """A whole run, from replay: batches of one segment are shared by rows, and both ranks answer with priorities."""
    settings = {**PPO, "num_envs": 1, "num_steps": 10, "total_steps": 500, "min_fill": 200, "update_ratio": 0.1, "log_every": 1}
    found = []
    for trainers in (1, 2):
        placement = {"trainers": trainers}
        run = rl.train("dqn", dqn={"batch_size": 32}, placement=placement, out=str(tmp_path / str(trainers)), **settings)
        found.append(content(run.path, by_arrival=False))
    assert_close(load(found[1][1]), load(found[0][1]), rtol=1e-4, atol=1e-5)
    for one, two in zip(found[0][0], found[1][0], strict=True):
        assert one["sample_ids"] == two["sample_ids"]
        assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-3, abs=1e-5)


def test_a_slow_rank_is_named_and_one_that_dies_too(tmp_path: Path) -> None:
    settings = {**PPO, "total_updates": 1000, "out": str(tmp_path), "placement": {"trainers": 2, "max_restarts": 0}}
    with pytest.raises(rl.core.WorkerFailure, match=r"trainer-1") as caught:
        rl.train(FAULTY, fault="dies", at=10, slow_s=0.15, **settings)
    assert "SIGKILL" in str(caught.value) or "rank 1 (worker trainer-1) is gone" in str(caught.value)
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "rank 1 (worker trainer-1) holds the others up: in prepare it takes 0.1" in log


@pytest.mark.parametrize(
    ("fault", "said"), [("hangs", "trainer-1' hung in stage 'update'"), ("raises", "the second learner lost its mind")]
)
def test_a_rank_that_hangs_or_raises_is_named(fault: str, said: str, tmp_path: Path) -> None:
    placement = {"trainers": 2, "stage_timeout_s": 3.0, "max_restarts": 0}
    settings = {**PPO, "total_updates": 1000, "out": str(tmp_path), "placement": placement}
    with pytest.raises(rl.core.WorkerFailure, match=said) as caught:
        rl.train(FAULTY, fault=fault, at=2, **settings)
    assert caught.value.worker == "trainer-1"


def test_a_run_goes_on_by_itself_after_a_rank_has_died(tmp_path: Path) -> None:
    settings = {**PPO, "total_updates": 14, "out": str(tmp_path), "placement": {"trainers": 3}, "checkpoint": {"every": 4}}
    run = rl.train(FAULTY, fault="dies once", at=10, **settings)
    assert (run.status, run.version) == ("finished", 14)
    assert [row["version"] for row in run.rows()] == list(range(1, 15))
    assert settled(run)


def test_what_cannot_be_shared_is_refused_before_anything_starts(tmp_path: Path) -> None:
    out = {"out": str(tmp_path), **{k: v for k, v in PPO.items() if k != "launcher"}}
    with pytest.raises(rl.ConfigError, match=r"placement\.trainers = 2: ranks are processes; use launcher local"):
        rl.train("ppo", placement={"trainers": 2}, **out)
    with pytest.raises(rl.ConfigError, match=r"placement\.trainers = 4: .* use 3"):
        rl.train("ppo", placement={"trainers": 4}, launcher="local", ppo={"num_minibatches": 1}, **out)
    with pytest.raises(rl.ConfigError, match=r"placement\.groups.*trainer and trainer-1 need a process each"):
        rl.train("ppo", placement={"trainers": 2, "groups": ("trainer*",)}, launcher="local", ppo=SHUFFLED, **out)
    with pytest.raises(rl.ConfigError, match=r"placement\.trainers = 2: the members of a population"):
        rl.train("ppo", placement={"trainers": 2}, launcher="local", population=2, **out)
