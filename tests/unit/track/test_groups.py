"""The file of groups stays small, spans the run, and goes back with it."""

from __future__ import annotations

import json
from pathlib import Path

from runnel.track.groups import GroupFile


def versions(path: Path) -> list[int]:
    return [json.loads(line)["version"] for line in path.read_text().splitlines()]


def test_a_file_that_grows_too_large_loses_every_second_group(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    file = GroupFile(path, max_bytes=400)
    for version in range(1, 41):
        file.add({"version": version, "rows": [{"completion": "x" * 30}]})
        assert path.stat().st_size <= 400
    left = versions(path)
    assert left[0] == 1
    assert left[-1] == 40
    assert left == sorted(set(left)), "and what is between is spread over the run"


def test_a_resume_takes_back_what_came_after_and_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    file = GroupFile(path)
    for version in (2, 4, 6):
        file.add({"version": version, "text": "ä\ud800"})
    with path.open("ab") as half:
        half.write(b'{"version": 8, "ro')
    file.cut(4)
    assert versions(path) == [2, 4]
    file.add({"version": 6})
    assert versions(path) == [2, 4, 6]


def test_without_groups_there_is_no_file(tmp_path: Path) -> None:
    GroupFile(tmp_path / "groups.jsonl").cut(3)
    assert list(tmp_path.iterdir()) == []
