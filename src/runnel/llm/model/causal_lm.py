"""Decoder-only transformers: a small Llama from a config with seeded random weights, or a Hugging Face model folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, stays
from runnel.llm.model.loading import load_whole
from runnel.llm.model.pack import pack

POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length")
"""What families call the longest sequence."""


@dataclass(frozen=True)
class ModelConfig:
    """A causal language model: a path to load, or the sizes of a new one."""

    on_resume: ClassVar[OnResume] = stays(
        *("path", "layers", "width", "heads", "kv_heads", "inner", "max_positions", "tie_embeddings"),
        why="what was learned is of that network",
    )

    path: str = ""
    """Folder of a Hugging Face causal language model and its tokenizer; empty starts a new Llama from random weights."""
    layers: int = bounded(3, at_least=1)
    """Transformer blocks (of a new model)."""
    width: int = bounded(256, at_least=1)
    """Size of the residual stream."""
    heads: int = bounded(4, at_least=1)
    """Attention heads."""
    kv_heads: int = bounded(4, at_least=1)
    """Key-value heads; must divide `heads`."""
    inner: int = bounded(704, at_least=1)
    """Hidden size of each block's feed-forward part."""
    max_positions: int = bounded(512, at_least=1)
    """Longest sequence the model may see, in tokens."""
    tie_embeddings: bool = True
    """Use one matrix for token embedding and output head."""

    def __post_init__(self) -> None:
        check_bounds(self, "lm.")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ConfigError("lm.heads", self.heads, f"must divide width = {self.width} into heads of even size")
        if self.heads % self.kv_heads:
            raise ConfigError("lm.kv_heads", self.kv_heads, f"must divide heads = {self.heads}")


def build_model(
    config: ModelConfig, vocab_size: int, *, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Any:
    """A causal language model, in training mode with dropout off (a Hugging Face `PreTokenModel`); in float32 where its
    weights are trained, since what is trained is kept so.

    Same config, vocabulary and seed give the same weights; the global random state is left as it was.
    """
    if config.path:
        from transformers import AutoModelForCausalLM

        if not Path(config.path).is_dir():
            raise ConfigError("model", config.path, "there is no such folder; give a model folder, or leave it empty")
        return _packed(load_whole(AutoModelForCausalLM, config.path, dtype=dtype, tell=False), dtype, device)
    from transformers import LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _packed(LlamaForCausalLM(new_config(config, vocab_size)), dtype, device)


def new_config(config: ModelConfig, vocab_size: int) -> Any:
    """The `LlamaConfig` of a new model."""
    from transformers import LlamaConfig

    return LlamaConfig(
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


def count_parameters(config: Any) -> int:
    """Parameters of the model of a transformers config, tied ones once; no memory is taken."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def _packed(model: Any, dtype: torch.dtype, device: str) -> Any:
    """With all parameters in one vector, so that engine and learner can multiply neighbours at once (`pack.py`)."""
    pack(model, dtype=dtype, device=device)
    return model.eval()


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


def body_name(model: Any) -> str:
    """The attribute of a causal language model that holds its body: all but the output head."""
    names = (model.base_model_prefix, "model", "transformer")
    return next((name for name in names if name and name in model._modules), "")


def body_of(model: Any) -> Any:
    """All of a causal language model but its output head."""
    name = body_name(model)
    return model._modules[name] if name else model.base_model


def hidden_states(model: Any, tokens: Tensor, **kwargs: Any) -> Tensor:
    """Last hidden states, before the output head. `[B, L] int64 -> [B, L, width]`"""
    cached = "past_key_values" in kwargs
    out: Tensor = body_of(model)(input_ids=tokens, use_cache=cached, **kwargs).last_hidden_state
    return out


def output_head(model: Any) -> Callable[[Tensor], Tensor]:
    """From last hidden states to logits, by the model's own forward pass: scales, soft caps and biases are where its family
    has them. `[..., width] -> [..., vocabulary]`

    The pass runs on a shell that shares everything with `model` but its body, which gives back the hidden states it is handed.
    """
    shell, name = copy.copy(model), body_name(model)
    shell._modules = {**model._modules, name: _Given(body_of(model))}
    forward = type(model).forward

    def logits(hidden: Tensor) -> Tensor:
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        out: Tensor = forward(shell, inputs_embeds=rows, use_cache=False).logits
        return out.view(*hidden.shape[:-1], out.shape[-1])

    return logits


class _Given(nn.Module):
    """Stands for (a part of) the body of a model: its last hidden states are the embeddings that it gets. What a head reads of
    the body beside them, such as a factor or a tied weight, is the body's."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.__dict__["_body"] = body  # not as a submodule: it is not this one's to hold

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_body"], name)
        return _Given(found) if isinstance(found, nn.Module) else found

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> Any:
        return _States(inputs_embeds)


class _States(tuple[Tensor]):
    """The output of a body that has last hidden states and nothing else: whatever else is asked for is None."""

    def __new__(cls, hidden: Tensor) -> _States:
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def num_positions(config: Any) -> int | None:
    """The longest row that a model can take, by its configuration (an object, or the data of config.json); None where there is
    no limit.

    With `longrope` that ends at the original context: behind it transformers changes the angles of all tokens with the length
    of the longest row beside them.
    """
    data: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    if isinstance(text := data.get("text_config"), Mapping):
        data = text
    found = next((int(data[name]) for name in POSITIONS if isinstance(data.get(name), int) and data[name] > 0), None)
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    for part in (rope, *(x for x in rope.values() if isinstance(x, Mapping))):  # one for all layers, or for each kind of layer
        if (part.get("rope_type") or part.get("type")) in ("longrope", "su"):
            original = part.get("original_max_position_embeddings") or data.get("original_max_position_embeddings")
            found = min(x for x in (found, original) if x) if found or original else None
    return found


def copy_model(model: Any) -> Any:
    """A deep copy without gradients."""
    grads: Sequence[Tensor | None] = [p.grad for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    twin = copy.deepcopy(model)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    return twin


def shared_copy(model: Any) -> Any:
    """Modules of their own over the very parameters of `model`: each side may bind them to other memory, and until it does
    both read the same."""
    own = {id(p): nn.Parameter(p.data, requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, dict(own))


def save_model(model: Any, folder: str | Path) -> None:
    """A Hugging Face model folder (config.json and safetensors)."""
    model.save_pretrained(str(folder))


class ScalarModel(nn.Module):
    """The body of a causal language model under a head that gives one number a token: a critic, or a reward model.

    Its weights have the names of transformers' sequence classification models (`score.weight`). It starts from the body of
    `model`, which is taken over, not copied, and from scores of 0.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base_model_prefix = body_name(model)
        self.config = model.config
        setattr(self, self.base_model_prefix, body_of(model))
        weight = model.get_input_embeddings().weight
        self.score = nn.Linear(weight.shape[1], 1, bias=False, dtype=weight.dtype, device=weight.device)
        nn.init.zeros_(self.score.weight)

    @property
    def base_model(self) -> Any:
        return body_of(self)
