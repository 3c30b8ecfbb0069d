"""Every causal type of transformers, tiny and with random weights: engine and learner against transformers itself.

    python -m benchmarks.llm.families                # all types; writes docs/reference/families.md; five minutes on one core
    python -m benchmarks.llm.families gemma3 qwen2   # these alone, to the terminal

It is what a run from a model folder does before it starts (`runnel/llm/checks/at_start.py`), on the default configuration of
each type, and on some others where that says more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runnel.core.errors import RunnelError
from runnel.llm.checks.agreement import Agreement, compare
from runnel.llm.checks.at_start import FOREIGN, REFUSED, difference, problem
from runnel.llm.engines.row_cache import cache_argument
from runnel.llm.model.decoder import supported
from runnel.llm.model.tiny import tiny_config, tiny_model

PAGE = Path(__file__).parents[2] / "docs/reference/families.md"
ROPE = {"rope_type": "default", "rope_theta": 1e4}
WINDOW = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 4096}
DECODER = {"is_decoder": True}
STARTS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": DECODER,
    "xmod": {"default_language": "en_XX"},
}
"""What a type needs that its own defaults leave out."""
MORE: dict[str, dict[str, Any]] = {
    "qwen2": WINDOW,
    "qwen3": WINDOW,
    "mistral": {"sliding_window": None},
    "phi3": {"sliding_window": 2048},
    "falcon": {"alibi": True},
    "exaone4": {"sliding_window": 4096},
    "starcoder2": {"sliding_window": 4096},
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.2, "attention_multiplier": 0.1},
    "falcon_h1": {"lm_head_multiplier": 0.04},
    "cohere": {"logit_scale": 0.25},
    **dict.fromkeys(("bert", "bert-generation", "big_bird", "electra", "ernie", "megatron-bert", "rembert"), DECODER),
    **dict.fromkeys(("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "roformer"), DECODER),
    **dict.fromkeys(("roc_bert", "xlm-roberta"), DECODER),
}
"""A second row of these types, with settings that change what they compute."""


@dataclass(frozen=True)
class Row:
    """One type with one set of settings."""

    kind: str
    settings: str
    path: str
    found: Agreement | None
    reason: str
    seconds: float


def rows(names: list[str]) -> Iterator[Row]:
    """The rows of these types, or of all that transformers maps to a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    for kind in names or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        yield row(kind, STARTS.get(kind, {}))
        if kind in MORE:
            yield row(kind, STARTS.get(kind, {}) | MORE[kind])


def row(kind: str, settings: Mapping[str, Any]) -> Row:
    """Compare one type, tiny; where it is refused, with the reason that a run gives."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    began = time.monotonic()
    told = ", ".join(f"{name}: {value}" for name, value in MORE.get(kind, {}).items() if name in settings)
    try:
        config = CONFIG_MAPPING[kind](**settings)
        model = tiny_model(tiny_config(config))
    except (*FOREIGN, StrictDataclassError) as error:
        return Row(kind, told, "not built", None, f"{type(error).__name__}: {str(error).splitlines()[-1].strip()[:110]}", 0.0)
    found = None
    try:
        found = compare(model)
        refused = kind in REFUSED or difference(found) is not None
    except (*FOREIGN, RunnelError):
        refused = True
    reason = (problem(config) or "").split("is refused: ")[-1] if refused else ""
    return Row(kind, told, "refused" if refused else path_of(model), found, reason, time.monotonic() - began)


def path_of(model: Any) -> str:
    """How engines run a model."""
    from runnel.llm.engines.module_runners import keeps_keys_alone

    if supported(model):
        return "decoder"
    if keeps_keys_alone(model):
        return "modules"
    return "row by row" if cache_argument(model) else "row by row, whole"


INTRO = """# Families of models

This page is for people who want to train a model that they have: look up its type (`model_type` in its `config.json`). The
table says whether runnel can train it, and how fast the native engine is with it.

The table has every type that transformers {version} maps to a causal language model. A run makes the same comparison with
your own model before it starts: on a tiny copy of its configuration, and for a few seconds on its weights. It refuses a model
that differs from transformers by more than rounding, with a reason as in the last column.

| column | meaning |
| --- | --- |
| type, settings | the type; a type with two rows has other settings in the second one |
| path | how the engine runs the model, as in the table below |
| tokens | rows whose greedy tokens are all the same as those of transformers |
| engine, learner | largest difference of a log-probability from that of transformers |
| reason | why the type is refused or was not built |

| path | rows | what it is |
| --- | ---: | --- |
| decoder | {decoder} | the decoder of runnel: fast |
| modules | {modules} | the model's own modules and masks, with all rows at once |
| row by row | {row by row} | the model's own cache of states (Mamba, convolutions, ...), with one row at a time: slow |
| row by row, whole | {row by row, whole} | without a cache: each token computes its whole row, very slow |
| refused | {refused} | a run refuses this type; the last column says why |
| not built | {not built} | its default configuration makes no model, so it was not compared here |

How it was compared: with a tiny random configuration of each type (each kind of layer, windows of 6 tokens), the native engine
and the learner against the model's own forward pass. There were five prompts of 1 to 15 tokens, two of them the same, with
9 greedy tokens each, three rows at a time, prefill in chunks of 10 tokens, and weights that are loaded again at every step.
`python -m benchmarks.llm.families` makes this page.

| type | settings | path | tokens | engine | learner | reason |
| --- | --- | --- | ---: | ---: | ---: | --- |
"""
PATHS = ("decoder", "modules", "row by row", "row by row, whole", "refused", "not built")


def page(found: list[Row], version: str) -> str:
    """The page of the docs."""
    count = {path: sum(r.path == path for r in found) for path in PATHS}
    return INTRO.format_map({"version": version, **count}) + "\n".join(map(line, found)) + "\n"


def line(r: Row) -> str:
    """A row of the table."""
    a = r.found
    numbers = ["", "", ""] if a is None else [f"{a.same_tokens}/{a.num_rows}", f"{a.engine:.0e}", f"{a.learner:.0e}"]
    return "| " + " | ".join((f"`{r.kind}`", r.settings, r.path, *numbers, r.reason.replace("|", "/"))) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="types of transformers; without any, all, and the page is written")
    names: list[str] = parser.parse_args().types
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found: list[Row] = []
    for r in rows(names):
        found.append(r)
        print(line(r), f"{r.seconds:.1f} s", flush=True)
    if not names:
        PAGE.write_text(page(found, transformers.__version__))


if __name__ == "__main__":
    main()
