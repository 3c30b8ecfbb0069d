"""The decoder of Llama-like models, written once: the engine decodes with it and the learner differentiates it.

It reads the parameters of a Hugging Face model in place (Llama, SmolLM2, Qwen2, Qwen3, Mistral). Tokens of all rows are in one
dimension, without padding. The caller passes the attention as a function (`attend`): over a cache of keys and values in an
engine, over packed rows in a learner. `Decoder.of` compares a new decoder with the model's own forward pass before its use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runnel.core.errors import RunnelError
from runnel.llm.model.attention import PackedRows, packed_attention
from runnel.llm.model.blocks import add_rms_norm, embed, gated_mlp, project, rms_norm, rotate
from runnel.llm.model.pack import is_joined, joined, pack, parameters_of
from runnel.llm.model.weights import LowRank, Up, Weight, is_half

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""`attend(layer, rotated, value)`: queries and keys after rotation `[N, H + K, D]`, values `[N, K, D]` -> `[N, H * D]`."""
Recompute = Literal["none", "mlp", "block"]
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""Suffixes of the two matrices of an adapter, behind the name of the module that the adapter belongs to."""
BESIDE = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Fields of a `Layer` whose weights may have adapters, and the modules that each of them joins."""
FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")


@dataclass
class Layer:
    """The weights of one block; matrices are `[out, in]`."""

    norm_in: Weight
    qkv: Weight
    qkv_bias: Weight | None
    q_norm: Weight | None
    k_norm: Weight | None
    out: Weight
    out_bias: Weight | None
    norm_mid: Weight
    gate_up: Weight
    down: Weight

    def weights(self) -> list[Weight | None]:
        """The weights in the order of the fields."""
        return [getattr(self, f.name) for f in fields(self)]

    def values(self) -> list[Tensor | None]:
        """The tensors of the weights, in the order of the fields."""
        return [None if weight is None else weight.value for weight in self.weights()]


class Decoder:
    """Computes hidden states of tokens, from the memory of a model's own parameters."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        attention = model.model.layers[0].self_attn
        self.model = model
        self.num_layers, self.width = len(model.model.layers), int(config.hidden_size)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.head_dim, self.scale = int(attention.head_dim), float(attention.scaling)
        self.eps = float(config.rms_norm_eps)
        self.vocab_size = int(config.vocab_size)
        self.layers: list[Layer] = []
        self.embed = self.head = self.norm_out = Weight(torch.empty(0))
        self.tables = torch.empty(0), torch.empty(0)
        """Cosine and sine of every position that the model knows. `2 x [L, D/2]`"""
        self._learns = False
        self.adapters: Mapping[str, Tensor] = {}
        self._adapter_scale = 1.0
        self.refresh()

    @staticmethod
    def of(model: PreTrainedModel) -> Decoder | None:
        """A checked decoder over `model`, whose parameters are packed if they are not yet; None for an unknown family."""
        if not supported(model):
            return None
        if not all(_is_packed(layer) for layer in model.model.layers):
            pack(model)
        decoder = Decoder(model)
        decoder.check()
        return decoder

    # ---------------------------------------------------------------------------------------------------------- forward
    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend, *, recompute: Recompute = "none") -> Tensor:
        """Last hidden states, normalised, as the output head reads them. `[N], [N] -> [N, width]`

        With `recompute` the backward pass computes inner states again instead of storing them: those of each block's gated
        unit ("mlp", on CUDA), or those of the whole block ("block").
        """
        x = embed(tokens, self.embed, trains=self.trains)
        cos, sin = (table[positions] for table in self.tables)
        # a block ends with the first norm of the next block, so that each residual sum and norm are one kernel
        y = rms_norm(x, self.layers[0].norm_in, eps=self.eps)
        again = recompute == "mlp"
        for index, layer in enumerate(self.layers):
            norm_next = self.layers[index + 1].norm_in if index + 1 < len(self.layers) else self.norm_out
            block = partial(
                self.block, layer, cos=cos, sin=sin, norm_next=norm_next, attend=partial(attend, index), again=again
            )
            if recompute == "block" and torch.is_grad_enabled():
                x, y = checkpoint(block, x, y, use_reentrant=False, preserve_rng_state=False)
            else:
                x, y = block(x, y)
        return y

    def block(
        self,
        layer: Layer,
        x: Tensor,
        y: Tensor,
        *,
        cos: Tensor,
        sin: Tensor,
        norm_next: Weight,
        attend: Callable[[Tensor, Tensor], Tensor],
        again: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """One block, from the residual stream `x` and its normalised form `y` to both of the next block."""
        h, k = self.heads, self.kv_heads
        qkv = project(y, layer.qkv, layer.qkv_bias).view(-1, h + 2 * k, self.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(qkv[:, :h].contiguous(), layer.q_norm, eps=self.eps)
            both = torch.cat((q, rms_norm(qkv[:, h : h + k].contiguous(), layer.k_norm, eps=self.eps)), dim=1)
            turned, value = rotate(both, cos, sin, h + k)[0], qkv[:, h + k :]
        else:
            turned, value = rotate(qkv, cos, sin, h + k)
        x, y = add_rms_norm(x, project(attend(turned, value), layer.out, layer.out_bias), layer.norm_mid, eps=self.eps)
        return add_rms_norm(x, gated_mlp(y, layer.gate_up, layer.down, recompute=again), norm_next, eps=self.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of every token of the vocabulary, in float32. `[N, width] -> [N, vocabulary]`"""
        if hidden.is_cuda and is_half(hidden):
            return self.head.scores(hidden)
        return project(hidden, self.head).float()

    # ---------------------------------------------------------------------------------------------------------- weights
    def refresh(self) -> None:
        """Look up the model's parameters again, after they were bound to other memory."""
        inner = self.model.model
        self.embed, self.norm_out = Weight(inner.embed_tokens.weight.data), Weight(inner.norm.weight.data)
        head = self.model.get_output_embeddings().weight.data
        self.head = self.embed if head.data_ptr() == self.embed.value.data_ptr() else Weight(head)
        self.layers = [_layer(layer) for layer in inner.layers]
        self._learns = False
        self._attach()
        if self.tables[0].device != self.embed.value.device or not self.tables[0].numel():
            self.tables = self._angle_tables()

    def adapt(self, adapters: Mapping[str, Tensor], scale: float) -> None:
        """Use these adapters from now on, in the memory where they are; an empty mapping removes all adapters.

        Names are those of modules with a suffix (`...q_proj.lora_A.weight`). The `A` of modules that are multiplied as one
        must be neighbours in memory (`llm/model/lora.py`).
        """
        self.adapters, self._adapter_scale = dict(adapters), scale
        self._attach()

    def join_adapters(self) -> None:
        """Multiply by copies in which neighbouring adapters are one matrix, until `adapt` is called. After the adapters' values
        have changed in place, a further call updates the copies."""
        for layer in self.layers:
            for field in BESIDE:
                weight: Weight = getattr(layer, field)
                if weight.low is not None:
                    weight.low.join(weight.value.shape[0])

    def _attach(self) -> None:
        for index, layer in enumerate(self.layers):
            for field, names in BESIDE.items():
                getattr(layer, field).low = self._low_rank(f"model.layers.{index}.", names)
        if self.head is not self.embed:
            self.head.low = self._low_rank("", ("lm_head",))

    def _low_rank(self, prefix: str, names: Sequence[str]) -> LowRank | None:
        """The adapters of modules that are multiplied as one; None if they have none."""
        downs, ups, row, rank = list[Tensor](), list[Up](), 0, 0
        for name in names:
            module = prefix + name
            size = self.model.get_submodule(module).weight.shape[0]
            if (down := self.adapters.get(module + LORA_A)) is not None:
                ranks = slice(rank, rank + down.shape[0])
                ups.append(Up(Weight(self.adapters[module + LORA_B]), slice(row, row + size), ranks))
                downs.append(down)
                rank += down.shape[0]
            row += size
        if not ups:
            return None
        if not is_joined(downs):
            raise RunnelError(f"adapters of {prefix}{names[0]} and its neighbours are not next to each other in memory")
        return LowRank(Weight(joined(downs)), tuple(ups), self._adapter_scale)

    @property
    def trains(self) -> bool:
        """Whether a pass made now is differentiated."""
        return self._learns and torch.is_grad_enabled()

    def require_grad(self, vector: Tensor, grad: Tensor) -> None:
        """From now on, gradients of the weights in `vector` (the packed parameters, or the adapters) add up in `grad`, which is
        float32 with the same layout `[P]`. Weights outside of `vector` are not trained."""
        for weight in self._weights():
            # a weight is a view, so its address says its place in the vector
            at = (weight.value.data_ptr() - vector.data_ptr()) // vector.element_size()
            if 0 <= at < vector.numel():
                weight.grad_sum = grad[at : at + weight.value.numel()].view(weight.value.shape)
        self._learns = True

    def _weights(self) -> Iterator[Weight]:
        """All weights, and those of their adapters."""
        blocks = (weight for layer in self.layers for weight in layer.weights() if weight is not None)
        for weight in (self.embed, self.norm_out, self.head, *blocks):
            yield weight
            if weight.low is not None:
                yield from (weight.low.down, *(up.weight for up in weight.low.ups))

    def is_packed(self) -> bool:
        """Whether the model's parameters are laid out as the decoder reads them."""
        return all(_is_packed(layer) for layer in self.model.model.layers)

    def _angle_tables(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine for every position of the model, computed by its own rotary embedding. `2 x [L, D/2]`"""
        device = self.embed.value.device
        steps = torch.arange(int(self.model.config.max_position_embeddings), device=device)
        like = torch.zeros((), dtype=torch.float32, device=device)
        cos, sin = self.model.model.rotary_emb(like, steps[None])
        half = self.head_dim // 2
        return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()

    @torch.no_grad()
    def check(self) -> None:
        """Compare with the model's own forward pass on a few tokens; raise if they differ by more than rounding."""
        size = min(12, int(self.model.config.max_position_embeddings))
        tokens = torch.arange(size, device=self.embed.value.device) * 7919 % self.vocab_size  # a prime: tokens spread
        rows = PackedRows([size], device=self.embed.value.device)
        found = self(tokens, rows.positions, lambda i, r, v: packed_attention(r, v, rows, scale=self.scale)).float()
        expected = self.model.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0].float()
        gap = float((found - expected).norm() / expected.norm())
        bound = 1e-4 if self.embed.value.dtype == torch.float32 else 0.1
        # NaN in both is the model's own fault, not the decoder's: the first update will say so
        if gap > bound or (math.isnan(gap) and bool(torch.isfinite(expected).all())):
            raise RunnelError(
                f"the built-in decoder and {type(self.model).__name__} differ by {gap:.2g} (bound {bound:g}): this model has "
                "something that the decoder does not know; use another model, and report this one's config.json"
            )


def supported(model: PreTrainedModel) -> bool:
    """Whether `Decoder` can run this model: known family, full attention in every layer, silu, default or scaled rotary."""
    config = model.config
    if (
        type(model).__name__ not in FAMILIES
        or getattr(config, "is_heterogeneous", False)
        or config.hidden_act != "silu"
        or getattr(config, "mlp_bias", False)
    ):
        return False
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if type(model).__name__ == "MistralForCausalLM" else None
    dynamic = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") in ("dynamic", "longrope")
    return kinds == {"full_attention"} and window is None and not dynamic


def _is_packed(layer: LlamaDecoderLayer) -> bool:
    heads = parameters_of(layer.self_attn, ("q_proj", "k_proj", "v_proj"), "weight")
    biases = parameters_of(layer.self_attn, ("q_proj", "k_proj", "v_proj"), "bias")
    return is_joined(heads) and is_joined(parameters_of(layer.mlp, ("gate_proj", "up_proj"), "weight")) and is_joined(biases)


def _layer(layer: LlamaDecoderLayer) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    heads = ("q_proj", "k_proj", "v_proj")
    biases = parameters_of(attention, heads, "bias")
    return Layer(
        norm_in=Weight(layer.input_layernorm.weight.data),
        qkv=Weight(joined(parameters_of(attention, heads, "weight"))),
        qkv_bias=Weight(joined(biases)) if biases else None,
        q_norm=_optional(getattr(attention, "q_norm", None), "weight"),
        k_norm=_optional(getattr(attention, "k_norm", None), "weight"),
        out=Weight(attention.o_proj.weight.data),
        out_bias=_optional(attention.o_proj, "bias"),
        norm_mid=Weight(layer.post_attention_layernorm.weight.data),
        gate_up=Weight(joined(parameters_of(mlp, ("gate_proj", "up_proj"), "weight"))),
        down=Weight(mlp.down_proj.weight.data),
    )


def _optional(module: nn.Module | None, name: str) -> Weight | None:
    found = getattr(module, name, None)
    return None if found is None else Weight(found.data)
