"""`runnel bench`: how fast a recipe runs here, and with `--profile` where its time goes."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from runnel.cli.arguments import make_parser
from runnel.cli.profiling import Bench, Parts, Window, machine_limits, split
from runnel.cli.train import parse_recipe
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject
from runnel.envs.registry import is_tensor_env, make_source
from runnel.envs.vector.host import num_cores
from runnel.envs.vector.measure import measure_backends
from runnel.graphs.env_config import EnvConfig, wrapped_target
from runnel.graphs.run_config import RunConfig
from runnel.run import api, registry
from runnel.run.launchers.inproc import torch_threads
from runnel.run.ledger import Callbacks
from runnel.run.measure import endless
from runnel.run.wiring import available_cores
from runnel.track.folder import RunFolder

PROFILED_S, PROFILED_UPDATES = 0.3, (3, 50)
"""Operators are measured for this many seconds of updates, and for at least and at most this many updates."""
Result = JsonObject
ABOUT = """Measure a recipe: steps and updates a second of a short run, after a warm-up.

With --profile also where the time goes: by worker, stage and part of a stage, for each step and each update; the operators
of the update; and what the machine can do at most. With --backends also how long a step of the environments takes on each
back end, and which setting that speaks for. Every field of the recipe is a flag, as with `runnel train RECIPE`:

  runnel bench --recipe ppo --env tensor:CartPole-v1 --num-envs 64
  runnel bench --profile --recipe sac --env HalfCheetah-v5
  runnel bench --backends --env path/to/file.py:MyEnv
"""


def bench(args: list[str]) -> int:
    """Measure, and print a table or JSON."""
    parser = make_parser("bench", ABOUT, abbreviate=False)
    parser.add_argument("--recipe", default="ppo", help="a recipe's name, or the path of your own file (ppo)")
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    parser.add_argument("--backends", action="store_true", help="time every back end, and say which vector.* to set")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (5)")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before it, counted from the first update (2)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parsed, rest = parser.parse_known_args(args)
    config = endless(parse_recipe(registry.load_recipe(parsed.recipe), rest, command="bench"))
    measure = _inproc if config.launcher == "inproc" else _processes
    advice = _backends(config) if parsed.backends else {}
    result = measure(parsed.recipe, config, parsed) | advice
    if parsed.json:
        print(json.dumps(result, indent=1))
    else:
        show(result, Console())
    return 0


def _backends(config: RunConfig) -> Result:
    """Find the back end that steps the environments of one actor fastest, alone on this machine.

    A run never measures: it uses the back end in its config, or the one that `vector.backend=auto` means.
    """
    if not isinstance(config, EnvConfig) or is_tensor_env(config.env):
        raise ConfigError("backends", True, "only environments of Gymnasium, Atari or EnvPool have back ends; leave it out")
    target, asked = wrapped_target(config.env, config.wrappers), replace(config.vector, backend="auto")
    source = make_source(target, kwargs=config.env_kwargs, frame_stack=asked.frame_stack)
    choice = measure_backends(source, config.num_envs // config.num_env_groups, asked, cores=num_cores())
    found = {name: getattr(choice.config, name) for name in ("backend", "num_workers", "threads")}
    return {"backends": choice.text, "settings": {f"vector.{name}": value for name, value in found.items() if value}}


def _inproc(recipe: str, config: RunConfig, args: argparse.Namespace) -> Result:
    """Measure a run in this process, where the parts of workers can be timed."""
    with torch_threads(config.placement.threads), tempfile.TemporaryDirectory(prefix="runnel-bench-") as out:
        run = Bench(registry.build(recipe, config), RunFolder.create(out, "bench"))
        try:
            return _measure(recipe, run, args)
        finally:
            run.close()


def _measure(recipe: str, run: Bench, args: argparse.Namespace) -> Result:
    run.run(0.0)
    run.run(args.warmup)
    result: Result = {"recipe": recipe, "rates": run.run(args.seconds).rates()}
    if args.profile:
        parts = Parts()
        with parts.opened(run.group.workers):
            window = run.run(args.seconds)
        result |= {"profiled_rates": window.rates(), "stages": split(window, parts)}
        low, high = PROFILED_UPDATES
        result["operators"] = run.operators(min(high, max(low, round(PROFILED_S * window.updates / window.wall_s))))
        result["limits"] = dict(machine_limits(available_cores()))
    return result


def _processes(recipe: str, config: RunConfig, args: argparse.Namespace) -> Result:
    """Measure a real run on its launcher. Its workers report their stages and the share of time that they waited."""
    state: dict[str, float] = {}

    def look(row: JsonObject) -> bool:
        now = time.perf_counter()
        return now < state.setdefault("end", now + args.warmup + args.seconds)

    with tempfile.TemporaryDirectory(prefix="runnel-bench-") as out:
        run = api.train_config(recipe, replace(config, out=out), callbacks=Callbacks(on_update=look), progress=False)
        rows = run.rows()
    first = next((r for r in rows if r["time"]["wall_s"] >= rows[0]["time"]["wall_s"] + args.warmup), rows[0])
    last = rows[-1]
    window = Window(
        wall_s=max(last["time"]["wall_s"] - first["time"]["wall_s"], 1e-9),
        steps=last["steps"] - first["steps"],
        tokens=last["tokens"] - first["tokens"],
        updates=last["version"] - first["version"],
    )
    result: Result = {"recipe": recipe, "rates": window.rates()}
    if args.profile:
        stages: dict[str, float] = defaultdict(float)
        for row in rows[rows.index(first) + 1 :]:
            for name, seconds in row["time"]["stages"].items():
                stages[name] += seconds
        window.stages = stages
        result["stages"] = [r for r in split(window, Parts()) if not r["part"] and r["worker"] != "run"]
        result["idle"] = last["time"]["idle"]
        result["limits"] = dict(machine_limits(available_cores()))
    return result


def show(result: Result, console: Console) -> None:
    """Print the result as tables."""
    console.print(f"{result['recipe']}: {_rates(result['rates'])}")
    if "backends" in result:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in result["settings"].items())
        console.print(f"{result['backends']}\nfastest: {flags}")
    if "stages" not in result:
        return
    if "profiled_rates" in result:
        console.print(f"while its parts were timed: {_rates(result['profiled_rates'])}")
    table = Table("worker", "stage", "", title="where the time goes", title_justify="left")
    for name in ("share", "us a step", "ms an update"):
        table.add_column(name, justify="right")
    for r in result["stages"]:
        head = (r["worker"], r["stage"], "") if not r["part"] else ("", "", r["part"])
        table.add_row(*head, f"{r['share']:.1%}", f"{r['us_per_step']:.2f}", f"{r['ms_per_update']:.3f}")
    console.print(table)
    if "idle" in result:
        console.print("waiting: " + ", ".join(f"{name} {share:.0%}" for name, share in result["idle"].items()))
    if "operators" in result:
        console.print(_operators(result["operators"]))
    console.print("limits of this machine: " + ", ".join(f"{k} {v:,.0f}" for k, v in result["limits"].items()))


def _rates(rates: Mapping[str, float]) -> str:
    shown = {name.removesuffix("_per_s"): f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for name, value in rates.items()}
    return ", ".join(f"{value} {name}/s" for name, value in shown.items())


def _operators(rows: list[JsonObject]) -> Table:
    table = Table("operator", title="operators of the update, by their own time", title_justify="left")
    for name in ("share", "us an update", "calls an update"):
        table.add_column(name, justify="right")
    for r in rows:
        table.add_row(r["operator"], f"{r['share']:.1%}", f"{r['us_per_update']:,.0f}", f"{r['calls_per_update']:,.0f}")
    return table
