"""The setting `compiled` of recipes on environments: what it may be, what it needs, and whether a kernel serves the run."""

from __future__ import annotations

import torch

from runnel.core.config import refuse_unused
from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError
from runnel.graphs.experiment import Experiment
from runnel.kernels.select import Accelerator, Mode
from runnel.kernels.small.numba.ppo import has_numba


def about_compiling(accelerator: Accelerator, device: str) -> list[str]:
    """That a package is missing; what is compiled, or why not, is told by who does it (`kernels/select.py`)."""
    wanted = device == "cpu" and accelerator.compiles(torch.device("cpu"))
    if not wanted or has_numba():
        return []
    return ["pip install 'runnel[compiled]' would train small networks several times as fast (Numba is not installed)"]


def check_numba(mode: Mode, device: str) -> None:
    """Refuse kernels that need a package that is not here."""
    if mode == "on" and device == "cpu" and not has_numba():
        raise ConfigError("compiled", "on", "needs Numba: pip install 'runnel[compiled]'; or use auto")


def check_compiled(experiment: Experiment) -> Experiment:
    """Refuse kernels that were asked for (`compiled` on) and that do not serve what this run learns with, before anything is
    made; a device that is not here says so later."""
    c, accelerator = experiment.config, experiment.accelerator
    here = torch.device(c.device).type == "cpu" or torch.cuda.is_available()
    if accelerator.mode == "on" and here:
        made = accelerator.learner(experiment.leader.learner(_Ranks(c.placement.trainers)))
        if not made.on:
            why = made.text.partition("because ")[2] or f"no kernels are for {type(made.learner).__name__}"
            refuse_unused(c, {"compiled": f"{why} (docs/evidence/speed.md)"})
    return experiment


class _Ranks(SingleProcess):
    """The first of `world_size` ranks, for a learner that is only looked at."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
