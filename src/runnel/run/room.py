"""Whether the disk has room for what a run will write, asked before it starts.

A run that cannot save is found out after an hour of training otherwise. Only what is large and known is counted: the copies of
a language model's parameters in a checkpoint, replay memories, the exported model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.graphs.experiment import DiskNeed, Experiment, copies_at_once
from runnel.graphs.run_config import RunConfig

GIB = 2**30


def check_disk(experiment: Experiment, *, held: int = 0) -> None:
    """Refuse a run whose checkpoints will not fit. `held`: bytes of those that it has, which new ones replace."""
    if experiment.disk is None:
        return
    config, need = experiment.config, experiment.disk()
    copies, room = copies_at_once(config), free_bytes(config.out) + held
    total = need.once + (copies * need.each if config.checkpoint.whole else need.params)
    if total <= room:
        return
    raise ConfigError(
        "out", config.out, f"{_told(config, need, copies, total)}; {room / GIB:.2f} GiB are free there; {_fix(config, copies)}"
    )


def free_bytes(folder: str | Path) -> int:
    """Free space of the disk on which `folder` lies, or will lie."""
    path = Path(folder).resolve()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _told(config: RunConfig, need: DiskNeed, copies: int, total: int) -> str:
    if not config.checkpoint.whole:
        return f"the parameters and what is exported take about {total / GIB:.2f} GiB"
    beside = f", beside {need.once / GIB:.2f} GiB for replay or the exported model" if need.once else ""
    several = f", and up to {copies} lie there at once" if copies > 1 else ""
    return f"a checkpoint takes about {need.each / GIB:.2f} GiB{several}{beside}: {total / GIB:.2f} GiB"


def _fix(config: RunConfig, copies: int) -> str:
    if not config.checkpoint.whole:
        return "free some, or use another --out"
    fewer = "--checkpoint.keep 1, " if copies > 2 else ""
    end = "--checkpoint.every 0 (one, at the end), " if copies > 1 else ""
    return f"use another --out, {fewer}{end}or --checkpoint.every never (parameters alone; the run cannot be resumed)"
