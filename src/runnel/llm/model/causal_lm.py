"""Decoder-only transformers: a small new Llama with seeded random weights, or a model from a Hugging Face folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, stays
from runnel.llm.model.loading import load_whole
from runnel.llm.model.pack import pack

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length")
"""Config fields that hold the longest sequence; families name it differently."""


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
) -> PreTrainedModel:
    """A causal language model in evaluation mode. Its parameters are packed into one vector (`pack.py`).

    The same config, vocabulary and seed give the same weights. The global random state does not change.
    """
    if config.path:
        from transformers import AutoModelForCausalLM

        if not Path(config.path).is_dir():
            raise ConfigError("model", config.path, "there is no such folder; give a model folder, or leave it empty")
        model = load_whole(AutoModelForCausalLM, config.path, dtype=dtype, tell=False)
    else:
        from transformers import LlamaForCausalLM

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(new_config(config, vocab_size))
    pack(model, dtype=dtype, device=device)
    return model.eval()


def new_config(config: ModelConfig, vocab_size: int) -> PretrainedConfig:
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


def model_without_values(config: PretrainedConfig) -> PreTrainedModel:
    """The model of a transformers config on the meta device: its weights have shapes, and no memory."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def count_parameters(config: PretrainedConfig) -> int:
    """Number of parameters of the model of a transformers config, tied ones once. The weights are not allocated."""
    return sum(p.numel() for p in model_without_values(config).parameters())


def model_params(model: nn.Module) -> dict[str, Tensor]:
    """Live parameters by name, each tensor once: a tied head is left out. A learner publishes these."""
    return {name: p.data for name, p in model.named_parameters()}


def load_model_params(model: nn.Module, params: Mapping[str, Tensor], *, bind: bool) -> None:
    """Put `params` (as `model_params` returns them) into `model`: with `bind` it shares their memory, else it copies."""
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


def body_name(model: PreTrainedModel) -> str:
    """Name of the attribute of a causal language model that holds its body: everything but the output head."""
    names = (model.base_model_prefix, "model", "transformer")
    return next((name for name in names if name and name in model._modules), "")


def body_of(model: PreTrainedModel) -> PreTrainedModel:
    """The body of a causal language model: everything but its output head."""
    name = body_name(model)
    return model._modules[name] if name else model.base_model


def hidden_states(model: PreTrainedModel, tokens: Tensor, **kwargs: object) -> Tensor:
    """Last hidden states, before the output head; `kwargs` go to the body's own forward. `[B, L] int64 -> [B, L, width]`"""
    cached = "past_key_values" in kwargs
    out: Tensor = body_of(model)(input_ids=tokens, use_cache=cached, **kwargs).last_hidden_state
    return out


def output_head(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """A function from last hidden states to logits, by the model's own forward pass. `[..., width] -> [..., vocabulary]`

    The model's own pass is used because families put scales, soft caps and biases in different places. It runs on a shallow
    copy of `model` whose body is replaced by one that returns the hidden states it is given.
    """
    shell, name = copy.copy(model), body_name(model)
    shell._modules = {**model._modules, name: _IdentityBody(body_of(model))}
    forward = type(model).forward

    def logits(hidden: Tensor) -> Tensor:
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        out: Tensor = forward(shell, inputs_embeds=rows, use_cache=False).logits
        return out.view(*hidden.shape[:-1], out.shape[-1])

    return logits


class _IdentityBody(nn.Module):
    """Stands in for the body of a model, or for a submodule of it. Its last hidden states are the embeddings that it is given.
    Other attributes that a head reads, such as a factor or a tied weight, come from the real body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.__dict__["_body"] = body  # past nn.Module's __setattr__, which would make the body a submodule

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_body"], name)
        return _IdentityBody(found) if isinstance(found, nn.Module) else found

    def forward(self, *args: object, inputs_embeds: Tensor, **kwargs: object) -> _BodyOutput:
        return _BodyOutput(inputs_embeds)


class _BodyOutput(tuple[Tensor]):
    """The output of a body that has last hidden states and nothing else: every other attribute is None."""

    def __new__(cls, hidden: Tensor) -> _BodyOutput:
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def num_positions(config: PretrainedConfig | Mapping[str, object]) -> int | None:
    """The longest row that a model can process, by its config (an object, or the data of config.json); None if unlimited.

    With `longrope` it is the original context. Beyond that, transformers changes the angles of all tokens in a batch with the
    length of its longest row, so a row's result would depend on its neighbours.
    """
    data: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    if isinstance(text := data.get("text_config"), Mapping):
        data = text
    found = next((int(data[name]) for name in POSITIONS if isinstance(data.get(name), int) and data[name] > 0), None)
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    for settings in (rope, *(x for x in rope.values() if isinstance(x, Mapping))):  # for all layers, or one for each kind
        if (settings.get("rope_type") or settings.get("type")) in ("longrope", "su"):
            original = settings.get("original_max_position_embeddings") or data.get("original_max_position_embeddings")
            found = min(x for x in (found, original) if x) if found or original else None
    return found


def copy_model(model: PreTrainedModel) -> PreTrainedModel:
    """A deep copy without gradients."""
    # gradients are set aside, since a deep copy would copy them too: as much memory again as the weights
    grads: Sequence[Tensor | None] = [p.grad for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    twin = copy.deepcopy(model)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    return twin


def copy_modules(model: PreTrainedModel, value: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    """A copy of the modules of `model`, in which `value` gives the memory of each parameter."""
    # the second argument of deepcopy is its table of copies made so far: these parameters count as copied already
    own = {id(p): nn.Parameter(value(p.data), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, dict(own))


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules of `model` that shares the memory of its parameters. Either side may later bind its parameters to
    other memory."""
    return copy_modules(model, lambda value: value)


class ScalarModel(nn.Module):
    """The body of a causal language model under a head that gives one number a token: a critic, or a reward model.

    Its weights have the names of transformers' sequence classification models (`score.weight`). It starts from the body of
    `model`, which is taken over, not copied, and from scores of 0.
    """

    def __init__(self, model: PreTrainedModel) -> None:
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
