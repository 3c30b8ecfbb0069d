"""Videos of episodes: encodes frames, and keeps the folder `episodes/` of a run with its index.

The process that plays encodes the video and sends the file as an event. The process that keeps the ledger writes it. So it does
not matter on which machine the evaluator runs.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.track.files import replace_file, writing
from runnel.track.folder import Row, read_rows

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

CODECS = (
    ("libx264", "mp4", {"preset": "veryfast", "crf": "23"}),
    ("libvpx-vp9", "webm", {"crf": "32", "b:v": "0", "cpu-used": "6"}),
)
"""Encoder, suffix of the file and settings. The first one plays in the most browsers."""


def check_encoder(field: str, value: object) -> None:
    """Raise a `ConfigError` of `field` if videos cannot be made."""
    if importlib.util.find_spec("av") is None:
        raise ConfigError(field, value, "videos need PyAV: pip install 'runnel[video]'; or use 0")
    _codec(field, value)


def _codec(field: str = "record.videos", value: object = 1) -> tuple[str, str, dict[str, str]]:
    """The first of `CODECS` that PyAV has."""
    import av

    for name, suffix, options in CODECS:
        try:
            av.codec.Codec(name, "w")
        except (av.error.FFmpegError, ValueError):
            continue
        return name, suffix, options
    raise ConfigError(field, value, "this build of PyAV has neither an H.264 nor a VP9 encoder; pip install 'runnel[video]'")


class VideoWriter:
    """Encodes frames as they come: as H.264 in mp4, or as VP9 in webm if there is no H.264 encoder.

    Encoders need sides of even length, so the last row or column is repeated where a side is odd.
    """

    def __init__(self, fps: float) -> None:
        self._name, self.suffix, self._options = _codec()
        self._fps = Fraction(fps).limit_denominator(1000)
        self._file = tempfile.NamedTemporaryFile(suffix=f".{self.suffix}")  # noqa: SIM115  (closed by close())
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self.width = self.height = 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Add a frame, uint8 `[H, W, 3]`. All frames of a video have the size of the first."""
        import av

        height, width = frame.shape[0], frame.shape[1]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._container is None or self._stream is None:
            self._container, self._stream = self._open(even.shape[1], even.shape[0])
        picture = av.VideoFrame.from_ndarray(even, format="rgb24")
        self._container.mux(self._stream.encode(picture))

    def _open(self, width: int, height: int) -> tuple[OutputContainer, VideoStream]:
        import av

        self.width, self.height = width, height
        # faststart puts the index first: a browser starts to play before it has the whole file
        start = {"movflags": "faststart"} if self.suffix == "mp4" else {}
        container = av.open(self._file.name, "w", format=self.suffix, options=start)
        stream = container.add_stream(self._name, rate=self._fps, options=self._options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1  # the cores belong to training
        return container, stream

    def finish(self) -> bytes:
        """End the video and return the content of its file."""
        assert self._container is not None
        assert self._stream is not None
        self._container.mux(self._stream.encode())
        self._container.close()
        self._container = None
        return Path(self._file.name).read_bytes()

    def close(self) -> None:
        """Release the encoder and the temporary file, whether the video is finished or not."""
        if self._container is not None:
            self._container.close()
            self._container = None
        self._file.close()


class EpisodeFiles:
    """The folder `episodes/`: one file for each recorded episode, and `index.jsonl` with a line for each, oldest first.

    Beyond `keep` videos the oldest are removed. Those of the first recorded version stay, so that later ones can be compared
    with them.
    """

    def __init__(self, folder: Path, *, keep: int = 50) -> None:
        self.folder, self.keep = folder, keep
        self.index = folder / "index.jsonl"

    def rows(self) -> list[Row]:
        """The rows of the index whose file exists."""
        if not self.index.is_file():
            return []
        return [row for row in read_rows(self.index)[0] if "file" in row and (self.folder / str(row["file"])).is_file()]

    def add(self, event: Row, *, version: int, steps: int, again: bool = False) -> Row:
        """Write the video of an event. An earlier video of this version and episode is replaced, or with `again` kept."""
        with writing(self.folder, "videos"):
            self.folder.mkdir(parents=True, exist_ok=True)
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

    def cut(self, version: int) -> None:
        """Remove what was recorded after `version`, at which the run is resumed."""
        if self.index.is_file():
            self._keep([row for row in self.rows() if row["version"] <= version])

    def _keep(self, rows: list[Row]) -> None:
        """Write the index with the rows to keep, then delete all other videos.

        In this order a kill in between leaves a video that no row names, and not a row whose video is gone.
        """
        first = [r for r in rows if r["version"] == rows[0]["version"]]
        room = self.keep - len(first)
        kept = rows[-self.keep :] if room <= 0 else first + rows[len(first) :][-room:]
        replace_file(self.index, "".join(json.dumps(row) + "\n" for row in kept).encode())
        named = {row["file"] for row in kept}
        for path in self.folder.glob("v*-*.*"):
            if path.name not in named:
                path.unlink()
