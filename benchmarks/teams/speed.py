"""Training on mpe2's simple_spread beside stepping it alone, `python -m benchmarks.teams.speed`.

Alone: one process steps `mpe2.simple_spread_v3.parallel_env()` with random actions, and resets it where an episode ends;
nothing else is done. Beside it, in turns, `ippo` trains on the same environment, with its policy, its samples and its updates.
Both are steps of the environment in a second of wall time (three agents decide in each). A ratio of 1 says that training is as
fast as the bare environment. The interval is that of the median of rounds (95 %, bootstrap).

"one process" does all of it in one; the others have a second process or more, for a machine of two cores. CPU time a step, of
all processes together and with their start, is less disturbed by other programs.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import runnel as rl
from benchmarks import machine

RESULTS = Path(__file__).parents[1] / "results" / "teams" / "speed"
ENV = "pettingzoo:mpe2.simple_spread_v3"
SETTINGS: dict[str, Any] = {"env": ENV, "num_steps": 100, "track": (), "eval.episodes": 0, "checkpoint.every": 0}
WAYS: dict[str, dict[str, Any]] = {
    "one process": {"num_envs": 32, "launcher": "inproc"},
    "two actors": {"num_envs": 16, "num_actors": 2, "launcher": "local"},
    "two actors, one version behind": {"num_envs": 16, "num_actors": 2, "launcher": "local", "staleness.mode": "one_step"},
    "two processes of environments": {
        "num_envs": 32,
        "launcher": "inproc",
        "vector.backend": "processes",
        "vector.num_workers": 2,
    },
}
BARE = """
import random, sys, time
from mpe2 import simple_spread_v3
env, draw, seconds = simple_spread_v3.parallel_env(), random.Random(0), float(sys.argv[1])
env.reset(seed=0)
steps, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    for _ in range(100):
        if not env.agents:
            env.reset()
        env.step({agent: draw.randrange(5) for agent in env.agents})
    steps += 100
print(steps / (time.perf_counter() - begin), 1e6 * time.process_time() / steps)
"""


def bare(seconds: float) -> tuple[float, float]:
    """Steps in a second of the environment alone, in a process of its own, and its CPU microseconds a step."""
    done = subprocess.run([sys.executable, "-c", BARE, str(seconds)], check=True, capture_output=True, text=True)
    rate, cpu_us = map(float, done.stdout.split())
    return rate, cpu_us


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def trained(way: str, seconds: float, rate: float) -> dict[str, float]:
    """Steps in a second of a training run of about so many seconds, from its second update on: the first waits for the start of
    processes."""
    before = cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        run = rl.train("ippo", out=folder, total_steps=max(16_000, int(rate * seconds)), **SETTINGS, **WAYS[way])
        rows = run.rows()
    first, last = rows[1], rows[-1]
    return {
        "steps_per_s": (last["steps"] - first["steps"]) / (last["time"]["wall_s"] - first["time"]["wall_s"]),
        "cpu_us": 1e6 * (cpu_s() - before) / last["steps"],
        "updates": last["version"],
        "seconds": last["time"]["wall_s"],
    }


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the ends of its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return median(ratios), medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one (may be given several times)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    ways = parsed.way or list(WAYS)
    rounds: list[dict[str, Any]] = []
    for number in range(parsed.rounds):
        row: dict[str, Any] = {}
        order = ways if number % 2 == 0 else ways[::-1]
        # the bare environment before and behind each run, so that a machine that gets slower meanwhile is seen in both
        for way in order:
            before = bare(parsed.seconds / 4)
            found = trained(way, parsed.seconds, before[0])
            behind = bare(parsed.seconds / 4)
            alone = (before[0] + behind[0]) / 2
            cpu_us = (before[1] + behind[1]) / 2
            row[way] = {**found, "bare": alone, "bare_cpu_us": cpu_us, "ratio": found["steps_per_s"] / alone}
            print(
                f"round {number + 1}, {way}: {found['steps_per_s']:,.0f} of {alone:,.0f} steps/s, x {row[way]['ratio']:.2f}",
                flush=True,
            )
        rounds.append(row)
    table = ["| ippo on simple_spread | steps/s | bare steps/s | training / bare | CPU us a step | bare |"]
    table += ["| --- | --- | --- | --- | --- | --- |"]
    for way in ways:
        middle, low, high = interval([row[way]["ratio"] for row in rounds])
        rates = [median(row[way][key] for row in rounds) for key in ("steps_per_s", "bare", "cpu_us", "bare_cpu_us")]
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        table.append(f"| {way} | {rates[0]:,.0f} | {rates[1]:,.0f} | {spread} | {rates[2]:,.0f} | {rates[3]:,.0f} |")
    parsed.out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine.facts(), "settings": SETTINGS, "ways": {way: WAYS[way] for way in ways}, "rounds": rounds}
    (parsed.out / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (parsed.out / "table.md").write_text("\n".join(table) + "\n", encoding="utf-8")
    print("\n".join(table))


if __name__ == "__main__":
    main()
