"""A golden run: played, described as data, and held against what it gave when it was last looked at.

Per update it has a digest of the published parameters, the row of metrics in full, and two numbers of how far parameters have
moved. On a machine of the kind that recorded them (`golden_machine.py`) all of it must be equal, bit for bit; elsewhere numbers
are compared to a relative 1e-3, and counts and sample ids exactly.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_cases import EVERY, Case, merged
from golden_machine import machine, unlike
from threadpoolctl import threadpool_limits
from torch import Tensor

import runnel as rl
from runnel.core.config import override
from runnel.core.weight_check import PREFIX
from runnel.flow.params import LocalChannel
from runnel.graphs.experiment import PARAMS
from runnel.kernels.lm.numba.loops import without_loops
from runnel.run.pipeline import PIPELINES, load_pipeline

FILE = Path(__file__).with_name("golden_runs.json")
Data = dict[str, Any]
REL = 1e-3
SHOWN = 12
NOISE = ("mismatch/", "approx_kl", "kl", "loss/policy", "explained_variance")
"""Differences of nearly equal numbers: their relative error says nothing."""


# ----------------------------------------------------------------------------------------------------------------- the file
@cache
def read() -> tuple[dict[str, str], dict[str, Data]]:
    """The machine that recorded, and its runs by name of the case."""
    found = json.loads(FILE.read_text())
    return found["machine"], found["cases"]


def write(runs: Mapping[str, Data]) -> None:
    """Replace the file: an update a line, so that a change shows which."""
    text = json.dumps({"machine": machine()}, indent=1)[:-2] + ',\n "cases": {'
    for i, (name, stages) in enumerate(runs.items()):
        text += ("," if i else "") + f"\n  {json.dumps(name)}: {{"
        for j, (stage, run) in enumerate(stages.items()):
            text += ("," if j else "") + f"\n   {json.dumps(stage)}: {{"
            parts = [f"\n    {json.dumps(key)}: {json.dumps(value)}" for key, value in run.items() if key != "updates"]
            rows = ",".join(f"\n     {json.dumps(row)}" for row in run["updates"])
            text += ",".join([*parts, f'\n    "updates": [{rows}]'] if rows else parts) + "}"
        text += "}"
    FILE.write_text(text + "}}\n")


# ------------------------------------------------------------------------------------------------------------------ the run
def play(case: Case, out: Path) -> Data:
    """The runs of a case (one; several of a pipeline) by name: layout and start of the parameters, updates, evaluation, end."""
    seen: list[list[Data]] = []
    with _published(seen), threadpool_limits(1), nullcontext() if case.loops else without_loops():
        if case.recipe in PIPELINES:
            runs = _play_stages(case, out)
        else:
            runs = {"run": rl.train(case.recipe, out=str(out), **merged(EVERY, case.settings))}
    assert len(seen) == len(runs)
    return {name: _described(run, params) for (name, run), params in zip(runs.items(), seen, strict=True)}


def _play_stages(case: Case, out: Path) -> dict[str, rl.Run]:
    pipeline = load_pipeline(case.recipe)
    stages = pipeline.stages(override(pipeline.Config(), {"seed": EVERY["seed"], **case.settings}))
    plain = {name: EVERY[name] for name in ("track", "placement")}
    alike = [replace(stage, settings=merged(stage.settings, plain)) for stage in stages]
    return dict(zip([stage.name for stage in stages], rl.run_pipeline(alike, out=out), strict=True))


@contextmanager
def _published(seen: list[list[Data]]) -> Iterator[None]:
    """Describe what goes over the parameter channels: one list a run, one entry a version of the policy."""
    publish = LocalChannel.publish
    start, frozen = dict[str, Tensor](), list[str]()

    def watched(self: LocalChannel, version: int, params: Mapping[str, Tensor]) -> None:
        publish(self, version, params)
        if self.name != PARAMS:  # a reference that belongs to the next version of the policy
            frozen.append(_digest(params))
            return
        if version == 0:
            seen.append([])
            start.clear()
            start.update({k: x.detach().clone() for k, x in params.items()})
        bits = " ".join([_digest(params), *frozen])
        frozen.clear()
        seen[-1].append({"params": bits, "moved": _moved(params, start), "layout": _layout(params)})

    LocalChannel.publish = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalChannel.publish = publish  # type: ignore[method-assign]


def _digest(params: Mapping[str, Tensor]) -> str:
    """Of all values as bytes, in the order in which they were published."""
    found = hashlib.blake2b(digest_size=8)
    for value in params.values():
        found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _layout(params: Mapping[str, Tensor]) -> str:
    """How many tensors there are, of how many numbers, and a digest of their names and shapes."""
    shapes = [(name, str(x.dtype), tuple(x.shape)) for name, x in params.items()]
    digest = hashlib.blake2b(repr(shapes).encode(), digest_size=4).hexdigest()
    return f"{len(shapes)} tensors, {sum(x.numel() for x in params.values())} numbers, {digest}"


def _moved(params: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> list[float]:
    """How far parameters are from where they began: the sum of distances, and a fixed random projection of them (as a share of
    its likely size). A distance counts for at most 1, so that a counter beside the weights does not hide them."""
    names = [k for k, x in params.items() if x.is_floating_point() and not k.startswith(PREFIX)]
    gap = torch.cat([(params[k].detach().double() - start[k].double()).reshape(-1) for k in names]).numpy()
    gap = gap / (1.0 + np.abs(gap))
    size = float(np.sqrt(np.square(gap).sum()))
    along = float((np.random.default_rng(0).standard_normal(len(gap)) * gap).sum())
    return [float(f"{x:.9g}") for x in (np.abs(gap).sum(), along / size if size else 0.0)]


def _described(run: rl.Run, params: list[Data]) -> Data:
    """The run as data, without what wall time touches."""
    rows = [_without_time(row) for row in run.rows()]
    versions = {i: dict(found) for i, found in enumerate(params)}
    layout = {found.pop("layout") for found in versions.values()}
    assert len(layout) == 1, "the layout of published parameters changed on the way"
    return {
        "layout": layout.pop(),
        "start": versions[0]["params"],
        "updates": [{**row, **versions[row["version"]]} for row in rows],
        "eval": [_without_time(row) for row in run.rows("eval")],
        "end": [_without_time(row) for row in run.rows("end")],
        "files": {p.name: _file_digest(p) for p in _texts(run.path)},
    }


def _without_time(row: Data) -> Data:
    return {k: v for k, v in row.items() if k not in ("kind", "time")}


def _texts(folder: Path) -> list[Path]:
    """What a run has written of the texts that it made."""
    paths = [folder / "samples.jsonl", folder / "pairs.jsonl", folder.parent / "pairs.jsonl"]
    return [path for path in paths if path.exists() and path.stat().st_size]


def _file_digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


# ----------------------------------------------------------------------------------------------------------- the comparison
def differences(new: Data, old: Data, *, exact: bool) -> list[str]:
    """Every field in which two recordings of a case differ, in words."""
    ours, theirs = flat(new), flat(old)
    if not exact:
        ours, theirs = ({k: v for k, v in x.items() if _anywhere(k)} for x in (ours, theirs))
    found = [f"{k} is new" for k in ours if k not in theirs] + [f"{k} is gone" for k in theirs if k not in ours]
    for key, value in theirs.items():
        if key in ours and not _equal(key, ours[key], value, exact=exact):
            found.append(f"{key} was {value!r}, is {ours[key]!r}")
    return found


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every number and text in nested data, by its path."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = [("num", len(value)), *enumerate(value)]
    else:
        return {path: value}
    return {k: v for name, inner in items for k, v in flat(inner, f"{path}.{name}" if path else str(name)).items()}


def distance(new: Any, old: Any) -> float:
    """The relative difference of two numbers; 0 for equal values, infinity for texts and what is not finite."""
    if new == old or (new != new and old != old):
        return 0.0
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in (new, old)):
        return math.inf
    return float(abs(new - old) / max(abs(new), abs(old)))


def is_noise(key: str) -> bool:
    """Whether the relative error of the number at `key` says nothing."""
    return key.partition("metrics.")[2].startswith(NOISE) or key.endswith("moved.1")


def _equal(key: str, new: Any, old: Any, *, exact: bool) -> bool:
    if exact or not isinstance(old, float):
        return distance(new, old) == 0.0
    if not math.isfinite(old) or not isinstance(new, int | float):
        return distance(new, old) == 0.0
    # a projection counts in its likely size, which is 1: near 0 it is a difference of large parts
    small = REL if key.endswith("moved.1") else 1e-4 if is_noise(key) else 1e-6
    return abs(new - old) <= max(REL * abs(old), small)


def _anywhere(key: str) -> bool:
    """Whether a field is the same on every machine, to rounding. Digests are not. Nor are evaluations: where a policy is almost
    undecided, one bit changes what it does."""
    return ".updates." in key and not key.endswith(".params")


def _in_another_process(name: str, out: Path) -> Data:
    """The runs of a case, played by a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, __file__, name, str(out)], env=env, capture_output=True, text=True, check=True)
    played: Data = json.loads(done.stdout.splitlines()[-1])
    return played


def check(name: str, case: Case, out: Path) -> None:
    """Play a case and hold it against its recording; every bit where the machine is of the kind that recorded."""
    recorded, runs = read()
    other = unlike(machine(), recorded)
    if other:
        told = "; ".join(f"{field} was {was!r}, is {now!r}" for field, (was, now) in other.items())
        warnings.warn(f"golden runs are compared loosely, since they were recorded on another machine: {told}", stacklevel=2)
    found = differences(play(case, out / "first"), runs[name], exact=not other)
    if found and case.loops and not other:
        # A process that has just compiled a loop may run another copy of its machine code than one that loads it from Numba's
        # cache, and differ in the last bit. By now the cache is there.
        found = differences(_in_another_process(name, out / "again"), runs[name], exact=True)
    how = "to a relative 1e-3" if other else "bit for bit, since this machine is of the kind that recorded"
    shown = "\n  ".join(found[:SHOWN] + ([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []))
    fix = f"if that is meant: python tests/golden/record.py --only '{name}', and look at what it prints"
    assert not found, f"golden run {name!r} differs ({how}):\n  {shown}\n{fix}"


if __name__ == "__main__":
    from golden_cases import CLASSICAL
    from golden_token_cases import TOKENS

    print(json.dumps(play({**CLASSICAL, **TOKENS}[sys.argv[1]], Path(sys.argv[2]))))
