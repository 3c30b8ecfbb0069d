"""An experiment: the graph of workers and streams that a recipe describes, and the settings every run shares.

Everything here is a description. Factories are called later, each in the process where its worker will live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from runnel.core.contracts.evaluation import EpisodeRecorder, Evaluation, Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.learning import Collective, Learner
from runnel.core.contracts.samples import Sampler, Store
from runnel.core.errors import ConfigError
from runnel.core.records import StreamSpec
from runnel.core.sharding.batch_split import check_shares
from runnel.flow.staleness import AdmissionRule, ReplayRatioRule, check_capacity
from runnel.flow.workers.trainer import Budget, Phase
from runnel.graphs.run_config import RunConfig
from runnel.kernels.select import Accelerator

PARAMS = "policy"
"""The parameter channel of the learner's versions."""


@dataclass(frozen=True)
class ActorSpec:
    """An actor: its sampler, the inference streams that it asks, the sample streams that it writes.

    `make` gets the incarnation: 0, and one more each time the actor starts afresh without a saved state.
    """

    name: str
    make: Callable[[int], Sampler]
    writes: tuple[str, ...]
    asks: tuple[str, ...] = ("policy",)


@dataclass(frozen=True)
class InferenceStream:
    """An inference stream: the inferencer, its number of workers, its parameter channel (the learner's versions, or a frozen
    reference), and the size of messages that cross processes."""

    make: Callable[[], Inferencer]
    name: str = "policy"
    num_workers: int = 0
    depth: int = 4
    max_bytes: int = 1 << 16
    params: str = PARAMS


@dataclass(frozen=True)
class BufferSpec:
    """A replay buffer between the stream it reads and the stream it writes."""

    make: Callable[[], Store]
    policy: ReplayRatioRule
    reads: str = "trajectories"
    writes: str = "replay"
    name: str = "buffer"


@dataclass(frozen=True)
class EvaluationSpec:
    """An evaluation: its tasks, and the (greedy) policy that plays them."""

    make: Callable[[], Evaluation]
    inferencer: Callable[[], Inferencer]
    recorder: Callable[[], EpisodeRecorder] | None = None
    """Records episodes beside it; made only where `config.record` asks for that."""
    check_recorder: Callable[[], None] | None = None
    """Raises a `ConfigError` where episodes cannot be recorded; tried once, before a run starts."""


@dataclass(frozen=True)
class DiskNeed:
    """A lower bound of the bytes that a run writes, estimated before it starts."""

    each: int = 0
    """Of each checkpoint: parameters, moments and other copies of them."""
    params: int = 0
    """Of the parameters alone, as checkpoint.every = never keeps them."""
    once: int = 0
    """Of what checkpoints share (replay), and of the exported model."""


@dataclass(frozen=True)
class Experiment:
    """One run, described: what `run/wiring.py` assembles."""

    config: RunConfig
    title: str
    streams: tuple[StreamSpec, ...]
    staleness: Mapping[str, AdmissionRule]
    actors: tuple[ActorSpec, ...]
    inference: tuple[InferenceStream, ...]
    learner: Callable[[Collective], Learner]
    """The learner of one rank; all ranks start from the same parameters."""
    phases: tuple[Phase, ...]
    policy: Callable[[], tuple[Policy, Inferencer]]
    """For `rl.load`: what acts, and the inferencer inside it that takes the parameters."""
    evaluation: EvaluationSpec | None = None
    buffer: BufferSpec | None = None
    token_streams: tuple[str, ...] = ()
    """Readers whose segments count as tokens, not environment steps."""
    export: Callable[[Mapping[str, Tensor], Path], None] | None = None
    """Writes parameters as a folder that other programs load; the run's own is made when it ends."""
    look: Callable[[], list[str]] = list
    """Called once, before a run is made, to look at what takes a while (demonstrations): raises for what cannot work, and
    returns what to tell."""
    disk: Callable[[], DiskNeed] | None = None
    """Bytes that the run will write; compared with the free disk space before it starts."""
    own_params: tuple[str, ...] = ()
    """Parameters that only a run of its own kind publishes (the head of a reward model): `init_from` must bring them."""
    accelerator: Accelerator = field(default_factory=Accelerator)
    """What lets kernels stand in for the plain update and for acting, where they serve (`kernels/select.py`)."""

    @property
    def budget(self) -> Budget:
        c = self.config
        return Budget(total_steps=c.total_steps, total_updates=c.total_updates, total_tokens=c.total_tokens)

    @property
    def lag(self) -> int:
        """Versions that must stay loadable behind the newest."""
        return self.config.staleness.lag

    @property
    def channel_depth(self) -> int:
        """Versions that a parameter channel keeps."""
        return self.lag + 2

    def stream(self, name: str) -> StreamSpec:
        return next(s for s in self.streams if s.name == name)

    def is_idle(self, worker: str) -> bool:
        """Whether a worker is one that only `runnel scale` brings into play."""
        kind, _, number = worker.rpartition("-")
        if kind == "actor":
            return int(number) >= self.config.num_actors
        named = {s.name for s in self.inference if s.num_workers and s.params == PARAMS}
        return kind in named and int(number) >= self.config.placement.policy_workers

    def worker_names(self) -> list[str]:
        """All workers, in the order in which one round polls them."""
        policies = [f"{s.name}-{i}" for s in self.inference for i in range(s.num_workers)]
        tail = [self.buffer.name] if self.buffer else []
        tail += self.trainer_names() + (["evaluator"] if self.evaluation else [])
        return [a.name for a in self.actors] + policies + tail

    def trainer_names(self) -> list[str]:
        """The ranks of the trainer: `trainer` leads, the others follow."""
        return ["trainer", *(f"trainer-{rank}" for rank in range(1, self.config.placement.trainers))]

    def loaders_of(self, channel: str) -> list[str]:
        """The workers that load parameters of `channel`: of the learner's versions all but the trainer."""
        if channel == PARAMS:
            return [w for w in self.worker_names() if w not in self.trainer_names() and w not in self._loads_frozen()]
        return [w for w, loaded in self._loads_frozen().items() if loaded == channel]

    def _loads_frozen(self) -> dict[str, str]:
        return {f"{s.name}-{i}": s.params for s in self.inference if s.params != PARAMS for i in range(s.num_workers)}

    @property
    def channels(self) -> list[str]:
        """Parameter channels: the learner's versions, then copies that it freezes."""
        return list(dict.fromkeys([PARAMS, *(s.params for s in self.inference)]))

    def reader_of(self, stream: str) -> str:
        """The worker that reads `stream`."""
        return self.buffer.name if self.buffer and self.buffer.reads == stream else "trainer"

    def readers_of(self, stream: str) -> list[str]:
        """The workers that see its segments: the reader, and the ranks that it shares them with."""
        return self.trainer_names() if self.reader_of(stream) == "trainer" else [self.reader_of(stream)]

    def writers_of(self, stream: str) -> list[str]:
        """The workers that write `stream`, in the order of their writer numbers."""
        names = [a.name for a in self.actors if stream in a.writes]
        return names + ([self.buffer.name] if self.buffer and self.buffer.writes == stream else [])

    def check(self) -> None:
        self.config.check()
        videos = self.config.record.videos
        if videos and (self.evaluation is None or self.evaluation.recorder is None):
            fix = "this recipe records no episodes" if self.evaluation else "evaluations record; set eval.episodes above 0"
            raise ConfigError("record.videos", videos, f"{fix}; or use 0")
        num = self.config.placement.reference_workers
        if num and self.channels == [PARAMS]:
            raise ConfigError("placement.reference_workers", num, "this recipe asks no reference model while it samples; use 0")
        if self.phases[-1].until is not None:
            raise ConfigError("phases", self.phases[-1], "the last phase must have no end")
        for phase in self.phases:
            for name, num in phase.segments.items():
                check_shares(self.stream(name), num, self.config.placement.trainers)
        for spec in self.streams:
            spec.check()
            check_capacity(self.staleness[spec.name], spec)
            if len(self.writers_of(spec.name)) != spec.num_writers:
                found = len(self.writers_of(spec.name))
                raise ConfigError(f"{spec.name}.num_writers", spec.num_writers, f"{found} workers write it; set that")


def describe(experiment: Experiment, groups: Mapping[str, list[str]]) -> str:
    """The graph of workers and streams in words, for `--dry-run` and the run folder."""
    group_of = {worker: g for g, workers in groups.items() for worker in workers}
    lines = ["workers"]
    for g, workers in groups.items():
        waits = "   (room for it; runnel scale starts it)" if all(map(experiment.is_idle, workers)) else ""
        lines.append(f"  process {g}: {', '.join(workers)}{waits}")
    lines.append("streams")
    for spec in experiment.streams:
        writers, readers = experiment.writers_of(spec.name), experiment.readers_of(spec.name)
        kind = "inproc" if len({group_of[w] for w in (*writers, *readers)}) == 1 else "shm"
        size = " x ".join(f"{k}={v}" for k, v in spec.sizes.items())
        lines.append(f"  {', '.join(writers)} --{spec.name}[{size}; {spec.capacity} slots; {kind}]--> {', '.join(readers)}")
    for stream in experiment.inference:
        askers = [a.name for a in experiment.actors if stream.name in a.asks]
        where = ", ".join(f"{stream.name}-{i}" for i in range(stream.num_workers)) or "inline"
        lines.append(f"  {', '.join(askers)} ==ask {stream.name}==> {where}")
    for channel in experiment.channels:
        name = "versions" if channel == PARAMS else channel
        lines.append(f"  trainer ~~{name}~~> {', '.join(experiment.loaders_of(channel))}")
    for name, policy in experiment.staleness.items():
        lines.append(f"staleness of {name}: {policy}")
    return "\n".join(lines)


def copies_at_once(config: RunConfig) -> int:
    """Checkpoints that may lie side by side: a new one is written before an old one goes."""
    every, total = config.checkpoint.every, config.total_updates
    if every == "never" or every == 0:
        return 1
    return config.checkpoint.keep + 1 if total is None else min(config.checkpoint.keep + 1, -(-total // every))
