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
from runnel.core.contracts.samples import Sampler, Transform
from runnel.core.contracts.tasks import Curriculum
from runnel.core.errors import ConfigError
from runnel.core.records import SegmentView, StreamSpec
from runnel.core.routes import STORED
from runnel.core.sharding.batch_split import check_shares
from runnel.core.spaces import EnvSpec
from runnel.data.dataset import Source
from runnel.eval.episodes import EpisodePlayer
from runnel.flow.staleness import AdmissionRule, check_capacity
from runnel.flow.workers.trainer import Budget, Phase
from runnel.graphs.run_config import RunConfig
from runnel.kernels.select import Accelerator
from runnel.llm.tasks.new_tasks import TaskRoom

PARAMS = "policy"
"""The parameter channel of the leading learner's versions, unless its trainer names another."""
TASKS = "tasks"
"""The channel in which the history of tasks travels, beside the leading learner's versions."""


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
    """An inference stream: the inferencer, its number of workers, its parameter channel (a trainer's versions, a frozen
    reference, "" for one that loads nothing, or the name of a stored policy, `run:...`, that it loads once), and the size of
    messages that cross processes."""

    make: Callable[[], Inferencer]
    name: str = "policy"
    num_workers: int = 0
    depth: int = 4
    max_bytes: int = 1 << 16
    params: str = PARAMS


@dataclass(frozen=True)
class TransformSpec:
    """A transform: it reads sample streams under its own name, may ask inference streams, and may write sample streams.

    `make` gets the incarnation, as an actor's does. `paces`: admission to the streams that it reads follows it, as it follows a
    replay buffer; otherwise it is one more reader beside the one that paces.
    """

    name: str
    make: Callable[[int], Transform]
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    paces: bool = False


@dataclass(frozen=True)
class TrainerSpec:
    """A trainer: the learner that it runs, the streams that make its batches, the parameter channel that it publishes.

    The first trainer of an experiment leads: its versions are those of the run, its budget ends it, and `--placement.trainers`
    gives its ranks. The others train at their own pace beside it.
    """

    learner: Callable[[Collective], Learner]
    """The learner of one rank; all ranks start from the same parameters."""
    phases: tuple[Phase, ...]
    name: str = "trainer"
    channel: str = PARAMS
    budget: Budget | None = None
    """When it stops training; None: of the leader the run's budget, of others never."""
    ranks: int = 0
    """Ranks; 0: of the leader `placement.trainers`, of others one."""
    loads: tuple[str, ...] = ()
    """Channels of other trainers that its learner loads before an update (`LoadsParams`)."""
    token_streams: tuple[str, ...] = ()
    """Streams whose segments count as tokens, not environment steps."""
    view: SegmentView | None = None
    """What its learner sees of each segment, if not the segment as it was written: a reward of several channels."""

    @property
    def reads(self) -> list[str]:
        """The streams that make its batches."""
        return sorted({name for phase in self.phases for name in phase.segments})


@dataclass(frozen=True)
class PlayConfig:
    """How episodes of a data set are played: how many, under which seed, and after how many steps one is cut; and before every
    how many steps the environment's state is saved (0: never)."""

    episodes: int
    seed: int
    max_steps: int
    states_every: int = 0


@dataclass(frozen=True)
class EvaluationSpec:
    """An evaluation: its tasks, and the (greedy) policy that plays them."""

    make: Callable[[], Evaluation]
    inferencer: Callable[[], Inferencer]
    others: Mapping[str, tuple[Callable[[], Inferencer], str]] = field(default_factory=dict)
    """What else it asks, by the name of the client: an inferencer, and what it loads, as `InferenceStream.params`."""
    recorder: Callable[[], EpisodeRecorder] | None = None
    """Records episodes beside it; made only where `config.record` asks for that."""
    check_recorder: Callable[[], None] | None = None
    """Raises a `ConfigError` where episodes cannot be recorded; tried once, before a run starts."""
    player: Callable[[PlayConfig], tuple[EpisodePlayer, EnvSpec, Source]] | None = None
    """Plays episodes for a data set (`runnel data record`) in the environment of training, and says which that is."""


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
    trainers: tuple[TrainerSpec, ...]
    policy: Callable[[], tuple[Policy, Inferencer]]
    """For `rl.load`: what acts, and the inferencer inside it that takes the parameters."""
    evaluation: EvaluationSpec | None = None
    transforms: tuple[TransformSpec, ...] = ()
    curriculum: Callable[[], Curriculum] | None = None
    """What the leading trainer learns of tasks, for sources that use its history; None: there is none to keep."""
    room: TaskRoom | None = None
    """Room for tasks that are added while the run goes on, and what may be added; None: nothing may."""
    export: Callable[[Mapping[str, Tensor], Path], None] | None = None
    """Writes parameters as a folder that other programs load; the run's own is made when it ends."""
    look: Callable[[], list[str]] = list
    """Called once, before a run is made, to look at what takes a while (demonstrations): raises for what cannot work, and
    returns what to tell."""
    check_here: Callable[[], None] | None = None
    """Called before a run starts or goes on: raises a `ConfigError` where something that it reads (a data set) is not there."""
    disk: Callable[[], DiskNeed] | None = None
    """Bytes that the run will write; compared with the free disk space before it starts."""
    own_params: tuple[str, ...] = ()
    """Parameters that only a run of its own kind publishes (the head of a reward model): `init_from` must bring them."""
    accelerator: Accelerator = field(default_factory=Accelerator)
    """What lets kernels stand in for the plain update and for acting, where they serve (`kernels/select.py`)."""

    @property
    def leader(self) -> TrainerSpec:
        """The trainer whose versions are those of the run."""
        return self.trainers[0]

    def budget_of(self, trainer: TrainerSpec) -> Budget:
        c = self.config
        if trainer.budget is not None:
            return trainer.budget
        if trainer is not self.leader:
            return Budget()
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
        named = {s.name for s in self.inference if s.num_workers and s.params == self.leader.channel}
        return kind in named and int(number) >= self.config.placement.policy_workers

    def worker_names(self) -> list[str]:
        """All workers, in the order in which one round polls them."""
        policies = [f"{s.name}-{i}" for s in self.inference for i in range(s.num_workers)]
        tail = [t.name for t in self.transforms]
        tail += self.trainer_names() + (["evaluator"] if self.evaluation else [])
        return [a.name for a in self.actors] + policies + tail

    def ranks_of(self, trainer: TrainerSpec) -> list[str]:
        """The workers of a trainer: the one with its name is rank 0, the others follow it."""
        num = trainer.ranks or (self.config.placement.trainers if trainer is self.leader else 1)
        return [trainer.name, *(f"{trainer.name}-{rank}" for rank in range(1, num))]

    def trainer_names(self) -> list[str]:
        """All ranks of all trainers."""
        return [name for trainer in self.trainers for name in self.ranks_of(trainer)]

    def publisher_of(self, channel: str) -> str:
        """The trainer that publishes `channel`; copies that a learner freezes are published by the leader."""
        return next((t.name for t in self.trainers if t.channel == channel), self.leader.name)

    def loaders_of(self, channel: str) -> list[str]:
        """The workers that load parameters of `channel`. Of the leader's versions these are all that ask for them, and the
        evaluator; of others the policy workers that serve them and the trainers whose learners load them."""
        if channel == self.leader.channel:
            others = {*self.trainer_names(), *self._loads_others(), *(t.name for t in self.transforms if not t.asks)}
            return [w for w in self.worker_names() if w not in others]
        if channel == TASKS:
            return [a.name for a in self.actors]
        serving = [w for w, loaded in self._loads_others().items() if loaded == channel]
        serving += [name for t in self.trainers if channel in t.loads for name in self.ranks_of(t)]
        asks = self.evaluation is not None and channel in [loaded for _, loaded in self.evaluation.others.values()]
        return serving + (["evaluator"] if asks else [])

    def _loads_others(self) -> dict[str, str]:
        leading = self.leader.channel
        return {f"{s.name}-{i}": s.params for s in self.inference if s.params != leading for i in range(s.num_workers)}

    @property
    def channels(self) -> list[str]:
        """Parameter channels: the versions of the trainers, the history of tasks, then copies that learners freeze."""
        history = [TASKS] if self.curriculum is not None else []
        versions = [t.channel for t in self.trainers]
        copies = [s.params for s in self.inference if s.params and not s.params.startswith(STORED)]
        return list(dict.fromkeys([*versions, *history, *copies]))

    @property
    def frozen_channels(self) -> list[str]:
        """The channels of copies that the leading learner freezes."""
        trained = {t.channel for t in self.trainers}
        return [channel for channel in self.channels if channel not in trained | {TASKS}]

    def reader_of(self, stream: str) -> str:
        """The worker that reads `stream` and paces its writers."""
        return self.stream(stream).readers[0]

    def readers_of(self, stream: str) -> list[str]:
        """The workers that see its segments: all readers, and the ranks with which a trainer shares them."""
        first, *others = self.stream(stream).all_readers
        ranks = next((self.ranks_of(t) for t in self.trainers if t.name == first), [first])
        return [*ranks, *others]

    def writers_of(self, stream: str) -> list[str]:
        """The workers that write `stream`, in the order of their writer numbers."""
        return [a.name for a in self.actors if stream in a.writes] + [t.name for t in self.transforms if stream in t.writes]

    def askers_of(self, stream: str) -> list[str]:
        """The workers that ask the inference stream `stream`, in the order of their client numbers."""
        return [a.name for a in self.actors if stream in a.asks] + [t.name for t in self.transforms if stream in t.asks]

    def is_stateless(self, worker: str) -> bool:
        """Whether a run goes on without the state of `worker`: all but the trainer, and transforms that read
        anything as a lossless reader."""
        transform = next((t for t in self.transforms if t.name == worker), None)
        if transform is not None:
            return all(worker in self.stream(s).lossy_readers for s in transform.reads)
        return worker not in self.trainer_names()

    def check(self) -> None:
        self.config.check()
        videos = self.config.record.videos
        if videos and (self.evaluation is None or self.evaluation.recorder is None):
            fix = "this recipe records no episodes" if self.evaluation else "evaluations record; set eval.episodes above 0"
            raise ConfigError("record.videos", videos, f"{fix}; or use 0")
        num = self.config.placement.reference_workers
        if num and not self.frozen_channels:
            raise ConfigError("placement.reference_workers", num, "this recipe asks no reference model while it samples; use 0")
        check_graph(self)
        for trainer in self.trainers:
            check_trainer(self, trainer)
        for spec in self.streams:
            spec.check()
            check_capacity(self.staleness[spec.name], spec)
            if len(self.writers_of(spec.name)) != spec.num_writers:
                found = len(self.writers_of(spec.name))
                raise ConfigError(f"{spec.name}.num_writers", spec.num_writers, f"{found} workers write it; set that")


def check_graph(e: Experiment) -> None:
    """Raise a `ConfigError` for a stream whose readers and the workers that read do not match, or a transform in a circle."""
    names = e.worker_names()
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError("transforms", twice[0], "two workers have this name; give each a name of its own")
    reads = {trainer.name: set(trainer.reads) for trainer in e.trainers} | {t.name: set(t.reads) for t in e.transforms}
    known, asked = {s.name for s in e.streams}, {s.name for s in e.inference}
    for t in e.transforms:
        if missing := [s for s in (*t.reads, *t.writes) if s not in known]:
            raise ConfigError(f"{t.name}.streams", missing[0], f"there is no such stream; there are {', '.join(sorted(known))}")
        if missing := [s for s in t.asks if s not in asked]:
            raise ConfigError(f"{t.name}.asks", missing[0], f"there is no such inference stream; there are {sorted(asked)}")
        if not t.reads:
            raise ConfigError(f"{t.name}.reads", t.reads, "a transform reads at least one stream; what only writes is an actor")
        if circle := set(t.reads) & set(t.writes):
            raise ConfigError(f"{t.name}.writes", min(circle), "it reads this stream too; write to a stream of its own")
    if e.evaluation is not None:
        for name, (_, channel) in e.evaluation.others.items():
            if channel and not channel.startswith(STORED) and channel not in e.channels:
                there = ", ".join(e.channels)
                raise ConfigError(f"evaluation.{name}", channel, f"nobody publishes this parameter channel; there are: {there}")
    for spec in e.streams:
        for name in spec.all_readers:
            if spec.name not in reads.get(name, ()):
                fix = "no worker of this name reads it; name the workers that do"
                raise ConfigError(f"{spec.name}.readers", name, fix)
        if silent := [name for name, streams in reads.items() if spec.name in streams and name not in spec.all_readers]:
            raise ConfigError(f"{spec.name}.readers", spec.all_readers, f"{silent[0]!r} reads it too; add it to the readers")
        pacing = [t.name for t in e.transforms if t.paces and spec.name in t.reads]
        pacing += [t.name for t in e.trainers if spec.name in t.reads]
        if len(pacing) > 1:
            raise ConfigError(f"{spec.name}.readers", pacing, "these would all pace its writers; exactly one reader may")
        if pacing != [spec.readers[0]]:
            fix = f"put {pacing[0]!r} first: it paces the writers" if pacing else "no reader paces the writers; one must"
            raise ConfigError(f"{spec.name}.readers", spec.readers, fix)


def check_trainer(e: Experiment, trainer: TrainerSpec) -> None:
    """Raise a `ConfigError` for a trainer that could never train, or whose parameters nobody could tell from another's."""
    name, ranks = trainer.name, len(e.ranks_of(trainer))
    if trainer.phases[-1].until is not None:
        raise ConfigError(f"{name}.phases", trainer.phases[-1], "the last phase must have no end")
    for phase in trainer.phases:
        for stream, num in phase.segments.items():
            check_shares(e.stream(stream), num, ranks)
    if e.publisher_of(trainer.channel) != name:
        other = e.publisher_of(trainer.channel)
        raise ConfigError(f"{name}.channel", trainer.channel, f"{other!r} publishes it already; give each trainer its own")
    trained = {t.channel for t in e.trainers} - {trainer.channel}
    if unknown := [channel for channel in trainer.loads if channel not in trained]:
        there = ", ".join(sorted(trained)) or "none"
        raise ConfigError(f"{name}.loads", unknown[0], f"no other trainer publishes this channel; there are: {there}")
    if trainer.loads and ranks > 1:
        fix = "ranks could load different versions; use one rank for a learner that loads parameters of another trainer"
        raise ConfigError(f"{name}.ranks", ranks, fix)
    if trainer.loads and e.config.deterministic and e.config.launcher != "inproc":
        fix = "which version its learner loads depends on timing between processes; use launcher inproc, or deterministic false"
        raise ConfigError(f"{name}.loads", trainer.loads, fix)


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
        askers = experiment.askers_of(stream.name)
        where = ", ".join(f"{stream.name}-{i}" for i in range(stream.num_workers)) or "inline"
        lines.append(f"  {', '.join(askers)} ==ask {stream.name}==> {where}")
    for channel in experiment.channels:
        name = "versions" if channel == experiment.leader.channel else channel
        lines.append(f"  {experiment.publisher_of(channel)} ~~{name}~~> {', '.join(experiment.loaders_of(channel))}")
    for name, policy in experiment.staleness.items():
        lines.append(f"staleness of {name}: {policy}")
    return "\n".join(lines)


def copies_at_once(config: RunConfig) -> int:
    """Checkpoints that may lie side by side: a new one is written before an old one goes."""
    every, total = config.checkpoint.every, config.total_updates
    if every == "never" or every == 0:
        return 1
    return config.checkpoint.keep + 1 if total is None else min(config.checkpoint.keep + 1, -(-total // every))
