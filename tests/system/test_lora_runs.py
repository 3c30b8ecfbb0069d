"""Whole runs that train adapters: what a version weighs, what comes back after a stop, and what is left for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runnel as rl

TASK = """
import runnel as rl

def length(prompts, completions, **columns):
    return [float(len(c)) + i for i, c in enumerate(completions)]

def make():
    return rl.TextTask("runs", [rl.Example(f"p{i}") for i in range(12)], [rl.Example("e0")], length)
"""
SMALL: dict[str, Any] = {
    "num_prompts": 2,
    "group_size": 3,
    "max_tokens": 3,
    "lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "inner": 48, "max_positions": 64},
    "learner": {"lora": {"rank": 2}, "lr": 1e-2, "warmup_updates": 1},
    "eval": {"episodes": 1},
    "track": (),
}


def train(folder: Path, name: str, **settings: Any) -> rl.Run:
    (folder / "tasks.py").write_text(TASK)
    return rl.train("grpo", task=f"{folder / 'tasks.py'}:make", out=str(folder), name=name, **{**SMALL, **settings})


def params_of(run: rl.Run) -> dict[str, torch.Tensor]:
    newest = sorted((Path(run.path) / "checkpoints").glob("0*"))[-1]
    return load_file(newest / "params.safetensors")


def updates(run: rl.Run) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
    return [row["metrics"] for row in rows if row["kind"] == "update"]


def test_a_run_with_adapters_stops_goes_on_and_leaves_what_it_trained(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole = train(tmp_path, "whole", total_updates=3, checkpoint={"every": 1})
    part = train(tmp_path, "part", total_updates=3, checkpoint={"every": 1}, on_update=lambda row: row["version"] < 2)
    rl.resume(part.path)
    found, expected = params_of(part), params_of(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert updates(part) == updates(whole)
    ups = [value for name, value in expected.items() if name.endswith("lora_B.weight")]
    assert ups, "B starts at 0, so it has moved"
    assert all(bool(up.any()) for up in ups)
    assert all(row["mismatch/kl"] < 1e-10 for row in updates(whole)), "as small as without adapters"
    assert all(".lora_" in name or name == "lora.scale" for name in expected), "a version is the adapters"

    folder = Path(whole.path) / "model"
    merged = AutoModelForCausalLM.from_pretrained(folder)
    prompts = rl.PromptTask("reverse", rl.RunConfig(seed=1), model="", lm=rl.llm.ModelConfig(**SMALL["lm"]))
    beside = PeftModel.from_pretrained(prompts.model(), str(folder / "adapter"))
    tokens = torch.tensor([[5, 9, 11, 3]])
    with torch.no_grad():
        torch.testing.assert_close(merged(tokens).logits, beside(tokens).logits, atol=1e-5, rtol=1e-5)
        assert float((merged(tokens).logits - prompts.model()(tokens).logits).abs().max()) > 1e-3
    policy = rl.load(whole.path)
    said = policy.engine.logprobs(tokens[0, :1], tokens[0, 1:])
    own = torch.log_softmax(merged(tokens).logits[0, :-1], dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
    torch.testing.assert_close(said, own.detach(), atol=1e-5, rtol=0)

    with pytest.raises(rl.ConfigError, match=r"init_from.*adapters alone.*--model"):
        train(tmp_path, "from", total_updates=1, init_from=str(whole.path))
    assert not (tmp_path / "from").exists()


@pytest.mark.parametrize("targets", [("lm_head",), ("q_proj", "typo")])
def test_targets_that_cannot_be_are_refused_before_anything_starts(tmp_path: Path, targets: tuple[str, ...]) -> None:
    with pytest.raises(rl.ConfigError, match=r"learner\.lora\.targets"):
        train(tmp_path, "refused", total_updates=1, learner={"lora": {"rank": 2, "targets": targets}})
    assert not (tmp_path / "refused").exists()


def test_a_reward_model_of_adapters_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    lines = [{"prompt": f"p{i}", "chosen": "yes" * (1 + i % 3), "rejected": "no"} for i in range(12)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sizes = {name: SMALL[name] for name in ("lm", "learner", "track")}
    run = rl.train(
        "reward_model",
        task="reverse",
        pairs=str(tmp_path / "pairs.jsonl"),
        num_pairs=4,
        total_updates=2,
        out=str(tmp_path),
        **sizes,
    )
    saved = params_of(run)
    assert "score.weight" in saved
    assert all("_proj" in name or name in ("score.weight", "lora.scale") for name in saved)
    assert all(bool(value.any()) for name, value in saved.items() if name.endswith(("lora_B.weight", "score.weight")))
    model = AutoModelForSequenceClassification.from_pretrained(Path(run.path) / "model")
    policy = rl.load(run.path)
    tokens = torch.tensor([5, 9, 11, 3])
    with torch.no_grad():
        hidden = model.base_model(tokens[None]).last_hidden_state[0, -1]
        expected = model.score(hidden)
        inner = policy.engine.model
        found = inner.model.score(inner.packed_hidden(tokens, rows_of(4))[-1])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def rows_of(size: int) -> Any:
    from runnel.llm.model.attention import PackedRows

    return PackedRows([size])
