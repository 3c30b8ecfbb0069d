"""What outlives a run that is made in pieces: the parameters of the stages that it claimed, and all that it needs to go on as
one file, for a machine that begins anew with every piece."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.stages import Claim, curve

from runnel.run.checkpoint import MANIFEST, Checkpoints, read_params, write_parts
from runnel.track.folder import RunFolder

Row = dict[str, Any]
KEPT = "stages"
"""The folder of a run in which its stages are: each a run of its own, with nothing but parameters."""


class Keeper:
    """Reads the curve of a run while it goes on, and keeps the parameters of each version at which a stage is at its best.

    `claims` says which stages a curve has reached. A window of the curve ends at a checkpoint (`every` updates), so what is
    kept is what the window has led to. What was seen before a cut is read from the run's own rows.
    """

    def __init__(self, folder: Path, every: int, claims: Callable[[Sequence[Row]], dict[str, Claim]]) -> None:
        self._folder, self._every, self._claims = folder, every, claims
        read = RunFolder(folder).read_rows()[0] if folder.is_dir() else []
        self._rows = {row["version"]: row for row in read if row["kind"] == "update"}

    def update(self, row: Row) -> None:
        """An update was made. One that is made again after a cut takes the place of the first."""
        self._rows[row["version"]] = {key: row[key] for key in ("version", "steps", "metrics")}

    def checkpoint(self, row: Row) -> None:
        """A checkpoint was written: keep its parameters for the stages that are at their best in the window that it ends."""
        version = row["version"]
        rows = [self._rows[v] for v in sorted(self._rows) if v <= version]
        for stage, claim in self._claims(curve(rows, self._every)).items():
            if claim.best["version"] == version:
                keep(self._folder, Path(row["path"]), self._folder / KEPT / stage)


def keep(run: Path, checkpoint: Path, into: Path) -> None:
    """The parameters of a checkpoint as a run of its own, in place of what was there. It plays, is judged and is recorded like
    any run; it cannot go on."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name in ("config.json", "run.json"):
        shutil.copy(run / name, into / name)
    kept, manifest = Checkpoints(into / "checkpoints"), json.loads((checkpoint / MANIFEST).read_bytes())
    path = kept.begin(manifest["version"])
    files = write_parts(path, {"params": dict(read_params(checkpoint))})
    kept.finish(path, {"version": manifest["version"], "steps": manifest["steps"], "whole": False, "files": files})


def kept_version(stage: Path) -> int:
    """The version of the run that a stage is."""
    return int(Checkpoints(stage / "checkpoints").finished()[-1].name.partition("-")[0])


def checkpoint_bytes(run: Path) -> int:
    """The size of a run's newest checkpoint."""
    found = Checkpoints(run / "checkpoints").finished()
    return sum(path.stat().st_size for path in found[-1].iterdir()) if found else 0


def pack(run: Path, store: Path) -> Path:
    """Write what a run needs to go on into one file in `store`: its rows, its newest checkpoint, its stages."""
    store.mkdir(parents=True, exist_ok=True)
    older = {path.name for path in Checkpoints(run / "checkpoints").finished()[:-1]}
    target, part = store / f"{run.name}.tar.gz", store / f".{run.name}.part"

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(entry.name).parts
        return None if parts[1:2] == ("checkpoints",) and parts[2:3] and parts[2] in older else entry

    with tarfile.open(part, "w:gz", compresslevel=6) as tar:
        tar.add(run, arcname=run.name, filter=wanted)
    part.replace(target)
    return target


def unpack(run: Path, store: Path) -> bool:
    """Bring a run back that is not here, if `store` has it."""
    packed = store / f"{run.name}.tar.gz"
    if run.is_dir() or not packed.is_file():
        return False
    run.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed) as tar:
        tar.extractall(run.parent, filter="data")
    return True
