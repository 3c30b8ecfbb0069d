"""Builds the engine of a run from its configuration."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import Decode, Engine
from runnel.llm.engines.vllm import VllmConfig, VllmEngine
from runnel.llm.model.pack import packed
from runnel.llm.model.token_model import DTYPES, Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class EngineConfig:
    """The engine that completes tokens (docs/guides/engines.md)."""

    on_resume: ClassVar[OnResume] = may_change(
        "precision", "on_update", "keep_prefixes", then="the engine starts that way"
    ) | stays("kind", "num_slots", "fixed_shapes", why="completions that are on their way are in the checkpoint in that form")

    kind: Literal["native", "hf", "vllm"] = "native"
    """native: in this process, the default; hf: plain transformers, slow, a reference; vllm: vLLM in a child process."""
    num_slots: int = bounded(0, at_least=0)
    """Completions that run at once; 0 means as many as an update needs."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Arithmetic of decoding. auto: bfloat16 on CUDA, else float32, as for the learner. Engine and learner in one process share
    their weights if both have the same precision."""
    on_update: Literal["keep", "recompute"] = "keep"
    """native: whether running completions keep or recompute their keys and values when weights change (hf always keeps them,
    vllm always recomputes them)."""
    fixed_shapes: bool = False
    """native: compute in shapes that do not depend on other requests, so that tokens do not depend on them either, to the last
    bit."""
    keep_prefixes: bool = True
    """native: keep the keys and values of a conversation for its next turn, in slots that are free; never with `fixed_shapes`
    (vllm keeps them by itself until the weights change, hf never)."""
    vllm: VllmConfig = field(default_factory=VllmConfig)

    def unused(self) -> dict[str, str]:
        """Settings that this kind of engine does not read, and why."""
        found = {} if self.kind == "vllm" else {"vllm": "is for engine.kind vllm"}
        own = ("on_update", "fixed_shapes", "keep_prefixes")
        native = {} if self.kind == "native" else dict.fromkeys(own, "is for engine.kind native")
        fixed = {"keep_prefixes": "is off already: engine.fixed_shapes computes each prompt whole"} if self.fixed_shapes else {}
        return found | fixed | native

    def precision_on(self, device: str) -> Precision:
        """`precision`, chosen for a device."""
        if self.precision == "auto":
            return "bfloat16" if device.startswith("cuda") else "float32"
        return self.precision

    def deterministic(self) -> EngineConfig:
        """This config for a run that must give the same bits each time it is repeated. Where a policy worker serves several
        clients, timing decides which requests run together, so shapes must not depend on that."""
        if self.kind == "vllm":
            raise ConfigError(
                "engine.kind", self.kind, "vLLM batches by timing, and a deterministic run cannot; use native or hf"
            )
        return replace(self, fixed_shapes=True) if self.kind == "native" else self

    def __post_init__(self) -> None:
        if self.kind not in ("native", "hf", "vllm"):
            raise ConfigError("engine.kind", self.kind, "use native, hf or vllm")
        check_bounds(self, "engine.")


def make_engine(
    config: EngineConfig,
    make_model: Callable[[], PreTrainedModel],
    *,
    num_slots: int,
    max_length: int,
    eos_id: int | Sequence[int],
    folder: str = "",
    decode_text: Decode | None = None,
) -> Engine:
    """An engine without parameters: `load_params` brings them.

    `make_model` builds the model on its device. `folder` is the folder that it was loaded from, if any. vLLM starts from a
    folder, so a model without one is written to a temporary folder.
    """
    slots = config.num_slots or num_slots
    if config.kind != "vllm":
        model = make_model()
        packed(model, dtype=DTYPES[config.precision_on(model.device.type)], device=model.device)
        if config.kind == "hf":
            return HfEngine(model, num_slots=slots, max_length=max_length, eos_id=eos_id, decode_text=decode_text)
        return NativeEngine(
            model,
            num_slots=slots,
            max_length=max_length,
            eos_id=eos_id,
            decode_text=decode_text,
            on_update=config.on_update,
            fixed_shapes=config.fixed_shapes,
            keep_prefixes=config.keep_prefixes,
        )
    with tempfile.TemporaryDirectory(prefix="runnel-vllm-") as made:
        if not folder:
            make_model().save_pretrained(str(made))
        engine = VllmEngine(
            folder or made,
            num_slots=slots,
            max_length=max_length,
            eos_id=eos_id,
            decode_text=decode_text,
            precision=config.precision,
            config=config.vllm,
            make_model=make_model,
        )
        if not folder:
            engine.process.wait_ready()  # vLLM reads `made` while it starts, and the end of this block removes it
    return engine
