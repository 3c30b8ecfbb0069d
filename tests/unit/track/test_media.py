"""Videos: what is encoded can be played, and the folder of episodes says what is in it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runnel.core.errors import ConfigError
from runnel.track.media import EpisodeFiles, VideoWriter, check_encoder

av = pytest.importorskip("av")


def frames(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_video_has_every_frame_at_an_even_size_and_starts_at_once(tmp_path: Path) -> None:
    writer = VideoWriter(25)
    for shade in (20, 120, 220):
        writer.add(np.full((33, 65, 3), shade, np.uint8))
    data = writer.finish()
    writer.close()
    path = tmp_path / f"v.{writer.suffix}"
    path.write_bytes(data)
    found = frames(path)
    assert [f.shape for f in found] == [(34, 66, 3)] * 3
    assert [float(f.mean()) for f in found] == pytest.approx([20, 120, 220], abs=4)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (float(stream.average_rate), stream.pix_fmt) == (25.0, "yuv420p")
    if writer.suffix == "mp4":
        assert data.index(b"moov") < data.index(b"mdat"), "a browser can play it before it has all of it"


def test_without_the_library_a_video_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.track.media.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'runnel\[video\]'"):
        check_encoder("record.videos", 2)


def test_without_h264_it_is_vp9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.track.media.CODECS", (("no-such-codec", "mp4", {}), ("libvpx-vp9", "webm", {"cpu-used": "6"})))
    writer = VideoWriter(10)
    writer.add(np.zeros((32, 32, 3), np.uint8))
    assert writer.suffix == "webm"
    assert writer.finish()[:4] == b"\x1aE\xdf\xa3"
    writer.close()


def event(episode: int, text: str = "film") -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"kind": "video", "worker": "evaluator", "episode": episode, "seed": 7, "return": 2.0, "suffix": "mp4", "data": data}


def names(folder: Path) -> list[str]:
    listed = [json.loads(line)["file"] for line in (folder / "index.jsonl").read_text().splitlines()]
    assert sorted(listed) == sorted(p.name for p in folder.glob("v*")), "the index names what is there, and nothing else"
    return listed


def test_an_episode_has_a_file_and_a_line(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path / "episodes")
    row = files.add(event(1), version=12, steps=640)
    assert row == {"version": 12, "steps": 640, "episode": 1, "file": "v00000012-1.mp4", "seed": 7, "return": 2.0}
    assert (tmp_path / "episodes" / "v00000012-1.mp4").read_bytes() == b"film"
    files.add(event(1, "better"), version=12, steps=640)
    assert (tmp_path / "episodes" / "v00000012-1.mp4").read_bytes() == b"better", "recorded anew after a resume"
    assert names(files.folder) == ["v00000012-1.mp4"]
    files.add(event(0), version=12, steps=640, again=True)
    assert names(files.folder) == ["v00000012-1.mp4", "v00000012-2.mp4"]


def test_the_first_stay_and_then_the_oldest_go(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path, keep=4)
    for version in (1, 2, 3, 4):
        for episode in (0, 1):
            files.add(event(episode), version=version, steps=0)
    assert names(tmp_path) == ["v00000001-0.mp4", "v00000001-1.mp4", "v00000004-0.mp4", "v00000004-1.mp4"]


def test_a_resume_takes_back_what_came_after(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path)
    for version in (1, 2, 3):
        files.add(event(0), version=version, steps=0)
    files.cut(2)
    assert names(tmp_path) == ["v00000001-0.mp4", "v00000002-0.mp4"]
    files.cut(0)
    assert names(tmp_path) == []
