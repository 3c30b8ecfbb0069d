"""`runnel eval`: measure the policy of a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from runnel.cli.arguments import add_best, add_trust, add_wrappers, json_object, make_parser
from runnel.cli.exploiting import exploit
from runnel.cli.matching import OF_MATCHES, add_match_flags, is_given, play, players_in
from runnel.cli.reading import paths_of
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject, Settings
from runnel.eval.tally import incomplete
from runnel.run import api
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints
from runnel.run.players import KINDS
from runnel.track.evals import append_eval, make_eval_row
from runnel.track.folder import Row, RunFolder

ABOUT = """Measure the policy of a run on fresh episodes.

Two players or more of a game of several agents play a match: every two of them in every seating, on the same seeds, with
pay-offs, ratings, and the worst case of each.

  runnel eval runs/a-run
  runnel eval runs/a-run runs/another random --episodes 200
  runnel eval run:runs/a-run@best my_bot.py:play --env pettingzoo:classic.connect_four_v3 --openings 2
"""


def evaluate(args: list[str]) -> int:
    """Measure the policies of runs."""
    parser = make_parser("eval", ABOUT)
    parser.add_argument("runs", nargs="+", help=f"run folders, folders of runs, or globs; of a match also {KINDS}")
    parser.add_argument("--episodes", type=int, default=None, help="episodes (or prompts) to play (100)")
    parser.add_argument("--seed", type=int, default=None, help="another number plays other episodes (0)")
    parser.add_argument("--samples", type=int, default=None, help="completions of each prompt, for pass@k (as trained)")
    parser.add_argument("--pass-k", type=int, nargs="+", default=None, metavar="K", help="the k of pass@k (as trained)")
    add_best(parser)
    parser.add_argument("--env", default=None, help="play another environment of the same spaces (that of the run)")
    parser.add_argument("--env-kwargs", type=json_object, default=None, metavar="JSON", help="arguments of its constructor")
    add_wrappers(parser, "other wrappers around it")
    parser.add_argument("--json", action="store_true", help="print every return as JSON, a line a run")
    parser.add_argument(
        "--exploitability",
        nargs="?",
        const="",
        default=None,
        metavar="GAME",
        help="no episodes: what a perfect opponent wins in this small game of OpenSpiel, each seat apart (that of the run)",
    )
    add_trust(parser)
    add_match_flags(parser)
    parsed = parser.parse_args(args)
    if parsed.exploitability is not None:
        return exploit(parsed)
    parsed.episodes = 100 if parsed.episodes is None else parsed.episodes
    parsed.seed = 0 if parsed.seed is None else parsed.seed
    if parsed.seed < 0:
        raise ConfigError("seed", parsed.seed, "use 0 or more: the run's own evaluations use the numbers below 0")
    if parsed.episodes < 1:
        raise ConfigError("episodes", parsed.episodes, "play at least one")
    if players := players_in(parsed.runs, trust=parsed.trust):
        return play(players, parsed)
    for name in OF_MATCHES:
        if is_given(parsed, name):
            fix = "is of matches; name two players or more (`random` is one), of an environment of several agents"
            raise ConfigError(name, getattr(parsed, name), fix)
    settings = {"eval.samples": parsed.samples, "eval.pass_k": parsed.pass_k}
    chosen = {name: value for name, value in settings.items() if value is not None}
    runs = paths_of(parsed.runs)
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


def _check_samples(run: Path, chosen: Settings) -> None:
    """Refuse pass@k for a run without a language task, and for a k above the number of samples."""
    if not chosen:
        return
    config = RunFolder.open(run).read_config()
    if "env" in config:
        raise ConfigError("samples", str(run), "pass@k is for runs of language models; leave --samples and --pass-k out")
    saved = config.get("eval") or {}
    samples, ks = chosen.get("eval.samples", saved.get("samples", 0)), chosen.get("eval.pass_k", saved.get("pass_k", [1]))
    if samples < 1 or not all(1 <= k <= samples for k in ks):
        raise ConfigError("pass_k", ks, f"each k must be from 1 to the number of samples, {samples}; set --samples")


def _other_env(parsed: argparse.Namespace) -> JsonObject:
    """The flags that replace the run's environment. A new environment does not get the old one's arguments."""
    asked = {"env": parsed.env, "env_kwargs": parsed.env_kwargs, "wrappers": parsed.env_wrapper or None}
    if parsed.env is not None and parsed.env_kwargs is None:
        asked["env_kwargs"] = {}
    return {name: value for name, value in asked.items() if value is not None}


def _measure(
    run: Path, parsed: argparse.Namespace, settings: JsonObject, elsewhere: JsonObject
) -> tuple[Row, Sequence[JsonObject]]:
    """Play episodes, and write the result to the run's folder, with the flags that differ from the run's settings."""
    result = api.evaluate_run(
        run, episodes=parsed.episodes, seed=parsed.seed, settings=settings, best=parsed.best, trust=parsed.trust
    )
    folder = RunFolder.open(run)
    best = BestParams(folder.best).best() if parsed.best else None
    version = best.version if best else Checkpoints(folder.checkpoints).newest(("params",))[1]["version"]
    row = make_eval_row(result.returns, result.extra, version=version, seed=parsed.seed, when=datetime.now())
    row |= ({"best": True} if best else {}) | ({"elsewhere": elsewhere} if elsewhere else {})
    append_eval(run, row)
    return row, result.samples


def _tell(run: Path, row: Row, samples: Sequence[JsonObject], *, named: bool) -> None:
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
    for name, sums in row["extra"].items():
        if name.startswith(("cost/", "return/")):
            print(f"{name} {sum(sums) / len(sums):.4g}")
    for text in incomplete(row["extra"]):
        print(f"warning: {text}")
    for name, p in row["pass"].items():
        print(f"{name} {p['value']:.4g}, 95% interval {p['low']:.4g} to {p['high']:.4g} over {p['prompts']} prompts")
    for sample in samples[:5]:
        print(f"  {sample.get('prompt', '')!r} -> {sample.get('completion', '')!r}  reward {sample.get('reward', 0.0):.3g}")
