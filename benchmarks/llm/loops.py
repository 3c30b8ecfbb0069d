"""What the compiled loops of language models bring on the CPU: with them, without the whole decode step, in torch.

python -m benchmarks.llm.loops --pairs 5 --out benchmarks/results/llm/loops.json

The three forms take turns in one process. Updates a second of the second phase, after a first run of each form that compiles.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import runnel as rl
from benchmarks import machine
from benchmarks.classic.pairs import interval
from runnel.kernels.lm.numba.loops import without_loops
from runnel.llm.engines import runners


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """No model is small enough for the loop over all layers."""
    before, runners.STEP_WEIGHTS = runners.STEP_WEIGHTS, 0
    try:
        yield
    finally:
        runners.STEP_WEIGHTS = before


FORMS = {"torch": without_loops, "loops, layer by layer": layer_by_layer, "loops": nullcontext}


def measure(form: str, seed: int, updates: int) -> float:
    """Updates a second."""
    times: list[float] = []

    def tick(row: dict[str, Any]) -> None:
        times.append(time.perf_counter())

    settings = {"eval.episodes": 0, "checkpoint.every": 0, "track": (), "out": tempfile.mkdtemp(), "seed": seed}
    with FORMS[form]():
        rl.train("reverse", warmup_updates=2, total_updates=2 + updates, on_update=tick, progress=False, **settings)
    return (len(times) - 4) / (times[-1] - times[3])


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {form: [] for form in FORMS}
    for pair in range(args.pairs + 1):
        for form in FORMS:
            rate = measure(form, 1 + pair, args.updates if pair else 6)
            if pair:
                rates[form].append(rate)
    base = rates["torch"]
    ratios = {form: interval([b / a for a, b in zip(base, found, strict=True)]) for form, found in rates.items()}
    for form, (mean, low, high) in ratios.items():
        print(f"{form}: {median(rates[form]):.2f} updates/s, {mean:.3f} ({low:.3f} to {high:.3f}) times torch")
    if args.out:
        args.out.write_text(json.dumps({"machine": machine.facts(), "rates": rates, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
