"""What it costs to read the files of a large replay memory before a checkpoint links to them.

python -m benchmarks.faults.shared_pieces --gib 4

Writes checkpoints of a memory that does not change any more, in pieces of 64 MiB, and prints the seconds of each: the first two
write a copy each, all later ones link. "read in turns" reads at most `LOOKED_AT` a checkpoint, as runs do; "all read" reads
every file before it links to it; "one read" is little more than what linking alone costs. Files are in the page cache unless
memory is short.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from runnel.core.state import SealedChunk
from runnel.run import checkpoint
from runnel.run.checkpoint import Checkpoints, write_parts

PIECE_BYTES = 64 << 20


def save(checkpoints: Checkpoints, version: int, memory: Sequence[torch.Tensor]) -> float:
    """One checkpoint; returns its seconds."""
    pieces = [SealedChunk(f"piece{i}", lambda x=x: {"x": x}) for i, x in enumerate(memory)]  # type: ignore[misc]
    start = time.perf_counter()
    path = checkpoints.begin(version)
    files = write_parts(path, {"worker-buffer": {"pieces": pieces}}, copies=2)
    checkpoints.finish(path, {"version": version, "files": files})
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the memory (4)")
    parser.add_argument("--folder", default=None, help="on the disk to measure (the system's folder for temporary files)")
    args = parser.parse_args(argv)
    one = torch.randint(0, 256, (PIECE_BYTES,), dtype=torch.uint8)
    memory = [one] * round(args.gib * 2**30 / PIECE_BYTES)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints", keep=3)
        for version, what in enumerate(("first copy written", "second copy written")):
            print(f"{what:22s} {save(checkpoints, version, memory):7.2f} s", flush=True)
        for what, limit in (("read in turns", checkpoint.LOOKED_AT), ("all read", 1 << 62), ("one read", 0)):
            checkpoint.LOOKED_AT = limit
            took = sorted(save(checkpoints, version, memory) for version in range(2, 7))
            print(f"{what:22s} {took[2]:7.2f} s (median of 5)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
