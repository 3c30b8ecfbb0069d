"""Pieces that never change again: written once, linked by later checkpoints, read when they are asked for."""

from __future__ import annotations

import itertools
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from runnel.core.errors import CheckpointError
from runnel.core.state import SealedChunk
from runnel.run import checkpoint
from runnel.run.checkpoint import Checkpoints, read_part, verify, write_parts


def piece(number: int) -> SealedChunk:
    return SealedChunk(f"piece{number}", lambda: {"x": torch.full((4,), number)})


def save(checkpoints: Checkpoints, version: int, *numbers: int, copies: int = 1, told: list[str] | None = None) -> Path:
    state: dict[str, Any] = {"pieces": [[i, piece(i)] for i in numbers], "version": version}
    path = checkpoints.begin(version)
    files = write_parts(path, {"worker": state}, copies=copies, told=told)
    return checkpoints.finish(path, {"version": version, "files": files})


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


# ------------------------------------------------------------------------------------------------------------- two copies
def flip(path: Path, number: int) -> None:
    """Turn one bit of a piece over, where it lies on the disk."""
    file = path / f"worker.piece{number}.safetensors"
    with file.open("r+b") as f:
        f.seek(-1, 2)
        last = f.read(1)[0]
        f.seek(-1, 2)
        f.write(bytes([last ^ 1]))


@pytest.mark.parametrize("keep", [2, 3, 4])
def test_the_two_newest_checkpoints_share_no_file(keep: int, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=keep)
    for version in range(1, 9):
        save(checkpoints, version, 1, 2, 2 + version, copies=2)
        kept = checkpoints.finished()
        for first, second in itertools.pairwise(kept):
            assert not {file_number(first, n) for n in (1, 2)} & {file_number(second, n) for n in (1, 2)}
        assert len({file_number(path, 1) for path in kept}) == min(2, len(kept)), "and there are no more than two copies"


@pytest.mark.parametrize("harmed", [0, 1, 2])
def test_one_flipped_bit_never_takes_all_checkpoints_and_is_mended(harmed: int, tmp_path: Path) -> None:
    checkpoints, told = Checkpoints(tmp_path / "checkpoints", keep=3), list[str]()
    for version in range(1, 6):
        save(checkpoints, version, 1, 2, copies=2)
    flip(checkpoints.finished()[harmed], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert int(checkpoints.newest()[0].name) >= 4
    for version in (6, 7):
        save(checkpoints, version, 1, 2, copies=2, told=told)
    (text,) = told
    assert "worker.piece1.safetensors of checkpoint" in text
    assert "was damaged on the disk; mended from memory" in text
    for path in checkpoints.finished():
        verify(path)
    assert len({file_number(path, 1) for path in checkpoints.finished()}) == 2


def test_a_damaged_piece_is_not_linked_to(tmp_path: Path) -> None:
    """Also where one checkpoint is kept alone, so that there is one copy."""
    checkpoints, told = Checkpoints(tmp_path / "checkpoints", keep=1), list[str]()
    flip(save(checkpoints, 1, 1, 2), 2)
    path = save(checkpoints, 2, 1, 2, told=told)
    verify(path)
    assert len(told) == 1


def test_a_copy_that_differs_from_memory_is_left_as_it_is(tmp_path: Path) -> None:
    checkpoints, told = Checkpoints(tmp_path / "checkpoints", keep=2), list[str]()
    first = save(checkpoints, 1, 1)
    flip(first, 1)
    state = {"pieces": [[1, SealedChunk("piece1", lambda: {"x": torch.zeros(4)})]]}
    path = checkpoints.begin(2)
    write_parts(path, {"worker": state}, told=told)
    assert "not mended: what is in memory is something else" in told[0]
    with pytest.raises(CheckpointError, match="piece1"):
        verify(first)


def test_a_damaged_piece_on_a_disk_without_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, told = Checkpoints(tmp_path / "checkpoints", keep=2), list[str]()
    flip(save(checkpoints, 1, 1), 1)

    def refuse(*args: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    verify(save(checkpoints, 2, 1, told=told))
    assert told[0].endswith("was damaged on the disk; not mended: no links here")


def test_an_unreadable_manifest_beside_it_does_not_stop_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    first = save(checkpoints, 1, 1, copies=2)
    (first / "manifest.json").write_text("{")
    second = save(checkpoints, 2, 1, copies=2)
    verify(second)
    assert file_number(second, 1) != file_number(first, 1)  # written anew: nothing is known of the first one's file


def test_a_large_memory_is_read_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint reads so many bytes; whatever they are, all files are read in time, the longest unread first."""
    checkpoints, numbers = Checkpoints(tmp_path / "checkpoints", keep=1), range(6)
    size = (save(checkpoints, 1, *numbers) / "worker.piece1.safetensors").stat().st_size
    monkeypatch.setattr("runnel.run.checkpoint.LOOKED_AT", 2 * size)
    read: list[str] = []
    inner = checkpoint._is_sound

    def looked(path: Path, digest: str) -> bool:
        read.append(path.name)
        return inner(path, digest)

    monkeypatch.setattr("runnel.run.checkpoint._is_sound", looked)
    for version in (2, 3, 4):
        save(checkpoints, version, *numbers)
    assert sorted(read) == [f"worker.piece{n}.safetensors" for n in numbers]
