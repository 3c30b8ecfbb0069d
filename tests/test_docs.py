"""Every code block of README.md and docs/ runs as it stands, page by page, in a temporary directory.

Python blocks of a page share one namespace. In bash and console blocks, `runnel ...` and `python FILE` are run; a block that
starts with `# file: NAME` is written to that file first. `<!-- not run: reason -->` above a block leaves it out.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n\s*)?```(?P<kind>\w*)\n(?P<text>.*?)^```", re.M | re.S)
RUN_KINDS = ("python", "bash", "console")
MAX_NOT_RUN = 12


@dataclass
class Block:
    kind: str
    text: str
    line: int
    reason: str | None

    @property
    def file(self) -> str | None:
        """The file that the block is the content of."""
        first = self.text.partition("\n")[0]
        return first.removeprefix("# file: ").strip() if first.startswith("# file: ") else None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(found["kind"], found["text"], line, found["reason"])


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, without prompts, comments and output."""
    text = block.text.replace("\\\n", " ")
    for raw in text.splitlines():
        if block.kind == "console" and not raw.startswith("$ "):
            continue
        words = shlex.split(raw.removeprefix("$ "), comments=True)
        if words:
            yield words


def run_command(words: list[str], page: str) -> None:
    """`! runnel ...` is shell for a command that must fail: here, with a refused configuration."""
    expected = 0
    if words[0] == "!":
        expected, words = 2, words[1:]
    if words[0] == "runnel":
        try:
            code = main(words[1:])
        except SystemExit as stop:
            code = int(stop.code or 0)
        assert code == expected, f"{page}: `{shlex.join(words)}` exited with {code}, expected {expected}"
    elif words[0] == "python" and len(words) == 2:
        runpy.run_path(words[1], run_name="__main__")
    else:
        raise AssertionError(f"{page}: the docs run `runnel` and `python FILE` only, not {words[0]!r}; mark the block not run")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.reason is not None:
            continue
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        elif block.kind == "python":
            # padded, so that a traceback shows the page's own line numbers
            exec(compile("\n" * (block.line - 1) + block.text, where, "exec"), namespace)
        elif block.kind in ("bash", "console"):
            for words in commands(block):
                run_command(words, where)


def test_few_blocks_are_left_out() -> None:
    """Each block has a known kind, and almost all of them run."""
    found = [(page, block) for page in PAGES for block in blocks(page)]
    assert len([b for _, b in found if b.kind in RUN_KINDS]) > 40
    assert {b.kind for _, b in found} <= {*RUN_KINDS, "text", "toml"}
    assert sum(b.reason is not None for _, b in found) <= MAX_NOT_RUN


def test_links_lead_somewhere() -> None:
    """Relative links, pictures and `path/to/file.py` mentions of our own code exist."""
    for page in PAGES:
        text = FENCE.sub("", page.read_text())
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
        ours = "core|ops|losses|nets|kernels|envs|data|agents|llm|flow|eval|track|recipes|run|plan|cli|testing"
        for mention in re.findall(rf"`((?:{ours})/[\w/]+\.py)`", text):
            assert (ROOT / "src/runnel" / mention).exists(), f"{page.relative_to(ROOT)}: {mention}"


def test_every_public_name_is_documented() -> None:
    """docs/reference/python.md names each public name of the package."""
    text = (ROOT / "docs/reference/python.md").read_text()
    names = [n for n in rl.__all__ if not n.startswith("_")]
    missing = [n for n in names if not re.search(rf"\brl\.{n}\b", text)]
    assert not missing, f"document {', '.join(missing)} in docs/reference/python.md"


def test_the_installed_command_works() -> None:
    """The entry point itself, once."""
    command = Path(sys.executable).with_name("runnel")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == f"runnel {rl.__version__}"
