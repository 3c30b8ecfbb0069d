"""`init_from`: a language model whose tensors fit, but which was computed in another way, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.core.config import to_data
from runnel.core.errors import CheckpointError, ConfigError
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.run.api import train
from runnel.run.registry import configure, load_recipe

LM = {"layers": 1, "width": 16, "heads": 4, "kv_heads": 4, "inner": 32, "max_positions": 64}


def left_by(path: Path, **settings: Any) -> Path:
    """The folder of a run that has no checkpoint."""
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"recipe": "sft"}))
    (path / "config.json").write_text(json.dumps(to_data(configure(load_recipe("sft"), settings))))
    return path


def begin(tmp_path: Path, source: Path, **settings: Any) -> None:
    train("sft", out=str(tmp_path / "out"), init_from=str(source), **settings)


def test_another_number_of_heads_is_refused_with_both_numbers(tmp_path: Path) -> None:
    source = left_by(tmp_path / "source", lm=LM)
    odd = r"init_from = .*: the model of that run computes something else: "
    odd += r"num_attention_heads = 4 \(here 2\), num_key_value_heads = 4 \(here 2\), head_dim = 4 \(here 8\); use the --model"
    with pytest.raises(ConfigError, match=odd):
        begin(tmp_path, source, lm={**LM, "heads": 2, "kv_heads": 2})
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):  # the same model: no more is wrong than that
        begin(tmp_path, source, lm={**LM, "max_positions": 128})


def test_folders_of_models_are_compared_by_what_they_compute(tmp_path: Path) -> None:
    build_model(ModelConfig(**LM), 262, seed=0).save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model" / "char_tokenizer.json").write_text(
        json.dumps({"kind": "bytes", "specials": ["<pad>", "<bos>", "<eos>", "<system>", "<user>", "<assistant>"]})
    )
    source = left_by(tmp_path / "source", model=str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        begin(tmp_path, source, lm=LM)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    config["rms_norm_eps"] = 1e-3
    (source / "model").mkdir()  # what it has exported: that is what it trained
    (source / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"rms_norm_eps = 0.001 \(here 1e-06\), rope_parameters.rope_theta = 500.0 \(here"):
        begin(tmp_path, source, model=str(tmp_path / "model"))


def test_a_run_without_a_language_model_is_no_start_for_one(tmp_path: Path) -> None:
    source = left_by(tmp_path / "source", lm=LM)
    (source / "config.json").write_text(json.dumps({"env": "CartPole-v1"}))
    with pytest.raises(ConfigError, match="that run trained no language model"):
        begin(tmp_path, source, lm=LM)
