"""`runnel train`, `resume` and `pipeline`: command lines over the config of a recipe or a pipeline."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from runnel.cli.arguments import flag_names, parse
from runnel.cli.overlay import budgets_named, read_overlay
from runnel.core.config import override, to_data
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject
from runnel.graphs.experiment import describe
from runnel.graphs.run_config import RunConfig, one_budget
from runnel.report.write import write_report
from runnel.run import api, registry
from runnel.run.launchers import check_ray
from runnel.run.names import list_pipelines, list_recipes
from runnel.run.trust import check_code, recipe_of
from runnel.run.wiring import place
from runnel.run.zoo import about_zoo, without_unused
from runnel.track.folder import RunFolder
from runnel.track.numbers import seeds_words

TRAIN_HELP = """usage: runnel train RECIPE [--field value ...] [--dry-run] [--seeds N] [--config FILE]

RECIPE is a name or the path of your own file. `runnel train RECIPE --help` lists its fields. Recipes:
"""

PIPELINE_HELP = """usage: runnel pipeline NAME [--field value ...]

NAME is a name or the path of your own file. Finished stages are skipped: the same command goes on. Pipelines:
"""
COLLAPSED = 3
"""Exit code of a run that `stop_on` has ended."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `runnel train` that are not in the recipe's config."""

    dry_run: bool = False
    """Print the resolved config and the graph of workers and streams, and stop."""
    seeds: int = 1
    """Train this many seeds, one after another, and report their interval; with --name, each has its seed behind the name."""
    config: str = ""
    """A TOML file, or the config.json of a run, laid over the recipe's defaults; flags win over it."""
    trust: bool = False
    """Run the code that the config.json of `--config` names, though you did not make that run here."""


@dataclasses.dataclass(frozen=True)
class ResumeOptions:
    """Options of `runnel resume` that are not in the run's config."""

    trust: bool = False
    """Run the code that the folder names, though you did not make the run here."""


def train(args: list[str]) -> int:
    """Train a recipe."""
    if not args or args[0].startswith("-"):
        names = "\n".join(f"  {name:10} {line}" for name, line in list_recipes().items())
        print(TRAIN_HELP + names)
        return 0 if args and args[0] in ("-h", "--help") else 2
    recipe = registry.load_recipe(args[0])
    overlay = read_overlay(args[1:], recipe.name)
    base = override(registry.begin(recipe, overlay | named(args[1:])), overlay)
    about = recipe.module.__doc__ or ""
    options, config = parse(Options, base, args[1:], prog=f"runnel train {args[0]}", about=about)
    config = without_unused(recipe.name, config, given=flag_names(args) | registry.names_given(overlay))
    config = one_budget(config, budgets_named(args, overlay))
    if options.seeds < 1:
        raise ConfigError("seeds", options.seeds, "train at least 1")
    if options.dry_run:
        return _dry_run(recipe.name, config)
    command = shlex.join(["runnel", "train", *args])
    if options.seeds > 1:
        return _several(recipe.name, config, options.seeds, command)
    run = api.train_config(recipe.name, config, progress=True, command=command)
    return _tell(run)


def resume(args: list[str]) -> int:
    """Resume a run."""
    if not args or args[0].startswith("-"):
        print(
            "usage: runnel resume RUN [--total-steps N] [--field value ...]\n\nGoes on from the newest good checkpoint of RUN."
        )
        return 0 if args and args[0] in ("-h", "--help") else 2
    # flags are fields of the recipe, so its code runs before they can be read: trust is checked first
    folder, trust = RunFolder.open(args[0]), "--trust" in args[1:]
    name, saved = recipe_of(folder), folder.read_config()
    check_code(folder.path, name, saved, trust=trust, given=flag_names(args[1:]), training=True)
    base = override(registry.load_recipe(name).Config(), saved)
    about = "The fields of the run. What you give is changed, if it may change in the middle of a run (docs/reference/cli.md)."
    _, config = parse(ResumeOptions, base, args[1:], prog=f"runnel resume {args[0]}", about=about)
    before, after = to_data(base), to_data(config)
    changed = {k: v for k, v in after.items() if v != before[k]}
    return _tell(api.resume(args[0], progress=True, trust=True, **changed))  # trust was checked above, with all flags


def pipeline(args: list[str]) -> int:
    """Run a pipeline."""
    import tyro

    from runnel.run.pipeline import is_done, load_pipeline, run_pipeline  # it imports what language models need

    if not args or args[0].startswith("-"):
        print(PIPELINE_HELP + "\n".join(f"  {name:14} {line}" for name, line in list_pipelines().items()))
        return 0 if args and args[0] in ("-h", "--help") else 2
    found = load_pipeline(args[0])
    config: Any = tyro.cli(
        found.Config,
        args=args[1:],
        prog=f"runnel pipeline {args[0]}",
        description=found.module.__doc__,
        config=(tyro.conf.AvoidSubcommands,),
    )
    config.check()
    stages = list(found.stages(config))
    runs = run_pipeline(stages, out=config.out, progress=True)
    for stage, run in zip(stages, runs, strict=False):
        score = f"evaluation {run.eval['mean']:.4g}" if run.eval is not None else "no evaluation"
        print(f"{stage.name:12} {run.status}, {run.version} updates, {score}  {run.path}")
    if runs[-1].status == "collapsed":
        return COLLAPSED
    return 0 if len(runs) == len(stages) and is_done(runs[-1]) else 130


def parse_recipe(recipe: registry.Recipe, args: list[str], *, command: str) -> RunConfig:
    """The config of a command that takes a recipe's fields, and has none of the options of `runnel train`."""
    about = recipe.module.__doc__ or ""
    options, config = parse(Options, recipe.Config(), args, prog=f"runnel {command}", about=about)
    if options != Options():
        fix = "--dry-run, --seeds and --config belong to `runnel train`; leave them out"
        raise ConfigError(command.partition(" ")[0], options, fix)
    return config


def named(args: list[str]) -> JsonObject:
    """The flags `--env` and `--zoo`: they decide which defaults the recipe has before the other flags are applied."""
    found: JsonObject = {}
    for i, arg in enumerate(args):
        flag, _, value = arg.partition("=")
        if flag == "--env" and (value or i + 1 < len(args)):
            found["env"] = value or args[i + 1]
        elif flag in ("--zoo", "--no-zoo"):
            found["zoo"] = flag == "--zoo"
    return found


def _dry_run(recipe: str, config: RunConfig) -> int:
    if config.launcher == "ray":
        check_ray("launcher")
    experiment = registry.build(recipe, config)
    print(json.dumps(to_data(config), indent=2))
    print()
    groups = place(experiment)
    print(describe(experiment, groups))
    for line in about_zoo(recipe, config):
        print(line)
    if config.launcher == "ray":
        from runnel.run.launchers.ray import show_placement

        print(show_placement(experiment, groups))
    return 0


def _several(recipe: str, config: RunConfig, num: int, command: str) -> int:
    runs: list[api.Run] = []
    for seed in range(config.seed, config.seed + num):
        print(f"seed {seed} ({len(runs) + 1} of {num})")
        name = f"{config.name}-{seed}" if config.name else ""
        runs.append(api.train_config(recipe, dataclasses.replace(config, seed=seed, name=name), progress=True, command=command))
        if runs[-1].interrupted:
            break
    means = [float(run.eval["mean"]) for run in runs if run.eval is not None]
    report = write_report([run.path for run in runs], Path(config.out) / f"{runs[0].path.name}-{len(runs)}-seeds.html")
    if means:
        print(f"last evaluation: {', '.join(seeds_words(means))}")
    print(f"report: {report}")
    for run in runs:
        for text in run.collapses.values():
            print(f"runnel: warning: {run.path.name}: {text}", file=sys.stderr)
    return COLLAPSED if any(run.status == "collapsed" for run in runs) else 0


def _tell(run: api.Run) -> int:
    if run.eval is not None:
        e = run.eval
        print(f"evaluation: mean {e['mean']:.4g}, 95% interval {e['low']:.4g} to {e['high']:.4g}, {e['num']} episodes")
    done = [f"{run.version:,} updates"]
    done += [f"{run.steps:,} steps"] if run.steps else []
    done += [f"{run.tokens:,} tokens"] if run.tokens else []
    print(f"{run.status} after {', '.join(done)} in {run.train_s:.1f} s")
    if run.best is not None and run.best["version"] != run.version:
        print(
            f"best:   version {run.best['version']:,}, evaluation mean {run.best['mean']:.4g} (--best, rl.load(run, best=True))"
        )
    print(f"run:    {run.path}")
    print(f"report: {RunFolder(run.path).report}")
    for text in run.collapses.values():
        print(f"runnel: warning: {text}", file=sys.stderr)
    if run.status == "collapsed":
        return COLLAPSED
    if run.interrupted:
        print(f"go on with: runnel resume {run.path}", file=sys.stderr)
        return 130
    return 0
