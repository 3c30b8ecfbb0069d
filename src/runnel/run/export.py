"""`runnel export` of a policy: a program of `torch.export` or an ONNX model, with policy.json, which says how to call it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.spaces import ArraySpec
from runnel.nets.exported import PolicyGraph
from runnel.nets.policy import EnvPolicy
from runnel.track.folder import package_versions

FILES = {"torch": "policy.pt2", "onnx": "policy.onnx"}
CALLS = {
    "torch": "torch.export.load('policy.pt2').module()(*inputs), tensors in the order of inputs, the batch in front",
    "onnx": "onnxruntime.InferenceSession('policy.onnx').run(None, {name: array}), arrays by name, the batch in front",
}
EXPORTS = (*FILES, "hf")
TOLERANCE = 1e-5
BATCHES = (1, 5)
"""Sizes of the batches on which a written file is compared with the policy."""
LIBRARIES = ("runnel", "torch", "onnx", "onnxruntime", "onnxscript", "numpy")


def export_policy(policy: EnvPolicy, folder: Path, *, format: str, about: Mapping[str, object]) -> Path:
    """Write `policy` into `folder` in one of the formats of `FILES`, and compare the file with the policy.

    `about` (run, recipe, environment, version) goes into policy.json. Returns the folder.
    """
    graph = PolicyGraph(cast(nn.Module, policy.net), policy.env_spec).eval().requires_grad_(False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = f"no folder can be made there ({error.strerror}); give a place that you may write to"
        raise ConfigError("folder", str(folder), fix) from error
    program = _program(graph)
    path = folder / FILES[format]
    run = _write_torch(program, path) if format == "torch" else _write_onnx(graph, program, path)
    _compare(graph, run, path)
    _describe(graph, folder, format, about)
    return folder


def check_model_folder(folder: Path) -> None:
    """Refuse an existing folder that holds anything but a model: its files would be replaced."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "config.json").is_file())):
        raise ConfigError("folder", str(folder), "is there already and is no model folder; give a new one")


def _program(graph: PolicyGraph) -> torch.export.ExportedProgram:
    """The graph for batches of any size."""
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    shapes = (tuple({0: batch} for _ in graph.inputs),)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(graph, graph.example(), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # a user's own network may do anything that cannot be traced
        why = f"its network cannot be taken as one graph: {_first_line(error)}"
        fix = "a network must be torch operations on tensors alone (no numpy, no `if` on values)"
        raise ConfigError("run", type(graph.net).__name__, f"{why}; {fix}") from error


Runner = Callable[[Sequence[Tensor]], Sequence[object]]


def _write_torch(program: torch.export.ExportedProgram, path: Path) -> Runner:
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()
    return lambda inputs: loaded(*inputs)


def _write_onnx(graph: PolicyGraph, program: torch.export.ExportedProgram, path: Path) -> Runner:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (what torch writes ONNX with)
    except ImportError as error:
        raise ConfigError("format", "onnx", f"cannot import it ({error}); pip install 'runnel[onnx]'") from error
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _silent("torch.onnx._internal.exporter"):
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program, (), input_names=list(graph.inputs), output_names=graph.outputs, dynamo=True, verbose=False
            )
            assert made is not None, "the dynamo exporter gives a program"
            made.save(str(path), external_data=False)
    except Exception as error:
        fix = f"torch cannot write this network as ONNX: {_first_line(error)}; use torch"
        raise ConfigError("format", "onnx", fix) from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, {name: x.numpy() for name, x in zip(graph.inputs, inputs, strict=True)})


def _compare(graph: PolicyGraph, run: Runner, path: Path) -> None:
    """Delete the file and raise if its actions are not those of the policy."""
    for seed, num in enumerate(BATCHES):
        inputs = graph.example(num, seed=seed)
        with torch.no_grad():
            wanted = graph(*inputs)
        for name, want, got in zip(graph.outputs, wanted, run(inputs), strict=True):
            if not np.allclose(np.asarray(got), want.numpy(), atol=TOLERANCE, rtol=TOLERANCE):
                path.unlink()
                fix = f"the written file gives another {name!r} than the policy; use another format"
                raise ConfigError("format", path.name, fix)


def _describe(graph: PolicyGraph, folder: Path, format: str, about: Mapping[str, object]) -> None:
    """Write policy.json. A file of another format is named there too if it is of the same run and version."""
    path = folder / "policy.json"
    files: dict[str, str] = {}
    if path.is_file():
        with contextlib.suppress(ValueError, AttributeError):
            before = json.loads(path.read_text())
            files = before.get("files", {}) if all(before.get(k) == v for k, v in about.items()) else {}
    files = {kind: files[kind] for kind in FILES if kind in files} | {format: FILES[format]}
    spec = graph.env_spec
    state = {name: f"next_{name}" for name in graph.state_spec}
    data = {
        **about,
        "files": files,
        "call": {kind: CALLS[kind] for kind in files},
        "inputs": {name: _array(x) for name, x in graph.inputs.items()},
        "outputs": list(graph.outputs),
        "state": state,
        "state_says": "zeros at the start of an episode; then what came out" if state else "none: each call stands alone",
        "action": {k: v for k, v in asdict(spec.action).items() if k not in ("parts", "leaves")},
        "action_parts": [asdict(leaf) for leaf in spec.action.leaves],
        "says": "the greedy policy; normalisation, bounds and starts of the action are in the graph",
        "libraries": package_versions(LIBRARIES),
    }
    path.write_text(json.dumps(data, indent=2) + "\n")


def _array(spec: ArraySpec) -> dict[str, object]:
    return {"shape": ["batch", *spec.shape], "dtype": str(spec.dtype).removeprefix("torch.")}


@contextlib.contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Hide a library's warnings in the block: the person who exports can do nothing about them."""
    found = [logging.getLogger(name) for name in (logger, f"{logger}._registration")]
    before = [log.level for log in found]
    for log in found:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(found, before, strict=True):
            log.setLevel(level)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
