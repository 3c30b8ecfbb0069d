"""Whether a run's folder tells a true story: read from its raw files, with nothing of the code that wrote them.

python -m benchmarks.faults.audit runs/NAME

Rows are parsed as JSON lines, digests computed with hashlib. Every checkpoint that is left is then restored, each in a copy of
the folder in which it is the newest one, and has to train on. Prints what is wrong; the exit code says whether anything is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import runnel as rl

Row = dict[str, Any]
LARGE = 1 << 26
"""Larger files have a digest of the digests of their pieces, which are of this size."""


def audit(run: Path, *, more_updates: int = 2, **settings: Any) -> Row:
    """What the files say, and what is wrong with them. `settings` are those with which checkpoints are restored."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    wrong = [*check_rows(found), *check_folder(run)]
    checkpoints = finished(run)
    for path in checkpoints:
        wrong += [f"checkpoint {path.name}: {text}" for text in (*check_files(path), *check_moment(run, path))]
        wrong += restore(run, path, more_updates, settings)
    updates = [row for row in found if row["kind"] == "update"]
    return {
        "version": updates[-1]["version"] if updates else 0,
        "events": dict(Counter(row["what"] for row in found if row["kind"] == "event")),
        "checkpoints": [path.name for path in checkpoints],
        "own_parameters": sum(map(num_own, checkpoints)),
        "set_aside": sorted(path.name for path in (run / "checkpoints").glob("damaged-*")),
        "wrong": wrong,
    }


# ------------------------------------------------------------------------------------------------------------------- rows
def check_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Every version once and in order, every sample once, every account adds up, and the run says how it ended."""
    updates = [row for row in rows if row["kind"] == "update"]
    if [row["version"] for row in updates] != list(range(1, len(updates) + 1)):
        yield "a version is missing, or was trained twice"
    used = Counter((stream, i) for row in updates for stream, ids in row["sample_ids"].items() for i in ids)
    if twice := [sample for sample, times in used.items() if times > 1]:
        yield f"{len(twice)} samples were trained on twice, such as {twice[0]}"
    for row in rows:
        for stream, account in row.get("streams", {}).items():
            if text := unbalanced(account):
                yield f"stream {stream!r} at {row.get('version', 'the end')}: {text}"
    if not rows or rows[-1]["kind"] != "end":
        yield "the last row is not that of the end"


def unbalanced(account: Mapping[str, Any]) -> str:
    """dispatched = consumed + dropped + cancelled + in flight; what is not so, in words."""
    gone = sum(account["dropped"].values()) + sum(account["cancelled"].values())
    left = account["dispatched"] - account["consumed"] - gone - account["in_flight"]
    return f"{left} rows are unaccounted for" if left else ""


# ------------------------------------------------------------------------------------------------------------ checkpoints
def finished(run: Path) -> list[Path]:
    """Checkpoints that a resume would look at, oldest first."""
    return sorted(path.parent for path in (run / "checkpoints").glob("[0-9]*/manifest.json"))


def check_folder(run: Path) -> Iterator[str]:
    if half := [path.name for path in (run / "checkpoints").glob(".writing-*")]:
        yield f"half written checkpoints are left: {half}"


def num_own(path: Path) -> int:
    """Actors of a checkpoint that were further behind than the parameter channel keeps, and so brought their own."""
    parts = [json.loads(part.read_bytes()) for part in path.glob("worker-actor-*.json")]
    return sum(client.get("params") is not None for part in parts for client in part["clients"].values())


def check_files(path: Path) -> Iterator[str]:
    """Manifest and files are what was written."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    own = manifest.pop("sha256")
    if hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() != own:
        yield "its manifest is not what was written"
    for name, digest in manifest["files"].items():
        if not (path / name).is_file():
            yield f"{name} is missing"
        elif digest_of((path / name).read_bytes()) != digest:
            yield f"{name} is damaged"


def digest_of(data: bytes) -> str:
    if len(data) <= LARGE:
        return hashlib.sha256(data).hexdigest()
    pieces = [hashlib.sha256(data[at : at + LARGE]).digest() for at in range(0, len(data), LARGE)]
    return "pieces-" + hashlib.sha256(b"".join(pieces)).hexdigest()


def check_moment(run: Path, path: Path) -> Iterator[str]:
    """The rows that were there when it was made end with its own version."""
    ledger, manifest = (json.loads((path / f"{name}.json").read_bytes()) for name in ("ledger", "manifest"))
    data = (run / "metrics.jsonl").read_bytes()[: ledger["offsets"]["metrics"]]
    if len(data) != ledger["offsets"]["metrics"] or hashlib.sha256(data).hexdigest() != ledger["digests"]["metrics"]:
        yield "the rows that it goes on from are not those of the file"
        return
    versions = [row["version"] for row in map(json.loads, data.splitlines()) if row["kind"] == "update"]
    if versions != list(range(1, manifest["version"] + 1)):
        yield f"the rows that it goes on from do not end with its version {manifest['version']}"


def restore(run: Path, path: Path, more_updates: int, settings: Mapping[str, Any]) -> list[str]:
    """Go on from one checkpoint, in a copy of the run where it is the newest."""
    version = json.loads((path / "manifest.json").read_bytes())["version"]
    with tempfile.TemporaryDirectory(prefix="runnel-audit-") as folder, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        copy = Path(shutil.copytree(run, Path(folder) / "run", symlinks=True))
        for other in finished(copy):
            if other.name != path.name:
                shutil.rmtree(other)
        try:
            again = rl.resume(copy, total_updates=version + more_updates, **settings)
        except rl.RunnelError as error:
            return [f"checkpoint {path.name} was not restored: {type(error).__name__}: {error}"[:600]]
        fell_back = [f"checkpoint {path.name}: {w.message}" for w in told if "fell back" in str(w.message)]
        short = again.version < version + more_updates
        return fell_back + ([f"checkpoint {path.name} went on to {again.version} only"] if short else [])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run that has ended")
    parser.add_argument("--launcher", default="local", help="how checkpoints are restored (local)")
    parser.add_argument("--trust", action="store_true", help="its own code may be run (environments, tasks, rewards in files)")
    args = parser.parse_args(argv)
    place = {} if args.launcher == "ray" else {"cluster": {"place": ()}}
    result = audit(args.run, launcher=args.launcher, trust=args.trust, **place)
    print(json.dumps(result, indent=1))
    return int(bool(result["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
