"""`runnel trace`: what every worker did when, as a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runnel.track.trace import write_trace


def trace(args: list[str]) -> int:
    """Write the trace of a run for Perfetto."""
    parser = argparse.ArgumentParser(
        prog="runnel trace",
        description="Write what every worker of a run did when, and the path of every sample, for https://ui.perfetto.dev "
        "or chrome://tracing. The run must have been started (or resumed) with --trace.",
    )
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--out", type=Path, default=None, help="the file to write (default: trace.json.gz in the run's folder)")
    parsed = parser.parse_args(args)
    made = write_trace(parsed.run, parsed.out)
    what = f"{made.num_processes} processes, {made.num_segments:,} segments, {made.num_versions:,} loads of versions"
    print(f"{made.path}: {made.num_events:,} events; {what}")
    print("open it at https://ui.perfetto.dev (nothing is uploaded) or in chrome://tracing")
    for notice in made.notices:
        print(f"runnel: note: {notice}", file=sys.stderr)
    return 0
