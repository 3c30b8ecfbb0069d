"""Decoder-only transformers: a small Llama from a config with seeded random weights, or a Hugging Face model folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.nets.pack import pack


@dataclass(frozen=True)
class ModelConfig:
    """A causal language model: a path to load, or the sizes of a new one."""

    path: str = ""
    """Folder of a Hugging Face causal language model and its tokenizer; empty starts a new Llama from random weights."""
    layers: int = 3
    """Transformer blocks (of a new model)."""
    width: int = 256
    """Size of the residual stream."""
    heads: int = 4
    """Attention heads."""
    kv_heads: int = 4
    """Key-value heads; must divide `heads`."""
    inner: int = 704
    """Hidden size of each block's feed-forward part."""
    max_positions: int = 512
    """Longest sequence the model may see, in tokens."""
    tie_embeddings: bool = True
    """Use one matrix for token embedding and output head."""

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ConfigError("lm.heads", self.heads, f"must divide width = {self.width} into heads of even size")
        if self.heads % self.kv_heads:
            raise ConfigError("lm.kv_heads", self.kv_heads, f"must divide heads = {self.heads}")


def build_model(config: ModelConfig, vocab_size: int, *, seed: int) -> Any:
    """A causal language model in float32, in training mode with dropout off (a Hugging Face `PreTrainedModel`).

    Same config, vocabulary and seed give the same weights; the global random state is left as it was.
    """
    if config.path:
        from transformers import AutoModelForCausalLM

        if not Path(config.path).is_dir():
            raise ConfigError("model", config.path, "there is no such folder; give a model folder, or leave it empty")
        with no_progress_bars():
            return _packed(AutoModelForCausalLM.from_pretrained(config.path, dtype=torch.float32))
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=config.width,
        intermediate_size=config.inner,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=config.tie_embeddings,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _packed(LlamaForCausalLM(sizes))


def _packed(model: Any) -> Any:
    """With all parameters in one vector, so that engine and learner can multiply neighbours at once (`pack.py`)."""
    pack(model)
    return model.eval()


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Transformers without its progress bars: a run has its own view."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    yield
    if shown:
        logging.enable_progress_bar()


def model_params(model: nn.Module) -> dict[str, Tensor]:
    """Live parameters by name, each tensor once: a tied head is left out. This is what a learner publishes."""
    return {name: p.data for name, p in model.named_parameters()}


def load_model_params(model: Any, params: Mapping[str, Tensor], *, bind: bool) -> None:
    """Put `params` (as `model_params` gives them) into `model`: bind to the very tensors, or copy their values."""
    own: dict[str, nn.Parameter] = dict(model.named_parameters())
    if own.keys() != params.keys():
        odd = sorted(own.keys() ^ params.keys())[:3]
        raise ConfigError("params", odd, "these names are on one side only; build both models from one config")
    if bind:
        for name, parameter in own.items():
            parameter.data = params[name]
        return
    with torch.no_grad():
        torch._foreach_copy_(list(own.values()), [params[name] for name in own])


def hidden_states(model: Any, tokens: Tensor, **kwargs: Any) -> Tensor:
    """Last hidden states, before the output head. `[B, L] int64 -> [B, L, width]`"""
    out: Tensor = model.base_model(input_ids=tokens, use_cache="past_key_values" in kwargs, **kwargs).last_hidden_state
    return out


def output_head(model: Any) -> Callable[[Tensor], Tensor]:
    """From last hidden states to logits, with the scaling and the soft cap that some families put behind their output
    embedding. `[..., width] -> [..., vocabulary]`"""
    head, config = model.get_output_embeddings(), model.config
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)

    def logits(hidden: Tensor) -> Tensor:
        out: Tensor = head(hidden) if scale == 1.0 else head(hidden) * scale
        return out if cap is None else torch.tanh(out / cap) * cap

    return logits


def copy_model(model: Any) -> Any:
    """A deep copy without gradients."""
    grads: Sequence[Tensor | None] = [p.grad for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    twin = copy.deepcopy(model)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    return twin


def save_model(model: Any, folder: str | Path) -> None:
    """A Hugging Face model folder (config.json and safetensors)."""
    model.save_pretrained(str(folder))
