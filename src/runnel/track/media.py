"""Videos of episodes: encoding frames, and the folder `episodes/` of a run with its index.

The process that plays encodes and sends the file as an event; the one that keeps the ledger writes it. So it does not matter
where the evaluator runs.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.track.folder import Row, read_rows

CODECS = (
    ("libx264", "mp4", {"preset": "veryfast", "crf": "23"}),
    ("libvpx-vp9", "webm", {"crf": "32", "b:v": "0", "cpu-used": "6"}),
)
"""Encoder, file and settings, the one that browsers like best first."""


def check_encoder(field: str, value: Any) -> None:
    """Raise a `ConfigError` of `field` where videos cannot be made."""
    if importlib.util.find_spec("av") is None:
        raise ConfigError(field, value, "videos need PyAV: pip install 'runnel[video]'; or use 0")
    _codec(field, value)


def _codec(field: str = "record.videos", value: Any = 1) -> tuple[str, str, dict[str, str]]:
    import av

    for name, suffix, options in CODECS:
        try:
            av.codec.Codec(name, "w")
        except (av.error.FFmpegError, ValueError):
            continue
        return name, suffix, options
    raise ConfigError(field, value, "this build of PyAV has neither an H.264 nor a VP9 encoder; pip install 'runnel[video]'")


class VideoWriter:
    """Encodes frames as they come: H.264 in mp4 that starts to play before it is loaded, or VP9 in webm where that is missing.

    Sides are made even, as the encoder wants it, by repeating the last row or column.
    """

    def __init__(self, fps: float) -> None:
        self._name, self.suffix, self._options = _codec()
        self._fps = Fraction(fps).limit_denominator(1000)
        self._file = tempfile.NamedTemporaryFile(suffix=f".{self.suffix}")  # noqa: SIM115  (closed by close())
        self._container: Any = None
        self._stream: Any = None
        self.width = self.height = 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        """One frame, uint8 `[H, W, 3]`; all of a video have the size of the first."""
        import av

        height, width = frame.shape[0], frame.shape[1]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._container is None:
            self._open(even.shape[1], even.shape[0])
        picture = av.VideoFrame.from_ndarray(even, format="rgb24")
        self._container.mux(self._stream.encode(picture))

    def _open(self, width: int, height: int) -> None:
        import av

        self.width, self.height = width, height
        start = {"movflags": "faststart"} if self.suffix == "mp4" else {}
        self._container = av.open(self._file.name, "w", format=self.suffix, options=start)
        self._stream = self._container.add_stream(self._name, rate=self._fps, options=self._options)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._stream.codec_context.thread_count = 1

    def finish(self) -> bytes:
        """The whole file."""
        self._container.mux(self._stream.encode())
        self._container.close()
        self._container = None
        return Path(self._file.name).read_bytes()

    def close(self) -> None:
        """Let go of it, finished or not."""
        if self._container is not None:
            self._container.close()
            self._container = None
        self._file.close()


class EpisodeFiles:
    """`episodes/`: one file a recorded episode, and `index.jsonl` with a line for each that is there, oldest first.

    Beyond `keep` videos the oldest go, but not those of the first version that was recorded: the beginning stays to compare.
    """

    def __init__(self, folder: Path, *, keep: int = 50) -> None:
        self.folder, self.keep = folder, keep
        self.index = folder / "index.jsonl"

    def rows(self) -> list[Row]:
        """Episodes whose file is there."""
        if not self.index.is_file():
            return []
        return [row for row in read_rows(self.index)[0] if "file" in row and (self.folder / str(row["file"])).is_file()]

    def add(self, event: Mapping[str, Any], *, version: int, steps: int, again: bool = False) -> Row:
        """Write the video of an event. What was recorded of this version before is replaced, or with `again` kept beside."""
        self._make_folder()
        number, rows = int(event["episode"]), self.rows()
        if again:
            number = 1 + max((r["episode"] for r in rows if r["version"] == version), default=-1)
        name = f"v{version:08d}-{number}.{event['suffix']}"
        (self.folder / name).write_bytes(base64.b64decode(event["data"]))
        told = {k: v for k, v in event.items() if k not in ("kind", "worker", "suffix", "data", "episode", "version")}
        row = {"version": version, "steps": steps, "episode": number, "file": name, **told}
        rows = [r for r in rows if r["file"] != name] + [row]
        self._keep(rows)
        return row

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fix = f"no folder can be made there ({error.strerror}); give a place that you may write to"
            raise ConfigError("out", str(self.folder), fix) from error

    def cut(self, version: int) -> None:
        """Take back what was recorded after `version`: the run goes on from there."""
        if self.index.is_file():
            self._keep([row for row in self.rows() if row["version"] <= version])

    def _keep(self, rows: list[Row]) -> None:
        """The index first: what it names is there at any moment but that of a kill, and `rows` looks."""
        first = [r for r in rows if r["version"] == rows[0]["version"]]
        room = self.keep - len(first)
        kept = rows[-self.keep :] if room <= 0 else first + rows[len(first) :][-room:]
        new = self.index.with_name("index.jsonl.new")
        new.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        new.replace(self.index)
        named = {row["file"] for row in kept}
        for path in self.folder.glob("v*-*.*"):
            if path.name not in named:
                path.unlink()
