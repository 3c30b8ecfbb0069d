"""Our own rows of docs/evidence/speed.md, side against side, in pairs: two commits, or the forms in which one commit can run.

    python -m benchmarks.classic.pairs --sides before=../before now=.                        # two source trees, as they are
    python -m benchmarks.classic.pairs --sides off:=. numpy:=. on:=. compile:=. --rows ppo-cartpole dqn-cartpole
    python -m benchmarks.classic.pairs --gpu --sides before=../before now=.                  # needs a CUDA device

Each side is a process of its own that stays alive; the sides measure a row in turns, A B A B ..., so that a machine that slows
down slows both. The ratio of a row is the geometric mean over pairs, with a 95 % interval of the logarithms (Student's t).

A side is `name=TREE`, or `form:name=TREE` with a form of `FORMS`: the same tree can then be compared with itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from benchmarks import machine

ROOT = Path(__file__).resolve().parents[2]
QUIET: dict[str, Any] = {"track": (), "eval.episodes": 0, "checkpoint.every": 0, "zoo": False, "progress": False}
PPO: dict[str, Any] = {
    "num_steps": 128,
    "ppo.lr": 2.5e-4,
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 4,
    "ppo.entropy_coef": 0.01,
    "ppo.value_coef": 1.0,
    "ppo.normalise_obs": False,
    "ppo.normalise_reward": False,
}
_PIXELS = {name: value for name, value in PPO.items() if name != "ppo.normalise_obs"}
DQN: dict[str, Any] = {
    "num_steps": 10,
    "num_envs": 1,
    "update_ratio": 0.1,
    "min_fill": 500,
    "replay.capacity": 10_000,
    "replay.prioritised": False,
    "net.hidden": (120, 84),
    "net.activation": "relu",
    "dqn.lr": 2.5e-4,
    "dqn.batch_size": 128,
    "dqn.epsilon": 0.05,
    "dqn.double": False,
    "dqn.huber": 1.0,
    "dqn.target_every": 32,
}
SAC: dict[str, Any] = {"num_steps": 1, "num_envs": 1, "min_fill": 500, "placement.threads": 2}
LONG = 1_000_000_000
"""Steps of a run that ends by its window; kernels are compiled for it."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo-cartpole": ("ppo", {**PPO, "num_envs": 8, "vector.backend": "serial"}),
    "ppo-tensor-8": ("ppo", {**PPO, "env": "tensor:CartPole-v1", "num_envs": 8}),
    "ppo-tensor-64": ("ppo", {**PPO, "env": "tensor:CartPole-v1", "num_envs": 64, "placement.threads": 2}),
    "ppo-tensor-1024": ("ppo", {**PPO, "env": "tensor:CartPole-v1", "num_envs": 1024, "placement.threads": 2}),
    "ppo-vector-1024": ("ppo", {**PPO, "num_envs": 1024, "vector.backend": "gymnasium", "placement.threads": 2}),
    "ppo-halfcheetah": ("ppo", {**PPO, "env": "envpool:HalfCheetah-v5", "num_envs": 64}),
    "ppo-breakout": ("ppo", {**_PIXELS, "env": "atari:Breakout", "num_envs": 8, "placement.threads": 2}),
    "dqn-cartpole": ("dqn", {**DQN, "vector.backend": "serial"}),
    "sac-halfcheetah": ("sac", {**SAC, "env": "HalfCheetah-v5", "vector.backend": "serial"}),
    "td3-halfcheetah": ("td3", {**SAC, "env": "HalfCheetah-v5", "vector.backend": "serial"}),
    "a2c-cartpole": ("a2c", {"num_envs": 8, "vector.backend": "serial"}),
    "ppo-cartpole-short": ("ppo", {**PPO, "num_envs": 8, "vector.backend": "serial", "total_steps": 49_000}),
}
"""Recipe and settings. The last ones are no rows of docs/evidence/speed.md: what else the plain form runs."""
_LANE: dict[str, Any] = {**PPO, "num_steps": 32, "ppo.lr": 3e-3, "ppo.value_coef": 0.5, "device": "cuda"}
_CARTPOLE: dict[str, Any] = {**_LANE, "env": "tensor:CartPole-v1"}
GPU_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole-4096": ("ppo", {**_CARTPOLE, "num_envs": 4_096}),
    "cartpole-65536": ("ppo", {**_CARTPOLE, "num_envs": 65_536}),
    "cartpole-4096-plain": ("ppo", {**_CARTPOLE, "num_envs": 4_096, "total_updates": 200, "total_steps": None}),
    "cartpole-4096-normalised": ("ppo", {**_CARTPOLE, "num_envs": 4_096, "ppo.normalise_obs": True}),
    "pendulum-16384": ("ppo", {**_LANE, "env": "tensor:Pendulum-v1", "num_envs": 16_384}),
    "population-32x128": ("ppo", {**_CARTPOLE, "num_envs": 128, "population": 32}),
    "sac-pendulum": ("sac", {**SAC, "env": "tensor:Pendulum-v1", "num_envs": 16, "num_steps": 4, "device": "cuda"}),
}
FORMS = ("", "off", "numpy", "on", "compile")
"""As the tree runs by itself; plain code; acting in numpy; kernels; `torch.compile` round the plain loss."""


# ------------------------------------------------------------------------------------------------------------- one side
def serve(form: str) -> None:
    """Measure rows as they are asked for on standard input, one JSON line each."""
    import runnel as rl

    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        order = json.loads(line)
        recipe, settings = {**ROWS, **GPU_ROWS}[order["row"]]
        settings = {**QUIET, "total_steps": LONG, **settings, "out": tempfile.mkdtemp(), "seed": order["seed"]}
        times: list[float] = []
        steps: list[int] = []

        def tick(row: dict[str, Any], times: list[float] = times, steps: list[int] = steps, order: Any = order) -> bool:
            times.append(time.perf_counter())
            steps.append(row["steps"])
            return times[-1] - times[0] < order["warm_s"] + order["window_s"]

        used = recipe
        if form in ("off", "on"):
            settings["compiled"] = form
        elif form == "numpy":
            settings["total_steps"] = 49_000_000 if settings.get("device") == "cuda" else 49_000
        elif form == "compile":
            used, settings["compiled"] = _compiled_recipe(recipe), "on" if settings.get("device") == "cuda" else "auto"
        try:
            rl.train(used, on_update=tick, **settings)
            first = next(i for i, t in enumerate(times) if t - times[0] >= order["warm_s"])
            rate = (steps[-1] - steps[first]) / (times[-1] - times[first])
            answer: dict[str, Any] = {"steps_per_s": rate}
        except (rl.RunnelError, StopIteration, ZeroDivisionError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


def _compiled_recipe(recipe: str) -> str:
    """A recipe file like `recipe`, whose learner has `torch.compile` round its plain losses."""
    losses = {"ppo": ("loss",), "dqn": ("loss",), "sac": ("critic_loss", "actor_loss"), "td3": ("critic_loss", "actor_loss")}
    lines = [
        "import torch",
        "import runnel as rl",
        f"from runnel.recipes import {recipe}",
        f"Config = {recipe}.Config",
        f"class Compiled(rl.{recipe.upper()}Learner):",
        *(f"    {name} = torch.compile(rl.{recipe.upper()}Learner.{name})" for name in losses[recipe]),
        f"def build(c): return {recipe}.build(c, learner=Compiled)",
    ]
    file = Path(tempfile.mkdtemp()) / "compiled_loss.py"
    file.write_text('"""The plain losses through torch.compile."""\n' + "\n".join(lines) + "\n")
    return str(file)


# ---------------------------------------------------------------------------------------------------------- all of them
class Side:
    """A process that measures one tree in one form."""

    def __init__(self, text: str) -> None:
        label, _, tree = text.partition("=")
        form, _, name = label.rpartition(":")
        self.form, self.name, self.tree = form, name or form, str(Path(tree).resolve())
        assert form in FORMS, f"{form} is none of {FORMS}"
        paths = os.pathsep.join([f"{self.tree}/src", str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "benchmarks.classic.pairs", "--serve", form]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """What one measurement gave."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        line = stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": f"{self.name} ended ({self._process.wait()})"}
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval over pairs (Student's t of the logarithms)."""
    logs = [math.log(r) for r in ratios]
    mean = fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    t = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}.get(len(logs) - 1, 2.2)
    half = t * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare(
    sides: list[Side], rows: list[str], *, pairs: int, warm_s: float, window_s: float, seconds: float
) -> dict[str, Any]:
    """Every row by every side in turns; rows that are out of time have fewer pairs, and say so."""
    found: dict[str, Any] = {}
    for row in rows:
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        errors: dict[str, str] = {}
        start = time.monotonic()
        for pair in range(pairs + 1):  # the first compiles and fills caches, and is not kept
            if pair > 1 and time.monotonic() - start > seconds:
                break
            for side in sides if pair % 2 else sides[::-1]:
                if side.name in errors:
                    continue
                answer = side.ask(row=row, seed=1 + pair, warm_s=warm_s, window_s=window_s)
                if "error" in answer:
                    errors[side.name] = answer["error"]
                elif pair:
                    rates[side.name].append(answer["steps_per_s"])
        base = rates[sides[0].name]
        found[row] = {"errors": errors, "steps_per_s": rates, "ratios": {}}
        for side in sides[1:]:
            ratios = [b / a for a, b in zip(base, rates[side.name], strict=False)]
            if ratios:
                found[row]["ratios"][side.name] = interval(ratios)
        _show(row, found[row], sides)
    return found


def _show(row: str, found: dict[str, Any], sides: list[Side]) -> None:
    rates = ", ".join(f"{n} {median(r):,.0f}" for n, r in found["steps_per_s"].items() if r)
    ratios = ", ".join(f"{n} {m:.3f} ({lo:.3f} to {hi:.3f})" for n, (m, lo, hi) in found["ratios"].items())
    num = len(found["steps_per_s"][sides[0].name])
    print(f"{row}: {rates} steps/s; times {sides[0].name}: {ratios}, {num} pairs {found['errors'] or ''}", flush=True)


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--sides", nargs="+", default=[])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--warm-s", type=float, default=1.5)
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=600.0, help="a row that takes longer has fewer pairs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.serve is not None:
        return serve(args.serve)
    sides = [Side(text) for text in args.sides]
    rows = args.rows or list(GPU_ROWS if args.gpu else ROWS)
    found = compare(sides, rows, pairs=args.pairs, warm_s=args.warm_s, window_s=args.window_s, seconds=args.seconds)
    for side in sides:
        side.close()
    if args.out:
        about = {"machine": machine.facts(), "command": " ".join(sys.argv[1:]), "rows": found}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
