"""`runnel eval`, `runnel report` and `runnel card`: measure a policy, compare runs, describe one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from runnel.cli.trusting import add_trust
from runnel.core.config import to_data
from runnel.core.errors import ConfigError
from runnel.eval.reference import parse_range
from runnel.eval.tally import incomplete
from runnel.report.card import write_card
from runnel.report.collect import collect, find_runs
from runnel.report.markdown import write_markdown
from runnel.report.paper import write_paper
from runnel.report.verdicts import HOWS
from runnel.report.write import write_comparison, write_report
from runnel.run import api, registry
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints
from runnel.run.trust import UntrustedError, check_code, recipe_of
from runnel.track.evals import append_eval, make_eval_row
from runnel.track.folder import Row, RunFolder

REPORT = """Write a self-contained report.html of one run, or of several side by side; the numbers as CSV beside it.

With --over seeds, groups of runs are compared with each other: who is better, by how much, how sure, and how many more seeds
would decide it. A group is a folder of runs, a run folder, a glob, or NAME=any of these; without names, runs whose settings
differ in seed and task alone are one group.

  runnel report runs/a-run
  runnel report runs/ppo runs/dqn --over seeds
  runnel report ppo='runs/ppo-*' dqn='runs/dqn-*' --over seeds --markdown --paper figures
"""


def evaluate(args: list[str]) -> int:
    """Measure the policies of runs."""
    parser = argparse.ArgumentParser(prog="runnel eval", description="Measure the policy of a run on fresh episodes.")
    parser.add_argument("runs", nargs="+", help="run folders, folders of runs, or globs")
    parser.add_argument("--episodes", type=int, default=100, help="episodes (or prompts) to play (100)")
    parser.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    parser.add_argument("--samples", type=int, default=None, help="completions of each prompt, for pass@k (as trained)")
    parser.add_argument("--pass-k", type=int, nargs="+", default=None, metavar="K", help="the k of pass@k (as trained)")
    parser.add_argument("--best", action="store_true", help="the version with the best evaluation, and not the newest")
    parser.add_argument("--env", default=None, help="play another environment of the same spaces (that of the run)")
    parser.add_argument("--env-kwargs", type=json_object, default=None, metavar="JSON", help="arguments of its constructor")
    parser.add_argument(
        "--env-wrapper", "--wrappers", nargs="+", action="extend", default=None, metavar="NAME", help="other wrappers around it"
    )
    parser.add_argument("--json", action="store_true", help="print every return as JSON, a line a run")
    add_trust(parser)
    parsed = parser.parse_args(args)
    if parsed.seed < 0:
        raise ConfigError("seed", parsed.seed, "use 0 or more: below lie the episodes of the run's own evaluations")
    if parsed.episodes < 1:
        raise ConfigError("episodes", parsed.episodes, "play at least one")
    settings = {"eval.samples": parsed.samples, "eval.pass_k": parsed.pass_k}
    chosen = {name: value for name, value in settings.items() if value is not None}
    runs = list(dict.fromkeys(source.path for argument in parsed.runs for source in find_runs(argument)))
    for run in runs:
        _check_samples(run, chosen)
    elsewhere = _other_env(parsed)
    for run in runs:
        row, samples = _measure(run, parsed, chosen | elsewhere, elsewhere)
        if parsed.json:
            print(json.dumps({"run": str(run), **row}))
        else:
            _tell(run, row, samples, named=len(runs) > 1)
    return 0


def _check_samples(run: Path, chosen: Mapping[str, Any]) -> None:
    """pass@k needs a language task, and as many samples as k."""
    if not chosen:
        return
    config = RunFolder.open(run).read_config()
    if "env" in config:
        raise ConfigError("samples", str(run), "pass@k is for runs of language models; leave --samples and --pass-k out")
    saved = config.get("eval") or {}
    samples, ks = chosen.get("eval.samples", saved.get("samples", 0)), chosen.get("eval.pass_k", saved.get("pass_k", [1]))
    if samples < 1 or not all(1 <= k <= samples for k in ks):
        raise ConfigError("pass_k", ks, f"each k must be from 1 to the number of samples, {samples}; set --samples")


def json_object(text: str) -> dict[str, Any]:
    """A JSON object on the command line."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text} is not a JSON object; write {{"name": value}}')
    return found


def _other_env(parsed: argparse.Namespace) -> dict[str, Any]:
    """The environment that is asked for in place of the run's own; arguments of that one are not for another."""
    asked = {"env": parsed.env, "env_kwargs": parsed.env_kwargs, "wrappers": parsed.env_wrapper}
    if parsed.env is not None and parsed.env_kwargs is None:
        asked["env_kwargs"] = {}
    return {name: value for name, value in asked.items() if value is not None}


def _measure(
    run: Path, parsed: argparse.Namespace, settings: dict[str, Any], elsewhere: dict[str, Any]
) -> tuple[Row, Sequence[dict[str, Any]]]:
    """Play, and leave the result in the run's folder, with what was not as usual."""
    how: dict[str, Any] = {"episodes": parsed.episodes, "seed": parsed.seed, "best": parsed.best, "trust": parsed.trust}
    result = api.evaluate_run(run, settings=settings, **how)
    folder = RunFolder.open(run)
    best = BestParams(folder.best).best() if parsed.best else None
    version = best.version if best else Checkpoints(folder.checkpoints).newest(("params",))[1]["version"]
    row = make_eval_row(result.returns, result.extra, version=version, seed=parsed.seed, when=datetime.now())
    row |= ({"best": True} if best else {}) | ({"elsewhere": elsewhere} if elsewhere else {})
    append_eval(run, row)
    return row, result.samples


def _tell(run: Path, row: Row, samples: Sequence[dict[str, Any]], *, named: bool) -> None:
    if named:
        print(run)
    if row.get("best") or row.get("elsewhere"):
        where = "".join(f", {name} {json.dumps(value)}" for name, value in row.get("elsewhere", {}).items())
        print(f"version {row['version']:,}{' (the best)' if row.get('best') else ''}{where}")
    print(
        f"mean {row['mean']:.4g}, 95% interval {row['low']:.4g} to {row['high']:.4g}, IQM {row['iqm']:.4g} "
        f"({row['iqm_low']:.4g} to {row['iqm_high']:.4g}), median {row['median']:.4g} "
        f"({row['median_low']:.4g} to {row['median_high']:.4g}), {row['episodes']} episodes"
    )
    for text in incomplete(row["extra"]):
        print(f"warning: {text}")
    for name, p in row["pass"].items():
        print(f"{name} {p['value']:.4g}, 95% interval {p['low']:.4g} to {p['high']:.4g} over {p['prompts']} prompts")
    for sample in samples[:5]:
        print(f"  {sample.get('prompt', '')!r} -> {sample.get('completion', '')!r}  reward {sample.get('reward', 0.0):.3g}")


def report(args: list[str]) -> int:
    """Write a report of one run, or of several."""
    parser = _report_parser()
    parsed = parser.parse_args(args)
    if parsed.over is None:
        _refuse_without_seeds(parsed)
        paths = list(dict.fromkeys(source.path for argument in parsed.runs for source in find_runs(argument)))
        target = write_report(paths, parsed.out)
        print(target)
        if parsed.markdown:
            print(write_markdown(target.with_suffix(".md"), runs=paths))
        return 0
    return _over_seeds(parsed)


def _report_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="runnel report", description=REPORT, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", nargs="+", help="run folders, folders of runs, globs, or NAME=GLOB")
    parser.add_argument("--out", type=Path, default=None, help="where to write it (a run's folder, or beside the first)")
    parser.add_argument("--markdown", action="store_true", help="also write a short Markdown form, for a pull request")
    parser.add_argument("--over", choices=["seeds"], default=None, help="judge groups of runs over their seeds")
    over = parser.add_argument_group("with --over seeds")
    over.add_argument("--paper", type=Path, metavar="FOLDER", help="also write figures (SVG, PDF) and a LaTeX table there")
    over.add_argument("--scores", choices=list(HOWS), default="last", help="; ".join(f"{k}: {v}" for k, v in HOWS.items()))
    over.add_argument("--normalise", metavar="TABLE", help="auto, none, atari, d4rl, classic, or a .json or .toml file")
    over.add_argument("--range", action="append", default=[], metavar="TASK=LOW:HIGH", help="the scores that become 0 and 1")
    over.add_argument("--unfinished", action="store_true", help="keep runs that have not ended")
    over.add_argument("--allow-tuning-seeds", action="store_true", help="keep runs on seeds that a study tuned on, and say so")
    return parser


def _refuse_without_seeds(parsed: argparse.Namespace) -> None:
    """What only a comparison over seeds knows."""
    named = [argument for argument in parsed.runs if "=" in argument and not Path(argument).exists()]
    if (
        parsed.paper
        or parsed.normalise
        or parsed.range
        or parsed.scores != "last"
        or parsed.unfinished
        or parsed.allow_tuning_seeds
    ):
        raise ConfigError("over", None, "these flags belong to a comparison over seeds; add --over seeds")
    if named:
        raise ConfigError("runs", named[0], "names are for a comparison over seeds; add --over seeds")


def _over_seeds(parsed: argparse.Namespace) -> int:
    found = collect(parsed.runs, unfinished=parsed.unfinished, allow_tuning_seeds=parsed.allow_tuning_seeds)
    first = found.groups[0].runs[0].folder.path.resolve()
    target = parsed.out or first.parent / "comparison.html"
    ranges = dict(parse_range(text) for text in parsed.range)
    verdicts = write_comparison(found, target, scores=parsed.scores, normalise=parsed.normalise, ranges=ranges)
    for line in verdicts.sentences:
        print(line)
    for line in verdicts.notices:
        print(f"note: {line}", file=sys.stderr)
    print(target)
    if parsed.markdown:
        print(write_markdown(target.with_suffix(".md"), verdicts=verdicts))
    if parsed.paper:
        for path in write_paper(verdicts, parsed.paper):
            print(path)
    return 0


def card(args: list[str]) -> int:
    """Write a model card of a run."""
    parser = argparse.ArgumentParser(
        prog="runnel card", description="Write a model card: task, results, settings, limits, and how to load it."
    )
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--out", type=Path, default=None, help="where to write it (README.md in the run's folder)")
    add_trust(parser)
    parsed = parser.parse_args(args)
    print(write_card(parsed.run, _defaults(parsed.run, trust=parsed.trust), parsed.out))
    return 0


def _defaults(run: str, *, trust: bool) -> dict[str, Any]:
    """The settings of the run's recipe; none where the recipe is not here any more, or may not be run."""
    folder = RunFolder.open(run)
    try:
        recipe, config = recipe_of(folder), folder.read_config()
        check_code(folder.path, recipe, config, trust=trust, given=config)  # of the recipe alone: nothing else is run here
        data: dict[str, Any] = to_data(registry.load_recipe(recipe).Config())
    except UntrustedError as error:
        print(f"runnel: note: all settings are listed, not what differs from the recipe's: {error}", file=sys.stderr)
        return {}
    except ConfigError:
        return {}
    return data
