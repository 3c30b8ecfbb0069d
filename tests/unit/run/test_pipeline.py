"""Pipelines: stages hand over weights and data, finished ones are skipped, begun ones go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import main
from runnel.run import api
from runnel.run.pipeline import PIPELINES, load_pipeline

TASK = f"{Path(__file__).parent / 'words_task.py'}:make_task"
TINY: dict[str, Any] = {
    "task": TASK,
    "lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64},
    "eval": {"episodes": 2},
    "track": (),
}


def two(out: Path, updates: int = 2) -> list[rl.Run]:
    first = rl.Stage("sft", "sft", {**TINY, "demo_rows": 4, "total_updates": 2})
    second = {
        **without_sizes(TINY),
        "model": "{sft}/model",
        "num_pairs": 2,
        "total_updates": updates,
        "checkpoint": {"every": 1},
    }
    return rl.run_pipeline([first, rl.Stage("dpo", "dpo", second)], out=out)


def without_sizes(settings: dict[str, Any]) -> dict[str, Any]:
    """For a stage that starts from a model: it has sizes of its own."""
    return {name: value for name, value in settings.items() if name != "lm"}


def test_stages_hand_over_and_are_skipped_when_done(tmp_path: Path) -> None:
    runs = two(tmp_path)
    assert [r.path.name for r in runs] == ["01-sft", "02-dpo"]
    config = json.loads((runs[1].path / "config.json").read_text())
    assert config["model"] == str(runs[0].path / "model")
    before = [(r.path / "metrics.jsonl").stat().st_mtime_ns for r in runs]
    again = two(tmp_path)
    assert [(r.path / "metrics.jsonl").stat().st_mtime_ns for r in again] == before
    assert [(r.status, r.version) for r in again] == [(r.status, r.version) for r in runs]
    with pytest.raises(rl.ConfigError, match=r"dpo.total_updates.*was made with 2"):
        two(tmp_path, updates=3)


def test_a_stage_that_was_begun_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = two(tmp_path / "whole", updates=4)
    count = 0
    original = rl.llm.TokenLearner.update

    def failing(self: rl.llm.TokenLearner, batch: rl.Batch) -> rl.Update:
        nonlocal count
        count += 1
        if count == 5:
            raise RuntimeError("lightning")
        return original(self, batch)

    monkeypatch.setattr(rl.llm.TokenLearner, "update", failing)
    with pytest.raises(RuntimeError, match="lightning"):
        two(tmp_path / "cut", updates=4)
    runs = two(tmp_path / "cut", updates=4)
    assert runs[1].status == "finished"
    saved = [sorted((r[1].path / "checkpoints").glob("0*/params.safetensors")) for r in (whole, runs)]
    assert saved[0][-1].read_bytes() == saved[1][-1].read_bytes() != saved[0][-2].read_bytes(), "the same, and it moved"


def test_a_stage_killed_at_its_very_end_is_done(tmp_path: Path) -> None:
    runs = two(tmp_path)
    rows = (runs[1].path / "metrics.jsonl").read_text().splitlines()
    (runs[1].path / "metrics.jsonl").write_text("\n".join(r for r in rows if json.loads(r)["kind"] != "end") + "\n")
    (runs[1].path / "model" / "model.safetensors").unlink()
    again = two(tmp_path)
    assert again[1].status == "finished"
    assert (runs[1].path / "model" / "model.safetensors").is_file()


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    r"last\.num_prompts = 0": ("grpo", {"num_prompts": 0}),
    r"last\.learner\.num_epochs = 2.*importance weight": ("rloo", {"learner": {"num_epochs": 2}}),
    r"last\.task = 'nonsense'": ("grpo", {"task": "nonsense"}),
    r"last\.max_tokens = 9999.*lower max_tokens": ("grpo", {"max_tokens": 9999}),
    r"last\.reward_model = .*nowhere.*no such folder": ("grpo", {"reward_model": "nowhere"}),
    r"last\.colour": ("grpo", {"colour": "red"}),
    r"last\.recipe = 'brpo'": ("brpo", {}),
}


@pytest.mark.parametrize("named", list(BAD))
def test_every_stage_is_checked_before_the_first_one_trains(named: str, tmp_path: Path) -> None:
    """Also what only a build finds: a stage that takes a model from an earlier one is built on what that one starts from."""
    recipe, settings = BAD[named]
    few = {key: value for key, value in TINY.items() if key != "lm"}
    first = rl.Stage("sft", "sft", {**TINY, "demo_rows": 4, "total_updates": 2})
    last = rl.Stage("last", recipe, {**few, "model": "{sft}/model", "total_updates": 1, **settings})
    with pytest.raises(rl.ConfigError, match=f"^{named}"):
        rl.run_pipeline([first, last], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stage_that_failed_without_an_update_is_corrected_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> int:
        raise RuntimeError("lightning")

    monkeypatch.setattr("runnel.llm.sampling.pairs.PairSampler.step", failing)
    with pytest.raises(RuntimeError, match="lightning"):
        two(tmp_path)
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "02-dpo" / "checkpoints").iterdir()] == ["000000000"], "it was saved as it failed"
    before = (tmp_path / "01-sft" / "metrics.jsonl").stat().st_mtime_ns
    runs = two(tmp_path, updates=3)
    assert [(r.status, r.version) for r in runs] == [("finished", 2), ("finished", 3)]
    assert (tmp_path / "01-sft" / "metrics.jsonl").stat().st_mtime_ns == before, "what is done is not done again"


def test_wrong_references_are_named() -> None:
    with pytest.raises(rl.ConfigError, match="no earlier stage is called 'later'"):
        rl.run_pipeline([rl.Stage("a", "sft", {"model": "{later}/model"}), rl.Stage("later", "sft")], out="nowhere")
    with pytest.raises(rl.ConfigError, match="a name of its own"):
        rl.run_pipeline([rl.Stage("a", "sft"), rl.Stage("a", "sft")], out="nowhere")
    with pytest.raises(rl.ConfigError, match="unknown; use one of"):
        load_pipeline("nothing")


@pytest.mark.parametrize("name", list(PIPELINES))
def test_every_pipeline_runs(name: str, tmp_path: Path) -> None:
    small = ["--lm.layers", "1", "--lm.width", "32", "--lm.heads", "2", "--lm.kv-heads", "2", "--lm.inner", "64"]
    few = {
        "iterated_dpo": ["--rounds", "2", "--pair-batches", "2", "--dpo-updates", "2", "--num-pairs", "4"],
        "rlhf": [
            "--pair-batches",
            "2",
            "--reward-updates",
            "2",
            "--rl-updates",
            "7",
            "--num-prompts",
            "2",
            "--group-size",
            "2",
        ],
    }[name]
    sft = ["--sft-updates", "4", "--demo-rows", "8", "--eval-prompts", "4", "--learner.sft-lr", "3e-3"]
    assert main(["pipeline", name, "--out", str(tmp_path), *small, *few, *sft, "--task", TASK]) == 0
    last = sorted(tmp_path.iterdir())[-1]
    assert (last / "model" / "model.safetensors").is_file()
    assert api.load(last) is not None
