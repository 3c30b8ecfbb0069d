"""Load all weights of a folder, and refuse by name tensors that are missing or have another shape.

Transformers replaces missing tensors by random numbers, prints a table and goes on; a run would then train noise.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass as AutoClass

SHOWN = 3
"""The most names that a message shows."""


def load_whole(
    kind: type[AutoClass], folder: str | Path, *, field: str = "model", tell: bool = True, **options: object
) -> PreTrainedModel:
    """`kind.from_pretrained(folder, **options)` (a transformers `Auto` class), or a `ConfigError` of `field`.

    Weights that transformers ties to others may be missing. With `tell`, a warning names tensors that the model has no place
    for, unless its class says that they are harmless.
    """
    try:
        with _quiet():
            # tensors of another shape are refused below, all by name; transformers would raise at the first
            model, found = kind.from_pretrained(
                str(folder), output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False, **options
            )
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ConfigError(field, str(folder), f"transformers cannot load it: {reason}") from error
    other = [
        f"{name} is {list(here)}, its config says {list(wanted)}" for name, here, wanted in sorted(found["mismatched_keys"])
    ]
    if other:
        fix = "use the config.json and the weights of one model"
        raise ConfigError(field, str(folder), f"{_count(other)} of another shape ({_some(other, '; ')}); {fix}")
    if missing := sorted(found["missing_keys"]):
        fix = "they would be random numbers; copy or download the model again, or use the config.json that belongs to it"
        raise ConfigError(field, str(folder), f"{_count(missing)} missing from its weights ({_some(missing)}); {fix}")
    if found["error_msgs"]:
        raise ConfigError(field, str(folder), f"its weights cannot be loaded: {_some(found['error_msgs'], '; ')}")
    if (spare := sorted(found["unexpected_keys"])) and tell:
        text = f"{folder}: {_count(spare)} not used by {type(model).__name__} ({_some(spare)})"
        warnings.warn(text, stacklevel=2)
    return model


def check_weights(kind: type[AutoClass], folder: str | Path, *, field: str = "model") -> None:
    """Raise the `ConfigError` that `load_whole` would raise, but read only the headers of the weight files."""
    load_whole(kind, folder, field=field, device_map="meta")


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Turn transformers' progress bars off: a run has its own display."""
    from transformers.utils import logging as hf_logging

    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off progress bars and the table of missing tensors: the errors of `load_whole` say the same."""
    logger = logging.getLogger("transformers.modeling_utils")

    def keep(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(keep)
    try:
        with no_progress_bars():
            yield
    finally:
        logger.removeFilter(keep)


def _count(names: Sequence[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"


def _some(names: Sequence[str], between: str = ", ") -> str:
    return between.join(names[:SHOWN]) + (f"{between}..." if len(names) > SHOWN else "")
