"""Pieces that never change again: written once, linked by later checkpoints, read when they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from runnel.core.errors import CheckpointError
from runnel.core.frozen import Frozen
from runnel.run.checkpoint import Checkpoints, read_part, verify, write_parts


def piece(number: int) -> Frozen:
    return Frozen(f"piece{number}", lambda: {"x": torch.full((4,), number)})


def save(checkpoints: Checkpoints, version: int, *numbers: int) -> Path:
    state: dict[str, Any] = {"pieces": [[i, piece(i)] for i in numbers], "version": version}
    path = checkpoints.begin(version)
    return checkpoints.finish(path, {"version": version, "files": write_parts(path, {"worker": state})})


def file_number(path: Path, number: int) -> int:
    return os.stat(path / f"worker.piece{number}.safetensors").st_ino


def test_a_piece_is_written_once_and_outlives_the_checkpoint_that_wrote_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    first = save(checkpoints, 1, 1, 2)
    number = file_number(first, 2)
    second, third = save(checkpoints, 2, 2, 3), save(checkpoints, 3, 2, 3)
    assert not first.exists()
    assert file_number(second, 2) == file_number(third, 2) == number
    assert file_number(second, 3) == file_number(third, 3)
    assert not (second / "worker.piece1.safetensors").exists()
    verify(third)
    state = read_part(third, "worker")
    assert [(i, p.name, p.read()["x"].tolist()) for i, p in state["pieces"]] == [
        (2, "piece2", [2] * 4),
        (3, "piece3", [3] * 4),
    ]


def test_without_links_it_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    first = save(checkpoints, 1, 1)

    def refuse(*args: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    second = save(checkpoints, 2, 1)
    assert file_number(first, 1) != file_number(second, 1)
    assert verify(first)["files"]["worker.piece1.safetensors"] == verify(second)["files"]["worker.piece1.safetensors"]


def test_a_damaged_piece_is_found(tmp_path: Path) -> None:
    path = save(Checkpoints(tmp_path / "checkpoints"), 1, 1)
    file = path / "worker.piece1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="piece1"):
        verify(path)
