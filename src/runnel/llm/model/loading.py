"""Weights from a folder, all of them: what is missing or of another shape is refused by name.

Transformers fills up what it does not find with random numbers, writes a table, and goes on; a run would train noise.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runnel.core.errors import ConfigError

SHOWN = 3
"""Names that a message shows."""


def load_whole(kind: Any, folder: str | Path, *, field: str = "model", tell: bool = True, **options: Any) -> Any:
    """`kind.from_pretrained(folder, **options)` (a transformers `Auto` class), or a `ConfigError` of `field`.

    Weights that transformers ties to others need not be there. Tensors that the model has no place for are told, unless its
    class says that they are harmless.
    """
    try:
        with _quiet():
            own = {"output_loading_info": True, "ignore_mismatched_sizes": True, "trust_remote_code": False}
            model, found = kind.from_pretrained(str(folder), **own, **options)
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ConfigError(field, str(folder), f"transformers cannot load it: {reason}") from error
    other = [
        f"{name} is {list(here)}, its config says {list(wanted)}" for name, here, wanted in sorted(found["mismatched_keys"])
    ]
    if other:
        fix = "use the config.json and the weights of one model"
        raise ConfigError(field, str(folder), f"{_count(other, 'tensor')} of another shape ({_some(other, '; ')}); {fix}")
    if missing := sorted(found["missing_keys"]):
        fix = "they would be random numbers; copy or download the model again, or use the config.json that belongs to it"
        raise ConfigError(field, str(folder), f"{_count(missing, 'tensor')} missing from its weights ({_some(missing)}); {fix}")
    if found["error_msgs"]:
        raise ConfigError(field, str(folder), f"its weights cannot be loaded: {_some(found['error_msgs'], '; ')}")
    if (spare := sorted(found["unexpected_keys"])) and tell:
        text = f"{folder}: {_count(spare, 'tensor')} not used by {type(model).__name__} ({_some(spare)})"
        warnings.warn(text, stacklevel=2)
    return model


def check_weights(kind: Any, folder: str | Path, *, field: str = "model") -> None:
    """Raise a `ConfigError` where `load_whole` would, from the headers of the weight files: before anything starts."""
    load_whole(kind, folder, field=field, device_map="meta")


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Transformers without its progress bars: a run has its own view."""
    from transformers.utils import logging as theirs

    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, and without the table of what is missing: we say it."""
    logger = logging.getLogger("transformers.modeling_utils")

    def keep(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(keep)
    try:
        with no_progress_bars():
            yield
    finally:
        logger.removeFilter(keep)


def _count(names: Sequence[str], word: str) -> str:
    return f"{len(names)} {word} is" if len(names) == 1 else f"{len(names)} {word}s are"


def _some(names: Sequence[str], between: str = ", ") -> str:
    return between.join(names[:SHOWN]) + (f"{between}..." if len(names) > SHOWN else "")
