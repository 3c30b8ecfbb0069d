"""The wheel, as a person gets it: everything is in it, and it trains and shows its board without the clone beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TINY = ("--total-steps", "2048", "--num-steps", "32", "--eval.every", "0", "--eval.episodes", "4", "--ppo.num-epochs", "1")
WAIT_S = 60.0


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clean() -> dict[str, str]:
    """The environment without anything that leads back to the clone."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, clean: dict[str, str]) -> Path:
    """Built from a copy: setuptools leaves its folders beside the source."""
    pytest.importorskip("setuptools", minversion="77", reason="building a wheel needs setuptools 77")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "clone/src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "clone")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, folder / "clone", cwd=folder, env=clean)
    shutil.rmtree(folder / "clone")
    (found,) = folder.glob("runnel-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, clean: dict[str, str]) -> Path:
    """The folder `bin` of an empty virtual environment with the wheel; torch, numpy and the rest come from the environment that
    runs the tests. A path in a `.pth` file adds its packages, but runs none of its own `.pth` files: an editable runnel there
    stays unseen."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent, env=clean)
    python = folder / "bin/python"
    packages = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder, env=clean).strip())
    (packages / "rest.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    install = ("-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    run(sys.executable, *install, cwd=folder.parent, env=clean)
    where = run(python, "-c", "import runnel; print(runnel.__file__)", cwd=folder.parent, env=clean).strip()
    assert Path(where) == packages / "runnel/__init__.py"
    return python.parent


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Also what is no Python: the board's page, checksums of what kernels stand for, the mark of a typed package."""
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {
        p.relative_to(source).as_posix() for p in (source / "runnel").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    assert {name for name in names if name.startswith("runnel/")} == files
    for name in ("py.typed", "kernels/fingerprints.json", "board/static/index.html", "llm/sandbox/child.py"):
        assert f"runnel/{name}" in files


def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        meta = message_from_bytes(archive.read(about))
        entry = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
        assert about.replace("METADATA", "licenses/LICENSE") in archive.namelist()
    assert set(meta.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert (meta["Name"], meta["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert "runnel = runnel.cli.main:main" in entry


def test_the_installed_wheel_trains(installed: Path, tmp_path: Path, clean: dict[str, str]) -> None:
    run(installed / "runnel", "train", "cartpole", *TINY, "--name", "first", cwd=tmp_path, env=clean)
    rows = [json.loads(line) for line in (tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["status"] == "finished"
    assert (tmp_path / "runs/first/report.html").stat().st_size > 0


@pytest.fixture
def board(installed: Path, tmp_path: Path, clean: dict[str, str]) -> Iterator[str]:
    """The address of a board on an empty folder."""
    (tmp_path / "runs").mkdir()
    command = [str(installed / "runnel"), "board", "runs", "--port", "0"]
    child = subprocess.Popen(command, cwd=tmp_path, env=clean | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        said = ""
        while (found := re.search(r"http://[\d.]+:\d+", said)) is None:
            line = child.stdout.readline()
            assert line, f"the board ended: {said}"
            said += line
        yield found[0]
    finally:
        child.terminate()
        child.wait(WAIT_S)


def test_the_installed_wheel_serves_its_board(board: str) -> None:
    pytest.importorskip("uvicorn")

    def get(path: str) -> str:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(board + path, timeout=WAIT_S) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    page = get("/")
    assert "<title>" in page
    parts = re.findall(r'(?:src|href)="(/?[^":#?]+\.(?:js|css|svg))', page)
    assert parts
    for part in parts:
        assert get("/" + part.lstrip("/"))
