"""Public names: few at the top, each in one place, and none of them loads torch before it is used."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runnel as rl

PACKAGES = sorted(found.name for found in pkgutil.iter_modules(rl.__path__) if found.ispkg)
PUBLIC = {name: list(getattr(importlib.import_module(f"runnel.{name}"), "__all__", [])) for name in PACKAGES}
OLD_RUN = Path(__file__).parent / "system" / "old_runs" / "ppo"
AFTER = "\nassert not {'torch', 'transformers', 'gymnasium'} & set(sys.modules), 'loads torch'"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", f"import sys\n{code}{AFTER}"], capture_output=True, text=True)


def command(*args: str) -> str:
    return f"from runnel.cli.main import main\nassert main({list(args)!r}) == 0"


@pytest.mark.parametrize("code", ["import runnel", "import runnel as rl; rl.ConfigError; dir(rl); dir(rl.ops)"])
def test_importing_the_package_loads_no_torch(code: str) -> None:
    result = run_python(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("list",), ("ps", "RUNS"), ("logs", "RUN"), ("report", "RUN")])
def test_commands_that_only_read_load_no_torch(args: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a-run"
    shutil.copytree(OLD_RUN, run)
    places = {"RUNS": str(run.parent), "RUN": str(run)}
    result = run_python(command(*(places.get(arg, arg) for arg in args)))
    assert result.returncode == 0, result.stderr
    assert (run / "report.html").exists() == (args[0] == "report")


def test_the_board_loads_no_torch(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUN, tmp_path / "a-run")
    code = f"""
from pathlib import Path
import runnel.board.server
from runnel.board.library import Library
from runnel.board.responses import runs
library = Library(Path({str(tmp_path)!r}))
library.refresh()
print(runs(library, {{}}))"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert "a-run" in result.stdout


def test_help_starts_in_little_time() -> None:
    """CPU seconds of the whole process, so that other work on the machine does not count; the least of some runs."""
    code = f"import resource\n{command('--help')}"
    code += "\nused = resource.getrusage(resource.RUSAGE_SELF)\nprint(used.ru_utime + used.ru_stime)"
    seconds = [float(run_python(code).stdout.splitlines()[-1]) for _ in range(3)]
    assert min(seconds) <= 0.3


def test_about_forty_names_at_the_top_and_each_name_in_one_place() -> None:
    assert len(rl.__all__) <= 48
    homes: dict[str, list[str]] = {}
    for package, names in (("", rl.__all__), *PUBLIC.items()):
        for name in names:
            homes.setdefault(name, []).append(package)
    homes.pop("resume")  # of a run at the top, of a study in `tune`
    assert not {name: found for name, found in homes.items() if len(found) > 1}


@pytest.mark.parametrize("package", ["", *(name for name in PACKAGES if PUBLIC[name])])
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(f"runnel.{package}".rstrip("."))
    for name in module.__all__:
        assert name in dir(module)
        assert getattr(module, name) is not None
        assert name in vars(module), "found once, it is kept"


@pytest.mark.parametrize("package", ["", *(name for name in PACKAGES if PUBLIC[name])])
def test_type_checkers_see_every_name_as_public(package: str) -> None:
    """`from module import name as name` is how a typed package exports a name (PEP 484)."""
    file = importlib.import_module(f"runnel.{package}".rstrip(".")).__file__
    assert file is not None
    tree = ast.parse(Path(file).read_text("utf-8"))
    lines = [line for node in tree.body if isinstance(node, ast.If) for line in node.body if isinstance(line, ast.ImportFrom)]
    assert lines
    assert all(alias.name == alias.asname for line in lines for alias in line.names)


def test_a_name_that_moved_says_where_it_is() -> None:
    below = {*dir(rl)} & {*PUBLIC} - {"tune"}  # people write `from runnel import tune`
    for package in below:
        for name in {*PUBLIC[package]} - {*rl.__all__}:
            with pytest.raises(
                AttributeError, match=rf"module 'runnel' has no attribute '{name}'; use runnel\.{package}\.{name}$"
            ):
                getattr(rl, name)
    with pytest.raises(AttributeError, match=r"module 'runnel' has no attribute 'nothing_of_this_name'$"):
        _ = rl.nothing_of_this_name
