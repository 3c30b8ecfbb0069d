"""The mean of several models of one architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.pretrained import model_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def soup(folders: Sequence[str]) -> PreTrainedModel:
    """The model in a folder; of several folders, the model whose weights are the mean of theirs, in float32.

    As a reference policy this is SALSA (Chegini et al. 2024, arXiv:2411.01798): two models that were fine-tuned apart.
    """
    model = build_model(ModelConfig(path=model_folder(folders[0])), 0, seed=0)
    if len(folders) > 1:
        total = dict(model.named_parameters())
        for folder in folders[1:]:  # one after another: two models are in memory at a time
            other = build_model(ModelConfig(path=model_folder(folder)), 0, seed=0)
            for name, value in other.named_parameters():
                total[name].add_(value)
        for value in total.values():
            value.div_(len(folders))
    return model
