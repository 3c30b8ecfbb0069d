"""A run's model in plain transformers: the same log-probabilities, the same scores, and a start for the next run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import runnel as rl
from runnel.cli.main import main
from runnel.llm.rewards.scorers import reward_model
from runnel.llm.tokenize import load_tokenizer

TINY: dict[str, Any] = {
    "total_updates": 2,
    "lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64},
    "eval": {"episodes": 2},
    "track": (),
}


def test_a_policy_loads_in_transformers_and_starts_the_next_run(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = rl.train("sft", out=str(tmp_path), demo_rows=8, name="sft", **TINY)
    model = AutoModelForCausalLM.from_pretrained(run.path / "model")
    policy: Any = run.policy()
    tokens = torch.tensor([policy.tokenizer.render([{"role": "user", "content": "abc"}])])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, policy.model(tokens).logits)
    assert load_tokenizer(run.path / "model").encode("ab") == policy.tokenizer.encode("ab")
    assert main(["export", str(run.path), str(tmp_path / "copy")]) == 0
    names = {p.name for p in (tmp_path / "copy").iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    _check_refusals(run, tmp_path)
    settings = {k: v for k, v in TINY.items() if k != "lm"} | {"total_updates": 1, "learner": {"lr": 0.0}}
    after = rl.train("grpo", out=str(tmp_path), model=str(tmp_path / "copy"), num_prompts=1, group_size=2, **settings)
    later: Any = after.policy()
    with torch.no_grad():
        torch.testing.assert_close(later.model(tokens).logits, policy.model(tokens).logits)


def test_a_reward_model_loads_as_a_classifier_with_one_output(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    run = rl.train("reward_model", out=str(tmp_path), num_pairs=4, learner={"lr": 1e-2}, **TINY)
    model = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
    policy: Any = run.policy()
    tokens = [*policy.tokenizer.render([{"role": "user", "content": "abc"}]), *policy.tokenizer.encode("cba"), 2]
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits
    assert found.shape == (1, 1)
    assert found.item() == pytest.approx(policy.score("abc", "cba"), abs=1e-5)
    assert found.item() != 0.0
    (reward,) = reward_model(["abc"], ["cba"], model=str(run.path / "model"))
    assert reward == pytest.approx(found.item(), abs=1e-5)


def _check_refusals(run: rl.Run, folder: Path) -> None:
    """A language model is no single graph; and a folder of other things is not written over."""
    for kind in ("torch", "onnx"):
        with pytest.raises(rl.ConfigError, match="exported as hf"):
            rl.export(run.path, folder / "graph", format=kind)
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(rl.ConfigError, match="no model folder"):
        rl.export(run.path, folder / "mine")
    assert (folder / "mine" / "notes.txt").read_text() == "mine"
