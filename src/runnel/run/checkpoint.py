"""Checkpoints: the whole run as plain data, written atomically, verified when read.

A checkpoint is a folder: one JSON file and one safetensors file per part (a worker, a stream, a channel), `params.safetensors`
(what acting needs), and `manifest.json`, written last, with the SHA-256 of every file. No pickle anywhere.

A piece of a state that never changes again (`core/state.py`) has a file of its own; where an earlier checkpoint has it
already, the new one links to it. The two newest checkpoints never share a file, so that no single damaged one takes both: of
each piece there are two copies, and a checkpoint links to that of the one before the last. Before it links to a file it reads
it; a damaged one is written again from memory, in the place of all that link to it. Tensors go to disk from where they lie, so
a large replay memory is not copied to be saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from runnel.core.codec import decode, encode
from runnel.core.contracts.params import ParamSet
from runnel.core.disk import told_if_refused
from runnel.core.errors import CheckpointError
from runnel.core.state import SealedChunk, State
from runnel.core.worker import progressed
from runnel.track.folder import read_rows

MANIFEST = "manifest.json"
Manifest = dict[str, Any]
"""The content of a checkpoint's manifest.json: version, steps, tokens, epoch, digests of the files."""
ROOM = "free some, lower --checkpoint.keep, or use --checkpoint.every never"
BLOCK, PIECE = 1 << 20, 1 << 26
"""Bytes that are read at once, and in one piece of a large file."""
LOOKED_AT = 1 << 30
"""Bytes of files to link to that one checkpoint reads, at most: those first that nobody has read for longest. A larger replay
memory is read in turns, because reading all of it can take longer than the updates between two checkpoints."""


# ------------------------------------------------------------------------------------------------------------ writing
def write_parts(folder: Path, parts: Mapping[str, State], *, copies: int = 1, told: list[str] | None = None) -> dict[str, str]:
    """Write `parts` into `folder`; returns the SHA-256 of each file. Of sealed pieces so many `copies` (1 or 2) lie in this and
    earlier checkpoints; what was found damaged of those is added to `told`."""
    files: dict[str, str] = {}
    with writing(folder.parent):
        for part, state in parts.items():
            files |= _write_part(folder, part, state, copies, [] if told is None else told)
    return files


def _write_part(folder: Path, part: str, state: State, copies: int, told: list[str]) -> dict[str, str]:
    files: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    sealed: dict[str, SealedChunk] = {}
    if part == "params" or part.startswith("params-"):  # plain files, which other programs can read
        tensors = {k: v.detach().cpu().contiguous() for k, v in state.items()}
    else:
        text = json.dumps(encode(state, tensors, sealed)).encode()
        files[f"{part}.json"] = _write(folder / f"{part}.json", text)
    if tensors:
        files[f"{part}.safetensors"] = _write_tensors(folder / f"{part}.safetensors", tensors)
    progressed()
    pieces = {piece_name(part, name): piece for name, piece in sealed.items()}
    return files | (_Pieces(folder, pieces, copies, told).save() if pieces else {})


def writing(folder: Path) -> AbstractContextManager[None]:
    """While a checkpoint is written into `folder`: a `DiskError` where the disk takes nothing more."""
    return told_if_refused(folder, what="no checkpoint was written", fix=ROOM)


def piece_name(part: str, name: str) -> str:
    """The file of a sealed piece."""
    return f"{part}.{name}.safetensors"


class _Pieces:
    """Sealed chunks on their way into the checkpoint `folder`, by file name, and the files of them that there are."""

    def __init__(self, folder: Path, pieces: Mapping[str, SealedChunk], copies: int, told: list[str]) -> None:
        self._folder, self._pieces, self._told = folder, pieces, told
        others = [(p, _files_of(p)) for p in reversed(Checkpoints(folder.parent).finished())]
        self._sources = {name: _copies_of(name, others)[copies - 1 :] for name in pieces}
        """By piece: copies to link to, each as its digest and its files. The newest checkpoint's copy is not one of them if
        there are to be two."""
        self._damaged = self._look()

    def save(self) -> dict[str, str]:
        """Link to sound files, write the rest, mend damaged ones. Returns digests."""
        found = {}
        for name, piece in self._pieces.items():
            found[name] = self._link(name) or _write_tensors(self._folder / name, dict(piece.read()))
            for digest, files in self._sources[name]:
                if files[0] in self._damaged:
                    self._mend(name, files, same=digest == found[name])
        return found

    def _look(self) -> set[Path]:
        """Read files that are to be linked to, and return those that are not what was written."""
        due = sorted((_looked_at(files[0]), files[0], digest) for all in self._sources.values() for digest, files in all)
        left, now = LOOKED_AT, list[tuple[Path, str]]()
        for _, path, digest in due:
            left -= path.stat().st_size
            if left < 0 and now:
                break
            now.append((path, digest))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            sound = pool.map(lambda one: _is_sound(*one), now)
        damaged = {path for (path, _), is_sound in zip(now, sound, strict=True) if not is_sound}
        # the time of modification records the check, so that the next checkpoint reads other files first
        for path in {path for path, _ in now} - damaged:
            os.utime(path)
        return damaged

    def _link(self, name: str) -> str | None:
        """Make the piece another name of a file that is there; its digest, or None."""
        for digest, files in self._sources[name]:
            if files[0] not in self._damaged:
                try:
                    os.link(files[0], self._folder / name)
                except OSError:  # no such file any more, or a file system without links
                    return None
                return digest
        return None

    def _mend(self, name: str, files: list[Path], *, same: bool) -> None:
        """Put what the new checkpoint has in the place of a damaged file, in all checkpoints that have it."""
        spare = self._folder / f".{name}"
        then = "mended from memory" if same else "not mended: what is in memory is something else"
        try:
            for path in files if same else []:
                os.link(self._folder / name, spare)
                spare.replace(path)
        except OSError as error:  # a file system without links, or without room
            then = f"not mended: {error}"
        where = ", ".join(path.parent.name for path in files)
        self._told.append(f"{name} of checkpoint {where} was damaged on the disk; {then}")


def _files_of(checkpoint: Path) -> dict[str, str]:
    """The digests in its manifest; of one that cannot be read, none."""
    try:
        return dict(json.loads((checkpoint / MANIFEST).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_sound(path: Path, digest: str) -> bool:
    try:
        return digest_of(path) == digest
    except OSError:  # the disk cannot read it
        return False


def _copies_of(name: str, checkpoints: Iterable[tuple[Path, Mapping[str, str]]]) -> list[tuple[str, list[Path]]]:
    """The copies of a file that checkpoints have, newest first: its digest, and the names by which it goes."""
    found: dict[int, tuple[str, list[Path]]] = {}
    for path, files in checkpoints:
        if name in files and (path / name).is_file():
            found.setdefault((path / name).stat().st_ino, (files[name], []))[1].append(path / name)
    return list(found.values())


def _looked_at(path: Path) -> int:
    """When a file was last written or verified: its time of modification says so."""
    return path.stat().st_mtime_ns


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """One safetensors file, written from where the tensors lie; returns its SHA-256."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        # safetensors refuses tensors that share memory: all but the first are copied
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
    progressed()
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


def _digest(manifest: Manifest) -> str:
    """SHA-256 of a manifest's content, which the manifest carries itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def fell_back(path: Path, problem: str) -> str:
    """The warning that a checkpoint newer than `path` cannot be used."""
    return f"fell back to checkpoint {path.name}: {problem}"


class Checkpoints:
    """The checkpoints of one run folder: `checkpoints/<version>`, newest last."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder, self.keep = folder, keep

    def begin(self, version: int) -> Path:
        """Make a folder to write parts into. Nothing reads it before `finish`."""
        path = self.folder / f".writing-{version:09d}"
        with writing(self.folder):
            for dead in self.folder.glob(".writing-*"):
                shutil.rmtree(dead)
            path.mkdir(parents=True)
        return path

    def drop(self) -> None:
        """Remove the files of a checkpoint that will not be finished."""
        for dead in self.folder.glob(".writing-*"):
            shutil.rmtree(dead, ignore_errors=True)

    def finish(self, path: Path, manifest: Manifest) -> Path:
        """Make the folder a checkpoint: manifest last, then one rename; older ones beyond `keep` go.

        A second checkpoint of one version gets a number behind it, and the first goes only when the second is there. A later
        version than this one is damaged (the run fell back behind it): it goes too.
        """
        target = self.folder / f"{manifest['version']:09d}"
        number = 0
        while target.exists():
            number += 1
            target = target.with_name(f"{manifest['version']:09d}-{number}")
        with writing(path.parent):
            _write(path / MANIFEST, json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1).encode())
            path.rename(target)  # atomic: a reader sees the whole checkpoint or none
            # sync the folder too: without it a power cut may lose the rename
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        kept = [p for p in self.finished() if p.name <= target.name][-self.keep :]
        for other in self.finished():
            if other not in kept:
                # renamed first: a run that is killed meanwhile leaves no half of a checkpoint, but what `begin` clears away
                gone = other.rename(other.with_name(f".writing-{other.name}"))
                shutil.rmtree(gone)
        return target

    def finished(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob("[0-9]*") if (p / MANIFEST).exists()) if self.folder.exists() else []

    def newest_whole(self) -> Path | None:
        """The newest checkpoint of the whole run, as its manifest says; nothing else is read."""
        for path in reversed(self.finished()):
            try:
                manifest = json.loads((path / MANIFEST).read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(manifest, dict) and manifest.get("whole", True):
                return path
        return None

    def newest(
        self, parts: Collection[str] | None = None, *, refused: Mapping[str, str] | None = None
    ) -> tuple[Path, Manifest, list[str]]:
        """The newest checkpoint of the whole run that verifies (or of which `parts` do), its manifest, and what was wrong with
        newer ones. `refused` are those that could not be restored, by name, with the reason. Whoever asks, the user is warned
        of falling back."""
        problems: list[str] = []
        for path in reversed(self.finished()):
            if why := (refused or {}).get(path.name):
                problems.append(f"checkpoint {path} cannot be restored: {why}")
                continue
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
        detail = "; ".join(problems) or self._why_none()
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {detail}")

    def _why_none(self) -> str:
        """Why there is no checkpoint: none was written, or all were deleted. The run's rows tell which."""
        rows = read_rows(self.folder.parent / "metrics.jsonl")[0]
        saved = [row["version"] for row in rows if row.get("what") == "checkpoint" and "version" in row]
        if not saved:
            return "the run ended before its first checkpoint"
        return f"it had {len(saved)}, the last at version {saved[-1]}, and they were deleted; restore them, or train anew"

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
def verify(path: Path, parts: Collection[str] | None = None) -> Manifest:
    """The manifest of a checkpoint whose every file (or those of `parts`) is as it was written; else a `CheckpointError`."""
    try:
        manifest: Manifest = json.loads((path / MANIFEST).read_bytes())
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

    def read(name: str) -> dict[str, Tensor]:
        progressed()
        return dict(load_file(path / piece_name(part, name)))

    def piece(name: str) -> SealedChunk:
        return SealedChunk(name, lambda: read(name))

    progressed()
    tensors = load_file(path / f"{part}.safetensors") if (path / f"{part}.safetensors").exists() else {}
    state: State = decode(json.loads((path / f"{part}.json").read_bytes()), tensors, piece)
    return state


def read_parts(path: Path) -> dict[str, State]:
    """All parts but `params`. What the manifest does not name is of a worker that was lost while it wrote."""
    manifest = path / MANIFEST
    files = json.loads(manifest.read_bytes())["files"] if manifest.exists() else [p.name for p in path.glob("*.json")]
    names = [name.removesuffix(".json") for name in files if name.endswith(".json")]
    return {name: read_part(path, name) for name in names}


def read_learner(path: Path, trainer: str) -> dict[str, State]:
    """The parts of a checkpoint that hold the learner of `trainer`: one for each rank."""
    names = [p.stem for p in path.glob(f"worker-{trainer}*.json")]
    ranks = [n for n in names if n == f"worker-{trainer}" or n.removeprefix(f"worker-{trainer}-").isdecimal()]
    return {name: read_part(path, name) for name in ranks}


def read_params(path: Path, part: str = "params") -> dict[str, Tensor]:
    """The published parameters of a checkpoint: those of the leading trainer, or another `part` (`params-NAME`)."""
    from safetensors.torch import load_file

    return dict(load_file(path / f"{part}.safetensors"))
