"""One row of the comparison with peers.

python -m benchmarks.classic.run --list
python -m benchmarks.classic.run --row ppo-cartpole --pairs 3
python -m benchmarks.classic.run --row sac-halfcheetah --quick     # does it run at all? its numbers mean nothing
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.classic.rows import ROWS
from benchmarks.harness import main as measure

QUICK = ("--pairs", "1", "--idle-limit", "0")
SHORT = ("--warmup", "1", "--window", "2")


def main(argv: Sequence[str] | None = None) -> int:
    """Everything after `--row NAME` goes to the harness; `--help` beside a row lists its options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False, allow_abbrev=False
    )
    parser.add_argument("--row", choices=[*ROWS, "all"])
    parser.add_argument("--list", action="store_true", help="the rows, their peers and what is asked for")
    parser.add_argument("--quick", action="store_true", help="one short pair, no waiting; written to a temporary folder")
    args, rest = parser.parse_known_args(argv)
    if args.list or args.row is None:
        print(list_rows() if args.list else parser.format_help())
        return 0 if args.list else 2
    names = list(ROWS) if args.row == "all" else [args.row]
    return max(measure(ROWS[name], quick(rest, name) if args.quick else rest) for name in names)


def quick(rest: Sequence[str], name: str) -> list[str]:
    folder = tempfile.mkdtemp(prefix=f"quick-{name}-")
    split = rest.index("--") if "--" in rest else len(rest)
    return [*QUICK, "--out", folder, *rest[:split], "--", *SHORT, *rest[split + 1 :]]


def list_rows() -> str:
    lines = []
    for name, entry in ROWS.items():
        peers = ", ".join([s.name for s in entry.sides[1:]])
        lines.append(f"{name:20} {entry.title}\n{'':20} beside {peers}")
        for m in entry.measures:
            wanted = "" if m.must is None else f" (must {m.must:g}x, aim {m.aim:g}x)"
            records = "".join(f"; {r.name} {r.value:,.0f} recorded" for r in m.recorded)
            lines.append(f"{'':20} - {m.name}: {m.title}{wanted}{records}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
