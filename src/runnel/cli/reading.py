"""`runnel report`, `card`, `trace` and `board`: what a run's files say. They start without torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from runnel.cli.arguments import add_trust, make_parser
from runnel.core.config import to_data
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject
from runnel.eval.reference import parse_range
from runnel.report.card import write_card
from runnel.report.collect import collect, find_runs
from runnel.report.markdown import write_markdown
from runnel.report.paper import write_paper
from runnel.report.verdicts import HOWS
from runnel.report.write import write_comparison, write_report
from runnel.track.folder import RunFolder
from runnel.track.trace import write_trace

REPORT = """Write a self-contained report.html of one run, or of several side by side; the numbers as CSV beside it.

With --over seeds, groups of runs are compared with each other: who is better, by how much, how sure, and how many more seeds
would decide it. A group is a folder of runs, a run folder, a glob, or NAME=any of these; without names, runs whose settings
differ in seed and task alone are one group.

  runnel report runs/a-run
  runnel report runs/ppo runs/dqn --over seeds
  runnel report ppo='runs/ppo-*' dqn='runs/dqn-*' --over seeds --markdown --paper figures
"""
TRACE = (
    "Write what every worker of a run did when, and the path of every sample, for https://ui.perfetto.dev or chrome://tracing. "
    "The run must have been started (or resumed) with --trace."
)


def report(args: list[str]) -> int:
    """Write a report of one run, or of several."""
    parsed = _report_parser().parse_args(args)
    if parsed.over is None:
        _refuse_without_seeds(parsed)
        paths = paths_of(parsed.runs)
        target = write_report(paths, parsed.out)
        print(target)
        if parsed.markdown:
            print(write_markdown(target.with_suffix(".md"), runs=paths))
        return 0
    return _over_seeds(parsed)


def paths_of(arguments: Sequence[str]) -> list[Path]:
    """The folders of the runs that arguments name, each once."""
    return list(dict.fromkeys(source.path for argument in arguments for source in find_runs(argument)))


def _report_parser() -> argparse.ArgumentParser:
    parser = make_parser("report", REPORT, abbreviate=False)
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
    """Refuse flags that only a comparison over seeds has."""
    named = [argument for argument in parsed.runs if "=" in argument and not Path(argument).exists()]
    given = (parsed.paper, parsed.normalise, parsed.range, parsed.unfinished, parsed.allow_tuning_seeds)
    if any(given) or parsed.scores != "last":
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
    parser = make_parser("card", "Write a model card: task, results, settings, limits, and how to load it.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--out", type=Path, default=None, help="where to write it (README.md in the run's folder)")
    add_trust(parser)
    parsed = parser.parse_args(args)
    print(write_card(parsed.run, _defaults(parsed.run, trust=parsed.trust), parsed.out))
    return 0


def _defaults(run: str, *, trust: bool) -> JsonObject:
    """The default settings of the run's recipe; empty if the recipe no longer exists, or its code may not be run."""
    from runnel.run import registry
    from runnel.run.trust import UntrustedError, check_code, recipe_of

    folder = RunFolder.open(run)
    try:
        recipe, config = recipe_of(folder), folder.read_config()
        check_code(folder.path, recipe, config, trust=trust, given=config)  # of the recipe alone: nothing else is run here
        data: JsonObject = to_data(registry.load_recipe(recipe).Config())
    except UntrustedError as error:
        print(f"runnel: note: all settings are listed, not what differs from the recipe's: {error}", file=sys.stderr)
        return {}
    except ConfigError:
        return {}
    return data


def trace(args: list[str]) -> int:
    """Write the trace of a run for Perfetto."""
    parser = make_parser("trace", TRACE)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--out", type=Path, default=None, help="the file to write (default: trace.json.gz in the run's folder)")
    parsed = parser.parse_args(args)
    made = write_trace(parsed.run, parsed.out)
    what = f"{made.num_processes} processes, {made.num_segments:,} segments, {made.num_versions:,} loads of versions"
    print(f"{made.path}: {made.num_events:,} events; {what}")
    print("open it at https://ui.perfetto.dev (nothing is uploaded) or in chrome://tracing")
    for notice in made.notices:
        print(f"runnel: note: {notice}", file=sys.stderr)
    return 0


def board(args: list[str]) -> int:
    """Serve the board until Ctrl-C."""
    from runnel.board.server import serve

    parser = make_parser("board", "A page in the browser over a folder of runs, live and finished.")
    parser.add_argument("folder", nargs="?", default="runs", help="folder that holds runs, at any depth (default: runs)")
    parser.add_argument("--port", type=int, default=8420, help="0 takes any that is free (default: 8420)")
    about = "address to listen on; beyond this machine the board asks for a token, which it prints, and speaks plain HTTP"
    parser.add_argument("--host", default="127.0.0.1", help=about)
    parsed = parser.parse_args(args)
    serve(Path(parsed.folder), host=parsed.host, port=parsed.port)
    return 0
