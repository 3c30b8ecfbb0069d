"""Learners, each trained once for every seed, with a file for each result: several processes may work side by side, and what
was broken off goes on where it was."""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks import machine, venvs

Row = dict[str, Any]


class Entry(Protocol):
    """What is trained: its name, and its settings."""

    @property
    def key(self) -> str: ...

    @property
    def settings(self) -> Row: ...


E = TypeVar("E", bound=Entry)


def main(
    out: Path,
    entries: Sequence[E],
    train: Callable[[E, int], Row],
    table: Callable[[Sequence[Row], Sequence[Row]], str],
    anchors: Callable[[], list[Row]] | None = None,
) -> None:
    """The command: train the seeds that have no result with these settings, and write the table of all that was run.

    `train` gives the row of an entry and a seed; `anchors` the rows of players that do not learn, played once; `table` the text
    of anchors and rows, where each row has its entry's `key`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", default=["*"], help=f"names, such as {entries[0].key!r}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--table", action="store_true", help="only write the table of what was run again")
    args = parser.parse_args()
    out.mkdir(parents=True, exist_ok=True)
    fixed = _anchor_rows(out / "anchors.json", anchors)
    chosen = [] if args.table else [e for e in entries if any(fnmatch.fnmatch(e.key, p) for p in args.only)]
    for seed in args.seeds:
        for entry in chosen:
            path = out / f"{entry.key.replace(':', '').replace(',', '').replace(' ', '-')}-{seed}.json"
            settings = json.loads(json.dumps(entry.settings))
            if path.is_file() and json.loads(path.read_text("utf-8"))["settings"] == settings:
                continue
            facts = {"key": entry.key, "seed": seed, "code": machine.commit(venvs.ROOT), "machine": machine.facts()}
            row = {**facts, **train(entry, seed), "settings": settings}
            path.write_text(json.dumps(row, indent=1) + "\n", "utf-8")
            print(json.dumps({k: x for k, x in row.items() if k not in ("code", "machine", "settings")}), flush=True)
    rows = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*-[0-9]*.json"))]
    text = table(fixed, sorted(rows, key=lambda row: row["seed"]))
    (out / "table.md").write_text(text + "\n", "utf-8")
    print(text)


def _anchor_rows(path: Path, anchors: Callable[[], list[Row]] | None) -> list[Row]:
    if anchors is None:
        return []
    if not path.is_file():
        path.write_text(json.dumps(anchors(), indent=1) + "\n", "utf-8")
    found: list[Row] = json.loads(path.read_text("utf-8"))
    return found
