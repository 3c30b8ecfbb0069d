"""`runnel data`: record episodes of a run as a data set, and look at one."""

from __future__ import annotations

import json
from pathlib import Path

from runnel.cli.arguments import add_best, add_trust, make_parser
from runnel.core.errors import ConfigError
from runnel.data.dataset import Dataset
from runnel.eval.runner import MAX_STEPS
from runnel.run.data_sets import record_data

ABOUT = """Data sets: episodes of a policy, every step of them, in a folder of mapped columns.

  runnel data record RUN FOLDER [--episodes N]   play episodes with a run's policy, and write them
  runnel data inspect FOLDER                     what a data set holds; every checksum is compared

Train on one with `runnel train bc --data FOLDER` or `runnel train rlpd --data FOLDER`."""


def data(args: list[str]) -> int:
    """Record or look at a data set."""
    commands = {"record": record, "inspect": inspect}
    if not args or args[0] in ("-h", "--help"):
        print(f"usage: runnel data {{{','.join(commands)}}} ...\n\n{ABOUT}")
        return 0
    if args[0] not in commands:
        raise ConfigError("command", f"data {args[0]}", f"unknown; use data {' or data '.join(commands)}")
    return commands[args[0]](args[1:])


def record(args: list[str]) -> int:
    """Play episodes with a run's policy, and write them to a new folder."""
    parser = make_parser("data record", "Play whole episodes with a run's newest policy, and write every step to a new folder.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("folder", type=Path, help="the folder to make")
    parser.add_argument("--episodes", type=int, default=100, help="episodes to play (100)")
    parser.add_argument(
        "--stochastic", action="store_true", help="draw actions as in training, and do not take the greedy ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    parser.add_argument("--max-steps", type=int, default=MAX_STEPS, help=f"cut an episode after so many steps ({MAX_STEPS})")
    told = "save the environment's state before every so many steps, for episodes that begin there; 0: never (0)"
    parser.add_argument("--states-every", type=int, default=0, help=told)
    add_best(parser)
    add_trust(parser)
    parsed = parser.parse_args(args)
    print(_described(record_data(**vars(parsed))))
    return 0


def inspect(args: list[str]) -> int:
    """Say what a data set holds, and compare every checksum."""
    parser = make_parser("data inspect", "What a data set holds. All of it is read, and every checksum compared.")
    parser.add_argument("folder", help="the folder of the data set")
    found = Dataset.open(parser.parse_args(args).folder, setting="folder")
    found.verify()
    print(_described(found))
    return 0


def _described(found: Dataset) -> str:
    returns, manifest = found.returns(), found.manifest
    ends = int(found.columns["terminated"].sum())
    lines = [
        str(found),
        f"  environment: {json.dumps(manifest['source'])}",
        f"  returns: mean {returns.mean():.4g}, from {returns.min():.4g} to {returns.max():.4g}",
        f"  lengths: mean {found.lengths.mean():.4g}; {ends} episodes terminated, {found.num_episodes - ends} were truncated",
        f"  from: {json.dumps(manifest['about'])}",
    ]
    lines += [f"  {name}: {x.dtype} {list(x.shape)}" for name, x in found.columns.items()]
    return "\n".join(lines)
