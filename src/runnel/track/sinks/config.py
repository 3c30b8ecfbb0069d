"""The names under which a run appears in a tracker that keeps many runs: W&B, MLflow, trackio."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from runnel.core.config import override
from runnel.core.resolve import is_reference
from runnel.core.resuming import OnResume, may_change
from runnel.track.folder import Settings

PROJECT = "runnel"
WANDB = ("wandb", "wandb-offline")
NAMED = (*WANDB, "mlflow", "trackio")


@dataclass(frozen=True)
class SinksConfig:
    """The names of a run in the sinks of `track` that keep many runs."""

    on_resume: ClassVar[OnResume] = may_change(
        *("project", "entity", "group", "name"), then="a place where the run has not been before gets all of it"
    )

    project: str = ""
    """The project in W&B and trackio, the experiment in MLflow. Default: what WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME says,
    else runnel."""
    entity: str = ""
    """The user or team in W&B; default: W&B's own."""
    group: str = ""
    """The group in W&B, whose runs it shows together."""
    name: str = ""
    """The run's name there; default: that of its folder."""

    def project_of(self, variable: str = "") -> str:
        """The project, or what the environment's `variable` says."""
        return self.project or (variable and os.environ.get(variable, "")) or PROJECT

    def name_of(self, folder: Path) -> str:
        """The name of the run in `folder`."""
        return self.name or folder.resolve().name


def names_in(config: Settings) -> SinksConfig:
    """The names that a run's config gives."""
    return override(SinksConfig(), config.get("sinks") or {})


def unused_names(track: Collection[str]) -> dict[str, str]:
    """The names that no sink of `track` reads, and why. A sink of the user's own may read any."""
    if any(is_reference(name) for name in track):
        return {}
    found: dict[str, str] = {}
    if not {*track} & {*NAMED}:
        found |= dict.fromkeys(("sinks.project", "sinks.name"), f"is for --track {', '.join(NAMED)}; name one of them")
    if not {*track} & {*WANDB}:
        found |= dict.fromkeys(("sinks.entity", "sinks.group"), f"is for --track {' or '.join(WANDB)}; name one of them")
    return found
