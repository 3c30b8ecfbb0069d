"""`runnel record` and `runnel check-env`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from runnel.cli.trusting import add_trust
from runnel.core.state import JsonObject
from runnel.run import api
from runnel.testing.envs import check_env


def record(args: list[str]) -> int:
    """Record episodes of a run's policy as video."""
    parser = argparse.ArgumentParser(prog="runnel record", description="Record episodes of a run's newest policy as video.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--episodes", type=int, default=1, help="episodes to record (1)")
    parser.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    parser.add_argument("--max-steps", type=int, default=2_000, help="cut an episode after so many steps (2000)")
    parser.add_argument("--fps", type=float, default=0.0, help="frames a second (what the environment says)")
    parser.add_argument("--out", type=Path, default=None, help="folder for the videos (default: episodes/ in the run's folder)")
    parser.add_argument("--best", action="store_true", help="the version with the best evaluation, and not the newest")
    add_trust(parser)
    parsed = parser.parse_args(args)
    shape = {"episodes": parsed.episodes, "seed": parsed.seed, "max_steps": parsed.max_steps, "fps": parsed.fps}
    for path in api.record(parsed.run, out=parsed.out, best=parsed.best, trust=parsed.trust, **shape):
        print(path)
    return 0


def _json_object(text: str) -> JsonObject:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text} is not a JSON object; write {{"name": value}}')
    return found


def check_environment(args: list[str]) -> int:
    """Say what is wrong with an environment."""
    parser = argparse.ArgumentParser(prog="runnel check-env", description="Say in words what is wrong with an environment.")
    parser.add_argument("env", help="an id, module:Class or path/to/file.py:factory")
    parser.add_argument("--env-kwargs", type=_json_object, default={}, help="arguments of its constructor, as JSON")
    parser.add_argument(
        "--env-wrapper",
        "--wrappers",
        nargs="+",
        action="extend",
        default=[],
        help="module:Class or file.py:name, innermost first",
    )
    parsed = parser.parse_args(args)
    found = check_env(parsed.env, kwargs=parsed.env_kwargs, wrappers=parsed.env_wrapper)
    print(found)
    return 1 if found else 0
