"""The graph of workers and streams as plain data, for `run.json`: what a board draws. `describe` says the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.graphs.experiment import Experiment
from runnel.track.folder import Row


def dataflow(experiment: Experiment, groups: Mapping[str, list[str]]) -> Row:
    """Workers with their kind and process, streams with their ends, slots and transport.

    An inference stream that nobody serves is answered inline, in the actors that ask: it leads to no worker. Of a parameter
    channel the slots are versions that it keeps.
    """
    process = {worker: group for group, members in groups.items() for worker in members}
    workers = [{"name": w, "kind": _kind(experiment, w), "process": process[w]} for w in experiment.worker_names()]
    across = "ray" if experiment.config.launcher == "ray" else "shm"

    def stream(name: str, kind: str, ends: tuple[Sequence[str], Sequence[str]], capacity: int | None) -> Row:
        one = len({process[w] for end in ends for w in end}) <= 1
        base = {"name": name, "kind": kind, "from": list(ends[0]), "to": list(ends[1])}
        return {**base, "capacity": capacity, "transport": "inproc" if one else across}

    streams = [
        stream(s.name, "samples", (experiment.writers_of(s.name), experiment.readers_of(s.name)), s.capacity)
        for s in experiment.streams
    ]
    for s in experiment.inference:
        asking = experiment.askers_of(s.name)
        serving = [f"{s.name}-{i}" for i in range(s.num_workers)]
        streams.append(stream(s.name, "inference", (asking, serving), s.depth if serving else None))
    for channel in experiment.channels:
        name = "versions" if channel == experiment.leader.channel else channel
        streams.append(
            stream(
                name, "params", ([experiment.publisher_of(channel)], experiment.loaders_of(channel)), experiment.channel_depth
            )
        )
    return {"workers": workers, "streams": streams}


def _kind(experiment: Experiment, worker: str) -> str:
    if worker in experiment.trainer_names():
        return "trainer"
    if worker == "evaluator":
        return "evaluator"
    for transform in experiment.transforms:
        if transform.name == worker:
            return "buffer" if transform.paces else "transform"
    if worker in {a.name for a in experiment.actors}:
        return "actor"
    return "policy" if worker in experiment.loaders_of(experiment.leader.channel) else "reference"
