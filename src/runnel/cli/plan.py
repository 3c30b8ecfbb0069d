"""`runnel plan`: what the stages of a recipe cost here, and which placement of a cluster would be fastest."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Container, Sequence
from pathlib import Path

import torch
from rich.console import Console

from runnel.cli.arguments import flag_names, make_parser
from runnel.cli.tables import number_table, wide_console
from runnel.cli.train import parse_recipe
from runnel.core.config import override, read_table
from runnel.core.errors import ConfigError
from runnel.graphs.run_config import RunConfig
from runnel.plan.costs import Costs
from runnel.plan.model import Placement, Prediction, predict
from runnel.plan.search import (
    Cluster,
    NodeKind,
    best_of_each,
    chosen_settings,
    on_accelerators,
    placement_of,
    search,
    train_flags,
)
from runnel.plan.simulate import NetworkConfig
from runnel.run import registry
from runnel.run.measure import measure
from runnel.run.wiring import available_cores
from runnel.track.files import writing

ABOUT = """Measure what the stages of a recipe cost on this machine, and search the placements of a cluster for the fastest.

The cluster is this machine, or what you describe. Every field of the recipe is a flag, as with `runnel train RECIPE`:

  runnel plan ppo --env CartPole-v1
  runnel plan appo --env CartPole-v1 --nodes 4 --cores 64 --gpus 1 --network-gbps 100 --gpu-speedup 5
  runnel plan appo --costs costs.json --cluster cluster.toml
  runnel plan ppo --env CartPole-v1 --apply placement.toml
"""


def plan(args: list[str]) -> int:
    """Measure, predict, search, and print."""
    parsed, rest = _parser().parse_known_args(args)
    recipe = registry.load_recipe(parsed.recipe)
    config = parse_recipe(recipe, rest, command=f"plan {parsed.recipe}")
    cluster = _cluster(parsed)
    cluster.check()
    if parsed.apply:
        _check_target(Path(parsed.apply))
    console = wide_console(stderr=parsed.json)
    costs = _costs(parsed, recipe.name, config, console)
    here = predict(costs, placement_of(config, costs, cores=available_cores()))
    there = on_accelerators(costs, parsed.gpu_speedup) if cluster.gpus else costs
    ranked = search(there, cluster, config.staleness)
    best = ranked[0]
    flags = train_flags(best.placement, config)
    if parsed.apply:
        flags = ["--config", parsed.apply]
    command = _command(parsed.recipe, _others(rest, chosen_settings(best.placement, config)), flags)
    if parsed.apply:
        _apply(best, config, Path(parsed.apply), command)
    if parsed.json:
        found = [dataclasses.asdict(q) for q in ranked[: parsed.top]]
        result = {"costs": dataclasses.asdict(costs), "as_configured": dataclasses.asdict(here), "best": found}
        json.dump({**result, "command": command}, sys.stdout, indent=1)
        print()
        return 0
    show_costs(costs, console)
    _tell(f"as configured, on {available_cores()} cores", here, costs, console)
    _show_search(ranked, parsed.top, costs, cluster, console)
    for text in _notes(best.placement, costs, config):
        console.print(f"note: {text}")
    console.print("train with: " + shlex.join(command))
    return 0


def _command(recipe: str, given: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The `runnel train` command: the user's flags, then those flags of the placement that the user did not give."""
    taken = flag_names(given)
    return ["runnel", "train", recipe, *given, *_others(flags, taken)]


def _others(words: Sequence[str], names: Container[str]) -> list[str]:
    """Flags with their values, without the flags of these names.

    >>> _others(["--seed", "1", "--track", "csv", "wandb", "--num-envs=2"], {"track"})
    ['--seed', '1', '--num-envs=2']
    """
    kept, keep = list[str](), True
    for word in words:
        if word.startswith("--"):
            keep = not any(name in names for name in flag_names([word]))
        kept += [word] if keep else []
    return kept


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("plan", ABOUT, abbreviate=False)
    parser.add_argument("recipe", help="a recipe's name, or the path of your own file")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of the measurement, after a warm-up as long (2)")
    parser.add_argument("--save", default="", help="write the costs to this JSON file")
    parser.add_argument("--costs", default="", help="take the costs from this file, and measure nothing")
    parser.add_argument("--nodes", type=int, default=0, help="nodes of the cluster (default: this machine)")
    parser.add_argument("--cores", type=int, default=0, help="cores of each node")
    parser.add_argument("--gpus", type=int, default=-1, help="accelerators of each node")
    parser.add_argument("--network-gbps", type=float, default=100.0, help="gigabits a second of each node's link (100)")
    parser.add_argument("--cluster", default="", help="a TOML or JSON file of several kinds of nodes")
    speedup = "how many times faster than here an accelerator infers and updates (1)"
    parser.add_argument("--gpu-speedup", type=float, default=1.0, help=speedup)
    apply = "write the fastest placement to this new TOML file, for `runnel train RECIPE --config FILE`"
    parser.add_argument("--apply", default="", metavar="FILE", help=apply)
    parser.add_argument("--top", type=int, default=5, help="placements to show (5)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _costs(parsed: argparse.Namespace, recipe: str, config: RunConfig, console: Console) -> Costs:
    if parsed.costs:
        return Costs.load(parsed.costs)
    if parsed.seconds <= 0:
        raise ConfigError("seconds", parsed.seconds, "use a number above 0")
    with console.status(f"measuring {recipe}: about {2 * parsed.seconds:.0f} s, more where kernels are compiled first"):
        costs = measure(recipe, config, seconds=parsed.seconds)
    if parsed.save:
        costs.save(parsed.save)
    return costs


def _cluster(parsed: argparse.Namespace) -> Cluster:
    network = NetworkConfig(gbps=parsed.network_gbps)
    if not parsed.cluster:
        gpus = torch.cuda.device_count() if parsed.gpus < 0 and not parsed.nodes else max(parsed.gpus, 0)
        return Cluster((NodeKind(parsed.nodes or 1, parsed.cores or available_cores(), gpus),), network)
    return Cluster.of(read_table(Path(parsed.cluster), "cluster"))


# ------------------------------------------------------------------------------------------------------------- applying
def _check_target(path: Path) -> None:
    """Before anything is measured: the file can be written, and none is lost by it."""
    if path.suffix != ".toml":
        raise ConfigError("apply", str(path), "the settings are written as TOML; use a name that ends in .toml")
    if path.exists():
        raise ConfigError("apply", str(path), "exists, and is not overwritten; remove it, or use another name")
    if not path.parent.is_dir():
        raise ConfigError("apply", str(path), "there is no such folder; make it first")


def _apply(best: Prediction, config: RunConfig, path: Path, command: Sequence[str]) -> None:
    """Write the settings of a placement, with its predicted rate, as a file that `runnel train --config` reads."""
    rate = float(f"{best.units_per_s:.4g}")
    settings = chosen_settings(best.placement, config) | {"placement.predicted_per_s": rate}
    override(config, settings).check()
    tables: dict[str, list[str]] = {}
    for name, value in settings.items():
        table, _, key = name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(value)}")
    lines = [f"# The fastest placement that `runnel plan` found for this command (limited by {best.bottleneck}):"]
    lines.append(f"# {shlex.join(command)}")
    for table, found in sorted(tables.items()):  # keys of no table come first
        lines += [*(["", f"[{table}]"] if table else []), *found]
    with writing(path, "the placement"):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _notes(p: Placement, costs: Costs, config: RunConfig) -> list[str]:
    """What a placement changes beside the speed, and what it takes for granted."""
    notes = list[str]()
    now = costs.batch_segments * costs.segment_units
    then = p.batch_segments * (p.rows or costs.rows) * costs.num_steps
    if not costs.update_ratio and round(now) != round(then):
        what = f"a batch has {then:,.0f} {costs.unit} and not {now:,.0f}, which changes what is learned"
        notes.append(f"{what}; give other --num-envs or --num-steps to keep its size")
    if p.devices and not config.device.startswith("cuda"):
        notes.append("policy workers and trainers are predicted on accelerators; train with --device cuda")
    return notes


# -------------------------------------------------------------------------------------------------------------- showing
def show_costs(costs: Costs, console: Console) -> None:
    """Print the costs as a table."""
    table = number_table(f"{costs.name}: costs of its stages", ("stage", "of"), ("ms",))
    rows, units = costs.rows, costs.update_units or costs.batch_segments * costs.segment_units
    for stage, of, seconds in (
        ("environments, writing", f"a step of {rows:.3g} rows", costs.step(rows)),
        ("inference in the actor", f"{rows:.3g} rows", costs.infer(rows)),
        ("inference in a policy worker", "1 row", costs.serve(1)),
        ("", "64 rows", costs.serve(64)),
        ("request and reply", "both ends", costs.message_s + costs.respond_s),
        ("update", f"{units:,.0f} {costs.unit}", costs.update(units)),
        ("publish a version", f"{costs.param_bytes / 1e6:.3g} MB", costs.publish_s + costs.copy_s),
        ("load a version", "", costs.load_s),
        ("bookkeeping", "an update", costs.ledger_s),
    ):
        table.add_row(stage, of, f"{1e3 * seconds:.3f}")
    console.print(table)
    console.print(f"a segment has {costs.segment_bytes:,} bytes; a step computes for {costs.step_cpu:.0%} of its time")
    for note in costs.notes:
        console.print(f"note: {note}")


def _tell(what: str, q: Prediction, costs: Costs, console: Console) -> None:
    parts = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in q.seconds.items() if s)
    console.print(
        f"{what}: {q.units_per_s:,.0f} {costs.unit}/s, {q.updates_per_s:.2f} updates/s; limited by {q.bottleneck} "
        f"(of a batch: {parts}); {q.staleness:.1f} versions behind, at most {q.max_staleness}"
    )


def _show_search(ranked: Sequence[Prediction], top: int, costs: Costs, cluster: Cluster, console: Console) -> None:
    nodes = ", ".join(f"{k.nodes} x {k.cores} cores" + (f" + {k.gpus} GPUs" if k.gpus else "") for k in cluster.kinds)
    numbers = ("actors", "env groups", "servers", "trainers", "batch", f"{costs.unit}/s", "updates/s", "behind", "limited by")
    table = number_table(f"placements on {nodes}: {len(ranked)} searched", ("inference",), numbers)
    shown = ranked[:top]
    others = [q for q in best_of_each(ranked) if q not in shown]
    for q in (*shown, *others):
        p = q.placement
        batch = costs.update_units or p.batch_segments * (p.rows or costs.rows) * costs.num_steps
        kind = "one process" if p.one_process else p.inference
        counts = [str(n) for n in (p.actors, p.num_env_groups, p.servers, p.trainers)]
        rates = (f"{batch:,.0f}", f"{q.units_per_s:,.0f}", f"{q.updates_per_s:.2f}", f"{q.staleness:.1f}")
        table.add_row(kind, *counts, *rates, q.bottleneck, end_section=q in shown[-1:])
    console.print(table)
    if others:
        console.print("below the line: the best of each other kind of inference, and what limits it")
