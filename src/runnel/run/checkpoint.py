"""Checkpoints: the whole run as plain data, written atomically, verified when read.

A checkpoint is a folder: one JSON file and one safetensors file per part (a worker, a stream, a channel), `params.safetensors`
(what acting needs), and `manifest.json`, written last, with the SHA-256 of every file. No pickle anywhere.

A piece of a state that never changes again (`core/frozen.py`) has a file of its own; where an earlier checkpoint has it
already, the new one links to it. Tensors go to disk from where they lie, so a large replay memory is not copied to be saved.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import CheckpointError, DiskFullError
from runnel.core.frozen import Frozen
from runnel.core.protocols import ParamSet, State

MANIFEST = "manifest.json"
FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK, PIECE = 1 << 20, 1 << 26
"""Bytes that are read at once, and in one piece of a large file."""


# -------------------------------------------------------------------------------------------------------------- codec
def encode(value: Any, tensors: dict[str, Tensor], frozen: dict[str, Frozen] | None = None) -> Any:
    """JSON-ready data; tensors and arrays go to `tensors`, frozen pieces to `frozen`, and leave a name behind.

    >>> t = {}
    >>> encode({"a": torch.ones(1), 3: [1, None]}, t)
    {'$items': [['a', {'$tensor': 't0'}], [3, [1, None]]]}
    """
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous()
        return {"$tensor": name}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        name = f"t{len(tensors)}"
        tensors[name] = torch.from_numpy(value.copy(order="C"))
        return {"$array": name}
    if isinstance(value, Frozen) and frozen is not None:
        frozen[value.name] = value
        return {"$frozen": value.name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: encode(v, tensors, frozen) for k, v in value.items()}
        return {"$items": [[k, encode(v, tensors, frozen)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [encode(v, tensors, frozen) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"a checkpoint holds data only; {type(value).__name__} is not (snapshot plain values instead)")


def decode(value: Any, tensors: Mapping[str, Tensor], frozen: Callable[[str], Frozen] | None = None) -> Any:
    """Undo `encode` (tuples come back as lists)."""
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        if "$array" in value:
            return tensors[value["$array"]].numpy()
        if "$frozen" in value and frozen is not None:
            return frozen(value["$frozen"])
        if "$items" in value:
            return {k: decode(v, tensors, frozen) for k, v in value["$items"]}
        return {k: decode(v, tensors, frozen) for k, v in value.items()}
    if isinstance(value, list):
        return [decode(v, tensors, frozen) for v in value]
    return value


# ------------------------------------------------------------------------------------------------------------ writing
def write_parts(folder: Path, parts: Mapping[str, State]) -> dict[str, str]:
    """Write `parts` into `folder`; returns the SHA-256 of each file."""
    files: dict[str, str] = {}
    with told_if_full(folder.parent):
        for part, state in parts.items():
            files |= _write_part(folder, part, state)
    return files


def _write_part(folder: Path, part: str, state: State) -> dict[str, str]:
    files: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    frozen: dict[str, Frozen] = {}
    if part == "params":
        tensors = {k: v.detach().cpu().contiguous() for k, v in state.items()}
    else:
        text = json.dumps(encode(state, tensors, frozen)).encode()
        files[f"{part}.json"] = _write(folder / f"{part}.json", text)
    if tensors:
        files[f"{part}.safetensors"] = _write_tensors(folder / f"{part}.safetensors", tensors)
    for name, piece in frozen.items():
        path = folder / _piece_name(part, name)
        files[path.name] = _link(path) or _write_tensors(path, dict(piece.read()))
    return files


@contextmanager
def told_if_full(folder: Path, what: str = "no checkpoint was written") -> Iterator[None]:
    """A `DiskFullError` where writing into `folder` fails because there is no room."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number not in FULL and not any(f"os error {n}" in str(error) for n in FULL):
            raise
        free = shutil.disk_usage(folder).free / 2**30
        fix = "free some, lower --checkpoint.keep, or use --checkpoint.every never"
        raise DiskFullError(f"{what}: {folder} is full ({free:.1f} GiB are left); {fix}") from error


def _piece_name(part: str, name: str) -> str:
    return f"{part}.{name}.safetensors"


def _link(path: Path) -> str | None:
    """Make `path` another name of the file that the newest checkpoint beside it has under that name; its SHA-256, or None."""
    for other in reversed(Checkpoints(path.parent.parent).finished()):
        digest: str | None = json.loads((other / MANIFEST).read_bytes())["files"].get(path.name)
        if digest is not None:
            try:
                os.link(other / path.name, path)
            except OSError:  # no such file any more, or a file system without links
                return None
            return digest
    return None


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """One safetensors file, written from where the tensors lie; returns its SHA-256."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    save_file(own, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return digest_of(path)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file; of a large one that of its pieces' digests, which are computed side by side."""
    size = path.stat().st_size
    if size <= PIECE:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pieces = list(pool.map(lambda start: _digest_piece(path, start), range(0, size, PIECE)))
    return "pieces-" + hashlib.sha256(b"".join(pieces)).hexdigest()


def _digest_piece(path: Path, start: int) -> bytes:
    found = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        for _ in range(PIECE // BLOCK):
            found.update(file.read(BLOCK))
    return found.digest()


def _write(path: Path, data: bytes) -> str:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's content, which the manifest carries itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def fell_back(path: Path, problem: str) -> str:
    """What is said where a newer checkpoint than `path` cannot be used."""
    return f"fell back to checkpoint {path.name}: {problem}"


class Checkpoints:
    """The checkpoints of one run folder: `checkpoints/<version>`, newest last."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder, self.keep = folder, keep

    def begin(self, version: int) -> Path:
        """A folder to write parts into; nobody reads it before `finish`."""
        path = self.folder / f".writing-{version:09d}"
        for dead in self.folder.glob(".writing-*"):
            shutil.rmtree(dead)
        path.mkdir(parents=True)
        return path

    def finish(self, path: Path, manifest: dict[str, Any]) -> Path:
        """Make the folder a checkpoint: manifest last, then one rename; older ones beyond `keep` go.

        A second checkpoint of one version gets a number behind it, and the first goes only when the second is there. A later
        version than this one is damaged (the run fell back behind it): it goes too.
        """
        with told_if_full(path.parent):
            _write(path / MANIFEST, json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1).encode())
        target = self.folder / f"{manifest['version']:09d}"
        number = 0
        while target.exists():
            number += 1
            target = target.with_name(f"{manifest['version']:09d}-{number}")
        path.rename(target)
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        kept = [p for p in self.finished() if p.name <= target.name][-self.keep :]
        for other in self.finished():
            if other not in kept:
                shutil.rmtree(other)
        return target

    def finished(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob("[0-9]*") if (p / MANIFEST).exists()) if self.folder.exists() else []

    def newest(self, parts: Collection[str] | None = None) -> tuple[Path, dict[str, Any], list[str]]:
        """The newest checkpoint of the whole run that verifies (or of which `parts` do), its manifest, and what was wrong with
        newer ones. Whoever asks, the user is warned of falling back."""
        problems: list[str] = []
        for path in reversed(self.finished()):
            try:
                manifest = verify(path, parts)
            except CheckpointError as error:
                if path.is_dir():  # else the run, which goes on meanwhile, has removed it
                    problems.append(str(error))
                continue
            if parts is not None or manifest.get("whole", True):
                for problem in problems:
                    warnings.warn(fell_back(path, problem), stacklevel=3)
                return path, manifest, problems
            problems.append(f"checkpoint {path} holds parameters alone; start a new run from them with init_from")
        detail = "; ".join(problems) or "the run ended before its first checkpoint"
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {detail}")

    def newest_params(self, told: list[str] | None = None) -> ParamSet:
        """The parameters of the newest good checkpoint; a run that goes on meanwhile may remove it while it is read. Falling
        back is warned of, and added to `told`."""
        while True:
            listed = self.finished()
            try:
                path, manifest, problems = self.newest(("params",))
                found = ParamSet(manifest["version"], read_params(path))
                if told is not None:
                    told += [fell_back(path, problem) for problem in problems]
                return found
            except (CheckpointError, FileNotFoundError):
                if self.finished() == listed:
                    raise


# ------------------------------------------------------------------------------------------------------------ reading
def verify(path: Path, parts: Collection[str] | None = None) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file (or those of `parts`) is as it was written; else a `CheckpointError`."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_bytes())
        files, digest = dict(manifest["files"]), manifest.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} has no readable manifest ({error})") from error
    if digest != _digest(manifest):
        raise CheckpointError(f"checkpoint {path} is damaged: its manifest is not what was written")
    for name, digest in files.items():
        if parts is not None and name.partition(".")[0] not in parts:
            continue
        try:
            found = digest_of(path / name)
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} lacks {name}") from error
        if found != digest:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not what was written")
    return manifest


def read_part(path: Path, part: str) -> State:
    """One part of a checkpoint (verify the checkpoint first)."""
    from safetensors.torch import load_file

    def piece(name: str) -> Frozen:
        return Frozen(name, lambda: load_file(path / _piece_name(part, name)))

    tensors = load_file(path / f"{part}.safetensors") if (path / f"{part}.safetensors").exists() else {}
    state: State = decode(json.loads((path / f"{part}.json").read_bytes()), tensors, piece)
    return state


def read_parts(path: Path) -> dict[str, State]:
    """All parts but `params`. What the manifest does not name is of a worker that was lost while it wrote."""
    manifest = path / MANIFEST
    files = json.loads(manifest.read_bytes())["files"] if manifest.exists() else [p.name for p in path.glob("*.json")]
    names = [name.removesuffix(".json") for name in files if name.endswith(".json")]
    return {name: read_part(path, name) for name in names}


def read_params(path: Path) -> dict[str, Tensor]:
    """The published parameters of a checkpoint."""
    from safetensors.torch import load_file

    return dict(load_file(path / "params.safetensors"))
