"""Write new numbers of golden runs, and say how far they are from the old: `python tests/golden/record.py [--only NAME...]`.

To be run after a change that is meant to change what a run gives, and only then; what it prints belongs into the commit's
message. A name is that of a case, or how one begins.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from golden_cases import CLASSICAL, Case
from golden_machine import machine, unlike
from golden_runs import FILE, Data, distance, flat, is_noise, play, read, write
from golden_token_cases import TOKENS

CASES: dict[str, Case] = {**CLASSICAL, **TOKENS}


def told(new: Data, old: Data | None) -> str:
    """How far a recording is from the one before, by update: the largest relative difference and where it is."""
    if old is None:
        return "new"
    ours, theirs = flat(new), flat(old)
    worst: dict[str, tuple[bool, float, str]] = {}
    for key in dict.fromkeys([*theirs, *ours]):
        gap = distance(ours.get(key), theirs.get(key))
        stage, _, rest = key.partition(".updates.")
        index, _, field = rest.partition(".")
        place, field = (f"{stage}, update {int(index) + 1}", field) if field else (stage, key)
        bits = field == "params"
        if gap > 0.0:
            found = (not (bits or is_noise(key)), 0.0 if bits else gap, "in the bits of the parameters" if bits else field)
            worst[place] = max(worst.get(place, found), found)
    lines = [f"\n    {place}: {gap:.1e} {field}" for place, (_, gap, field) in worst.items()]
    return "".join(lines) or "every bit as before"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="cases, or how their names begin")
    parser.add_argument("--dry", action="store_true", help="say what would change, and write nothing")
    asked = parser.parse_args()
    chosen = [name for name in CASES if name.startswith(tuple(asked.only))]
    kept = read()[1] if FILE.exists() else {}
    if not chosen:
        sys.exit(f"no case begins with {' or '.join(asked.only)}; there are {', '.join(CASES)}")
    if len(chosen) < len(CASES) and not asked.dry and (other := unlike(machine(), read()[0])):
        sys.exit(f"{FILE.name} is of another machine ({other}); record all cases here, or some there")
    new: dict[str, Data] = {}
    for name in chosen:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            new[name] = play(CASES[name], Path(scratch))
        print(f"{name} ({time.process_time() - began:.2f} s): {told(new[name], kept.get(name))}", flush=True)
    if gone := [name for name in kept if name not in CASES]:
        print(f"no longer there: {', '.join(gone)}")
    if not asked.dry:
        write({name: new.get(name) or kept[name] for name in CASES if name in new or name in kept})


if __name__ == "__main__":
    main()
