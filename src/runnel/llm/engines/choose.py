"""Which engine a run decodes with, by configuration."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from runnel.core.errors import ConfigError
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import Decode, Engine
from runnel.llm.engines.vllm import VllmConfig, VllmEngine
from runnel.nets.causal_lm import save_model
from runnel.nets.pack import pack
from runnel.nets.token_model import DTYPES


@dataclass(frozen=True)
class EngineConfig:
    """What completes tokens (docs/engines.md)."""

    kind: Literal["native", "hf", "vllm"] = "native"
    """native: in this process, the default; hf: plain transformers, slow, a reference; vllm: vLLM in a child process."""
    num_slots: int = 0
    """Completions that run at once; 0 takes as many as an update needs."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Arithmetic of decoding. auto: bfloat16 on CUDA, else float32, as the learner's; where the two are the same and
    live side by side, they share the weights."""
    on_update: Literal["keep", "recompute"] = "keep"
    """native: what running completions do with their keys and values when weights change (hf keeps, vllm recomputes)."""
    fixed_shapes: bool = False
    """native: compute in shapes that do not depend on who runs beside, so that tokens do not either, to the last bit."""
    vllm: VllmConfig = field(default_factory=VllmConfig)

    def __post_init__(self) -> None:
        if self.kind not in ("native", "hf", "vllm"):
            raise ConfigError("engine.kind", self.kind, "use native, hf or vllm")
        if self.num_slots < 0:
            raise ConfigError("engine.num_slots", self.num_slots, "use 0 for what an update needs, or a number of completions")


def make_engine(
    config: EngineConfig,
    make_model: Callable[[], Any],
    *,
    num_slots: int,
    max_length: int,
    eos_id: int,
    folder: str = "",
    decode_text: Decode | None = None,
) -> Engine:
    """An engine without parameters: they come with `load_params`.

    `make_model` builds the model on its device; `folder` is where it was loaded from, if it was. vLLM starts from a folder: a
    model that has none is written to a temporary one.
    """
    slots = config.num_slots or num_slots
    if config.kind == "native":
        return NativeEngine(
            _in_precision(make_model(), config.precision),
            num_slots=slots,
            max_length=max_length,
            eos_id=eos_id,
            decode_text=decode_text,
            on_update=config.on_update,
            fixed_shapes=config.fixed_shapes,
        )
    if config.kind == "hf":
        model = _in_precision(make_model(), config.precision)
        return HfEngine(model, num_slots=slots, max_length=max_length, eos_id=eos_id, decode_text=decode_text)
    options: dict[str, Any] = {"max_length": max_length, "eos_id": eos_id, "decode_text": decode_text}
    options |= {"precision": config.precision, "config": config.vllm}
    if folder:
        return VllmEngine(folder, num_slots=slots, **options)
    with tempfile.TemporaryDirectory(prefix="runnel-vllm-") as made:
        save_model(make_model(), made)
        engine = VllmEngine(made, num_slots=slots, **options)
        engine.process.wait_ready()
    return engine


def _in_precision(model: Any, name: str) -> Any:
    """The model with its weights in the named precision, packed."""
    kind = "bfloat16" if model.device.type == "cuda" else "float32"
    pack(model, dtype=DTYPES[kind if name == "auto" else name])
    return model
