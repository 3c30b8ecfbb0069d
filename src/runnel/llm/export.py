"""Model folders that plain transformers loads: safetensors, config and tokenizer (`save_pretrained`)."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runnel.llm.tokenize import Tokenizer
from runnel.nets.causal_lm import load_model_params, no_progress_bars, save_model


def save_policy(model: Any, params: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """A causal language model with the weights `params`: what `AutoModelForCausalLM` and `--model` take."""
    load_model_params(model, params, bind=False)
    _save(model, tokenizer, folder)


def save_scorer(model: Any, params: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """A reward model on the body of `model`, as `AutoModelForSequenceClassification` with one output.

    `runnel_rows` in its config says that rows are a rendered prompt, the answer's tokens and eos, as an engine makes them.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id, config.runnel_rows = 1, tokenizer.pad_id, True
    scorer = AutoModelForSequenceClassification.from_config(config)
    weights = {name: value.to(torch.float32) for name, value in params.items()}
    scorer.load_state_dict(weights)
    _save(scorer, tokenizer, folder)


def _save(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Written beside, then moved: a folder that is there is whole."""
    beside = folder.with_name(folder.name + ".new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    with no_progress_bars():
        save_model(model, beside)
    tokenizer.save(beside)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
