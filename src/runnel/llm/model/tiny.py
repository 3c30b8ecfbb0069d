"""Make a tiny model of the same family as a given one: each of its kinds of layers, small sizes, short windows, random weights.

The masks, positions, states and scales of a family do not depend on its size, so a tiny model can be compared in a moment.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

WINDOW = 6
"""Tokens of a window, or of a chunk, of a tiny model."""
POSITIONS = 256
VOCABULARY = 128
HEADS, HEAD, WIDTH = 4, 16, 64

_GROUPS: dict[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input decoder_vocab_size n_token ngram_vocab_size_base "
    "encoder_hash_byte_group_vocab",
    POSITIONS: "max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions max_source_positions",
    WIDTH: "hidden_size n_embd d_model emb_dim embedding_dim embedding_size word_embed_proj_dim lru_width dim_model_base "
    "attention_hidden_size input_embedding_size output_embedding_size backbone_hidden_size ple_embed_dim mamba_d_ssm",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size dff dim_ff d_inner decoder_ffn_dim encoder_ffn_dim "
    "intermediate_size_mlp dense_intermediate_size feed_forward_size shared_intermediate_size",
    32: "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size "
    "attention_head_dim router_hidden_size",
    HEADS: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads "
    "num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads num_experts num_local_experts "
    "n_routed_experts moe_num_experts zero_expert_num altup_num_inputs",
    HEAD: "head_dim global_head_dim dim_head kv_channels d_head attention_head_size swa_head_dim kv_lora_rank "
    "qk_nope_head_dim v_head_dim index_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_head "
    "mamba_head_dim mamba_headdim o_lora_rank hc_lowrank num_centroids chunk_size mamba_chunk_size index_n_heads",
    24: "q_lora_rank qk_head_dim",
    8: "qk_rope_head_dim rotary_dim state_size mamba_d_state ssm_state_size hidden_size_per_layer_input laurel_rank "
    "mamba_n_heads mamba_num_heads time_step_rank mamba_dt_rank adapter_rank centroid_intermediate_top_k rel_extent",
    WINDOW: "sliding_window attention_chunk_size window_size attention_window_size local_attention sliding_window_size "
    "keep_window_size index_topk",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers num_blocks num_layers_per_stack "
    "encoder_layers num_encoder_layers "
    "num_experts_per_tok num_experts_per_token moe_topk moe_k linear_num_key_heads linear_num_heads "
    "swa_num_key_value_heads n_mamba_heads n_groups num_codebooks o_groups max_window_layers index_topk_blocks",
    1: "n_group topk_group rescale_every num_expert_group first_k_dense_replace num_dense_layers num_kv_shared_layers",
}
SIZES = {name: size for size, names in _GROUPS.items() for name in names.split()}
"""The largest value of each number in a tiny config, by the names that families use for it."""
SIZES["original_max_position_embeddings"] = POSITIONS // 2
EXACT = {
    name
    for name in SIZES
    if SIZES[name] == WIDTH or name.endswith(("n_head", "n_heads", "attention_heads")) or name == "head_dim"
}
"""Numbers that are set to exactly their size, because width, heads and head size must fit each other."""
_ZAMBA: dict[str, object] = {
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "attention_hidden_size": 2 * WIDTH,
    "attention_head_dim": 2 * HEAD,
}
FAMILIES: dict[str, dict[str, object]] = {
    "hrm_text": {"num_hidden_layers": 16},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8},
    "zamba": _ZAMBA,
    "zamba2": {**_ZAMBA, "hybrid_layer_ids": [1, 3], "n_mamba_heads": 8},
}
"""Further settings of some families, in which some numbers depend on others."""


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """A configuration of the same family and kinds of layers, a few thousand weights large."""
    made = _smaller(config.to_dict())
    return type(config).from_dict(made)


def _smaller(data: Mapping[str, object]) -> dict[str, object]:
    out: dict[str, object] = {}
    chosen = _layers(data)
    for name, value in data.items():
        if name in ("id2label", "label2id"):
            continue
        if name == "per_layer_config" and isinstance(value, Mapping):
            out[name] = {i: _smaller(v) for i, at in enumerate(chosen) for key, v in value.items() if int(key) == at}
            continue
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, Mapping) and value:
            out[name] = _rope(value, data)
        elif isinstance(value, Mapping):
            out[name] = _smaller(value)
        elif isinstance(value, list) and chosen and len(value) == _first_int(data, DEPTHS, 0):
            out[name] = list(range(len(chosen))) if _are_all(value) else [_least(name, value[i]) for i in chosen]
        else:
            out[name] = [_least(name, x) for x in value] if isinstance(value, list) else _least(name, value)
    if chosen:
        out |= {name: len(chosen) for name in DEPTHS if name in out}
    out |= {
        name: _kv_heads(data, value) for name, value in data.items() if name in KV_HEADS and isinstance(value, int) and value
    }
    out |= {name: _within(value) for name, value in out.items() if name.endswith("token_id") and value is not None}
    if data.get("head_dim") is not None and data.get("head_dim") == data.get("qk_rope_head_dim"):
        out["head_dim"] = out["qk_rope_head_dim"]
    out |= FAMILIES.get(str(data.get("model_type")), {})
    return out


DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers", "num_blocks")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "linear_num_value_heads", "num_global_key_value_heads")


def _first_int(data: Mapping[str, object], names: Sequence[str], otherwise: int) -> int:
    """The first of the named numbers that is an integer above 0."""
    return next((value for name in names if isinstance(value := data.get(name), int) and value > 0), otherwise)


def _layers(data: Mapping[str, object]) -> list[int]:
    """One layer of each kind, by what the lists with an entry for each layer say; at least two."""
    depth = _first_int(data, DEPTHS, 0)
    lists = [value for value in data.values() if isinstance(value, list) and depth and len(value) == depth]
    lists = [value for value in lists if not _are_all(value)]
    if not lists:
        return []
    kinds: dict[str, int] = {}
    for i in range(depth):
        kinds.setdefault(repr([entries[i] for entries in lists]), i)
    first = sorted(kinds.values())
    return first if len(first) > 1 else [0, min(1, depth - 1)]


def _are_all(value: Sequence[object]) -> bool:
    """Whether a list holds the indices of all layers."""
    return list(value) == list(range(len(value)))


def _least(name: str, value: object) -> object:
    """A number of a configuration in its tiny copy."""
    if name not in SIZES or not isinstance(value, int) or isinstance(value, bool):
        return value
    return SIZES[name] if name in EXACT and value > 0 else min(value, SIZES[name])


def _rope(value: Mapping[str, object], data: Mapping[str, object]) -> dict[str, object]:
    """Rotary settings of a tiny config: one factor for each remaining angle, and an original context below the tiny one."""
    width, heads = _first_int(data, ("hidden_size",), WIDTH), _first_int(data, ("num_attention_heads",), HEADS)
    head = _first_int(data, ("head_dim",), width // heads)
    out: dict[str, object] = {}
    for name, x in value.items():
        if isinstance(x, Mapping):
            out[name] = _rope(x, data)
        elif isinstance(x, list) and name in ("short_factor", "long_factor"):
            out[name] = x[: len(x) * HEAD // head]
        else:
            out[name] = _least(name, x)
    return out


def _kv_heads(data: Mapping[str, object], value: int) -> int:
    heads = _first_int(data, ("num_attention_heads", "n_head", "n_heads", "linear_num_key_heads"), value)
    return 1 if value == 1 else HEADS if value >= heads else 2


def _within(value: object) -> object:
    """A token id, or a list of them, cut to the tiny vocabulary."""
    if isinstance(value, list):
        return [_within(v) for v in value]
    return min(value, VOCABULARY - 1) if isinstance(value, int) else value


def tiny_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model of a tiny config, in float32 and evaluation mode, with random weights large enough that its logits differ."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, parameter.shape[-1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()
