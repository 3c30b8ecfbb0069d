"""`runnel tune`: search for good settings of a recipe."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from runnel.cli.overlay import budgets_named, flags_given, read_overlay
from runnel.cli.train import named, parse_with
from runnel.cli.trusting import add_trust
from runnel.core.config import override
from runnel.graphs.run_config import RunConfig, one_budget
from runnel.run import registry
from runnel.run.zoo import without_unused
from runnel.track.folder import check_run_name
from runnel.track.numbers import seeds_words
from runnel.tune.settings import Setup, TuneConfig, make_setup
from runnel.tune.study import Study, resume, start

HELP = """usage: runnel tune RECIPE [--search WORDS ...] [--trials N] [--workers N] [--field value ...]
       runnel tune --resume FOLDER [--trials N] [--workers N] [--test-seeds N] [--on local|ray]

Tries settings of RECIPE and keeps the best. `runnel tune RECIPE --help` lists options and fields.

  --search "ppo.lr=log(1e-5, 1e-2)" "ppo.gamma=0.9..0.999" "ppo.clip_range={0.1, 0.2, 0.3}" "num_envs=int(4, 64, log)"
  --search space.toml
"""


@dataclasses.dataclass(frozen=True)
class TuneOptions(TuneConfig):
    """Options of `runnel tune` that are not in the recipe's config."""

    dry_run: bool = False
    """Print what would be searched, and stop."""
    config: str = ""
    """A TOML file, or the config.json of a run, laid over the recipe's defaults; flags win over it."""
    trust: bool = False
    """Run the code that the config.json of `--config` names, though you did not make that run here."""


def tune(args: list[str]) -> int:
    """Search for good settings."""
    if args and args[0].partition("=")[0] == "--resume":
        return _resume(args)
    if not args or args[0].startswith("-"):
        print(HELP)
        return 0 if args and args[0] in ("-h", "--help") else 2
    recipe = registry.load_recipe(args[0])
    over = read_overlay(args[1:], recipe.name, without=("seed",))
    base = override(registry.begin(recipe, over | named(args[1:])), over)
    about = recipe.module.__doc__ or ""
    options, config = parse_with(TuneOptions, base, args[1:], prog=f"runnel tune {args[0]}", about=about)
    config = without_unused(recipe.name, config, given=flags_given(args) | registry.names_given(over))
    config = one_budget(config, budgets_named(args, over))
    setup = make_setup(recipe.name, config, options)
    if options.dry_run:
        return _dry_run(setup)
    return _tell(start(setup, _folder(recipe.Config(), config), live=True))


def _folder(default: RunConfig, config: RunConfig) -> str:
    """The study's folder: --out, or with --name the folder of that name in --out. Empty: a new folder is made."""
    if config.name:
        check_run_name(config.name)
        return str(Path(config.out) / config.name)
    return config.out if config.out != default.out else ""


def _resume(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="runnel tune", description="Go on with a study where it ended.")
    parser.add_argument("--resume", required=True, metavar="FOLDER", help="the study's folder")
    parser.add_argument("--trials", type=int, help="trials in all, those that are done included")
    parser.add_argument("--workers", type=int, help="trials at the same time")
    parser.add_argument("--test-seeds", type=int, help="train the winner on so many fresh seeds at the end")
    parser.add_argument("--on", choices=("local", "ray"), help="where trials run")
    add_trust(parser)
    found = vars(parser.parse_args(args))
    folder = found.pop("resume")
    return _tell(resume(folder, live=True, **{k: v for k, v in found.items() if v is not None}))


def _dry_run(setup: Setup) -> int:
    print(json.dumps(setup.to_data(), indent=2))
    o = setup.options
    what = (
        f"{o.members} members, an exchange every {setup.interval}"
        if o.scheduler == "pbt"
        else f"{o.trials} trials by {o.sampler}"
    )
    print(f"\n{what}, {setup.budget} {setup.total} each, on seeds {setup.seeds}")
    return 0


def _tell(study: Study) -> int:
    data, best = study.read(), study.best
    states = [t["state"] for t in data["trials"]]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("complete", "pruned", "failed", "running") if s in states)
    print(f"{study.status}: {counts}")
    if study.status == "stopped":
        print(f"go on with: runnel tune --resume {study.path}", file=sys.stderr)
        return 130
    if best is not None:
        print(f"best: trial {best['number']}, {data['metric']} {best['value']:.4g} on tuning seeds {_span(best['seeds'])}")
        print("      this number was selected: expect less on other seeds")
        for name, value in best["params"].items():
            share = "" if not data["importance"] else f"   importance {data['importance'][name]:.2f}"
            print(f"      {name} = {value}{share}")
        _tell_test(best["test"])
        print(
            f"train it: {best['command']}"
            if "command" in best
            else f"its run: {study.path / best['run']} (a schedule: {study.path / 'best.json'})"
        )
    print(f"study: {study.path}")
    return 0


def _tell_test(test: dict[str, list[float]] | None) -> None:
    if not test:
        print("      --test-seeds 5 measures it on fresh seeds")
        return
    print(f"test: {', '.join(seeds_words(test['values']))}; fresh seeds {_span(test['seeds'])}: the honest number")


def _span(seeds: list[float]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
