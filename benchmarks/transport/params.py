"""How long a version of parameters takes to all nodes, from the start of its publication: by its size and the number of nodes.

python -m benchmarks.transport.params
python -m benchmarks.transport.params --quick                # does it run at all? its numbers mean nothing

Nodes are on loopback addresses of this machine: bytes travel as fast as its memory and cores allow. On one node a version goes
through shared memory alone; to others it is brought once each by the agents.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import ray
import torch

from benchmarks import results
from benchmarks.transport.ray_ends import ParamEnds
from benchmarks.transport.samples import Row, stamp, write_result

NAME = "transport/params"
SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24, "64 MB": 1 << 26, "256 MB": 1 << 28}
NODES = (1, 2, 3)


def params_of(size: int, version: int) -> dict[str, torch.Tensor]:
    """So many bytes, in matrices of at most 16 MB."""
    left, found = size // 4, dict[str, torch.Tensor]()
    while left:
        count = min(left, 1 << 22)
        found[f"layer{len(found)}.weight"] = torch.full((count,), float(version))
        left -= count
    return found


def broadcast(num_nodes: int, size: int, repeats: int) -> list[float]:
    """Seconds from the start of a publication until every node has it. The first, which makes the memory, is left out."""
    ends, found = ParamEnds(num_nodes), []
    try:
        for version in range(repeats + 1):
            params, arrivals = params_of(size, version), ends.arrivals(version)
            start = time.perf_counter()
            ends.channel.publish(version, params)
            ray.get(arrivals, timeout=120.0)
            found.append(time.perf_counter() - start)
    finally:
        ends.close()
    return found[1:]


def markdown(result: Row) -> str:
    nodes = sorted({r["nodes"] for r in result["rows"]})
    cells = []
    for label in dict.fromkeys(r["size"] for r in result["rows"]):
        mine = {r["nodes"]: r for r in result["rows"] if r["size"] == label}
        times = [results.number(1e3 * mine[n]["median_s"]) for n in nodes]
        cells.append([label, *times, results.number(mine[nodes[-1]]["mb_per_s"])])
    header = ["parameters", *(f"{n} node{'s' if n > 1 else ''}, ms" for n in nodes), f"MB/s to each of {nodes[-1]}"]
    m = result["machine"]
    lines = ["# Parameters to all nodes", f"{result['made']}; {m['cores']} cores, {m['cpu']}; medians.", ""]
    return "\n".join([*lines, results.table(header, cells)]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="versions of each size (7)")
    parser.add_argument("--nodes", nargs="+", type=int, default=list(NODES))
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--quick", action="store_true", help="two sizes on two nodes; the numbers mean nothing")
    parser.add_argument("--out", default="", help="folder of the result")
    args = parser.parse_args(argv)
    if args.quick:
        args.repeats, args.nodes, args.sizes = 2, [2], ["1 KB", "1 MB"]
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for num_nodes in args.nodes:
        for label in args.sizes:
            times = broadcast(num_nodes, SIZES[label], args.repeats)
            middle = statistics.median(times)
            print(f"{num_nodes} nodes, {label}: {1e3 * middle:.1f} ms", flush=True)
            rows.append(
                {"nodes": num_nodes, "size": label, "s": times, "median_s": middle, "mb_per_s": SIZES[label] / middle / 1e6}
            )
    result = stamp(rows)
    write_result(NAME, args.out, result, markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
