"""The decoder of Llama-like models, written out once: the engine decodes with it and the learner differentiates it.

It reads the parameters of a Hugging Face model in place (Llama, SmolLM2, Qwen2, Qwen3, Mistral). Tokens of all rows lie in one
dimension, without padding; how they attend to each other is the caller's part (`attend`): a cache of keys and values in an
engine, packed rows in a learner. `Decoder.of` compares itself with the model's own forward pass before anyone uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from runnel.core.errors import RunnelError
from runnel.llm.model.attention import PackedRows, packed_attention
from runnel.llm.model.blocks import add_rms_norm, embed, gated_mlp, project, rms_norm, rotate, rotate_some
from runnel.llm.model.pack import is_joined, joined, pack, parameters_of
from runnel.llm.model.weights import LowRank, Up, Weight, is_half

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""`attend(layer, rotated, value)`: queries and keys after rotation `[N, H + K, D]`, values `[N, K, D]` -> `[N, H * D]`."""
Recompute = Literal["none", "mlp", "block"]
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""Names of the two parts of an adapter, behind the name of the module that it stands beside."""
BESIDE = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Weights of a layer that may have adapters, and the modules that they are of."""
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

    def each(self, change: Callable[[Weight], Weight]) -> Layer:
        """The same layer with `change` applied to every weight."""
        found: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {name: None if t is None else change(t) for name, t in found.items()}
        return Layer(**changed)

    def values(self) -> list[Tensor | None]:
        """The weights alone, in the order of the fields."""
        found = (getattr(self, f.name) for f in fields(self))
        return [None if weight is None else weight.value for weight in found]


class Decoder:
    """Hidden states of tokens, from the memory of a model's own parameters."""

    def __init__(self, model: Any) -> None:
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
        self._cos = self._sin = torch.empty(0)
        self._learns = False
        self.adapters: Mapping[str, Tensor] = {}
        self._adapter_scale = 1.0
        self.refresh()

    @staticmethod
    def of(model: Any) -> Decoder | None:
        """A decoder over `model`, or None where the model is of another family. The model's parameters are packed."""
        if not supported(model):
            return None
        if not all(_is_packed(layer) for layer in model.model.layers):
            pack(model)
        decoder = Decoder(model)
        decoder.check()
        return decoder

    # ---------------------------------------------------------------------------------------------------------- forward
    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend, *, recompute: Recompute = "none") -> Tensor:
        """Last hidden states, normalised: what the head reads. `[N], [N] -> [N, width]`

        With `recompute`, the backward pass computes inner states of each block's gated part ("mlp"; CUDA), or of the whole
        block ("block") again, instead of keeping them.
        """
        x = embed(tokens, self.embed, trains=self.trains)
        cos, sin = self.angles(positions)
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
        """One block: residual stream `x` and its normalised form `y`, for the next block."""
        h, k = self.heads, self.kv_heads
        qkv = project(y, layer.qkv, layer.qkv_bias).view(-1, h + 2 * k, self.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(qkv[:, :h].contiguous(), layer.q_norm, eps=self.eps)
            both = torch.cat((q, rms_norm(qkv[:, h : h + k].contiguous(), layer.k_norm, eps=self.eps)), dim=1)
            turned, value = rotate(both, cos, sin), qkv[:, h + k :]
        else:
            turned, value = rotate_some(qkv, cos, sin, h + k)
        x, y = add_rms_norm(x, project(attend(turned, value), layer.out, layer.out_bias), layer.norm_mid, eps=self.eps)
        return add_rms_norm(x, gated_mlp(y, layer.gate_up, layer.down, recompute=again), norm_next, eps=self.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token, in float32. `[N, width] -> [N, vocabulary]`"""
        if hidden.is_cuda and is_half(hidden):
            return self.head.scores(hidden)
        return project(hidden, self.head).float()

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position's angles. `[N] -> 2 x [N, D/2]`"""
        return self._cos[positions], self._sin[positions]

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position that the model knows. `2 x [L, D/2]`"""
        return self._cos, self._sin

    # ---------------------------------------------------------------------------------------------------------- weights
    def refresh(self) -> None:
        """Look the model's parameters up again: after they were bound to other memory."""
        inner = self.model.model
        self.embed, self.norm_out = Weight(inner.embed_tokens.weight.data), Weight(inner.norm.weight.data)
        head = self.model.get_output_embeddings().weight.data
        self.head = self.embed if head.data_ptr() == self.embed.value.data_ptr() else Weight(head)
        self.layers = [_layer(layer) for layer in inner.layers]
        self._learns = False
        self._attach()
        if self._cos.device != self.embed.value.device or not self._cos.numel():
            self._cos, self._sin = self._table()

    def adapt(self, adapters: Mapping[str, Tensor], scale: float) -> None:
        """From now on these adapters stand beside the weights (`q_proj.lora_A.weight`, ..., under the names of their modules),
        where they lie in memory; none: the weights are alone. What is joined must lie side by side (`llm/model/lora.py`)."""
        self.adapters, self._adapter_scale = dict(adapters), scale
        self._attach()

    def join_adapters(self) -> None:
        """Multiply by copies in which neighbouring adapters are one matrix, until they are put elsewhere."""
        for layer in self.layers:
            for field in BESIDE:
                weight: Weight = getattr(layer, field)
                if weight.low is not None:
                    weight.low.join(weight.value.shape[0])

    def renew_adapters(self) -> None:
        """After `join_adapters`: the adapters have changed where they lie."""
        for layer in self.layers:
            for field in BESIDE:
                if (low := getattr(layer, field).low) is not None:
                    low.renew()

    def _attach(self) -> None:
        for index, layer in enumerate(self.layers):
            for field, names in BESIDE.items():
                getattr(layer, field).low = self._low(f"model.layers.{index}.", names)
        if self.head is not self.embed:
            self.head.low = self._low("", ("lm_head",))

    def _low(self, prefix: str, names: Sequence[str]) -> LowRank | None:
        """The adapters beside modules that are multiplied as one."""
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
            raise RunnelError(f"adapters of {prefix}{names[0]} and its neighbours do not lie side by side")
        return LowRank(Weight(joined(downs)), tuple(ups), self._adapter_scale)

    @property
    def trains(self) -> bool:
        """Whether a pass that is made now is differentiated."""
        return self._learns and torch.is_grad_enabled()

    def require_grad(self, vector: Tensor, grad: Tensor) -> None:
        """From now on gradients of what lies in `vector` (the packed parameters, or the adapters) add up in `grad`, float32 and
        laid out like it `[P]`. What lies elsewhere stays as it is."""
        base, size, made = vector.data_ptr(), vector.element_size(), dict[int, Weight]()

        def train(weight: Weight) -> Weight:
            value, low = weight.value, None if weight.low is None else weight.low.each(train)
            at = (value.data_ptr() - base) // size
            if not 0 <= at < vector.numel():
                return Weight(value, low=low)
            if at not in made:
                made[at] = Weight(value, grad[at : at + value.numel()].view(value.shape), low)
            return made[at]

        tied = self.head is self.embed
        self.embed, self.norm_out = train(self.embed), train(self.norm_out)
        self.head = self.embed if tied else train(self.head)
        self.layers = [layer.each(train) for layer in self.layers]
        self._learns = True

    def is_packed(self) -> bool:
        """Whether the model's parameters lie as the decoder reads them."""
        return all(_is_packed(layer) for layer in self.model.model.layers)

    def _table(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine for every position that the model knows, by its own rotary embedding. `2 x [L, D/2]`"""
        device = self.embed.value.device
        steps = torch.arange(int(self.model.config.max_position_embeddings), device=device)
        like = torch.zeros((), dtype=torch.float32, device=device)
        cos, sin = self.model.model.rotary_emb(like, steps[None])
        half = self.head_dim // 2
        return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()

    @torch.no_grad()
    def check(self) -> None:
        """Compare with the model's own forward pass on a few tokens; raises if they differ by more than rounding."""
        size = min(12, int(self.model.config.max_position_embeddings))
        tokens = torch.arange(size, device=self.embed.value.device) * 7919 % self.vocab_size
        rows = PackedRows([size], device=self.embed.value.device)
        found = self(tokens, rows.positions, lambda i, r, v: packed_attention(r, v, rows, scale=self.scale)).float()
        expected = self.model.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0].float()
        gap = float((found - expected).norm() / expected.norm())
        bound = 1e-4 if self.embed.value.dtype == torch.float32 else 0.1
        if gap > bound or (math.isnan(gap) and bool(torch.isfinite(expected).all())):
            raise RunnelError(
                f"the built-in decoder and {type(self.model).__name__} differ by {gap:.2g} (bound {bound:g}): this model has "
                "something that the decoder does not know; use another model, and report this one's config.json"
            )


def supported(model: Any) -> bool:
    """Whether the decoder knows this model: its family, full attention in every layer, silu, default or scaled rotary."""
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


def _is_packed(layer: Any) -> bool:
    heads = parameters_of(layer.self_attn, ("q_proj", "k_proj", "v_proj"), "weight")
    biases = parameters_of(layer.self_attn, ("q_proj", "k_proj", "v_proj"), "bias")
    return is_joined(heads) and is_joined(parameters_of(layer.mlp, ("gate_proj", "up_proj"), "weight")) and is_joined(biases)


def _layer(layer: Any) -> Layer:
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


def _optional(module: Any, name: str) -> Weight | None:
    found = getattr(module, name, None)
    return None if found is None else Weight(found.data)
