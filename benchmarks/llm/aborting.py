"""What it saves to abort completions that can only be dropped as stale, with lengths that are far apart.

    python -m benchmarks.llm.aborting --pairs 7

One process in window mode: the engine generates while groups wait, each group is a batch, and a group that is more than one
version behind is dropped. The model has random weights, so lengths are spread geometrically up to the limit; the rate is 0.
Sides alternate, pair by pair, with the same seeds. Told are tokens that the engine made for each one that was trained, and
processor seconds for each of them: ratios of the side without aborting over the side with it, with their 95 % intervals
(Student's t over pairs).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import runnel as rl
from benchmarks.llm.in_parts import SETTINGS
from runnel.eval.statistics import mean_interval
from runnel.llm.engines.native import NativeEngine
from runnel.llm.sampling.sampler import PromptSampler

CHANGES: dict[str, Any] = {
    "launcher": "inproc",
    "staleness": {"mode": "window", "max_lag": 1},
    "learner": {"lr": 0.0, "max_mismatch": 1e9},
    "num_prompts": 1,
    "max_tokens": 480,
    "engine": {"num_slots": 16},
}


def played(out: Path, *, aborts: bool, updates: int, seed: int) -> dict[str, float]:
    """Tokens made, tokens trained, rows lost, and processor seconds of a run."""
    engines: list[NativeEngine] = []
    begin, abort = NativeEngine.__init__, PromptSampler._abort

    def remember(self: NativeEngine, *settings: Any, **more: Any) -> None:
        begin(self, *settings, **more)
        engines.append(self)

    NativeEngine.__init__ = remember  # type: ignore[method-assign]
    if not aborts:
        PromptSampler._abort = lambda *_: None  # type: ignore[method-assign]
    try:
        start = time.process_time()
        settings = {**SETTINGS, **CHANGES, "seed": seed, "total_updates": updates}
        run = rl.train("grpo", out=str(out), name="run", progress=False, **settings)
        seconds = time.process_time() - start
    finally:
        NativeEngine.__init__, PromptSampler._abort = begin, abort  # type: ignore[method-assign]
    account = run.rows("end")[-1]["streams"]["rollouts"]
    lost = sum(account["dropped"].values()) + sum(account["cancelled"].values())
    made = sum(engine.num_tokens for engine in engines)
    return {"made": made, "trained": run.tokens, "lost_rows": lost, "rows": account["dispatched"], "cpu_s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--out", type=Path, default=None, help="write the pairs as JSON")
    asked = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        played(Path(folder) / "warm", aborts=True, updates=4, seed=0)  # compiles
        for pair in range(asked.pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            found = {
                aborts: played(Path(folder) / f"{pair}-{aborts}", aborts=aborts, updates=asked.updates, seed=pair + 1)
                for aborts in order
            }
            pairs.append({"drops": found[False], "aborts": found[True]})
            said = [f"{name} {side['made'] / side['trained']:.3f}" for name, side in pairs[-1].items()]
            print(f"pair {pair}: tokens made for each one trained: {', '.join(said)}", flush=True)
    told = {}
    for what in ("made", "cpu_s"):
        of = [[(p["drops"][what] / p["drops"]["trained"]) / (p["aborts"][what] / p["aborts"]["trained"])] for p in pairs]
        middle, half = mean_interval(np.log(of))
        told[what] = [math.exp(float(x[0])) for x in (middle, middle - half, middle + half)]
        ratio, low, high = told[what]
        print(f"{what} for each trained token, dropped / aborted: {ratio:.3f} ({low:.3f} to {high:.3f}), {len(pairs)} pairs")
    if asked.out is not None:
        asked.out.write_text(json.dumps({"pairs": pairs, "ratios": told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
