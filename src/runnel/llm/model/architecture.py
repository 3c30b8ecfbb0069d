"""What a language model computes, as its config says: two models may have tensors of the same shapes and still be others.

The number of heads, the base of rotations, the activation, the epsilon of a norm: none of them shows in a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.core.config import differences
from runnel.llm.model.causal_lm import ModelConfig, new_config

TRAINING = ("dropout", "pdrop", "initializer_range", "loss_coef")
"""Parts of the names of what is used in training alone; we train without it."""
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
"""What a config says beside what is computed: names of tokens and labels, sizes of caches, who wrote it."""


def model_config(lm: ModelConfig, vocab_size: int) -> Any:
    """The transformers config of the model of `lm`: that of its folder, or of a new model."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(lm.path, trust_remote_code=False) if lm.path else new_config(lm, vocab_size)


def differing(ours: Any, theirs: Any) -> dict[str, tuple[Any, Any]]:
    """Fields of two transformers configs that make one model compute something else than the other: (ours, theirs)."""
    return differences(_computed(ours), _computed(theirs))


def _computed(config: Any) -> Mapping[str, Any]:
    return {k: v for k, v in config.to_dict().items() if k not in OTHER and not any(part in k for part in TRAINING)}


def saved_config(folder: Path) -> Any | None:
    """The transformers config in `folder`, if there is one."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(folder), trust_remote_code=False) if (folder / "config.json").is_file() else None
