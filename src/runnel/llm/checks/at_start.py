"""Compares engine and learner with plain transformers, before a run starts from a given model.

First on a tiny copy of its configuration, where windows are shorter than the prompts; then on the real weights, for a few
seconds. A model for which they differ by more than rounding is refused, with the name of its family.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runnel.core.errors import ConfigError, RunnelError
from runnel.kernels.lm.numba.loops import without_loops
from runnel.llm.checks.agreement import Agreement, EngineKind, compare, own_logprobs
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import Engine, SamplingConfig, generate, make_request
from runnel.llm.model.tiny import tiny_config, tiny_model
from runnel.llm.model.token_model import TokenModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ROUNDING = 1e-3
"""A log-probability of a tiny model in float32 may be off by so much; what was seen is below 1e-5."""
BOUNDS = {torch.float64: 1e-3, torch.float32: 1e-2, torch.bfloat16: 0.5}
"""The same of real weights, in the mean over a row: in bfloat16 transformers rounds its residual stream, and our decoder does
not."""
REFUSED = {
    "rwkv": "its forward pass rescales its own weights, so weights that are trained or sent mean something else after it"
}
"""Families that must not be run, and why."""
BUDGET_S = 5.0
FOREIGN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RunnelError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What the code of a family that cannot be run may raise."""

_found: dict[tuple[str, str], str | None] = {}


def check_family(config: PretrainedConfig, *, engine: EngineKind = "native", device: str = "cpu", model: str = "") -> None:
    """Raise a `ConfigError` if engine or learner differ from transformers on this config's family. Results are cached."""
    key = (config.to_json_string(use_diff=False), engine)
    if key not in _found:
        with without_loops() if device != "cpu" else nullcontext(), _quiet():
            _found[key] = problem(config, engine)
    if (reason := _found[key]) is not None:
        raise ConfigError("model", model or config.model_type, reason)


def check_folder(folder: str, *, engine: EngineKind, device: str) -> None:
    """`check_family` of the model in `folder`."""
    from transformers import AutoConfig

    check_family(AutoConfig.from_pretrained(folder, trust_remote_code=False), engine=engine, device=device, model=folder)


def problem(config: PretrainedConfig, engine: EngineKind = "native") -> str | None:
    """Why a family cannot be run with an engine, and what to do; None if it can."""
    from huggingface_hub.errors import StrictDataclassError

    family = f"a model of type {config.model_type!r} is refused: "
    if config.model_type in REFUSED:
        return f"{family}{REFUSED[config.model_type]}; use a model of another type"
    try:
        tiny = tiny_model(tiny_config(config))
    except (*FOREIGN, StrictDataclassError) as error:
        return f"{family}no tiny copy of it can be made to compare it with ({_told(error)}); use a model of another type"
    try:
        found = compare(tiny, engine=engine)
    except FOREIGN as error:
        return f"{family}its code does not run as a causal decoder ({_told(error)}); {_fix(tiny, engine)}"
    reason = difference(found)
    return None if reason is None else f"{family}{reason}; {_fix(tiny, engine)}"


def difference(found: Agreement) -> str | None:
    """What differs by more than rounding; None if nothing does."""
    if found.causal > ROUNDING:
        return f"what it says of a token depends on later ones (by {found.causal:.2g} nats), so it is not a causal decoder"
    if found.learner > ROUNDING:
        return f"the learner's log-probabilities differ from transformers' by {found.learner:.2g}"
    if found.same_tokens < found.num_rows or found.engine > ROUNDING:
        tokens = f"{found.same_tokens} of {found.num_rows} greedy completions are the same"
        return f"the engine's log-probabilities differ from transformers' by {found.engine:.2g}, and {tokens}"
    return None


def _fix(tiny: PretrainedConfig, engine: EngineKind) -> str:
    """The reference engine, where it agrees; else another model."""
    if engine == "native":
        try:
            if difference(compare(tiny, engine="hf")) is None:
                return "use --engine.kind hf, or a model of another type"
        except FOREIGN:
            pass  # the message about the native engine has the reason already
    return "use a model of another type"


def _told(error: Exception) -> str:
    lines = [*str(error).splitlines(), ""]
    return f"{type(error).__name__}: {lines[0][:120]}".rstrip(": ")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' warnings about the tiny configuration, which no user has written."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


# ----------------------------------------------------------------------------------------------------------- real weights
def check_engine(engine: Engine) -> None:
    """Compare an engine that runs transformers' weights in this process with the model's own forward pass."""
    model: PreTrainedModel = getattr(engine, "model", None)
    if model is None:
        return
    if isinstance(engine, NativeEngine) and not engine.batches:
        why = f"models of type {model.config.model_type!r} keep more than keys and values, so the engine runs a row at a time"
        warnings.warn(f"{why}; others decode many times faster (docs/reference/families.md)", stacklevel=2)
    longest, began = engine.max_length, time.monotonic()
    _check_rows(model, "engine", lambda row: engine.logprobs(row[:1], row[1:]), longest, began)
    if longest > 7 and time.monotonic() - began < BUDGET_S / 2:
        prompt, greedy = _row(model, 4), SamplingConfig(temperature=0.0)
        made = generate(engine, [make_request(-1, prompt.tolist(), seed=0, max_tokens=3, sampling=greedy)])[0].rows
        engine.num_tokens = engine.num_prefilled = 0  # the comparison does not count
        row = torch.cat((prompt, made["tokens"]))
        _refuse(model, "engine", made["logprob"], own_logprobs(model, row).gather(1, row[1:, None])[-len(made["tokens"]) :, 0])


def check_learner(model: TokenModel) -> None:
    """Compare a learner's passes over packed rows with the model's own forward pass."""

    def found(row: Tensor) -> Tensor:
        with torch.no_grad():
            return model.row_logprobs(row.to(model.device), 1).float().cpu()

    _check_rows(model.model, "learner", found, 64, time.monotonic())


def _check_rows(model: PreTrainedModel, who: str, ask: Callable[[Tensor], Tensor], longest: int, began: float) -> None:
    """Compare a row of a few tokens, then longer ones while there is time."""
    for size in (4, 16, 64):
        if size > 4 and (size > longest or time.monotonic() - began > BUDGET_S / 8):
            return
        row = _row(model, min(size, longest))
        _refuse(model, who, ask(row), own_logprobs(model, row).gather(1, row[1:, None])[:, 0])


def _row(model: PreTrainedModel, size: int) -> Tensor:
    vocabulary = int(model.config.get_text_config().vocab_size)
    return torch.randint(vocabulary, (size,), generator=torch.Generator().manual_seed(2))


def _refuse(model: PreTrainedModel, who: str, found: Tensor, expected: Tensor) -> None:
    if not bool(torch.isfinite(expected).all()):
        return  # weights that are not finite are reported by the first update that uses them
    gap, bound = float((found - expected).abs().mean()), BOUNDS[next(model.parameters()).dtype]
    if not gap <= bound:
        raise RunnelError(
            f"with the weights of this {model.config.model_type!r} model the {who}'s log-probabilities differ from those of "
            f"transformers by {gap:.2g} in the mean (bound {bound:g}); use a model of another type, and report its config.json"
        )
