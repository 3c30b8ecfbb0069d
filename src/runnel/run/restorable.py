"""Whether a checkpoint that was just written can be restored. It is looked at before it becomes the newest one.

What lies on the disk is read as a resume would read it, but for the values of tensors: those have digests. So a part that
somebody else's part relies on and that is not there is found while the run still has all that it needs to go on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from runnel.core.errors import UnrestorableError
from runnel.core.state import Plain
from runnel.flow.params import Kept
from runnel.run.checkpoint import piece_name

Part = Mapping[str, Plain]
NOT_WRITTEN = "no checkpoint was written, as it could not be restored; the one before stands"


def check_restorable(path: Path, files: Collection[str], *, needed: Collection[str], kept: Kept) -> None:
    """Raise an `UnrestorableError` that says what a restore from `path` would miss.

    `needed` are the parts without which no run can go on; `kept` the versions of each parameter channel, of which the trainer
    publishes the newest again when it comes back.
    """
    problems = [f"{name} is not there" for name in files if not (path / name).is_file()]
    problems += [f"it has no part {name!r}" for name in needed if f"{name}.json" not in files]
    if not problems:
        parts = {name.removesuffix(".json"): _read(path / name) for name in files if name.endswith(".json")}
        problems = [text for name, part in parts.items() for text in _lacks_tensors(path, name, part)]
        problems = problems or list(_lacks_versions(parts, kept))
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise UnrestorableError(f"{NOT_WRITTEN}: {'; '.join(problems[:3])}{more}")


def _read(path: Path) -> Part:
    try:
        found: Part = json.loads(path.read_bytes())
    except ValueError as error:
        raise UnrestorableError(f"{NOT_WRITTEN}: {path.name} cannot be read ({error})") from error
    return found


def _lacks_tensors(path: Path, name: str, part: Part) -> Iterator[str]:
    """Tensors and frozen pieces that a part names, and that are not in its files."""
    from safetensors import SafetensorError, safe_open

    named = list(_named(part))
    tensors = {n for kind, n in named if kind != "$frozen"}
    if tensors:
        try:
            with safe_open(path / f"{name}.safetensors", "pt") as file:
                tensors -= set(file.keys())
        except (OSError, SafetensorError) as error:
            yield f"{name}.safetensors cannot be read ({error})"
            return
    for missing in sorted(tensors):
        yield f"{name}.safetensors lacks {missing!r}"
    for missing in sorted(n for kind, n in named if kind == "$frozen" and not (path / piece_name(name, n)).is_file()):
        yield f"{piece_name(name, missing)} is not there"


def _named(value: object) -> Iterator[tuple[str, str]]:
    """What `run.checkpoint.encode` left behind for tensors, arrays and frozen pieces: kind and name."""
    if isinstance(value, dict):
        for kind in ("$tensor", "$array", "$frozen"):
            if kind in value:
                yield kind, value[kind]
                return
        for inner in value.values():
            yield from _named(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner)


def _lacks_versions(parts: Mapping[str, Part], kept: Kept) -> Iterator[str]:
    """Parameter versions that a worker would ask the channels for, and that they do not have."""
    held = {name: {int(v) for v in parts[f"channel-{name}"]["versions"]} | {max(kept[name])} for name in kept if kept[name]}
    for name, part in parts.items():
        for client in part.get("clients", {}).values() if name.startswith("worker-") else ():
            if not client["channel"]:  # it loads no parameters
                continue
            there = held.get(client["channel"], set())
            for version in sorted(_needed_versions(client) - there):
                says = f"worker {name.removeprefix('worker-')!r} needs version {version} of {client['channel']!r}"
                yield f"{says}, of which the checkpoint holds {', '.join(map(str, sorted(there))) or 'none'}"


def _needed_versions(client: Part) -> set[int]:
    """By who asks elsewhere: the versions that its requests name. By who asks itself: the one it has loaded, without its
    parameters."""
    if "requests" in client:
        return {request["version"] for request in client["requests"].values()} - {-1}
    return {client["version"]} - {-1} if client["params"] is None else set()
