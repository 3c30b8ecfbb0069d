"""Run folders that an older version wrote are loaded, resumed and shown, though settings have other names today.

`old_runs/` holds folders as commit 11d2567 wrote them, each with its newest checkpoint: PPO with `ring`, `ppo.clip` and
`ppo.lam` set, SAC with a replay memory, a language model between its warm-up and GRPO.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import runnel as rl
from runnel.board.library import Library
from runnel.core.config import flat, to_data
from runnel.core.old_configs import ADDED_LATER, RENAMED, REVALUED
from runnel.run import registry
from runnel.track.folder import RunFolder

OLD = Path(__file__).with_name("old_runs")
RUNS = ("ppo", "reverse", "sac")
MORE = {"ppo": {"total_steps": 192}, "sac": {"total_steps": 64}, "reverse": {"total_updates": 6}}


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old folder, which may be changed."""
    return Path(shutil.copytree(OLD / request.param, tmp_path / request.param))


def updates_of(folder: Path) -> list[int]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["version"] for row in rows if row.get("kind") == "update"]


def test_the_folders_hold_names_that_are_no_more() -> None:
    config = json.loads((OLD / "ppo" / "config.json").read_text())
    assert config["ring"] == 2
    assert (config["ppo"]["clip"], config["ppo"]["lam"]) == (0.3, 0.9)
    read = RunFolder(OLD / "ppo").read_config()
    assert read["num_env_groups"] == 2
    assert (read["ppo"]["clip_range"], read["ppo"]["gae_lambda"]) == (0.3, 0.9)
    assert "ring" not in read
    assert not {"clip", "lam"} & set(read["ppo"])


def test_every_setting_of_the_table_is_one_of_a_recipe() -> None:
    fields: set[str] = set()
    for name in registry.RECIPES:
        fields |= set(flat(to_data(registry.load_recipe(name).Config())))
    assert not (set(RENAMED.values()) | set(ADDED_LATER) | set(REVALUED)) - fields
    assert not set(RENAMED) & fields, "an old name means something else today"


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_an_old_run_goes_on(run: Path) -> None:
    before = updates_of(run)
    rl.resume(run, **MORE[run.name])
    after = updates_of(run)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert after == sorted(set(after))


def test_old_policies_answer_as_they_did() -> None:
    """`answers.json` is what the older version said to the same observations and prompts."""
    answers = json.loads((OLD / "answers.json").read_text())
    rng = np.random.default_rng(0)
    poles, swings = rng.normal(size=(8, 4)).astype(np.float32), rng.uniform(-1, 1, size=(8, 3)).astype(np.float32)
    ppo, sac, reverse = (rl.load(OLD / name) for name in ("ppo", "sac", "reverse"))
    assert [int(ppo.act(obs)) for obs in poles] == answers["ppo"]
    np.testing.assert_allclose([sac.act(obs) for obs in swings], answers["sac"], atol=1e-5)
    assert [reverse.chat([{"role": "user", "content": word}]) for word in ("abc", "hello")] == answers["reverse"]


def test_old_runs_are_shown_by_the_board(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "runs")
    library = Library(tmp_path / "runs", cache=tmp_path / "cache")
    library.refresh()
    shown = {line["id"]: line["recipe"] for line in library.lines()}
    assert shown == {"ppo": "ppo", "sac": "sac", "reverse": "reverse"}


@pytest.mark.parametrize(
    ("flag", "today"), [("ppo.lam", "ppo.gae_lambda"), ("ppo.clip", "ppo.clip_range"), ("ring", "num_env_groups")]
)
def test_an_old_name_is_refused_with_the_new_one(flag: str, today: str) -> None:
    with pytest.raises(rl.ConfigError, match=f"unknown field; did you mean {today}"):
        rl.train("ppo", env="CartPole-v1", **{flag: 1})
