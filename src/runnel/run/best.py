"""The parameters with the best evaluation, kept beside the newest checkpoints: `best/<version>` in the run's folder.

The evaluator writes them like a checkpoint (`checkpoint.py`: atomically, with the SHA-256 of its file). The folder is the only
state: the best version is the one with the highest mean, and of equal ones the newest. A run that goes back to an older
checkpoint goes back to the best version of that time, so a version stays while a kept checkpoint may need it.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import CheckpointError, DiskError
from runnel.run.checkpoint import MANIFEST, Checkpoints, read_params, verify, write_parts


@dataclass(frozen=True)
class Kept:
    """Kept parameters: their folder, their version, and the mean of its evaluation."""

    path: Path
    version: int
    mean: float

    def __str__(self) -> str:
        return f"version {self.version}, evaluation mean {self.mean:.4g}"


class BestParams:
    """The kept parameters in `folder`, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = Checkpoints(folder, keep=sys.maxsize)

    def offer(self, version: int, returns: Sequence[float], params: Mapping[str, Tensor]) -> str:
        """Keep the parameters of an evaluated version if none was better. Returns a warning if they could not be written."""
        mean, best = sum(returns) / max(len(returns), 1), self.best()
        if not returns or not math.isfinite(mean) or (best is not None and (mean, version) <= (best.mean, best.version)):
            return ""
        try:
            path = self._files.begin(version)
            files = write_parts(path, {"params": dict(params)})
            self._files.finish(path, {"version": version, "mean": mean, "whole": False, "files": files})
        except DiskError as error:
            self._files.drop()
            return f"version {version} did best, and is not kept: {error}"
        return ""

    def kept(self) -> list[Kept]:
        """All kept parameters, as their manifests say. One with an unreadable manifest is left out."""
        found = []
        for path in self._files.finished():
            try:
                manifest = json.loads((path / MANIFEST).read_bytes())
                found.append(Kept(path, int(manifest["version"]), float(manifest["mean"])))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def best(self, until: float = math.inf) -> Kept | None:
        """The best of the versions up to `until`; of equal ones the newest."""
        return max((k for k in self.kept() if k.version <= until), key=lambda k: (k.mean, k.version), default=None)

    def load(self) -> tuple[ParamSet, Kept]:
        """The best parameters, verified. Raises a `CheckpointError` if there are none, or if they are damaged."""
        best = self.best()
        if best is None:
            raise CheckpointError(
                f"no best parameters in {self.folder}: the run was not evaluated yet, has checkpoint.best off, or is of an "
                "earlier version of runnel; load the newest instead"
            )
        verify(best.path)
        return ParamSet(best.version, read_params(best.path)), best

    def cut(self, version: int) -> None:
        """Delete versions newer than `version`, because the run has gone back to it."""
        for one in self.kept():
            if one.version > version:
                shutil.rmtree(one.path)

    def prune(self, versions: Iterable[int]) -> None:
        """Delete versions that are not the best now, and were not the best at any of `versions`, to which a run may go back."""
        needed = {best.path for until in (*versions, math.inf) if (best := self.best(until)) is not None}
        for one in self.kept():
            if one.path not in needed:
                shutil.rmtree(one.path)
