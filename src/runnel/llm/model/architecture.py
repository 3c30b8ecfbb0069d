"""Compare what two language models compute, by their configs: two models with tensors of the same shapes may still differ.

The number of heads, the base of rotations, the activation and the epsilon of a norm cannot be seen in the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.config import differences
from runnel.llm.model.causal_lm import ModelConfig, new_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TRAINING = ("dropout", "pdrop", "initializer_range", "loss_coef")
"""Fields whose names contain one of these matter in transformers' own training only, which runnel does not use."""
OTHER = {
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "is_decoder",
    "label2id",
    "max_position_embeddings",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "runnel_rows",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
"""Fields that do not change what is computed: names of tokens and labels, sizes of caches, the version that wrote the file."""


def model_config(lm: ModelConfig, vocab_size: int) -> PretrainedConfig:
    """The transformers config of the model that `lm` describes: read from its folder, or made for a new model."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(lm.path, trust_remote_code=False) if lm.path else new_config(lm, vocab_size)


def differing(ours: PretrainedConfig, theirs: PretrainedConfig) -> dict[str, tuple[object, object]]:
    """Fields in which two transformers configs differ and that change what is computed: (our value, their value) by name."""
    return differences(_computed(ours), _computed(theirs))


def _computed(config: PretrainedConfig) -> Mapping[str, object]:
    return {k: v for k, v in config.to_dict().items() if k not in OTHER and not any(word in k for word in TRAINING)}


def saved_config(folder: Path) -> PretrainedConfig | None:
    """The transformers config in `folder`, if there is one."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(folder), trust_remote_code=False) if (folder / "config.json").is_file() else None
