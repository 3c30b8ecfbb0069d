"""How fast segments travel from a writer to a reader, over each transport, beside a plain copy of the same bytes.

python -m benchmarks.transport.samples
python -m benchmarks.transport.samples --quick               # does it run at all? its numbers mean nothing

`inproc`: one process. `shm`: another process writes, over shared memory. `ray`: another process writes, through Ray and the
agent of the node, as if it were on another node. A segment is written whole, committed, taken, read (summed) and released.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine, results, venvs
from benchmarks.harness import RESULTS
from runnel.core.contracts.samples import SampleWriter
from runnel.core.records import FieldSpec, StreamSpec
from runnel.flow.slots import TableReader, TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.transports.inproc import InprocTransport
from runnel.flow.transports.shm import Doorbells, ShmTransport

NAME = "transport/samples"
SIZES = {"4 KB": 1 << 12, "64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24}
ROW_BYTES = 256
CAPACITY = 4
POLICY = LagRule(lag=1 << 30, batch=1, exact=True)
Row = dict[str, Any]


def spec_of(size: int) -> StreamSpec:
    """A stream whose segments have so many bytes, in rows of 64 numbers."""
    fields = {"x": FieldSpec(("B", ROW_BYTES // 4), torch.float32)}
    return StreamSpec("samples", fields, {"B": size // ROW_BYTES}, capacity=CAPACITY)


def fill(writer: SampleWriter, source: torch.Tensor) -> bool:
    """Write one segment if there is room."""
    slot = writer.reserve()
    if slot is None:
        return False
    slot.arrays["x"].copy_(source)
    slot.header.version_min = slot.header.version_max = 0
    writer.commit(slot, num_steps=1)
    return True


def drain(reader: TableReader) -> int:
    """Read one segment if there is one; returns how many."""
    segments = reader.take(1)
    if segments:
        segments[0].arrays["x"].sum()
        reader.release(segments)
    return len(segments)


def rate(step: Callable[[], int], seconds: float) -> float:
    """Segments a second, after a few to warm up."""
    done = 0
    while done < CAPACITY:
        done += step()
    done, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds or not done:
        done += step()
    return done / (now - start)


# --------------------------------------------------------------------------------------------------------------- the sides
def memcpy(size: int, seconds: float) -> float:
    """The least that can be done: one copy of the bytes, and a sum over them."""
    source, target = torch.rand(size // 4), torch.zeros(size // 4)

    def step() -> int:
        target.copy_(source)
        target.sum()
        return 1

    return rate(step, seconds)


def inproc(size: int, seconds: float) -> float:
    spec = spec_of(size)
    table = InprocTransport().samples(spec, POLICY)
    writer, reader, source = TableWriter(table, 0), TableReader(table, "trainer"), torch.rand(spec.shape("x"))
    return rate(lambda: int(fill(writer, source)) and drain(reader), seconds)


def shm(size: int, seconds: float) -> float:
    """The writer is another process."""
    spec = spec_of(size)
    fds = ShmTransport.allocate({spec.name: spec}, [], {})
    pipes = Doorbells.make(["reader", "writer"])
    transport = ShmTransport(fds, Doorbells(pipes, "reader"))
    reader = TableReader(transport.samples(spec, POLICY), "trainer")
    handed = [*fds.values(), *(fd for pair in pipes.values() for fd in pair)]
    orders = json.dumps({"size": size, "fds": fds, "pipes": pipes})
    command = [sys.executable, "-m", "benchmarks.transport.samples", "--writer", orders]
    process = subprocess.Popen(command, pass_fds=handed, cwd=venvs.ROOT)
    try:
        return rate(lambda: drain(reader) or int(transport.wait(1.0)) * 0, seconds)
    finally:
        process.kill()
        process.wait()
        for fd in handed:
            os.close(fd)


def write_for_ever(orders: Row) -> None:
    """What the other process of `shm` does."""
    spec = spec_of(orders["size"])
    transport = ShmTransport(orders["fds"], Doorbells({k: (r, w) for k, (r, w) in orders["pipes"].items()}, "writer"))
    writer, source = TableWriter(transport.samples(spec, POLICY), 0), torch.rand(spec.shape("x"))
    while True:
        if not fill(writer, source):
            transport.wait(1.0)


def over_ray(size: int, seconds: float) -> float:
    from benchmarks.transport.ray_ends import SampleEnds

    ends = SampleEnds(spec_of(size), POLICY)
    try:
        return rate(lambda: drain(ends.reader) or int(ends.wait(1.0)) * 0, seconds)
    finally:
        ends.close()


SIDES: dict[str, Callable[[int, float], float]] = {"memcpy": memcpy, "inproc": inproc, "shm": shm, "ray": over_ray}


def measure(sides: Sequence[str], sizes: Sequence[str], seconds: float) -> list[Row]:
    rows = []
    for label in sizes:
        for side in sides:
            found = SIDES[side](SIZES[label], seconds)
            row = {"side": side, "segment": label, "segments_per_s": found, "mb_per_s": found * SIZES[label] / 1e6}
            rows.append({**row, "samples_per_s": found * (SIZES[label] // ROW_BYTES)})
            print(f"{side}, {label}: {row['mb_per_s']:,.0f} MB/s", flush=True)
    return rows


def markdown(result: Row) -> str:
    plain = {r["segment"]: r["mb_per_s"] for r in result["rows"] if r["side"] == "memcpy"}
    cells = [
        [r["side"], r["segment"], *(results.number(r[k]) for k in ("mb_per_s", "samples_per_s", "segments_per_s"))]
        + ([f"{r['mb_per_s'] / plain[r['segment']]:.2f}"] if r["segment"] in plain else ["-"])
        for r in result["rows"]
    ]
    header = ["transport", "segment", "MB/s", "samples/s", "segments/s", "of a plain copy"]
    m = result["machine"]
    lines = [
        "# Samples from a writer to a reader",
        f"{result['made']}; {m['cores']} cores, {m['cpu']}; {ROW_BYTES} bytes a sample.",
        "",
    ]
    return "\n".join([*lines, results.table(header, cells)]) + "\n"


def write_result(name: str, out: str, result: Row, text: str) -> None:
    """As all benchmarks do: the numbers, and a table."""
    folder = Path(out or RESULTS / name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(text)


def stamp(rows: list[Row]) -> Row:
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"made": made, "machine": machine.facts(), "code": machine.commit(venvs.ROOT), "rows": rows}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (3)")
    parser.add_argument("--only", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--quick", action="store_true", help="a moment each; the numbers mean nothing")
    parser.add_argument("--out", default="", help="folder of the result")
    parser.add_argument("--writer", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.writer:
        write_for_ever(json.loads(args.writer))
    seconds = 0.05 if args.quick else args.seconds
    sizes = args.sizes[:2] if args.quick else args.sizes
    result = stamp(measure(args.only, sizes, seconds))
    write_result(NAME, args.out, result, markdown(result))
    return int(not np.isfinite([r["mb_per_s"] for r in result["rows"]]).all())


if __name__ == "__main__":
    sys.exit(main())
