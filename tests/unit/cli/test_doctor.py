"""`runnel doctor` names every extra that the package has, with what it brings or lacks."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from runnel.cli.extras import extras_of, parts_of
from runnel.cli.main import main

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """What stands under each name: the mark and the text."""
    return {(words := line.split(maxsplit=2))[1]: (words[0], words[2]) for line in capsys.readouterr().out.splitlines()}


def test_every_extra_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found = lines(capsys)
    assert set(PROJECT["optional-dependencies"]) == {name.strip("[]") for name in found if name.startswith("[")}
    assert found["[tune]"][1] == f"optuna {importlib.metadata.version('optuna')}, scikit-learn " + importlib.metadata.version(
        "scikit-learn"
    )


def test_what_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "optuna":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1" if name == "scikit-learn" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert main(["doctor"]) == 0, "an extra is not needed"
    mark, text = lines(capsys)["[tune]"]
    assert mark == "--"
    assert text.startswith("no optuna; scikit-learn 0.1 (needs >=1.5) is too old")
    assert 'pip install "runnel[tune]"' in text


def test_extras_of_other_packages_are_followed() -> None:
    assert "mujoco" in {part.name for part in parts_of("mujoco")}, "which gymnasium[mujoco] brings"
    assert {"numpy", "torch"} <= {part.name for part in parts_of()}
    assert "optuna" not in {part.name for part in parts_of()}
    assert extras_of("no-such-package") == parts_of(package="no-such-package") == []
