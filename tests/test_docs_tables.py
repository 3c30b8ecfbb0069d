"""Tables of the docs say what the code says: generated ones are compared whole, written ones by their names."""

from __future__ import annotations

import ast
import json
import re
import typing
from pathlib import Path
from types import ModuleType

import pytest

from runnel.cli.main import ENOUGH
from runnel.cli.train import COLLAPSED
from runnel.core import errors
from runnel.core.resolve import load_module
from runnel.run import registry
from runnel.run.ledger import What
from runnel.run.pipeline import PIPELINES, load_pipeline
from runnel.track.folder import WRITTEN
from runnel.track.sinks.make import SINKS

ROOT = Path(__file__).parent.parent
DOCS, SOURCE = ROOT / "docs", ROOT / "src/runnel"
GOLDEN = ROOT / "tests/golden/golden_runs.json"
ROW = re.compile(r"^\| (.*?) \|", re.M)
CODE = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return load_module(str(DOCS / "make_tables.py"), "docs")


def section(page: str, heading: str) -> str:
    """What stands below a heading of a page, up to the next of that level."""
    found = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2]
    assert found, f"{page} has no section {heading!r}"
    return found.partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """The first cells of all rows of tables, without heads."""
    return [cell for cell in ROW.findall(text) if "`" in cell and not cell.startswith("`--")]


# ------------------------------------------------------------------------------------------------------ generated tables
def test_generated_tables_are_as_the_code_has_them(tables: ModuleType) -> None:
    stale = [str(p.relative_to(ROOT)) for p in tables.pages() if tables.rewrite(p.read_text(), p) != p.read_text()]
    assert not stale, f"run `python docs/make_tables.py`: {', '.join(stale)}"


def test_a_stale_table_is_seen(tables: ModuleType) -> None:
    page = DOCS / "algorithms/ppo.md"
    text = page.read_text()
    assert "| `ppo.gae_lambda` | `0.95` |" in text
    assert tables.rewrite(text.replace("`0.95`", "`0.9`"), page) == text


def test_bounds_of_a_field_are_shown_as_help_shows_them(tables: ModuleType) -> None:
    shown = tables.settings(DOCS / "algorithms/ppo.md", "ppo", "ppo.gamma")
    assert "| field | default | values | meaning |" in shown
    assert "| `ppo.gamma` | `0.99` | in [0, 1] |" in shown


def test_every_algorithm_with_settings_of_its_own_has_a_table_of_them() -> None:
    """A group of settings that has the name of a recipe stands on a page of docs/algorithms."""
    marked = set(re.findall(r"<!-- table: settings (\w+) ", "".join(p.read_text() for p in (DOCS / "algorithms").glob("*.md"))))
    own = {name for name in registry.RECIPES if name in registry.load_recipe(name).Config.__dataclass_fields__}
    known_by_another_name = {"ddpg": "td3", "impala": "appo", "rloo": "reinforce", "remax": "reinforce", "dr_grpo": "grpo"}
    assert {known_by_another_name.get(name, name) for name in own} <= marked


def test_settings_that_are_named_in_the_text_exist(tables: ModuleType) -> None:
    """`--ppo.num-epochs` and `ppo.num_epochs` anywhere on a page: some recipe or pipeline has that field."""
    configs = [registry.load_recipe(name).Config() for name in registry.RECIPES]
    configs += [load_pipeline(name).Config() for name in PIPELINES]
    known = {name for config in configs for name, *_ in tables.fields(config)}
    groups = {name.partition(".")[0] for name in known if "." in name}
    for page in tables.pages():
        text = page.read_text()
        if page.name == "coming-from.md":
            text = re.sub(r"^\| .*? \|", "", text, flags=re.M)  # the first column is another library's
        for flag, path in re.findall(r"`(--)?([a-z_]+(?:\.[a-z_-]+)+)`", text):
            name = path.replace("-", "_").replace(".no_", ".")
            if path.partition(".")[0] in groups and not path.endswith(".py"):
                assert name in known or name in {k.rpartition(".")[0] for k in known}, f"{page.name}: {flag}{path}"


# ----------------------------------------------------------------------------------------------------- tables of our own
def test_tables_that_say_more_than_names_have_all_names(tables: ModuleType) -> None:
    said = {
        "guides/track.md": (set(SINKS), r"^\| `([\w-]+)`[^|]*\|[^|]*\| (?:`|their server)"),
        "guides/engines.md": (set(tables.setting("grpo", "engine.kind")[1]), r"^\| `(\w+)` \| (?:our|plain|vLLM)"),
        "guides/environments.md": (set(tables.setting("ppo", "vector.backend")[1]), r"^\| `(\w+)` \| [a-zE]"),
        "scale/several-processes.md": (set(tables.setting("ppo", "launcher")[1]), r"^\| `(\w+)` \|"),
        "concepts/versions-and-staleness.md": (set(tables.setting("ppo", "staleness.mode")[1]), r"^\| `(\w+)` \|"),
    }
    for page, (names, pattern) in said.items():
        found = set(re.findall(pattern, (DOCS / page).read_text(), re.M))
        assert names <= found, f"{page} lacks {names - found}"


def test_supported_spaces_are_those_of_the_code() -> None:
    message = (SOURCE / "envs/spaces.py").read_text().partition('_SUPPORTED = "')[2].partition(";")[0]
    listed = set(re.findall(r"\b(?:Box|Discrete|Multi\w+|Dict|Tuple|Text|Graph|Sequence|OneOf)\b", message))
    rows = {name for cell in first_cells(section("guides/environments.md", "Spaces")) for name in CODE.findall(cell)}
    assert rows == listed


def documented_metrics() -> set[str]:
    whole = (DOCS / "reference/metrics.md").read_text().partition("## Beside the metrics")[0]
    return {name for cell in first_cells(whole) for name in CODE.findall(cell)}


def test_every_metric_of_the_golden_runs_is_documented() -> None:
    """They are runs of every recipe and every form, so this is nearly every metric that there is."""
    cases = json.loads(GOLDEN.read_text())["cases"].values()
    written = {name for stages in cases for run in stages.values() for row in run["updates"] for name in row["metrics"]}
    known = documented_metrics()
    members = (
        "sender/",
        "receiver/",
        "main/",
    )  # of teams and of self-play: `sender/kl` is `kl` of one policy
    written = {next((name.removeprefix(m) for m in members if name.startswith(m)), name) for name in written}
    # one for each name: `NAME` on the page
    named = ("reward/", "return/", "cost/", "cost_in_batch/", "multiplier/")
    named = (*named, "chat/ended/", "chat/success_by_turns/", "chat/tool_errors/")
    missing = {name for name in written - known if not name.startswith(named)}
    assert not missing, f"docs/reference/metrics.md says nothing of {sorted(missing)}"


def test_every_documented_metric_is_written_somewhere() -> None:
    """In a golden run, or by its name in the source; parts of names are made of `loss/{name}`, `faults/{kind}`."""
    golden = GOLDEN.read_text()
    source = "\n".join(p.read_text() for p in SOURCE.rglob("*.py"))
    made = {"reward/NAME", "return/POLICY", "episode/NAME", "tasks/share/NAME", "tasks/advantage/NAME"}
    made |= {"chat/success_by_turns/TURNS", "chat/tool_errors/KIND", "chat/ended/REASON"}
    gone = {
        name
        for name in documented_metrics() - made
        if f'"{name}": ' not in golden and f'"{name}"' not in source and f'"{name.partition("/")[2]}"' not in source
    }
    assert not gone, f"docs/reference/metrics.md has metrics that nothing writes: {sorted(gone)}"


def returned_numbers() -> set[int]:
    """Numbers that functions of the command line return as they stand in the source."""
    found: set[int] = set()
    for path in (SOURCE / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "int":
                values = [r.value for r in ast.walk(node) if isinstance(r, ast.Return)]
                values += [v for value in values if isinstance(value, ast.IfExp) for v in (value.body, value.orelse)]
                constants = [v.value for v in values if isinstance(v, ast.Constant)]
                found |= {value for value in constants if type(value) is int}
    return found


def test_exit_codes_are_those_of_the_command_line() -> None:
    listed = {
        int(code) for code in re.findall(r"^\| (\d+) \|", section("reference/statuses-and-exit-codes.md", "Exit codes"), re.M)
    }
    assert listed == returned_numbers() | {COLLAPSED, ENOUGH}


def test_messages_of_settings_are_those_of_the_source() -> None:
    """Each part of a message between dots, numbers and names stands in the source."""
    source = re.sub(r'"\n\s*f?"', "", "\n".join(p.read_text() for p in SOURCE.rglob("*.py")))
    for cell in first_cells(section("reference/errors.md", "Settings")):
        for message in CODE.findall(cell):
            for part in re.split(r"\.\.\.| N ", message):
                assert part.strip() in source, f"docs/reference/errors.md: no message has {part.strip()!r}"


def test_named_errors_exist() -> None:
    for cell in first_cells(section("reference/errors.md", "While a run goes on")):
        for name in re.findall(r"`(\w+(?:Error|Failure|Lost))`", cell):
            assert hasattr(errors, name), name


def test_every_file_of_a_run_is_documented() -> None:
    text = (DOCS / "reference/run-folder.md").read_text()
    missing = [name for name in WRITTEN if f"`{name}`" not in text]
    assert not missing, f"docs/reference/run-folder.md lacks {missing}"


def test_every_kind_of_event_is_documented() -> None:
    text = (DOCS / "guides/videos-and-completions.md").read_text()
    listed = re.findall(r"^`what` is (.*)$", text, re.M)
    assert set(CODE.findall(listed[0])) == set(typing.get_args(What))


def test_pages_that_the_source_names_exist() -> None:
    """Messages and help texts say `docs/...`: those pages are there."""
    for folder in (SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"):
        for path in folder.rglob("*.py"):
            for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text()):
                assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)} names {name}"


def test_the_first_page_leads_to_every_other() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", (DOCS / "index.md").read_text()))
    assert {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")} - linked == {"index.md"}
