"""Asynchronous APPO against our own PPO on environments of 2 ms a step, two cores, Sample Factory beside them.

python -m benchmarks.classic.appo_async.run
python -m benchmarks.classic.appo_async.run --measure uneven --repeats 3 -- --appo-layout ring
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.classic.rows import OURS, REQUIREMENTS
from benchmarks.harness import Entry, Measure, Side, main

HERE = Path(__file__).parent


def ours(name: str, *arguments: str) -> Side:
    """A side of runnel's own, in the virtual environment that all of them share."""
    return Side(name, HERE / "ours.py", OURS, arguments, venv="runnel")


def measure(name: str, title: str, *arguments: str) -> Measure:
    """Steps a second while learning; what is asked for is the ratio to the fastest layout of PPO."""
    return Measure(
        name,
        title,
        "steps_per_s",
        "steps/s",
        True,
        arguments,
        repeats=5,
        limit_s=240.0,
        columns=("steps_per_s", "lag", "seconds", "cores", "others"),
        must=1.3,
        aim=1.7,
    )


ENTRY = Entry(
    name="classic/appo_async",
    title="Asynchronous APPO against synchronous PPO, environments of 2 ms a step, 2 cores",
    sides=(
        ours("APPO", "--algo", "appo", "--layout", "actors"),
        ours("PPO, serial", "--algo", "ppo", "--layout", "serial"),
        ours("PPO, processes", "--algo", "ppo", "--layout", "processes"),
        ours("PPO, actors", "--algo", "ppo", "--layout", "actors"),
        Side("Sample Factory", HERE / "peer_samplefactory.py", REQUIREMENTS["samplefactory"], venv="samplefactory"),
    ),
    measures=(
        measure("sleep", "Every step sleeps for 2 ms (a simulator elsewhere)"),
        measure("uneven", "Every step sleeps for 0 to 4 ms, 2 ms on average", "--jitter", "1"),
        measure("wide", "Every step sleeps for 2 ms, two layers of 512: learning takes its time", "--hidden", "512"),
        measure("busy", "Every step computes for 2 ms of a core", "--busy"),
        measure("busy-uneven", "Every step computes for 0 to 4 ms of a core", "--busy", "--jitter", "1"),
    ),
    notes=(
        "All sides: CartPole-v1 with a set step time, 8 environments, 1,024 steps an update, 4 epochs of 4 minibatches, "
        "2 x 64 tanh, Adam at a constant 2.5e-4, one torch thread in each process.",
        "The bound of the machine: 8 sleeping steps of 2 ms at once are 4,000 steps/s; two cores that compute for 2 ms are "
        "1,000.",
        "PPO waits for the slowest environment at every step (processes) or every segment (actors), and nobody plays while "
        "it learns. APPO takes whatever segments have arrived; its data is at most 2 versions old (`lag` is the mean), "
        "corrected by V-trace.",
        "Layouts (`ours.py`): serial steps all environments in one process; processes and actors divide them among 8 workers "
        "where steps sleep, and among 2 where they compute. APPO has actors.",
        "Sample Factory: asynchronous; 4 workers of 2 environments where steps sleep, 2 of 4 where they compute, the "
        "environments of a worker in two halves that take turns. Without V-trace: version 2.1.1 stops with an error when "
        "that is on (its summaries ask for advantages that it then does not keep).",
    ),
    packages=("sample-factory",),
)

if __name__ == "__main__":
    sys.exit(main(ENTRY))
