"""Score normalisation: the returns that become 0 and 1 on a task, so that scores of different tasks can be averaged.

`ATARI` are the returns of a random policy and of a professional human tester on 57 games, with up to 30 no-ops at the start of
an episode (Wang et al. 2016; used since by Agent57 and by Agarwal et al. 2021). `D4RL` are the random and expert returns of its
benchmark (Fu et al. 2020). Its papers multiply by 100; here the expert has 1. `CLASSIC` has the returns of a uniformly random
policy (mean of 50 to 2,000 episodes) and of the best possible one. If that is unknown, it is the return at which Gymnasium
calls the task solved.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.eval.statistics import Array

Range = tuple[float, float]
"""The scores that become 0 and 1."""


def _table(text: str) -> dict[str, Range]:
    rows = [line.split() for line in text.strip().splitlines()]
    return {name: (float(low), float(high)) for name, low, high in rows}


ATARI = _table("""
Alien 227.8 7127.7
Amidar 5.8 1719.5
Assault 222.4 742.0
Asterix 210.0 8503.3
Asteroids 719.1 47388.7
Atlantis 12850.0 29028.1
BankHeist 14.2 753.1
BattleZone 2360.0 37187.5
BeamRider 363.9 16926.5
Berzerk 123.7 2630.4
Bowling 23.1 160.7
Boxing 0.1 12.1
Breakout 1.7 30.5
Centipede 2090.9 12017.0
ChopperCommand 811.0 7387.8
CrazyClimber 10780.5 35829.4
Defender 2874.5 18688.9
DemonAttack 152.1 1971.0
DoubleDunk -18.6 -16.4
Enduro 0.0 860.5
FishingDerby -91.7 -38.7
Freeway 0.0 29.6
Frostbite 65.2 4334.7
Gopher 257.6 2412.5
Gravitar 173.0 3351.4
Hero 1027.0 30826.4
IceHockey -11.2 0.9
Jamesbond 29.0 302.8
Kangaroo 52.0 3035.0
Krull 1598.0 2665.5
KungFuMaster 258.5 22736.3
MontezumaRevenge 0.0 4753.3
MsPacman 307.3 6951.6
NameThisGame 2292.3 8049.0
Phoenix 761.4 7242.6
Pitfall -229.4 6463.7
Pong -20.7 14.6
PrivateEye 24.9 69571.3
Qbert 163.9 13455.0
Riverraid 1338.5 17118.0
RoadRunner 11.5 7845.0
Robotank 2.2 11.9
Seaquest 68.4 42054.7
Skiing -17098.1 -4336.9
Solaris 1236.3 12326.7
SpaceInvaders 148.0 1668.7
StarGunner 664.0 10250.0
Surround -10.0 6.5
Tennis -23.8 -8.3
TimePilot 3568.0 5229.2
Tutankham 11.4 167.6
UpNDown 533.4 11693.2
Venture 0.0 1187.5
VideoPinball 16256.9 17667.9
WizardOfWor 563.5 4756.5
YarsRevenge 3092.9 54576.9
Zaxxon 32.5 9173.3
""")
D4RL = _table("""
halfcheetah -280.178953 12135.0
hopper -20.272305 3234.3
walker2d 1.629008 4592.3
ant -325.6 3879.7
antmaze 0.0 1.0
kitchen 0.0 4.0
pen 96.262799 3076.8331017826877
hammer -274.856578 12794.134825156867
door -56.512833 2880.5693087298737
relocate -6.425911 4233.877797728884
maze2d-open 0.01 20.66
maze2d-umaze 23.85 161.86
maze2d-medium 13.13 277.39
maze2d-large 6.7 273.99
maze2d-umaze-dense 68.537689 193.66285642381482
maze2d-medium-dense 44.264742 297.4552547777125
maze2d-large-dense 30.569041 303.4857382709002
""")
CLASSIC = _table("""
CartPole-v1 22.1 500
Acrobot-v1 -497.4 -100
MountainCar-v0 -200 -110
MountainCarContinuous-v0 -33.2 90
Pendulum-v1 -1240.9 0
FrozenLake-v1 0.0145 1
""")


def atari_range(task: str) -> Range | None:
    """The range of an Atari game. `ALE/Pong-v5`, `PongNoFrameskip-v4` and `atari:Pong` are all Pong.

    >>> atari_range("ALE/Pong-v5"), atari_range("CartPole-v1")
    ((-20.7, 14.6), None)
    """
    found = re.fullmatch(r"(?:ALE/|atari:|envpool:)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?", task)
    return ATARI.get(found[1]) if found else None


def d4rl_range(task: str, *, by_body: bool = False) -> Range | None:
    """The range of a D4RL dataset (`hopper-medium-v2`); with `by_body` also of the plain environment (`Hopper-v5`), whose
    physics may differ.

    >>> d4rl_range("maze2d-large-dense-v1"), d4rl_range("Hopper-v5"), d4rl_range("Hopper-v5", by_body=True)
    ((30.569041, 303.4857382709002), None, (-20.272305, 3234.3))
    """
    name = re.sub(r"-v\d+$", "", task)
    if by_body:
        return D4RL.get(re.sub(r"^(envpool:|tensor:)", "", name).lower()) or d4rl_range(task)
    if name.startswith("maze2d"):
        return D4RL.get(name)
    body, dash, _ = name.partition("-")
    return D4RL.get(body) if dash else None


def find_range(task: str, table: str = "auto") -> Range | None:
    """The range of `task` in one table, or in the first that has it; None if none has."""
    classic = CLASSIC.get(task.removeprefix("tensor:").removeprefix("envpool:"))
    if table == "auto":
        return classic or atari_range(task) or d4rl_range(task)
    tables = {"atari": atari_range(task), "d4rl": d4rl_range(task, by_body=True), "classic": classic}
    if table not in tables:
        raise ConfigError("normalise", table, f"use auto, none, {', '.join(tables)}, or a .json or .toml file")
    return tables[table]


def normalised(scores: Array, known: Range | None) -> Array:
    """Scores on the scale of their task's range: (score - low) / (high - low). Without a range they stay as they are."""
    low, high = known or (0.0, 1.0)
    return np.asarray((scores - low) / (high - low))


def find_ranges(tasks: Sequence[str], normalise: str = "auto", own: Mapping[str, Range] | None = None) -> dict[str, Range]:
    """The range of each task that has one. `normalise` is a table, `auto`, `none` or a file; ranges in `own` come first."""
    if normalise == "none":
        return dict(own or {})
    if normalise.endswith((".json", ".toml")):
        table = load_ranges(Path(normalise))
        found = {task: table[task] for task in tasks if task in table}
    else:
        found = {task: known for task in tasks if (known := find_range(task, normalise)) is not None}
    return {**found, **{task: known for task, known in (own or {}).items() if task in tasks}}


def load_ranges(path: Path) -> dict[str, Range]:
    """Read a user's table, a JSON or TOML file: `"my task" = [score of 0, score of 1]`."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError("normalise", str(path), f"cannot be read as a table of ranges ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError("normalise", str(path), 'it must be an object of task names: {"my task": [0, 500]}')
    return {str(task): check_range(str(task), value) for task, value in data.items()}


def parse_range(text: str) -> tuple[str, Range]:
    """Parse `TASK=LOW:HIGH` of the command line.

    >>> parse_range("runnel.envs.toy:PointMass=-20:-1")
    ('runnel.envs.toy:PointMass', (-20.0, -1.0))
    """
    task, equals, bounds = text.rpartition("=")
    low, colon, high = bounds.partition(":")
    try:
        return task, check_range(task, [float(low), float(high)]) if equals and colon else check_range(task, text)
    except ValueError:
        return task, check_range(task, bounds)


def check_range(task: str, value: Any) -> Range:
    """A range as two floats. Raises a `ConfigError` unless they are different finite numbers."""
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(type(v) in (int, float) for v in value)
    if not numbers or not abs(value[0] - value[1]) > 0 or not all(abs(v) < float("inf") for v in value):
        fix = "give the scores that become 0 and 1: TASK=LOW:HIGH, such as 0:500"
        raise ConfigError(f"range of {task or 'a task'}", value, fix)
    return float(value[0]), float(value[1])
