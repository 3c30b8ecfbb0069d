"""Weights from ranks that keep a part each (FSDP2) to another number of ranks: seconds, and the most memory that any rank took.

python -m benchmarks.transport.reshard
python -m benchmarks.transport.reshard --quick               # does it run at all? its numbers mean nothing

n ranks write their rows of a version to the parameter channel (shared memory), one stamps it, m other ranks take the rows that
they keep. Growth is that of a process's resident memory, its own and shared, while it writes or takes: of the channel it
touches its rows alone. Beside it: what a rank would need for a whole copy.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.transport.samples import Row, stamp, write_result
from runnel.flow.collective import TorchCollective
from runnel.flow.transports.shm import ShmChannel, anonymous_file
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.sharded_model import ShardedModel

NAME = "transport/reshard"
MODEL = ModelConfig(layers=30, width=576, heads=9, kv_heads=3, inner=1536, max_positions=2048)
"""The shape of SmolLM2-135M."""
SMALL = ModelConfig(layers=2, width=64, heads=2, kv_heads=2, inner=128)
PAIRS = ((1, 2), (2, 1), (2, 3), (3, 2), (4, 2), (2, 4))


def rank_of(rank: int, num: int, gives: bool, small: bool, fd: int, pid: int, address: Any, answers: Any) -> None:
    """One rank of those that give, or that take."""
    torch.set_num_threads(1)
    ranks = TorchCollective(rank, num)
    if rank == 0:
        for _ in range(num - 1):
            address.put(ranks.listen())
    else:
        ranks.address = address.get()
    model = ShardedModel(build_model(SMALL if small else MODEL, 64 if small else 49152, seed=1 + gives), mesh=ranks.mesh)
    pieces = (model.root, model.pieces())[1]
    channel = ShmChannel("policy", os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), depth=1, ring=lambda: None)
    if gives and rank == 0:
        channel.open(1, pieces)
    params = {} if gives else channel.views(1)
    ranks.gather([1.0])
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    before, start = status("VmRSS"), time.perf_counter()
    if gives:
        channel.write(1, pieces)
    else:
        model.start_from(params)
    moved_s, peak = time.perf_counter() - start, status("VmHWM") - before
    ranks.gather([1.0])
    start = time.perf_counter()
    if gives and rank == 0:
        channel.commit(1)
    kept = sum(p.value.numel() * p.value.element_size() for p in pieces.values())
    sums = sum(float(p.value.double().sum()) for p in pieces.values())
    answers.put({"s": moved_s, "stamp_s": time.perf_counter() - start, "peak": peak, "kept": kept, "sum": sums})
    answers.close()
    answers.join_thread()
    ranks.close()


def status(name: str) -> int:
    """Bytes of a line of this process's status."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) * 1024


def side(num: int, gives: bool, small: bool, fd: int) -> list[Row]:
    """What `num` ranks say."""
    context = get_context("spawn")
    address, answers = context.Queue(), context.Queue()
    common = (num, gives, small, fd, os.getpid(), address, answers)
    processes = [context.Process(target=rank_of, args=(rank, *common)) for rank in range(num)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return found


def move(n: int, m: int, small: bool) -> Row:
    """From n to m ranks; the sums over all rows must agree."""
    fd = anonymous_file("params")
    try:
        given, taken = side(n, True, small, fd), side(m, False, small, fd)
    finally:
        os.close(fd)
    sums = [sum(one["sum"] for one in ranks) for ranks in (given, taken)]
    if abs(sums[0] - sums[1]) > 1e-6 * max(1.0, abs(sums[0])):
        raise SystemExit(f"{n} to {m}: what was taken is not what was given ({sums})")
    whole = sum(one["kept"] for one in given)
    peaks = {"give_peak": max(one["peak"] for one in given), "take_peak": max(one["peak"] for one in taken)}
    times = {"give_s": max(one["s"] for one in given), "stamp_s": max(one["stamp_s"] for one in given)}
    return {"from": n, "to": m, "whole": whole, **peaks, **times, "take_s": max(one["s"] for one in taken)}


def markdown(result: Row) -> str:
    cells = []
    for r in result["rows"]:
        peaks = [f"{r[k] / 1e6:.0f} MB ({100 * r[k] / r['whole']:.0f} %)" for k in ("give_peak", "take_peak")]
        times = [results.number(1e3 * r[k]) for k in ("give_s", "stamp_s", "take_s")]
        cells.append([f"{r['from']} to {r['to']}", f"{r['whole'] / 1e6:.0f} MB", *peaks, *times])
    header = ["ranks", "whole", "most that a giver grew", "most that a taker grew", "write, ms", "stamp, ms", "take, ms"]
    m = result["machine"]
    lines = ["# Weights from n ranks to m", f"{result['made']}; {m['cores']} cores, {m['cpu']}; float32.", ""]
    return "\n".join([*lines, results.table(header, cells)]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model from 2 ranks to 3; the numbers mean nothing")
    parser.add_argument("--out", default="", help="folder of the result")
    args = parser.parse_args(argv)
    rows = []
    for n, m in ((2, 3),) if args.quick else PAIRS:
        rows.append(row := move(n, m, args.quick))
        print(f"{n} to {m}: {row}", flush=True)
    result = stamp(rows)
    write_result(NAME, args.out, result, markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
