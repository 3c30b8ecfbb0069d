"""An experiment: the graph of workers and streams that a recipe describes, and the settings every run shares.

Everything here is a description. Factories are called later, each in the process where its worker will live.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.config import refuse_unused
from runnel.core.errors import ConfigError
from runnel.core.protocols import Collective, Evaluation, Inferencer, Learner, Policy, Recorder, Sampler, Store
from runnel.core.records import StreamSpec
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.shares import check_shares
from runnel.eval.runner import MAX_STEPS
from runnel.flow.staleness import LagPolicy, RatioPolicy, StalenessConfig, StalenessPolicy, check_capacity
from runnel.flow.workers.trainer import Budget, Phase
from runnel.kernels.select import Accelerator
from runnel.run.record_config import RecordConfig
from runnel.run.unused import IN_ONE_PROCESS, OF_EVALUATIONS, OF_SAMPLES, OF_VIDEOS, OF_WINDOW, ON_THE_WAY
from runnel.track.folder import check_run_name
from runnel.track.sinks.config import SinksConfig, unused_names


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation beside training, on episodes of its own."""

    on_resume: ClassVar[OnResume] = may_change(
        *("every", "episodes", "max_steps", "stop_return", "samples", "temperature", "pass_k", "pass_reward"),
        then="counts from the next evaluation on",
    )

    every: int = 0
    """Evaluate every so many updates; 0 evaluates only at the end."""
    episodes: int = 100
    """Episodes (or prompts) of one evaluation; 0 turns evaluation off."""
    max_steps: int = MAX_STEPS
    """Steps after which an episode of an evaluation is cut, which is counted and told: some environments have no limit of their
    own. The default is Atari's limit, the longest in common use."""
    stop_return: float | None = None
    """Stop the run when an evaluation's mean reaches this."""
    samples: int = 0
    """Completions of each prompt that are sampled for pass@k, beside the greedy one (language models)."""
    temperature: float = 1.0
    """Temperature of those samples."""
    pass_k: tuple[int, ...] = (1,)
    """The k of pass@k, each at most `samples`."""
    pass_reward: float = 1.0
    """A sample passes with at least this reward."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When the whole run is saved."""

    on_resume: ClassVar[OnResume] = may_change("every", "keep", then="counts from the next checkpoint on") | may_change(
        "best", then="counts from the next evaluation on"
    )

    every: int | Literal["never"] = 50
    """Save every so many updates; 0 saves only at the end. never: no checkpoint, only the parameters of the end. They can be
    loaded, evaluated, exported and started from (init_from), but the run cannot be resumed."""
    keep: int = 3
    """Checkpoints kept; a damaged newest one falls back to the one before. A replay memory lies there twice, or with 1 once."""
    best: bool = True
    """Keep the parameters of the version with the best evaluation too, for `rl.load(run, best=True)` and `--best`."""

    @property
    def whole(self) -> bool:
        """Whether what is saved is the whole run, so that it can be resumed."""
        return self.every != "never"

    @property
    def copies(self) -> int:
        """Copies on the disk of what checkpoints share (replay): two, so that no damaged file takes all of them, unless one
        checkpoint is kept alone."""
        return min(self.keep, 2)


@dataclass(frozen=True)
class PlacementConfig:
    """Which worker runs in which process, and what it may use there."""

    on_resume: ClassVar[OnResume] = may_change(
        *("groups", "trainers", "threads", "stage_timeout_s", "max_restarts", "stall_timeout_s"),
        then="the processes start that way",
    ) | stays(
        *("policy_workers", "reference_workers", "max_actors", "max_policy_workers"),
        why="workers and what is on its way between them are part of the checkpoint",
    )

    groups: tuple[str, ...] = ()
    """Process groups, each a list of worker names or patterns ("actor-*", "trainer evaluator"). Default: each actor and
    each policy worker alone, all the rest with the trainer."""
    trainers: int = 1
    """Ranks that share each training batch (data parallel), each in a process of its own; together they take the very step
    that one would take."""
    policy_workers: int = 0
    """Policy workers that serve inference for all actors; 0 keeps inference inline in each actor."""
    reference_workers: int = 0
    """Workers that hold the reference model of a language-model algorithm, and answer for it while others decode; 0 computes
    it in the trainer."""
    max_actors: int = 0
    """Actors that `runnel scale` may bring the run to while it goes on; 0 keeps their number."""
    max_policy_workers: int = 0
    """Likewise for policy workers."""
    threads: int = 1
    """Torch threads of each process."""
    stage_timeout_s: float = 120.0
    """A worker in whose stage nothing comes back for longer (no step of an environment, no micro-batch, no part of an
    evaluation) is taken for hung: it is named, with its stack, and the run ends. The first time in a stage has two and a half
    times as long, since kernels may be compiled. A single step, or call of your code, that takes longer needs more here."""
    max_restarts: int = 5
    """Times that one process may be started again within ten minutes after it died or fell silent; what has no state (actors,
    policy workers) starts afresh beside the others, else the whole run goes on from its newest checkpoint. 0 ends the run."""
    stall_timeout_s: float = 60.0
    """If nothing at all moves for longer, the run ends and says who waits for what."""


@dataclass(frozen=True)
class ClusterConfig:
    """The Ray cluster of a run with launcher ray."""

    on_resume: ClassVar[OnResume] = may_change("address", "place", then="the processes start there")

    address: str = ""
    """Where the cluster is: auto (this machine belongs to it), or HOST:PORT of its head. Empty takes RAY_ADDRESS, or else
    starts one on this machine, on the loopback, that ends with the run."""
    place: tuple[str, ...] = ()
    """What processes need of a node, a line each: "actor-*: 1 core, on cpu, spread", "trainer*: 4 cores, 1 gpu, 32 GiB".
    `on NAME` is a node with the label pool=NAME. Default: the cores of `placement.threads`, and a GPU for who computes on
    it. The ranks of a trainer are on one node, unless their line says spread: then they meet over the network."""


@dataclass(frozen=True)
class RunConfig:
    """What every recipe can be told."""

    on_resume: ClassVar[OnResume] = (
        may_change("total_steps", "total_updates", "total_tokens", then="is the budget from now on, and schedules follow it")
        | may_change("device", "launcher", then="the processes start that way")
        | may_change("stop_on", then="counts from the next update on")
        | may_change("log_every", then="counts from the next row on")
        | may_change("tags", "track", "trace", "trace_mb", "control", then="counts from now on")
        | stays("seed", why="everything random in it was drawn from that seed")
        | stays("out", "name", why="a run stays in its folder")
        | stays("num_actors", why="workers and what is on its way between them are part of the checkpoint")
        | stays("deterministic", why="what was done so far was done that way")
        | stays("init_from", why="it is for the start of a run")
    )

    seed: int = 1
    """Seed of everything random in the run."""
    device: str = "cpu"
    """Where networks live: cpu, cuda, cuda:1."""
    launcher: Literal["inproc", "local", "ray"] = "inproc"
    """inproc: one process, deterministic, steppable. local: one process per group, over shared memory. ray: the same on a Ray
    cluster (`cluster`), over as many nodes as it has."""
    out: str = "runs"
    """Folder in which the run's own folder is made."""
    name: str = ""
    """Name of the run's folder; made from recipe, task, seed and time if empty."""
    tags: tuple[str, ...] = ()
    """Words to find the run by. `tuning`: its score was used to choose settings, so reports keep it out of comparisons."""
    total_steps: int | None = None
    """Budget in steps of the environment."""
    total_updates: int | None = None
    """Budget in updates of the learner (versions)."""
    total_tokens: int | None = None
    """Budget in tokens trained on."""
    num_actors: int = 1
    """Actors that play at the same time; each has its own environments."""
    deterministic: bool = False
    """Refuse settings under which two runs of one seed could differ. `inproc` never differs; across processes this excludes
    the asynchronous window, merged inference batches (language models decode in fixed shapes) and vLLM."""
    init_from: str = ""
    """Folder of a finished run whose published parameters this one starts from. Critics, optimisers, replay and schedules begin
    anew; the run says which."""
    stop_on: Literal["nothing", "collapse"] = "nothing"
    """collapse: end the run, with a checkpoint, as soon as a collapse is told (docs/collapse.md); its status is then
    `collapsed`. nothing: a collapse is told, and the run goes on."""
    log_every: int = 1
    """Write a row of metrics for each this many updates, with the means of their numbers."""
    track: tuple[str, ...] = ("tensorboard",)
    """Sinks beside metrics.jsonl: tensorboard, wandb, wandb-offline, mlflow, trackio, csv, parquet, or your own as
    file.py:Name."""
    sinks: SinksConfig = field(default_factory=SinksConfig)
    trace: bool = False
    """Record what every worker does when, and the path of every sample; `runnel trace RUN` makes a picture of it."""
    trace_mb: int = 64
    """Megabytes after which a process stops recording."""
    control: bool = False
    """Let the board stop this run and save checkpoints, with the token that it prints when it starts."""
    staleness: StalenessConfig = field(default_factory=StalenessConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def lag_policy(
        self, batch_segments: int, *, batch_steps: int = 0, start: int = 0, stop: int | None = None, tokens: bool = False
    ) -> LagPolicy:
        """The staleness policy of a stream of which `batch_segments` make a batch, for the learner's versions `start ... stop`.

        Where the budget is known in batches (`batch_steps` steps each), no more than those are started.
        """
        ends = [stop, self.total_updates]
        total = self.total_tokens if tokens else self.total_steps
        if total and batch_steps:
            ends.append(start + -(-total // batch_steps))
        known = [n for n in ends if n is not None]
        s = self.staleness
        return LagPolicy(
            lag=s.lag,
            batch=batch_segments,
            exact=s.mode != "window",
            start=start,
            stop=min(known) if known else None,
            max_concurrent=s.max_concurrent,
            turns=self.turns,
        )

    @property
    def most_actors(self) -> int:
        """Actors for which there is room."""
        return max(self.num_actors, self.placement.max_actors)

    @property
    def most_policy_workers(self) -> int:
        """Policy workers for which there is room."""
        return max(self.placement.policy_workers, self.placement.max_policy_workers)

    @property
    def turns(self) -> bool:
        """Whether actors write in turn: then each must be there, and timing changes nothing. On a cluster they come and go."""
        return self.deterministic or (self.launcher != "ray" and self.most_actors == self.num_actors)

    def settle(self) -> tuple[RunConfig, list[str]]:
        """Choose what the user left open, once, when a run is made: the config that is kept, and what to tell about it."""
        return self, []

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why; changed ones are refused (`run/unused.py`)."""
        found = IN_ONE_PROCESS if self.launcher == "inproc" else {}
        found = found | ({} if self.launcher == "ray" else {"cluster.place": "is for launcher ray"})
        found = found | unused_names(self.track)
        found = found | ({} if self.trace else {"trace_mb": "is of a trace; set trace"})
        found = found | ({} if self.staleness.mode == "window" else OF_WINDOW)
        found = found | ({} if self.eval.samples else OF_SAMPLES) | self._unused_evaluations()
        return found | ({} if self.record.videos else OF_VIDEOS)

    def _unused_evaluations(self) -> dict[str, str]:
        """Settings of evaluations that are not made; one that is switched off itself is not among them."""
        if self.eval.episodes:
            return ON_THE_WAY if self.eval.stop_return is not None and not self.eval.every else {}
        off, best = EvalConfig(), {"checkpoint.best": "nothing is evaluated, so nothing is best; set eval.episodes"}
        names = {name: name.removeprefix("eval.") for name in OF_EVALUATIONS}
        return best | {k: why for k, why in OF_EVALUATIONS.items() if getattr(self.eval, names[k]) != getattr(off, names[k])}

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        refuse_unused(self, self.unused())
        if self.name:
            check_run_name(self.name)
        self.staleness.check()
        self.record.check()
        if self.total_steps is None and self.total_updates is None and self.total_tokens is None:
            raise ConfigError("total_steps", None, "a run needs a budget; set total_steps, total_updates or total_tokens")
        positive = (
            "total_steps",
            "total_updates",
            "total_tokens",
            "num_actors",
            "log_every",
            "trace_mb",
            "eval.max_steps",
            "placement.threads",
            "placement.trainers",
        )
        for name in positive:
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part)
            if value is not None and value < 1:
                raise ConfigError(name, value, "use at least 1")
        for name, value in (("eval.every", self.eval.every), ("checkpoint.every", self.checkpoint.every)):
            if value != "never" and value < 0:
                raise ConfigError(name, value, "use 0 (at the end only), or a number of updates")
        for name, value in (
            ("eval.episodes", self.eval.episodes),
            ("eval.samples", self.eval.samples),
            ("placement.policy_workers", self.placement.policy_workers),
            ("placement.reference_workers", self.placement.reference_workers),
            ("placement.max_restarts", self.placement.max_restarts),
            ("placement.max_actors", self.placement.max_actors),
            ("placement.max_policy_workers", self.placement.max_policy_workers),
        ):
            if value < 0:
                raise ConfigError(name, value, "use 0 for none, or a number")
        if self.eval.samples and not all(1 <= k <= self.eval.samples for k in self.eval.pass_k):
            raise ConfigError("eval.pass_k", self.eval.pass_k, f"each k must be from 1 to eval.samples = {self.eval.samples}")
        if self.seed < 0:
            raise ConfigError("seed", self.seed, "use 0 or more")
        for name in ("stage_timeout_s", "stall_timeout_s"):
            if not (seconds := getattr(self.placement, name)) > 0:
                raise ConfigError(f"placement.{name}", seconds, "use a number of seconds above 0")
        if self.placement.trainers > 1 and self.launcher == "inproc":
            raise ConfigError("placement.trainers", self.placement.trainers, "ranks are processes; use launcher local, or 1")
        _check_device(self.device, self.placement.trainers, here=self.launcher != "ray")
        if self.checkpoint.keep < 1:
            raise ConfigError("checkpoint.keep", self.checkpoint.keep, "keep at least 1")
        if self.deterministic and self.most_actors > self.num_actors:
            raise ConfigError("placement.max_actors", self.placement.max_actors, "a deterministic run keeps its actors; use 0")
        if self.most_policy_workers and not self.placement.policy_workers:
            raise ConfigError("placement.policy_workers", 0, "start with at least 1; a run that is inline stays so")
        elastic = self.most_actors > self.num_actors or self.most_policy_workers > self.placement.policy_workers
        if elastic and self.launcher == "inproc":
            raise ConfigError("launcher", "inproc", "one process cannot grow; use local or ray, or leave placement.max_* at 0")
        if self.deterministic and self.launcher != "inproc" and self.staleness.mode == "window":
            raise ConfigError(
                "staleness.mode",
                "window",
                "across processes a window depends on timing; use sync or one_step, or launcher inproc",
            )


def _check_device(name: str, trainers: int, *, here: bool) -> None:
    """`here`: whether what computes does so on this machine. Nodes of a cluster have other GPUs than whoever launches a run."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError("device", name, "use cpu, cuda, cuda:0, ...") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError("device", name, "use cpu, cuda, cuda:0, ...")
    if not here:
        return
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError("device", name, f"torch sees {torch.cuda.device_count()} CUDA devices here; use cpu")
    if device.type == "cuda" and device.index is None and trainers > torch.cuda.device_count():
        raise ConfigError(
            "placement.trainers", trainers, f"each rank has a GPU of its own; torch sees {torch.cuda.device_count()} here"
        )


PARAMS = "policy"
"""The parameter channel of the learner's versions."""
BUDGETS = ("total_steps", "total_updates", "total_tokens")


def one_budget(config: RunConfig, named: Collection[str]) -> RunConfig:
    """A budget that the user names replaces those that the recipe came with, whatever their unit."""
    if not any(n in named for n in BUDGETS):
        return config
    kept: dict[str, Any] = {n: getattr(config, n) if n in named else None for n in BUDGETS}
    return replace(config, **kept)


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
    """An inference stream: who answers, where, with the parameters of which channel (the learner's versions, or a copy that it
    has frozen), and how large messages are when they cross processes."""

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
    policy: RatioPolicy
    reads: str = "trajectories"
    writes: str = "replay"
    name: str = "buffer"


@dataclass(frozen=True)
class EvaluationSpec:
    """An evaluation: its tasks, and the (greedy) policy that plays them."""

    make: Callable[[], Evaluation]
    inferencer: Callable[[], Inferencer]
    recorder: Callable[[], Recorder] | None = None
    """Records episodes beside it; made only where `config.record` asks for that."""
    check_recorder: Callable[[], None] | None = None
    """Raises a `ConfigError` where episodes cannot be recorded; tried once, before a run starts."""


@dataclass(frozen=True)
class DiskNeed:
    """Bytes that a run writes, as far as they are known before it starts; at least so many."""

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
    staleness: Mapping[str, StalenessPolicy]
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
    """What it will write; compared with the free space before it starts."""
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
