"""Ray beside the local launcher, and RLlib beside both: PPO and APPO on environments of 1 ms a step, two actors, one machine.

python -m benchmarks.cluster.run
python -m benchmarks.cluster.run --measure ppo --pairs 1
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.classic.rows import REQUIREMENTS
from benchmarks.harness import Entry, Measure, Side, main
from benchmarks.venvs import ROOT

HERE = Path(__file__).parent
OURS = ("torch", f"-e{ROOT}[ray]")


def measure(name: str, title: str, *arguments: str, must: float, aim: float) -> Measure:
    """Steps a second once the first update is done."""
    columns = ("steps_per_s", "seconds", "cores", "others")
    return Measure(
        name, title, "steps_per_s", "steps/s", True, arguments, repeats=3, limit_s=180.0, columns=columns, must=must, aim=aim
    )


ENTRY = Entry(
    name="cluster/launchers",
    title="The Ray launcher beside the local one and beside RLlib, environments of 1 ms a step, 2 cores",
    sides=(
        Side("runnel, ray", HERE / "ours.py", OURS, ("--launcher", "ray"), venv="cluster"),
        Side("runnel, local", HERE / "ours.py", OURS, ("--launcher", "local"), venv="cluster"),
        Side("RLlib", HERE / "peer_rllib.py", REQUIREMENTS["rllib"], venv="rllib"),
    ),
    measures=(
        measure("ppo", "PPO, inference in each actor", "--algo", "ppo", must=0.7, aim=0.9),
        measure("ppo-split", "PPO, one policy worker (RLlib: as above)", "--policy-workers", "1", must=0.7, aim=0.9),
        measure(
            "ppo-many", "PPO, 8 actors of one environment each, which sleep side by side", "--actors", "8", must=0.7, aim=0.9
        ),
        measure("appo", "APPO, asynchronous, at most two versions behind", "--algo", "appo", must=0.7, aim=0.9),
        measure("ppo-fast", "PPO, CartPole as it is: what the system itself costs", "--step-ms", "0", must=0.7, aim=0.9),
        measure("appo-fast", "APPO, CartPole as it is", "--algo", "appo", "--step-ms", "0", must=0.7, aim=0.9),
    ),
    notes=(
        "All sides: CartPole-v1 whose steps sleep for 1 ms, 2 actors of 4 environments in turn, 1,024 steps an update, 4 "
        "epochs of 4 minibatches (RLlib's APPO: its own schedule), two layers of 64 (tanh), Adam at 2.5e-4, one machine. "
        "runnel without its compiled kernels.",
        "The bound: two actors that step one environment after the other, at a little over 1 ms each, make 1,900 steps/s.",
        "`others` of the sides on Ray are Ray's own processes, which do not belong to the measured one; that of the local "
        "launcher says how idle the machine was.",
        "Ratios are those of the Ray launcher to each other side; must and aim are for the local launcher. Against RLlib 3 is "
        "asked for.",
    ),
    packages=("ray",),
)

if __name__ == "__main__":
    sys.exit(main(ENTRY))
