"""`runnel train` and `runnel resume`: a command line over the recipe's own config."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from runnel.cli.help import print_help
from runnel.cli.overlay import budgets_named, flags_given, read_overlay
from runnel.core.config import override, to_data, whole_number
from runnel.core.errors import ConfigError
from runnel.core.hints import meant, names_of
from runnel.core.state import JsonObject
from runnel.graphs.experiment import describe
from runnel.graphs.run_config import RunConfig, one_budget
from runnel.report.write import write_report
from runnel.run import api, registry
from runnel.run.launchers import check_ray
from runnel.run.names import list_recipes
from runnel.run.trust import check_run, recipe_of
from runnel.run.wiring import place
from runnel.run.zoo import about_zoo, without_unused
from runnel.track.folder import RunFolder
from runnel.track.numbers import seeds_words

if TYPE_CHECKING:  # tyro is slow to import, and `runnel resume --help` does not need it
    from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

TRAIN_HELP = """usage: runnel train RECIPE [--field value ...] [--dry-run] [--seeds N] [--config FILE]

RECIPE is a name or the path of your own file. `runnel train RECIPE --help` lists its fields. Recipes:
"""


Own = TypeVar("Own")
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
    options, config = parse(base, args[1:], prog=f"runnel train {args[0]}", about=recipe.module.__doc__ or "")
    config = without_unused(recipe.name, config, given=flags_given(args) | registry.names_given(overlay))
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
    check_run(folder, trust=trust, given=flags_given(args[1:]), training=True)
    recipe = registry.load_recipe(recipe_of(folder))
    base = override(recipe.Config(), folder.read_config())
    about = "The fields of the run. What you give is changed, if it may change in the middle of a run (docs/reference/cli.md)."
    _, config = parse_with(ResumeOptions, base, args[1:], prog=f"runnel resume {args[0]}", about=about)
    before, after = to_data(base), to_data(config)
    changed = {k: v for k, v in after.items() if v != before[k]}
    return _tell(api.resume(args[0], progress=True, trust=True, **changed))  # trust was checked above, with all flags


def parse(base: RunConfig, args: list[str], *, prog: str, about: str) -> tuple[Options, RunConfig]:
    """Read options and config from flags. Every field of the config is a flag; a nested field has a dot in its name."""
    return parse_with(Options, base, args, prog=prog, about=about)


def parse_with(options: type[Own], base: RunConfig, args: list[str], *, prog: str, about: str) -> tuple[Own, RunConfig]:
    """`parse` for a command with its own options, which are a dataclass."""
    if {"-h", "--help"} & {*args}:
        print_help(options(), base, prog=prog, about=about)
        raise SystemExit(0)
    import tyro

    args = _joined(args, ("--env-wrapper", "--wrappers"))
    _refuse_other_names(args, [*(f.name for f in dataclasses.fields(options)), *names_of(base)])  # type: ignore[arg-type]
    line = dataclasses.make_dataclass(
        "line",
        [
            ("options", Annotated[options, tyro.conf.arg(name="")], dataclasses.field(default_factory=options)),
            ("run", Annotated[type(base), tyro.conf.arg(name="")], dataclasses.field(default_factory=lambda: base)),
        ],
        frozen=True,
    )
    rules = tyro.constructors.ConstructorRegistry()
    rules.primitive_rule(_json_rule)
    rules.primitive_rule(_whole_rule)
    parsed: Any = tyro.cli(line, args=args, prog=prog, description=about, config=(tyro.conf.AvoidSubcommands,), registry=rules)
    return parsed.options, parsed.run


def _refuse_other_names(args: list[str], known: list[str]) -> None:
    """Refuse an unknown flag if its name here can be guessed, and suggest that name. tyro reports every other mistake."""
    for i, arg in enumerate(args):
        name, _, value = arg.partition("=")
        field = name.removeprefix("--").replace("-", "_")
        plain = ".".join(part.removeprefix("no_") for part in field.split("."))
        if not name.startswith("--") or field == "help" or {field, plain} & set(known):
            continue
        if found := [f"--{k.replace('_', '-')}" for k in meant(field, known)]:
            given = value or (args[i + 1] if i + 1 < len(args) and not args[i + 1].startswith("--") else "")
            raise ConfigError(field, given, f"unknown field; did you mean {' or '.join(found)}?")


def _joined(args: list[str], flags: Sequence[str]) -> list[str]:
    """Join the values of all `flags`, which may occur several times, behind one flag: the last name in `flags`.

    >>> _joined(["--env-wrapper", "a:A", "--seed", "1", "--env-wrapper=b:B"], ("--env-wrapper", "--wrappers"))
    ['--seed', '1', '--wrappers', 'a:A', 'b:B']
    """
    kept: list[str] = []
    found: list[str] = []
    taking = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if name in flags:
            taking, found = True, [*(found or [flags[-1]]), *([value] if equals else [])]
        elif taking and not arg.startswith("--"):
            found.append(arg)
        else:
            taking = False
            kept.append(arg)
    return kept + found


def _json_rule(found: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[JsonObject] | None:
    """tyro rule: a free mapping (`env_kwargs`) is given as one JSON object: --env-kwargs '{"max_steps": 10}'."""
    import tyro

    if found.type != dict[str, Any]:
        return None

    def parse_object(words: list[str]) -> JsonObject:
        value = json.loads(words[0])
        if not isinstance(value, dict):
            raise ValueError(f'{words[0]} is not a JSON object; write {{"name": value}}')
        return value

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=parse_object,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    )


def _whole_rule(found: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """tyro rule: a whole number may also be written as 1e5 or 100_000."""
    import tyro

    if found.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


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
