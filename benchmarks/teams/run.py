"""Tensor worlds of teams beside VMAS: stepping alone, and trained on, against VMAS that only steps.

python -m benchmarks.teams.run
python -m benchmarks.teams.run --measure train-1024 --pairs 1
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.harness import Entry, Measure, Side, main
from benchmarks.venvs import ROOT

HERE = Path(__file__).parent


def measures(num_envs: int) -> tuple[Measure, ...]:
    """Steps of `num_envs` worlds a second; all agents of a world take a step together."""
    found = []
    for name, title, work in (
        ("step", "random actions", ("--work", "step")),
        ("train", "trained on, 1 pass over each batch (VMAS: random actions)", ("--work", "train", "--epochs", "1")),
        ("train4", "trained on, 4 passes over each batch (VMAS: random actions)", ("--work", "train", "--epochs", "4")),
    ):
        arguments = ("--num-envs", str(num_envs), *work)
        columns = ("steps_per_s", "seconds", "cores", "others")
        measure = Measure(
            *(f"{name}-{num_envs}", f"{num_envs:,} worlds, {title}", "steps_per_s", "steps/s", True, arguments),
            repeats=3,
            limit_s=180.0,
            columns=columns,
        )
        found.append(measure)
    return tuple(found)


ENTRY = Entry(
    name="teams/vmas",
    title="Spread on tensors beside VMAS, 2 threads",
    sides=(
        Side("runnel", HERE / "ours.py", ("torch", f"-e{ROOT}[compiled]")),
        Side("vmas", HERE / "peer_vmas.py", ("torch", "vmas==1.5.2"), venv="vmas"),
    ),
    measures=(*measures(1024), *measures(8192)),
    notes=(
        "runnel: `tensor:Spread`, three agents, three landmarks, episodes of 25 steps, mpe2's simple_spread_v3. "
        "VMAS: `simple_spread` with discrete actions, the same numbers, reset as a whole after 25 steps.",
        "Trained on: recipe `ippo` as it stands (one policy for all agents, two layers of 64, observations and rewards "
        "normalised), 25 steps of each world in a batch, 4 minibatches in a pass. Acting, learning and resets are in the time.",
        "Random actions are drawn before the clock starts.",
    ),
    packages=("vmas", "numba"),
)

if __name__ == "__main__":
    sys.exit(main(ENTRY))
