"""A process with a sink of each kind that is killed without a word: `python sink_child.py FOLDER NAME ...`."""

import os
import signal
import sys
from pathlib import Path

from runnel.track.sinks import JsonlSink, make_sink
from runnel.track.sinks.tensorboard import TensorBoardSink


def main(folder: Path, names: list[str]) -> None:
    sinks = []
    for name in names:
        (folder / name).mkdir(parents=True)
        place = folder / name
        sink = TensorBoardSink(place, interval_s=0.0) if name == "tensorboard" else make_sink(name, place, {"seed": 1})
        sinks.append((JsonlSink(place / "metrics.jsonl"), sink))
    for version in (1, 2, 3, 4):
        for metrics, sink in sinks:
            row = {"kind": "update", "version": version, "steps": 10 * version, "tokens": 0, "metrics": {"kl": version / 4}}
            metrics.row(row)
            sink.row(row)
            if version == 3:
                sink.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
