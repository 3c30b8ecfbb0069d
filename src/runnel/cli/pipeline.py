"""`runnel pipeline`: several runs in a row, each on what the ones before left."""

from __future__ import annotations

from typing import Any

from runnel.cli.train import COLLAPSED
from runnel.run.names import list_pipelines
from runnel.run.pipeline import is_done, load_pipeline, run_pipeline

HELP = """usage: runnel pipeline NAME [--field value ...]

NAME is a name or the path of your own file. Finished stages are skipped: the same command goes on. Pipelines:
"""


def pipeline(args: list[str]) -> int:
    """Run a pipeline."""
    import tyro

    if not args or args[0].startswith("-"):
        print(HELP + "\n".join(f"  {name:14} {line}" for name, line in list_pipelines().items()))
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
