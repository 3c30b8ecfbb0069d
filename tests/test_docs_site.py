"""What stands round the docs: contents of the site, links that leave docs/, continuous integration, hooks of a commit."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from runnel.core.resolve import load_module

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    else:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)


def test_every_page_is_in_the_contents_of_the_site_once() -> None:
    listed = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))


def test_links_out_of_the_docs_become_paths_or_links_to_the_repository() -> None:
    relinked = load_module(str(ROOT / "docs/site_links.py"), "docs").relinked
    links = "[this](../../README.md#install), [`README.md`](../../README.md), [page](ppo.md), [none](../../none.md)"
    text = f"{links}\n```\n[a](../../README.md)\n```\n"
    folder = PurePosixPath("docs/algorithms")
    shown = relinked(text, folder, ROOT, "")
    assert shown.startswith("this (`README.md`), `README.md`, [page](ppo.md), [none](../../none.md)\n```\n[a](../../README.md)")
    assert "[this](https://example.org/x/blob/main/README.md#install)" in relinked(text, folder, ROOT, "https://example.org/x")


def test_continuous_integration_runs_targets_that_there_are_on_both_pythons() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    targets = re.findall(r"^\s*- run: make ([\w-]+)$", text, re.M)
    assert set(targets) == {"lint", "types", "docs", "tests"}
    assert all(re.search(rf"^{name}:", MAKEFILE, re.M) for name in targets)
    versions = yaml.safe_load(text)["jobs"]["tests"]["strategy"]["matrix"]["python"]
    wanted = [c.rpartition(" ")[2] for c in project()["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert versions == wanted
    assert not re.search(r"https?://|index-url|docker://|container:", text)


def test_hooks_of_a_commit_run_what_the_lint_target_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = {hook["id"]: hook["entry"] for hook in hooks}
    assert {"ruff", "ruff-format", "mypy", "end-of-file", "tables"} == set(entries)
    assert all("https://" not in entry for entry in entries.values())


def test_everything_that_extras_ask_for_is_pinned() -> None:
    """So `make` gives the same packages tomorrow. vLLM brings its own torch, and lives in an environment of its own."""
    pinned = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in (ROOT / "constraints.txt").read_text().split()
    }
    extras = project()["optional-dependencies"]
    needs = [need for name, listed in extras.items() if name != "vllm" for need in [*listed, *project()["dependencies"]]]
    names = {re.split(r"[\[<>=]", need)[0].lower() for need in needs} - {"runnel"}
    assert not names - pinned


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found
