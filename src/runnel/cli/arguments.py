"""Arguments that several commands have, and commands whose flags are the fields of a config."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

from runnel.cli.help import print_help
from runnel.core.config import settings_of, whole_number
from runnel.core.errors import ConfigError
from runnel.core.hints import ELSEWHERE, meant
from runnel.core.state import JsonObject

if TYPE_CHECKING:  # tyro is slow to import, and most commands do not need it
    from _typeshed import DataclassInstance
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

Own = TypeVar("Own", bound="DataclassInstance")
Config = TypeVar("Config", bound="DataclassInstance")


# ---------------------------------------------------------------------------------------------------------------- argparse
def make_parser(command: str, about: str, *, abbreviate: bool = True) -> argparse.ArgumentParser:
    """The parser of `runnel COMMAND`. Lines of `about` are shown as they are written; one line is wrapped."""
    kind = argparse.RawDescriptionHelpFormatter if "\n" in about else argparse.HelpFormatter
    return argparse.ArgumentParser(prog=f"runnel {command}", description=about, formatter_class=kind, allow_abbrev=abbreviate)


def add_best(parser: argparse.ArgumentParser) -> None:
    """Add the flag of a command that uses a run's policy."""
    parser.add_argument("--best", action="store_true", help="the version with the best evaluation, and not the newest")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the flag of a command that runs code which a run's folder names."""
    about = "run the code that the folder names, though you did not make the run here (docs/reference/cli.md)"
    parser.add_argument("--trust", action="store_true", help=about)


def add_wrappers(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the flag that names wrappers around an environment. It may be given several times."""
    parser.add_argument("--env-wrapper", "--wrappers", nargs="+", action="extend", default=[], metavar="NAME", help=about)


def json_object(text: str) -> JsonObject:
    """Read a JSON object, for argparse: of other errors it does not show the text."""
    try:
        return _read_object(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _read_object(text: str) -> JsonObject:
    """A JSON object; a `ValueError` says what the text is instead."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f'{text} is not JSON ({error}); write {{"name": value}}') from error
    if not isinstance(found, dict):
        raise ValueError(f'{text} is not a JSON object; write {{"name": value}}')
    return found


def flag_names(args: Sequence[str]) -> set[str]:
    """Names of the flags on a command line, as the fields of a config are written.

    >>> sorted(flag_names(["--total-steps=100", "--env", "CartPole-v1"]))
    ['env', 'total_steps']
    """
    return {arg.partition("=")[0].lstrip("-").replace("-", "_") for arg in args if arg.startswith("--")}


# ------------------------------------------------------------------------------------------------------- fields as flags
def parse(options: type[Own], base: Config, args: list[str], *, prog: str, about: str) -> tuple[Own, Config]:
    """Read the options of a command, and its config over `base`, from flags. Prints the help, or refuses unknown flags."""
    if {"-h", "--help"} & {*args}:
        print_help(options(), base, prog=prog, about=about)
        raise SystemExit(0)
    args = _joined(args, ("--env-wrapper", "--wrappers"))
    _refuse_other_names(args, [*(f.name for f in dataclasses.fields(options)), *(s.name for s in settings_of(base))])
    return read_flags(options, base, args, prog=prog, about=about)


def read_flags(options: type[Own], base: Config, args: list[str], *, prog: str, about: str) -> tuple[Own, Config]:
    """`parse` by tyro alone. Every field is a flag; a nested field has a dot in its name."""
    import tyro

    line = dataclasses.make_dataclass(
        "line",
        [
            ("options", Annotated[options, tyro.conf.arg(name="")], dataclasses.field(default_factory=options)),
            ("config", Annotated[type(base), tyro.conf.arg(name="")], dataclasses.field(default_factory=lambda: base)),
        ],
        frozen=True,
    )
    plain = (tyro.conf.AvoidSubcommands,)
    parsed: Any = tyro.cli(line, args=args, prog=prog, description=about, config=plain, registry=_rules())
    return parsed.options, parsed.config


def _refuse_other_names(args: list[str], known: list[str]) -> None:
    """Refuse an unknown flag if its name here can be guessed, and suggest that name. tyro reports every other mistake."""
    for i, arg in enumerate(args):
        name, _, value = arg.partition("=")
        field = name.removeprefix("--").replace("-", "_")
        plain = ".".join(part.removeprefix("no_") for part in field.split("."))
        if not name.startswith("--") or field == "help" or {field, plain} & set(known):
            continue
        given = value or (args[i + 1] if i + 1 < len(args) and not args[i + 1].startswith("--") else "")
        if field in ELSEWHERE:
            raise ConfigError(field, given, ELSEWHERE[field])
        if found := [f"--{k.replace('_', '-')}" for k in meant(field, known)]:
            raise ConfigError(field, given, f"unknown field; did you mean {' or '.join(found)}?")


def _joined(args: list[str], flags: Sequence[str]) -> list[str]:
    """Join the values of all `flags`, which may occur several times, behind one flag: the last name in `flags`.

    >>> _joined(["--env-wrapper", "a:A", "--seed", "1", "--env-wrapper=b:B"], ("--env-wrapper", "--wrappers"))
    ['--seed', '1', '--wrappers', 'a:A', 'b:B']
    """
    kept: list[str] = []
    found: list[str] = []
    taking = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if name in flags:
            taking, found = True, [*(found or [flags[-1]]), *([value] if equals else [])]
        elif taking and not arg.startswith("--"):
            found.append(arg)
        else:
            taking = False
            kept.append(arg)
    return kept + found


def _rules() -> ConstructorRegistry:
    """How tyro reads values that it would not read as people write them."""
    import tyro

    rules = tyro.constructors.ConstructorRegistry()
    rules.primitive_rule(_json_rule)
    rules.primitive_rule(_whole_rule)
    return rules


def _json_rule(found: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[JsonObject] | None:
    """A mapping (`env_kwargs`, limits of costs) is given as one JSON object: --env-kwargs '{"max_steps": 10}'."""
    import tyro

    if get_origin(found.type) is not dict:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=lambda words: _read_object(words[0]),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    )


def _whole_rule(found: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """A whole number may also be written as 1e5 or 100_000."""
    import tyro

    if found.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )
