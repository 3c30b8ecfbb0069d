"""Write the tables of README.md and docs/ that the code knows better: between `<!-- table: NAME -->` and `<!-- end -->`.

python docs/make_tables.py            # write them again
python docs/make_tables.py --check    # say which are stale, and exit with 1

A name may have arguments: `settings ppo ppo.*` is the table of the fields `ppo.*` of the recipe `ppo`. While a table differs
from the code, `tests/test_docs_tables.py` fails.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from runnel.cli.main import USAGE
from runnel.core import errors
from runnel.core.bounds import Bound
from runnel.envs.known import KNOWN
from runnel.graphs.env_config import EnvConfig, ReplayEnvConfig
from runnel.graphs.offline import DataEnvConfig
from runnel.graphs.pairs import PairConfig
from runnel.graphs.prompts import PromptConfig
from runnel.run import registry
from runnel.run.export import EXPORTS
from runnel.run.live_settings import live_owners
from runnel.run.names import ALGORITHMS, PIPELINES, TOOLS, list_pipelines, list_recipes, list_tasks, list_worlds
from runnel.track.sinks.make import SINKS
from runnel.track.status import STATUSES

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?P<head><!-- table: (?!python )(?P<name>[^\n]+?) -->\n).*?(?P<end><!-- end -->)", re.S)
GUIDES = {
    "pipeline": "guides/pipelines.md",
    "eval": "reference/cli.md#evaluate-resume-report",
    "chat": "guides/conversations.md#talk-to-it",
    "league": "guides/judging.md#leagues",
    "resume": "concepts/checkpoints.md",
    "data": "guides/data-sets.md",
    "record": "guides/videos-and-completions.md",
    "export": "guides/export.md",
    "report": "guides/compare-seeds.md",
    "board": "guides/board.md",
    "check-env": "guides/add-an-environment.md",
    "check-chat": "guides/tools.md#check-an-environment",
    "plan": "scale/plan.md",
    "simulate": "scale/plan.md",
    "submit": "scale/jobs.md",
    "trace": "guides/trace.md",
    "tune": "guides/tune.md",
    "set": "guides/live-settings.md",
    "add-tasks": "guides/tasks-and-data.md",
}
"""Commands with a page of their own."""


def pages() -> list[Path]:
    """The pages that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rewrite(text: str, page: Path) -> str:
    """A page with its tables as the code has them now."""

    def fresh(found: re.Match[str]) -> str:
        name, *arguments = found["name"].split()
        if name not in TABLES:
            raise SystemExit(f"{page}: no table is called {name!r}; use one of {', '.join(TABLES)}")
        return f"{found['head']}{TABLES[name](page, *arguments)}\n{found['end']}"

    return BLOCK.sub(fresh, text)


# ---------------------------------------------------------------------------------------------------------------- writing
def table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    """A table in Markdown; bars inside of cells are escaped."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], ["---"] * len(head), *lines[1:]])


def code(value: object) -> str:
    """A value in code style."""
    return f"`{value}`"


def codes(values: typing.Iterable[object]) -> str:
    """Values in code style, side by side."""
    return ", ".join(map(code, values))


def link(page: Path, target: str) -> str:
    """A path below docs/, as it is written on `page`."""
    depth = len(page.parent.relative_to(ROOT).parts)
    return f"docs/{target}" if not depth else "../" * (depth - 1) + target


# ---------------------------------------------------------------------------------------------------------------- reading
@cache
def helps(config: type) -> dict[str, str]:
    """The text under each field of a config class, in one line; those of its base classes too."""
    found: dict[str, str] = {}
    for cls in reversed([c for c in config.__mro__ if dataclasses.is_dataclass(c)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            found.pop(field.target.id, None)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                found[field.target.id] = " ".join(text.value.value.split())
    return found


def fields(config: object, path: str = "") -> Iterator[tuple[str, dataclasses.Field[object], object, str, object]]:
    """The settings of a config: dotted name, field, default, help, annotation. Groups of settings are entered."""
    hints = typing.get_type_hints(type(config))
    assert dataclasses.is_dataclass(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", field, value, helps(type(config)).get(field.name, ""), hints[field.name]


def bound(field: dataclasses.Field[object]) -> str:
    """What a field says of the values that it takes, if it does."""
    return ", ".join(value.interval for value in field.metadata.values() if isinstance(value, Bound))


def default(value: object) -> str:
    """A default as one writes it on the command line."""
    if value in ("", (), None) or value == {}:
        return "none"
    if isinstance(value, tuple):
        return code(" ".join(map(str, value)))
    return code(value)


def choices(annotation: object) -> list[str]:
    """The words of a `Literal`, also inside of a union."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(word) for word in typing.get_args(annotation)]
    return [word for part in typing.get_args(annotation) for word in choices(part)]


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name is meant by a pattern; `.` means all settings that are in no group."""
    return "." not in name if pattern == "." else fnmatch(name, pattern)


def setting(recipe: str, name: str) -> tuple[str, list[str]]:
    """The help of one setting of a recipe, and its choices."""
    for found, _, _, text, hint in fields(registry.load_recipe(recipe).Config()):
        if found == name:
            return text, choices(hint)
    raise SystemExit(f"the recipe {recipe} has no setting {name}")


# ----------------------------------------------------------------------------------------------------------------- tables
def settings(page: Path, recipe: str, *patterns: str) -> str:
    """Field, default, meaning (and bounds) of the settings of a recipe that match any of `patterns`."""
    config = registry.load_recipe(recipe).Config()
    chosen = [row for row in fields(config) if any(matches(row[0], pattern) for pattern in patterns)]
    if not chosen:
        raise SystemExit(f"{page}: the recipe {recipe} has no settings {' '.join(patterns)}")
    bounded = any(bound(field) for _, field, *_ in chosen)
    rows = []
    for name, field, value, text, hint in chosen:
        words = choices(hint)
        listed = f"{text} One of {codes(words)}." if words and not all(word in text for word in words) else text
        rows.append([code(name), default(value), *([bound(field)] if bounded else []), listed])
    return table(["field", "default", *(["values"] if bounded else []), "meaning"], rows)


def words(page: Path, recipe: str, name: str) -> str:
    """The choices of one setting whose help explains them one by one (`word: what it is. other: ...`)."""
    text, known = setting(recipe, name)
    parts = re.split(rf"(?:^|[.;] )({'|'.join(map(re.escape, known))}): ", text)
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    return table([code(f"--{name.replace('_', '-')}"), "meaning"], [[code(w), said.get(w, "").rstrip(".")] for w in known])


def named(head: str, entries: Callable[[], dict[str, str]]) -> Callable[[Path], str]:
    """What writes a table of names and texts."""
    return lambda page: table([head, "what it is"], [[code(k), text.rstrip(".")] for k, text in entries().items()])


def commands(page: Path) -> str:
    """The commands, from what `runnel --help` prints."""
    rows = []
    for line in USAGE.splitlines():
        if found := re.match(r"  (([a-z-]+)\b.*?)  +(\S.*)$", line):
            more = GUIDES.get(found[2], "")
            told = f"{found[3]} ([more]({link(page, more)}))" if more and ROOT / "docs" / more != page else found[3]
            rows.append([code(f"runnel {found[1]}"), told])
    return table(["command", "what it does"], [row for row in rows if not row[0].startswith("`runnel runnel")])


def extras(page: Path) -> str:
    """The extras of the package, from pyproject.toml."""
    listed: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return table(
        ["extra", "installs"],
        [[code(name), codes(re.split(r"[<>=]", need)[0] for need in needs)] for name, needs in listed.items()],
    )


def error_classes(page: Path) -> str:
    """The errors that runnel raises on purpose."""
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.RunnelError)]
    found = [c for c in found if c.__module__ == errors.__name__]
    line = {name: i for i, name in enumerate(vars(errors))}
    rows = [
        [code(c.__name__), " ".join((inspect.getdoc(c) or "").split("\n\n")[0].split())]
        for c in sorted(found, key=lambda c: line[c.__name__])
    ]
    return table(["error", "what it is"], rows)


def live(page: Path) -> str:
    """The settings of each recipe that may change while a run goes on; recipes with the same ones share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in registry.RECIPES:
        config = registry.load_recipe(name).Config()
        unread = tuple(f"{one}." for one in config.unused())
        rows.setdefault(tuple(n for n in live_owners(config) if not f"{n}.".startswith(unread)), []).append(name)
    return table(["recipe", "live settings"], [[codes(names), codes(found)] for found, names in rows.items() if found])


def features(page: Path) -> str:
    """What there is, by family; from the configs of recipes, the choices of settings and the tables of names."""
    configs = {name: registry.load_recipe(name).Config for name in registry.RECIPES}
    off_policy = (ReplayEnvConfig, DataEnvConfig)
    family = {
        "on-policy": [n for n, c in configs.items() if issubclass(c, EnvConfig) and not issubclass(c, off_policy)],
        "from replay": [n for n, c in configs.items() if issubclass(c, ReplayEnvConfig)],
        "from a data set": [n for n, c in configs.items() if issubclass(c, DataEnvConfig)],
        "language models, from prompts": [n for n, c in configs.items() if issubclass(c, PromptConfig)],
        "language models, from pairs": [n for n, c in configs.items() if issubclass(c, PairConfig)],
    }
    rest = [n for n in configs if not any(n in names for names in family.values())]
    rows = [[f"recipes, {kind}", codes(names)] for kind, names in family.items() if names]
    rows += [["other recipes", codes(rest)]] if rest else []
    rows += [
        ["pipelines of several runs", codes(PIPELINES)],
        ["engines of language models", codes(setting("grpo", "engine.kind")[1])],
        ["back ends of environments", codes(w for w in setting("ppo", "vector.backend")[1] if w != "auto")],
        ["tensor environments", codes(name for name in KNOWN if name.startswith("tensor:"))],
        ["launchers", codes(setting("ppo", "launcher")[1])],
        ["how training and collecting overlap", codes(setting("ppo", "staleness.mode")[1])],
        ["sinks", codes(SINKS)],
        ["formats of export", codes(EXPORTS)],
    ]
    return table(["", ""], rows)


TABLES: dict[str, Callable[..., str]] = {
    "settings": settings,
    "choices": words,
    "recipes": named("recipe", list_recipes),
    "pipelines": named("pipeline", list_pipelines),
    "algorithms": named("algorithm", lambda: ALGORITHMS),
    "environments": named("`--env`", lambda: KNOWN),
    "tasks": named("`--task`", list_tasks),
    "conversations": named("`--chat`", list_worlds),
    "tools": named("`--tools`", lambda: TOOLS),
    "statuses": lambda page: table(["word", "meaning"], [[code(k), text] for k, text in STATUSES.items()]),
    "commands": commands,
    "extras": extras,
    "errors": error_classes,
    "features": features,
    "live": live,
}


def main(args: list[str]) -> int:
    """Write all tables again, or say which are stale."""
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (fresh := rewrite(text, page)) != text:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in args:
                page.write_text(fresh, encoding="utf-8")
    print("\n".join(stale) or "all tables are as the code has them")
    return 1 if stale and "--check" in args else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
