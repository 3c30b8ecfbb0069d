"""Code that a run's folder names, and who may run it.

A folder says what to run: its recipe (run.json), its environment, network, task, rewards (config.json). Loading a folder runs
code of this package, and what the user names. Anything else runs only where this user made the run on this machine, which is
noted outside of the folder when a run starts, or where the user says `trust`.

Nothing here imports what a folder names. Every setting counts as code unless a table here says that it is none, so a new field
is safe from the start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runnel.core.config import to_data
from runnel.core.errors import ConfigError
from runnel.envs.device import TENSOR_ENVS, TENSOR_TEAMS
from runnel.graphs.run_config import RunConfig
from runnel.llm.tasks.registry import GYM
from runnel.run.names import RECIPES
from runnel.track.folder import RunFolder

PLAIN = {
    "name": "names a folder",
    "out": "names a folder",
    "tags": "are words",
    **dict.fromkeys(("sinks.project", "sinks.entity", "sinks.group", "sinks.name"), "are names at a service"),
    "device": "is taken apart by torch (cuda:1)",
    "placement.groups": "are patterns of workers",
    "channels.rewards": "name entries of info",
    "channels.costs": "name entries of info",
    "cluster.place": "are lines of needs (trainer*: 1 gpu)",
    "stop": "are texts that end a completion",
    "teams": "are patterns of agents and names of policies; of a run that one names, parameters are read",
    "agents": "are patterns of agents, and models and runs of which parameters are read",
    "init_from": "is a folder, of which parameters are read",
    "model": "is a folder or a hub id; code that comes with a model is not run",
    "lm.path": "is a folder of a model",
    "reward_model": "is a folder of a model",
    "pairs": "is data",
    "data": "is a folder of data",
    "replay.mmap_dir": "is a folder",
    "data.prompt": "names a column",
    "data.answer": "names a column",
    "data.extract": "are rules (tag:answer)",
    "data.system": "is a text",
    "data.suffix": "is a text",
    "data.eval_path": "is data",
    "data.settings": "are numbers and words for a generator of tasks",
}
"""Settings in which a colon, or an ending of .py, names no code; and why."""
ANY_VALUE = {
    "engine.vllm.python": "would be started as a Python interpreter",
    "pairs_out": "would be written to, wherever it is",
}
"""Settings that name a program, or a file outside of the folder that is written: any value counts."""
OF_TRAINING = ("track", "cluster.address", "pairs_out")
"""Settings that only a run that goes on uses."""
LIVE = ("env", "wrappers", "network", "task", "chat", "tools")
"""Settings that may stand for an object of the process that made the run (`user_objects.resolve_live`)."""
REGISTERS = {"ale_py", "gymnasium", "gymnasium_robotics", "highway_env", "minatar", "minigrid", "miniworld", "mo_gymnasium"}
"""Packages that may be imported for the environments that they register."""
OURS = ("runnel.envs.toy", "runnel.envs.team.toy")
"""Modules of this package whose classes are environments."""


class UntrustedError(ConfigError):
    """A folder names code that is neither part of this package nor given by the user."""


@dataclass(frozen=True)
class Code:
    """Code that a folder names: the field, its value, and in words what would be run."""

    field: str
    value: str
    does: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r} {self.does}"


# ------------------------------------------------------------------------------------------------------------ what is named
def code_in(recipe: str, config: Mapping[str, object], *, training: bool = True) -> list[Code]:
    """Code outside of this package that a run of `recipe` with `config` (as data) runs, or, without `training`, loading it.

    >>> print(*code_in("ppo", {"env": "subprocess:getoutput", "net": {"hidden": [64, 64]}, "device": "cuda:1"}))
    env = 'subprocess:getoutput' would import the module subprocess and use its getoutput
    """
    found = [] if recipe in RECIPES else [Code("recipe", recipe, f"would run the file {recipe}")]
    for field, text in _texts(config, ""):
        plain = re.sub(r"\[\d+\]", "", field)
        if (plain in LIVE and text == f"live:{field}") or (not training and plain in OF_TRAINING):
            continue  # an object that must be given again, or a setting of training alone
        if (does := _does(plain, text)) is not None:
            found.append(Code(field, text, does))
    return found


def _texts(value: object, field: str) -> Iterator[tuple[str, str]]:
    """All texts in `value` with their dotted names; entries of lists have their number in brackets."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            part = str(name).replace("-", "_")  # as settings are read
            yield from _texts(inner, f"{field}.{part}" if field else part)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _texts(inner, f"{field}[{i}]")


def _does(field: str, text: str) -> str | None:
    """What `text` as the value of `field` would run, in words; None if that is no code, or code of this package."""
    if field in ANY_VALUE:
        return ANY_VALUE[field] if text else None
    if field == "cluster.address":
        return None if text in ("", "auto", "local") else "would be joined as a Ray cluster, whose messages can run code"
    if field in PLAIN or not (":" in text or text.endswith(".py")):
        return None
    if (field == "env" and _is_known_env(text)) or (field == "task" and text.startswith(GYM)):
        return None
    if field == "wrappers" and re.fullmatch(r"gymnasium\.wrappers:[A-Z]\w*", text):
        return None  # a class, called with the environment alone
    if field == "data.options" and text.partition("=")[0].rpartition(".")[2] in ("extract", "pattern", "template"):
        return None
    return _described(text)


def _is_known_env(text: str) -> bool:
    """Whether an environment with a colon in its name comes from this package, or from one that registers environments."""
    module, _, name = text.removeprefix("tensor:").rpartition(":")
    if text.startswith("tensor:") and not module:
        return name in TENSOR_ENVS or name in TENSOR_TEAMS
    if module in ("atari", "envpool", "pettingzoo", "openspiel", "lbforaging", "vmas"):
        return not text.startswith("tensor:")
    if module in OURS:
        return name.isidentifier() and name[0].isupper()
    return module in REGISTERS and re.fullmatch(r"[\w./-]+-v\d+", name) is not None


def _described(text: str) -> str:
    """A sentence that says how the run would use `text`."""
    value = text.partition("=")[2] if re.match(r"[\w.]+=", text) else text
    if "://" in value:
        return f"would send texts, and a key of yours, to {value}"
    target, _, name = value.removeprefix("tensor:").rpartition(":")
    name = name.partition("=")[0]
    if not target:
        return f"would run the file {value}"
    if target.endswith(".py"):
        return f"would run the file {target} and use its {name}"
    return f"would import the module {target} and use its {name}"


# ---------------------------------------------------------------------------------------------------------------- who made it
_made: set[str] = set()
"""Marks of runs that this process made. They count even if no note could be written to the disk."""


def remember(folder: Path, recipe: str, config: Mapping[str, object]) -> str:
    """Note that this user made the run, or the study, in `folder`. Returns a warning if the note could not be written."""
    if not code_in(recipe, config):
        return ""
    mark = _mark(folder, recipe, config)
    _made.add(mark)
    try:
        notes = notes_folder()
        notes.mkdir(parents=True, exist_ok=True, mode=0o700)
        (notes / mark).write_text(json.dumps({"folder": str(folder.resolve())}) + "\n", encoding="utf-8")
    except (OSError, RuntimeError) as error:
        return f"that you made this run could not be noted ({error}); to load it, a later command will ask for --trust"
    return ""


def notes_folder() -> Path:
    """The folder of these notes: `$XDG_STATE_HOME/runnel/made`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "runnel" / "made"


def is_made_here(folder: Path, recipe: str, config: Mapping[str, object]) -> bool:
    """Whether this user made the run in `folder`, at this place and with this config. Code inside the folder is never trusted:
    it came there after the run was made."""
    home = folder.resolve()
    if any(_path_in(code.value).is_relative_to(home) for code in code_in(recipe, config) if code.field != "pairs_out"):
        return False
    mark = _mark(folder, recipe, config)
    try:
        return mark in _made or (notes_folder() / mark).is_file()
    except (OSError, RuntimeError):
        return False


def _path_in(value: str) -> Path:
    """The full path of the file that `value` names; for a module, a path that is in no run."""
    text = value.partition("=")[2] if re.match(r"[\w.]+=", value) else value
    path = re.sub(r"(\.py)(:.*)?$", r"\1", text.removeprefix("tensor:"))
    return Path(path).resolve() if path.endswith(".py") or "/" in path else Path("/")


def _mark(folder: Path, recipe: str, config: Mapping[str, object]) -> str:
    said = json.dumps([str(folder.resolve()), recipe, config], sort_keys=True)
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()


# -------------------------------------------------------------------------------------------------------------------- asking
def check_code(
    folder: Path,
    recipe: str,
    config: Mapping[str, object],
    *,
    trust: bool = False,
    given: Collection[str] = (),
    training: bool = False,
) -> bool:
    """Raise an `UntrustedError` that lists the code which a folder would run, unless the user made the folder or trusts it.

    `given` are settings that the user replaces. Returns False if only `trust` allows the code."""
    names = [f"{name.replace('-', '_')}." for name in given]
    found = [
        code
        for code in code_in(recipe, config, training=training)
        if not any(f"{code.field.replace('[', '.')}.".startswith(name) for name in names)
    ]
    if not found or is_made_here(folder, recipe, config):
        return True
    if not trust:
        raise UntrustedError(found[0].field, found[0].value, _asking(folder, found))
    return False


def _asking(folder: Path, found: Collection[Code]) -> str:
    first, *more = found
    also = f" (and {'; '.join(map(str, more))})" if more else ""
    return (
        f"{first.does}{also}, and it is not known that you made {folder} here: it was moved, changed or received, or an older "
        "version made it. If you know that code, say --trust (trust=True); it can do whatever you can on this machine"
    )


def remember_run(folder: RunFolder) -> list[str]:
    """`remember` for the run in `folder`, with the recipe and config in its files. Returns the warning, if there is one."""
    told = remember(folder.path, recipe_of(folder), folder.read_config())
    return [told] if told else []


def recipe_of(folder: RunFolder) -> str:
    """The recipe that run.json names."""
    recipe = folder.read_run_info().get("recipe")
    if not isinstance(recipe, str):
        raise ConfigError("run", str(folder.info), "this file names no recipe; restore it")
    return recipe


def runs_the_same(folder: RunFolder, recipe: str, config: Mapping[str, object]) -> bool:
    """Whether all code that the run in `folder` names is also named by `recipe` and `config`, which the user gave."""
    known = {code.value for code in code_in(recipe, config)}
    return all(code.value in known for code in code_in(recipe_of(folder), folder.read_config()))


def check_named(config: RunConfig, recipe: str, known: Mapping[str, object]) -> None:
    """Raise an `UntrustedError` for code in the `config` of a trial that its study (`known`) does not name. Somebody else may
    have written the study's files."""
    may = {code.value for code in code_in(recipe, known)}
    for code in code_in(recipe, to_data(config)):
        if code.value not in may:
            raise UntrustedError(code.field, code.value, f"{code.does}, and tune.json does not name it; begin the study anew")
