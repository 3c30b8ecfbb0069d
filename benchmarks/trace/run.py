"""What `--trace` costs: runs with and without it in turns, `python -m benchmarks.trace.run`.

Each pair is the same run (same seed, so the same numbers) with and without tracing, in changing order. Counted are the CPU
seconds of all processes of the run and its wall time; the first is less disturbed by other programs on the machine. A ratio of
1.01 is a hundredth more. The interval is that of the median of pairs (95 %, bootstrap). Beside that stands a sum that other
programs hardly disturb: the calls of the recorder that a run made, times what a call costs here, as a share of its CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import runnel as rl
from benchmarks import machine
from runnel.core.clock import WallClock
from runnel.core.trace import MARK, SPAN, TraceWriter
from runnel.track.trace import write_trace
from runnel.track.trace.files import read_processes

RESULTS = Path(__file__).parents[1] / "results" / "trace"
LIMIT = 1.02
PLAIN: dict[str, Any] = {"track": (), "eval.episodes": 0, "checkpoint.every": 0}
PPO: dict[str, Any] = {"env": "CartPole-v1", **PLAIN}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo-inproc": ("ppo", {**PPO, "total_steps": 40_960}),
    "ppo-local": ("ppo", {**PPO, "total_steps": 122_880, "launcher": "local", "num_actors": 2, "staleness.mode": "window"}),
    "dqn-inproc": ("dqn", {**PPO, "total_steps": 6_000}),
    "grpo-inproc": ("grpo", {**PLAIN, "task": "reverse", "total_updates": 6}),
}


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def call_costs(num: int = 100_000) -> tuple[float, float]:
    """CPU seconds of a piece of a stage, and of any other record (written to a file, as in a run)."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = TraceWriter(Path(folder) / "cost.bin", WallClock(), about={"group": "x", "epoch": 0, "incarnation": 0})
        track = recorder.track("x")
        code, start = track.code(MARK, "reserve x"), time.process_time()
        for n in range(num):
            track.span("ab"[n % 2], 1.0, 1.0, 0.0)  # another stage each time: none of them are joined
        middle = time.process_time()
        for n in range(num):
            track.put(code, n, 1.0, 1.0)
        end = time.process_time()
        recorder.close()
    return (middle - start) / num, (end - middle) / num


def one(recipe: str, settings: dict[str, Any], out: Path, *, trace: bool) -> dict[str, Any]:
    """One run: seconds of CPU and of wall time; of a traced one also its records."""
    before = cpu_s()
    run = rl.train(recipe, out=str(out), trace=trace, **settings)
    row: dict[str, Any] = {"cpu_s": cpu_s() - before, "wall_s": run.train_s}
    if trace:
        processes = read_processes(run.path)
        row["records"] = sum(len(process.records) for process in processes)
        row["pieces"] = sum(float(process.of_kind(SPAN)[:, 4].sum()) for process in processes)
        row["marks"] = row["records"] - sum(len(process.of_kind(SPAN)) for process in processes)
        row["bytes"] = sum(path.stat().st_size for path in (run.path / "trace").iterdir())
        row["events"] = write_trace(run.path).num_events
    shutil.rmtree(run.path)
    return row


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the ends of its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return median(ratios), medians[50], medians[1949]


def measure(case: str, pairs: int) -> dict[str, Any]:
    """Pairs of one case; the first run of all is not counted."""
    recipe, settings = CASES[case]
    piece_s, mark_s = call_costs()
    rows: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        one(recipe, settings, Path(folder), trace=True)
        for number in range(pairs):
            order = (False, True) if number % 2 else (True, False)
            pair = {("on" if trace else "off"): one(recipe, settings, Path(folder), trace=trace) for trace in order}
            rows.append(pair)
    found: dict[str, Any] = {"case": case, "recipe": recipe, "settings": settings, "pairs": rows}
    for what in ("cpu_s", "wall_s"):
        middle, low, high = interval([pair["on"][what] / pair["off"][what] for pair in rows])
        found[what] = {"ratio": middle, "low": low, "high": high, "off": median(pair["off"][what] for pair in rows)}
    found["records"] = median(pair["on"]["records"] for pair in rows)
    shares = [(on["pieces"] * piece_s + on["marks"] * mark_s) / on["cpu_s"] for on in (pair["on"] for pair in rows)]
    found |= {"piece_us": piece_s * 1e6, "mark_us": mark_s * 1e6, "share": median(shares)}
    return found


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [found["case"], str(len(found["pairs"]))]
    for what in ("cpu_s", "wall_s"):
        f = found[what]
        cells.append(f"{f['off']:.2f} s, x {f['ratio']:.4f} ({f['low']:.4f} to {f['high']:.4f})")
    cells.append(f"{found['records']:,.0f}")
    cells.append(f"{100 * found['share']:.3f} %")
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="only this one (may be given several times)")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    found = [measure(case, parsed.pairs) for case in parsed.case or CASES]
    head = ["| case | pairs | CPU without, with / without | wall without, with / without | records | calls x cost |"]
    head.append("| --- | --- | --- | --- | --- | --- |")
    table = "\n".join([*head, *map(line, found)])
    parsed.out.mkdir(parents=True, exist_ok=True)
    (parsed.out / "result.json").write_text(json.dumps({"machine": machine.facts(), "cases": found}, indent=1) + "\n")
    (parsed.out / "table.md").write_text(table + "\n")
    print(table)
    return int(any(case["cpu_s"]["low"] > LIMIT or case["share"] > LIMIT - 1 for case in found))


if __name__ == "__main__":
    raise SystemExit(main())
