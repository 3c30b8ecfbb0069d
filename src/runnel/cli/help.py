"""`--help` of commands that take the fields of a recipe: what people set comes first, all the rest under "advanced"."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass

from runnel.core.bounds import bound_of
from runnel.core.config import hints_of, settings_of

COMMON = (
    *("env", "data", "task", "chat", "tools", "pairs", "model", "network"),
    *("total_steps", "total_updates", "num_envs", "num_steps", "num_actors", "num_prompts", "group_size", "num_pairs"),
    *("max_tokens", "max_turns", "warmup_updates", "demo_rows"),
    *("update_ratio", "min_fill", "replay.capacity", "learner.lr", "learner.sft_lr", "learner.temperature", "net.hidden"),
    *("seed", "device", "eval.every", "eval.episodes", "dry_run", "seeds", "config", "search", "trials"),
)
"""Fields that many people set, in the order in which they are shown."""
SHARED = {
    *("sinks", "staleness", "eval", "checkpoint", "record", "placement", "cluster", "vector", "channels", "net", "replay"),
    *("data", "filter", "lm", "learner", "engine", "curriculum", "sources", "new_tasks", "exchange", "talk"),
}
"""Groups of fields that many recipes have. Any other group is the algorithm's own."""
RARE = {
    *("duration_power", "kl_in", "aggregation", "dual_clip", "behaviour_of", "behaviour_from"),
    *("entropy_target", "entropy_step", "max_entropy_coef"),
}
"""Settings of algorithms that few people set: they stand among the others."""


@dataclass(frozen=True)
class Flag:
    """One field as `--help` shows it."""

    name: str
    metavar: str
    text: str

    @property
    def spelled(self) -> str:
        """The flag as it is typed; a switch has two forms.

        >>> Flag("ppo.normalise_obs", "", "").spelled, Flag("ppo.lr", "FLOAT", "").spelled
        ('--ppo.normalise-obs, --ppo.no-normalise-obs', '--ppo.lr FLOAT')
        """
        group, dot, own = self.name.replace("_", "-").rpartition(".")
        return f"--{group}{dot}{own} {self.metavar}" if self.metavar else f"--{group}{dot}{own}, --{group}{dot}no-{own}"


def print_help(options: object, config: object, *, prog: str, about: str) -> None:
    """Print every field of `options` (the command's own) and of the recipe's `config`, in three groups."""
    known = {flag.name: flag for flag in (*flags_of(options), *flags_of(config))}
    written = [cls for cls in type(config).__mro__ if not cls.__module__.startswith(("runnel.", "builtins"))]
    yours = {name for cls in written for name in inspect.get_annotations(cls)} - {*COMMON}
    own = [flag for name, flag in known.items() if (_is_own(name) if "." in name else name in yours)]
    common = [known[name] for name in COMMON if name in known]
    first = {flag.name for flag in (*own, *common)}
    parser = argparse.ArgumentParser(
        prog=prog, usage=f"{prog} [--field value ...]", description=about, add_help=False, formatter_class=_Format
    )
    for title, flags in (
        ("the algorithm", own),
        ("common", common),
        ("advanced", [flag for name, flag in known.items() if name not in first]),
    ):
        group = parser.add_argument_group(title)
        for flag in flags:
            # Shown as a positional argument: argparse then prints the text as it stands, for values and switches alike.
            group.add_argument(dest=flag.name, metavar=flag.spelled, help=flag.text.replace("%", "%%"))
    parser.print_help()


def _is_own(name: str) -> bool:
    """Whether a field of a group is the algorithm's own, and is set by many."""
    group, _, field = name.partition(".")
    return group not in SHARED and field not in RARE


class _Format(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


def flags_of(config: object) -> Iterator[Flag]:
    """The fields of a config, those of configs inside it under their dotted names."""
    for name, owner, field, value in settings_of(config):
        bound = bound_of(owner, field)
        hint = f"(default: {_shown(value)}{f'; {bound.interval}' if bound else ''})"
        metavar = _metavar(hints_of(owner)[field])
        yield Flag(name, metavar, f"{field_texts(owner).get(field, '')} {hint}".lstrip())


@functools.cache
def field_texts(kind: type) -> dict[str, str]:
    """The string under each field of a class and of those that it extends, on one line."""
    texts: dict[str, str] = {}
    for cls in reversed([cls for cls in kind.__mro__ if dataclasses.is_dataclass(cls)]):
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):  # a class of a notebook, or one that a program has made: it has no lines to read
            continue
        (body,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                texts[ast.unparse(line.target)] = " ".join(str(below.value.value).split())
    return texts


def _shown(value: object) -> str:
    """A default as a user would type it."""
    if isinstance(value, dict):
        return json.dumps(value)
    return " ".join(map(str, value)) if isinstance(value, tuple) and value else repr(value) if value in ("", ()) else str(value)


def _metavar(hint: object) -> str:
    """The value that a flag takes, as `--help` shows it; empty for a switch."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is bool:
        return ""
    if origin is typing.Literal:
        return f"{{{','.join(map(str, args))}}}"
    if origin in (typing.Union, types.UnionType):
        return "|".join(_metavar(part) for part in args)
    if origin is tuple:
        return f"{_metavar(args[0])} ..."
    if origin is dict:
        return "JSON"
    return "None" if hint is type(None) else hint.__name__.upper() if isinstance(hint, type) else "VALUE"
