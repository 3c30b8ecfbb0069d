"""Every file in examples/ runs as it says it does, in a small budget."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import runnel as rl
from runnel.core.resolve import load_module

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    return load_module(str(EXAMPLES / f"{name}.py"), "example")


def check_folder(run: rl.Run) -> None:
    """What every finished run leaves behind."""
    assert run.status in ("solved", "finished", "stopped")
    for part in ("config.json", "run.json", "metrics.jsonl", "report.html"):
        assert (run.path / part).stat().st_size > 0, part
    assert list((run.path / "checkpoints").glob("*/manifest.json"))
    for account in run.rows("end")[-1]["streams"].values():
        lost = sum(account["dropped"].values()) + sum(account["cancelled"].values())
        assert account["dispatched"] == account["consumed"] + lost + account["in_flight"]


def test_own_environment_learns_its_way(tmp_path: Path) -> None:
    run = load("own_environment").main(total_steps=6_000, out=str(tmp_path))
    check_folder(run)
    assert run.eval is not None
    assert run.eval["mean"] > 0.5  # a random walk earns about 0 before the cost of its steps


def test_own_environment_by_path_across_processes(tmp_path: Path) -> None:
    reference = f"{EXAMPLES / 'own_environment.py'}:MyEnv"
    run = rl.train(
        "ppo", env=reference, total_steps=512, num_steps=32, launcher="local", out=str(tmp_path), eval={"episodes": 4}
    )
    check_folder(run)
    assert run.steps == 512
    assert rl.load(run.path).act([0.0, 1.0]) in (0, 1)


def test_own_network_trains_and_loads(tmp_path: Path) -> None:
    module = load("own_network")
    run = module.main(total_steps=16_000, out=str(tmp_path))
    check_folder(run)
    policy = rl.load(run.path)
    assert isinstance(policy.net.body, module.SharedTrunk)  # type: ignore[attr-defined]
    assert run.eval is not None
    assert run.eval["mean"] > 50  # random play balances for about 20 steps


def test_own_reward_has_both_channels_and_learns(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = load("own_reward").main(warmup_updates=30, total_updates=34, width=64, out=str(tmp_path))
    check_folder(run)
    rows = [row["metrics"] for row in run.rows()]
    assert rows[29]["loss/sft"] < 0.7 * rows[0]["loss/sft"]
    for metrics in rows[30:]:
        assert 0.0 <= metrics["reward/exact"] <= metrics["reward/letters"] <= 1.0
        assert math.isclose(metrics["reward/mean"], metrics["reward/exact"] + 0.5 * metrics["reward/letters"], abs_tol=1e-5)


def test_own_reward_by_hand() -> None:
    reward = load("own_reward").capitals_reward
    verdicts = reward(["bad", "bad"], ["BAD", "BAx!"], wanted=["BAD", "BAD"])
    assert verdicts == [{"exact": 1.0, "letters": 1.0}, {"exact": 0.0, "letters": 0.5}]


def test_own_conversations_are_sound_and_a_good_player_earns_all(tmp_path: Path) -> None:
    shop = load("own_chat_env").Shop
    assert rl.check_chat(shop, episodes=2) == []
    env = shop()
    env.reset({}, seed=3)
    (look,) = env.tools()
    call = env.script()["tool_calls"][0]["function"]
    assert look.open().call(call["arguments"]).rewards == {"calls": 1.0}
    end = env.step({"role": "assistant", "content": env.script()})
    assert (end.terminated, end.rewards) == (True, {"reward": 1.0})


def test_own_conversations_train(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = load("own_chat_env").main(warmup_updates=3, total_updates=4, width=32, max_turns=2, out=str(tmp_path))
    check_folder(run)
    rows = [row["metrics"] for row in run.rows()]
    assert rows[2]["loss/sft"] < rows[0]["loss/sft"]
    assert 1.0 <= rows[3]["chat/turns"] <= 2.0
    assert math.isclose(rows[3]["reward/mean"], rows[3]["reward/reward"] - 0.1 * rows[3]["reward/calls"], abs_tol=1e-5)


def test_own_policy_loss_learns(tmp_path: Path) -> None:
    run = rl.train(
        str(EXAMPLES / "own_policy_loss.py"), num_steps=32, total_steps=12_000, out=str(tmp_path), eval={"episodes": 20}
    )
    check_folder(run)
    assert run.eval is not None
    assert run.eval["mean"] > 100  # random play balances for about 20 steps


def test_own_algorithm_improves(tmp_path: Path) -> None:
    run = rl.train(str(EXAMPLES / "own_algorithm.py"), total_steps=16_000, out=str(tmp_path), eval={"episodes": 20})
    check_folder(run)
    returns = [row["metrics"]["return"] for row in run.rows() if "return" in row["metrics"]]
    assert returns[-1] > 2 * returns[0]


def test_own_algorithm_resumes_bit_for_bit(tmp_path: Path) -> None:
    """A user's learner gets the library's word, too."""
    recipe, common = str(EXAMPLES / "own_algorithm.py"), {"eval": {"episodes": 0}, "out": str(tmp_path)}
    whole = rl.train(recipe, total_steps=2_560, **common)
    half = rl.train(recipe, total_steps=2_560, on_update=lambda row: row["version"] < 10, **common)
    assert half.status == "stopped"
    rest = rl.resume(half.path)
    expected, found = (_learning(rl.Run.rows(run)) for run in (whole, rest))
    assert found == expected


def _learning(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: row[k] for k in ("version", "steps", "metrics", "sample_ids")} for row in rows]


def test_own_recipe_reaches_the_origin(tmp_path: Path) -> None:
    run = rl.train(str(EXAMPLES / "own_recipe.py"), total_steps=10_240, out=str(tmp_path))
    check_folder(run)
    assert run.eval is not None
    assert run.eval["mean"] > -3.0  # a point that is left alone pays 13 an episode on average
    with pytest.raises(rl.ConfigError, match="dims = 0"):
        rl.train(str(EXAMPLES / "own_recipe.py"), dims=0, out=str(tmp_path))


def test_callbacks_see_everything_and_stop(tmp_path: Path) -> None:
    seen = load("callbacks").main(total_steps=8_000, target=60.0, out=str(tmp_path))
    check_folder(seen["run"])
    assert seen["run"].status == "stopped"
    assert seen["evals"][-1] >= 60.0
    assert len(seen["kl"]) == seen["run"].version
    assert len(seen["episodes"]) > 10
    assert all(Path(path).is_dir() for path in seen["checkpoints"][-1:])
    assert len(seen["returns"]) == 10
    assert seen["by_hand"] >= 8


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples_use_public_names_only(path: Path) -> None:
    """`import runnel as rl`, a recipe to build on, gymnasium, torch, numpy, the standard library: nothing else."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    ours = {name for name in found if name.partition(".")[0] == "runnel"}
    assert ours <= {"runnel", "runnel.recipes"}
    others = {name.partition(".")[0] for name in found - ours}
    assert others <= {"gymnasium", "torch", "numpy"} | set(sys.stdlib_module_names)


def test_a_learned_reward_beside_the_policy(tmp_path: Path) -> None:
    """Labels, a second trainer, and the policy that uses it, in three of the five rooms. What the sparse reward alone
    reaches is a matter of luck (docs/guides/several-trainers.md), and not for a test."""
    run = rl.train(
        str(EXAMPLES / "intrinsic_reward.py"),
        env_kwargs={"rooms": 3},
        total_steps=49_152,
        out=str(tmp_path),
        eval={"episodes": 0},
        seed=1,
    )
    check_folder(run)
    metrics = run.rows()[-1]["metrics"]
    assert metrics["return"] > 0.3, "random play finds the exit in none of a hundred episodes"
    assert metrics["taste/accuracy"] > 0.95
    assert metrics["taste/version"] >= run.version - 1, "one update for each of the leader's"
    assert run.rows("end")[-1]["streams"]["trajectories:labels"]["consumed"] > 0
