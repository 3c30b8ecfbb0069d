"""`runnel eval`, `runnel export`, `runnel report`, `runnel list` and `runnel check-env`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from runnel.envs.registry import list_envs
from runnel.eval.statistics import summarise
from runnel.run import api, registry
from runnel.run.pipeline import PIPELINES, load_pipeline
from runnel.testing.envs import check_env
from runnel.track.report import write_report


def evaluate(args: list[str]) -> int:
    """Measure the policy of a run."""
    parser = argparse.ArgumentParser(prog="runnel eval", description="Measure the policy of a run on fresh episodes.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--episodes", type=int, default=100, help="episodes (or prompts) to play (100)")
    parser.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    parser.add_argument("--json", action="store_true", help="print every return as JSON")
    parsed = parser.parse_args(args)
    result = api.evaluate_run(parsed.run, episodes=parsed.episodes, seed=parsed.seed)
    if parsed.json:
        print(json.dumps({"returns": result.returns, **result.extra}))
        return 0
    s = summarise(result.returns)
    print(f"mean {s.mean:.4g}, 95% interval {s.low:.4g} to {s.high:.4g}, median {s.median:.4g}, {s.num} episodes")
    for sample in result.samples[:5]:
        print(f"  {sample.get('prompt', '')!r} -> {sample.get('completion', '')!r}  reward {sample.get('reward', 0.0):.3g}")
    return 0


def record(args: list[str]) -> int:
    """Record episodes of a run's policy as video."""
    parser = argparse.ArgumentParser(prog="runnel record", description="Record episodes of a run's newest policy as video.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--episodes", type=int, default=1, help="episodes to record (1)")
    parser.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    parser.add_argument("--max-steps", type=int, default=2_000, help="cut an episode after so many steps (2000)")
    parser.add_argument("--fps", type=float, default=0.0, help="frames a second (what the environment says)")
    parser.add_argument("--out", type=Path, default=None, help="folder for the videos (default: episodes/ in the run's folder)")
    parsed = parser.parse_args(args)
    shape = {"episodes": parsed.episodes, "seed": parsed.seed, "max_steps": parsed.max_steps, "fps": parsed.fps}
    for path in api.record(parsed.run, out=parsed.out, **shape):
        print(path)
    return 0


def export(args: list[str]) -> int:
    """Write the model of a run for other programs."""
    parser = argparse.ArgumentParser(prog="runnel export", description="Write a run's language model for plain transformers.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("folder", help="the folder to write (safetensors, config, tokenizer)")
    parsed = parser.parse_args(args)
    print(api.export(parsed.run, parsed.folder))
    return 0


def report(args: list[str]) -> int:
    """Write a report of one run, or of several."""
    parser = argparse.ArgumentParser(prog="runnel report", description="Write a self-contained report.html.")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders; several are compared")
    parser.add_argument("--out", type=Path, default=None, help="where to write it (default: in the run's folder)")
    parsed = parser.parse_args(args)
    print(write_report(parsed.runs, parsed.out))
    return 0


def check_environment(args: list[str]) -> int:
    """Say what is wrong with an environment."""
    parser = argparse.ArgumentParser(prog="runnel check-env", description="Say in words what is wrong with an environment.")
    parser.add_argument("env", help="an id, module:Class or path/to/file.py:factory")
    parser.add_argument("--env-kwargs", type=json.loads, default={}, help="arguments of its constructor, as JSON")
    parsed = parser.parse_args(args)
    found = check_env(parsed.env, kwargs=parsed.env_kwargs)
    print(found)
    return 1 if found else 0


def list_all(args: list[str]) -> int:
    """Everything that has a name, with a line each."""
    parser = argparse.ArgumentParser(prog="runnel list", description="Recipes, algorithms, environments, tasks, engines.")
    parser.parse_args(args)
    sections = {
        "recipes (runnel train NAME)": {name: registry.load_recipe(name).summary for name in registry.RECIPES},
        "pipelines (runnel pipeline NAME)": {name: load_pipeline(name).summary for name in PIPELINES},
        "algorithms": registry.ALGORITHMS,
        "environments (--env)": list_envs(),
        "tasks (--task)": registry.list_tasks(),
        "engines": registry.ENGINES,
    }
    for title, entries in sections.items():
        print(title)
        width = max(len(name) for name in entries)
        for name, line in entries.items():
            print(f"  {name:{width}}  {line}")
    return 0
