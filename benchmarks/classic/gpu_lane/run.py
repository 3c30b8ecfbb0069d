"""The lane that never leaves the GPU: PPO on tensor environments, through `rl.train`, at several widths.

python -m benchmarks.classic.gpu_lane.run                      # needs a CUDA device; numpy and torch are enough
python -m benchmarks.classic.gpu_lane.run --only speed --seeds 1 --out /tmp/look

Two questions. `speed`: environment steps a second with learning, once everything is compiled and captured, and how long that
took. `solve`: seconds until an evaluation of 100 greedy episodes of CartPole averages 475, counted from the call of `rl.train`
(with all evaluations and the last checkpoint), and from the start of the process. Every measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

START = float(os.environ.get("GPU_LANE_START", time.time()))
ROOT = Path(__file__).resolve().parents[3]
SAME_WORK: dict[str, Any] = {
    "num_steps": 32,
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 4,
    "ppo.entropy_coef": 0.01,
    "ppo.lr": 3e-3,
    "ppo.normalise_obs": False,
    "ppo.normalise_reward": False,
    "checkpoint.every": 0,
    "track": (),
}
SPEED: dict[str, dict[str, Any]] = {
    "CartPole x 4,096": {"env": "tensor:CartPole-v1", "num_envs": 4_096, "updates": 800},
    "CartPole x 16,384": {"env": "tensor:CartPole-v1", "num_envs": 16_384, "updates": 400},
    "CartPole x 65,536": {"env": "tensor:CartPole-v1", "num_envs": 65_536, "updates": 160},
    "CartPole x 4,096, graphs": {"env": "tensor:CartPole-v1", "num_envs": 4_096, "updates": 200},
    "CartPole x 65,536, graphs": {"env": "tensor:CartPole-v1", "num_envs": 65_536, "updates": 23},
    "FourRooms x 16,384": {"env": "tensor:FourRooms", "num_envs": 16_384, "updates": 400},
    "Pendulum x 16,384": {"env": "tensor:Pendulum-v1", "num_envs": 16_384, "updates": 400},
    "CartPole, 32 learners x 128": {"env": "tensor:CartPole-v1", "num_envs": 128, "population": 32, "updates": 800},
    "CartPole, 32 learners x 2,048": {"env": "tensor:CartPole-v1", "num_envs": 2_048, "population": 32, "updates": 160},
}
"""A run that is short enough (see `compiled` in the configuration) is the plain learner in CUDA graphs, without kernels
("torch" in older results)."""
SOLVED = 475.0
EVERY = 8
"""Updates between two evaluations of `solve`."""
WARM = 10
"""Updates before the clock of `speed` starts."""


def speed(name: str, seed: int) -> dict[str, Any]:
    """Steps a second after the first updates, and the seconds that those took."""
    import torch

    import runnel as rl

    settings = {**SAME_WORK, **SPEED[name]}
    updates, times, steps = settings.pop("updates"), [], []

    def tick(row: dict[str, Any]) -> None:
        times.append(time.perf_counter())
        steps.append(row["steps"])

    begin = time.perf_counter()
    rl.train(
        "ppo",
        device="cuda",
        seed=seed,
        total_updates=updates,
        out=_folder(),
        on_update=tick,
        **settings,
        **{"eval.episodes": 0},
    )
    rate = (steps[-1] - steps[WARM]) / (times[-1] - times[WARM])
    return {
        "steps_per_s": rate,
        "first_update_s": times[0] - begin,
        "warm_s": times[WARM] - begin,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def solve(num_envs: int, seed: int) -> dict[str, Any]:
    """Seconds until CartPole is solved, and what the evaluation said."""
    import torch

    import runnel as rl

    imported = time.time()
    torch.zeros(1, device="cuda")
    ready = time.time()
    means: list[float] = []
    run = rl.train(
        "ppo",
        device="cuda",
        env="tensor:CartPole-v1",
        num_envs=num_envs,
        seed=seed,
        total_steps=40_000_000,
        out=_folder(),
        on_eval=lambda row: means.append(row["mean"]),
        **SAME_WORK,
        **{"eval.episodes": 100, "eval.every": EVERY, "eval.stop_return": SOLVED},
    )
    end = time.time()
    return {
        "evaluations": means,
        "solved": means[-1] >= SOLVED,
        "updates": run.version,
        "steps": run.steps,
        "from_train_s": end - ready,
        "from_import_s": end - imported,
        "from_process_s": end - START,
        "import_s": imported - START,
    }


def _folder() -> str:
    return tempfile.mkdtemp(prefix="gpu_lane_")


# ------------------------------------------------------------------------------------------------------------- processes
def measure(kind: str, what: str, seed: int, *, limit_s: float) -> dict[str, Any]:
    """One measurement in a process of its own; what it said last, or why it said nothing."""
    command = [sys.executable, "-m", "benchmarks.classic.gpu_lane.run", "--one", kind, what, str(seed)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "GPU_LANE_START": str(time.time())}
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit_s:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("KIND", "WHAT", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=("speed", "solve"), help="ask one of the two questions")
    parser.add_argument("--names", nargs="*", help="names of `speed` to measure; default all")
    parser.add_argument("--widths", type=int, nargs="*", default=[512, 1_024], help="environments of `solve`")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one measurement")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/classic/gpu_lane")
    args = parser.parse_args()
    if args.one:
        kind, what, seed = args.one
        print(json.dumps(speed(what, int(seed)) if kind == "speed" else solve(int(what), int(seed))))
        return
    work = [("solve", str(n)) for n in args.widths if args.only != "speed"]
    work += [("speed", name) for name in args.names or SPEED if args.only != "solve"]
    rows = [{"kind": kind, "what": what, "runs": []} for kind, what in work]
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for row in rows:
            found = measure(row["kind"], row["what"], seed, limit_s=args.limit)
            row["runs"].append({"seed": seed, **found})
            print(row["kind"], row["what"], f"seed {seed}:", json.dumps(found), flush=True)
            (args.out / "gpu_lane.json").write_text(json.dumps({"machine": _machine(), "rows": rows}, indent=1))
    for row in rows:
        key = "steps_per_s" if row["kind"] == "speed" else "from_train_s"
        known = [r[key] for r in row["runs"] if key in r]
        print(
            f"{row['kind']:6} {row['what']:32} {key} {median(known) if known else float('nan'):,.2f} (median of {len(known)})"
        )


def _machine() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "none"
    return {"gpu": gpu, "python": sys.version.split()[0]}


if __name__ == "__main__":
    main()
