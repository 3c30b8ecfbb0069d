"""Model folders that plain transformers loads: safetensors, config and tokenizer (`save_pretrained`)."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runnel.llm.model.causal_lm import ScalarModel, load_model_params
from runnel.llm.model.loading import no_progress_bars
from runnel.llm.model.lora import Adapters, MergedModel, merged_params, save_adapters
from runnel.llm.tokenize import PlainTokenizer, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER = "adapter"
"""Name of the folder of adapters, inside the folder of their model."""


def save_policy(model: PreTrainedModel, params: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """Save a causal language model with the weights `params`, as `AutoModelForCausalLM` and `--model` load it. Adapters are
    merged into the weights of `model`; the folder `adapter` has them as peft loads them."""
    plain, adapters = Adapters.split(params)
    if plain:
        load_model_params(model, plain, bind=False)
    MergedModel(model).load(adapters)
    _save(model, tokenizer, folder, adapters)


def save_scorer(model: PreTrainedModel, params: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """Save a reward model on the body of `model`, as `AutoModelForSequenceClassification` with one output.

    `runnel_rows` in its config says how its rows were made: a prompt (as chat or plain), an answer and the end of its turn.
    transformers reads the score at the last token that is not padding. Where padding is the very token that ends rows, that
    would be another one than was trained; such a folder has no padding token, so that transformers reads the last token of a
    row by itself, and refuses batches.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(model.config)
    config.num_labels, config.runnel_rows = 1, "plain" if isinstance(tokenizer, PlainTokenizer) else "chat"
    pad_id = None if tokenizer.pad_id == tokenizer.answer("")[-1] else tokenizer.pad_id
    config.pad_token_id = config.get_text_config().pad_token_id = pad_id
    scorer = AutoModelForSequenceClassification.from_config(config)
    plain, adapters = Adapters.split(params)
    whole = plain if adapters is None else merged_params(ScalarModel(model), adapters, plain)
    weights = {name: value.to(torch.float32) for name, value in whole.items()}
    scorer.load_state_dict(weights)
    _save(scorer, tokenizer, folder)


def _save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path, adapters: Adapters | None = None) -> None:
    """Write the files to another folder and then rename it, so that `folder` is never seen incomplete."""
    beside = folder.with_name(folder.name + ".new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    with no_progress_bars():
        model.save_pretrained(str(beside))
    tokenizer.save(beside)
    if adapters is not None:
        save_adapters(model, adapters, str(beside / ADAPTER))
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
