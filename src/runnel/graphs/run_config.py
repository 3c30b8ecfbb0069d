"""Settings that all recipes share: `RunConfig` and its groups."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch

from runnel.core.bounds import bounded, check_bounds
from runnel.core.config import refuse_unused
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.eval.runner import MAX_STEPS
from runnel.flow.staleness import LagRule, StalenessConfig
from runnel.graphs.record_config import RecordConfig
from runnel.graphs.unused import IN_ONE_PROCESS, OF_EVALUATIONS, OF_SAMPLES, OF_VIDEOS, OF_WINDOW, ON_THE_WAY
from runnel.track.folder import check_run_name
from runnel.track.sinks.config import SinksConfig, unused_names


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation beside training, on episodes of its own."""

    on_resume: ClassVar[OnResume] = may_change(
        *("every", "episodes", "max_steps", "stop_return", "samples", "temperature", "pass_k", "pass_reward"),
        then="counts from the next evaluation on",
    )

    every: int = bounded(0, at_least=0)
    """Evaluate every so many updates; 0 evaluates only at the end."""
    episodes: int = bounded(100, at_least=0)
    """Episodes (or prompts) of one evaluation; 0 turns evaluation off."""
    max_steps: int = bounded(MAX_STEPS, at_least=1)
    """Steps after which an episode of an evaluation is cut, because some environments have no limit of their own. Episodes that
    were cut are counted, and a message says so. The default is Atari's limit, the longest in common use."""
    stop_return: float | None = None
    """Stop the run when the mean of an evaluation reaches this."""
    samples: int = bounded(0, at_least=0)
    """Completions of each prompt that are sampled for pass@k, besides the greedy one (language models)."""
    temperature: float = bounded(1.0, at_least=0)
    """Temperature of those samples."""
    pass_k: tuple[int, ...] = bounded((1,), at_least=1)
    """The k of pass@k, each at most `samples`."""
    pass_reward: float = 1.0
    """A sample passes with at least this reward."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When the whole run is saved."""

    on_resume: ClassVar[OnResume] = may_change("every", "keep", then="counts from the next checkpoint on") | may_change(
        "best", then="counts from the next evaluation on"
    )

    every: int | Literal["never"] = bounded(50, at_least=0)
    """Save every so many updates; 0 saves only at the end. never: no checkpoint, only the last parameters. They can be loaded,
    evaluated, exported and started from (init_from), but the run cannot be resumed."""
    keep: int = bounded(3, at_least=1)
    """Number of checkpoints kept; if the newest is damaged, the one before is used. The disk holds two copies of a replay
    memory, or one copy if this is 1."""
    best: bool = True
    """Also keep the parameters of the version with the best evaluation, for `rl.load(run, best=True)` and `--best`."""

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

    on_resume: ClassVar[OnResume] = (
        may_change(
            *("groups", "trainers", "threads", "stage_timeout_s", "max_restarts", "stall_timeout_s"),
            then="the processes start that way",
        )
        | may_change("replan_s", then="from the start on")
        | may_change("predicted_per_s", then="reports compare with it")
        | stays(
            *("policy_workers", "reference_workers", "max_actors", "max_policy_workers"),
            why="workers and what is on its way between them are part of the checkpoint",
        )
    )

    groups: tuple[str, ...] = ()
    """Process groups, each a list of worker names or patterns ("actor-*", "trainer evaluator"). Default: each actor and each
    policy worker has a process of its own, all other workers are with the trainer."""
    trainers: int = bounded(1, at_least=1)
    """Ranks that share each training batch (data parallel), each in a process of its own; together they take the same step as
    one rank."""
    policy_workers: int = bounded(0, at_least=0)
    """Policy workers that serve inference for all actors; 0 keeps inference inline in each actor."""
    reference_workers: int = bounded(0, at_least=0)
    """Workers that hold the reference model of a language-model algorithm, and compute its log-probabilities while engines
    decode; 0: the trainer computes them."""
    max_actors: int = bounded(0, at_least=0)
    """Largest number of actors that `runnel scale` may set while the run goes on; 0: the number of actors cannot change."""
    max_policy_workers: int = bounded(0, at_least=0)
    """The same for policy workers."""
    replan_s: float = bounded(0.0, at_least=0, finite=True)
    """window: every so many seconds, predict from the run's own stages the rate of each number of actors and policy workers
    that `max_actors` and `max_policy_workers` allow, and set the best numbers if they should be at least 10 % faster. Each time
    the run says which rate it reached and which one it predicts. 0: the numbers stay."""
    predicted_per_s: float = bounded(0.0, at_least=0, finite=True)
    """Steps or tokens a second that were predicted for this placement (`runnel plan --apply` writes it); the report shows them
    beside those that were reached. 0: nobody has predicted."""
    threads: int = bounded(1, at_least=1)
    """Torch threads of each process."""
    stage_timeout_s: float = bounded(120.0, above=0)
    """Seconds without progress in a stage (no step of an environment, no micro-batch, no part of an evaluation) after which a
    worker counts as hung. The run then ends, and the error names the worker, with its stack. The first time in a stage has two
    and a half times as long, because kernels may be compiled. Raise this if a single step, or a call of your code, takes
    longer."""
    max_restarts: int = bounded(5, at_least=0)
    """How often one process may be started again within ten minutes after it died or stopped answering. A worker without state
    (actor, policy worker) is started again while the others go on; for any other, the whole run continues from its newest
    checkpoint. 0: the run ends."""
    stall_timeout_s: float = bounded(60.0, above=0)
    """Seconds without any progress in the whole run after which it ends, and says who waits for what."""


@dataclass(frozen=True)
class ClusterConfig:
    """The Ray cluster of a run with launcher ray."""

    on_resume: ClassVar[OnResume] = may_change("address", "place", then="the processes start there")

    address: str = ""
    """The cluster: auto (the one that this machine belongs to), or HOST:PORT of its head. Empty: RAY_ADDRESS; if that is not
    set, a new cluster on this machine, on the loopback, which ends with the run."""
    place: tuple[str, ...] = ()
    """What processes need of a node, one line each: "actor-*: 1 core, on cpu, spread", "trainer*: 4 cores, 1 gpu, 32 GiB". `on
    NAME` is a node with the label pool=NAME. Default: the cores of `placement.threads`, and a GPU for a process that computes
    on one. The ranks of a trainer are on one node, unless their line says spread: then they may be on several, and talk over
    the network."""


@dataclass(frozen=True)
class RunConfig:
    """The settings that all recipes share."""

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
        | stays("init_from", "init", why="it is for the start of a run")
    )

    seed: int = bounded(1, at_least=0)
    """Seed of everything random in the run."""
    device: str = "cpu"
    """Device of the networks: cpu, cuda, cuda:1."""
    launcher: Literal["inproc", "local", "ray"] = "inproc"
    """inproc: one process, deterministic, can be stepped in a debugger. local: one process for each group, over shared memory.
    ray: the same on the nodes of a Ray cluster (`cluster`)."""
    out: str = "runs"
    """Folder in which the run's own folder is made."""
    name: str = ""
    """Name of the run's folder. Empty: made from recipe, task, seed and time."""
    tags: tuple[str, ...] = ()
    """Words by which the run can be found. `tuning`: its score was used to choose settings, so reports leave it out of
    comparisons."""
    total_steps: int | None = bounded(None, at_least=1)
    """Budget in steps of the environment."""
    total_updates: int | None = bounded(None, at_least=1)
    """Budget in updates of the learner (versions)."""
    total_tokens: int | None = bounded(None, at_least=1)
    """Budget in tokens that are trained on."""
    num_actors: int = bounded(1, at_least=1)
    """Number of actors, which play at the same time; each has its own environments."""
    deterministic: bool = False
    """Refuse settings under which two runs of one seed could differ. With `inproc` they never differ. Across processes this
    refuses the asynchronous window, inference batches that merge requests of several actors (language models decode in fixed
    shapes instead) and vLLM."""
    init_from: str = ""
    """Folder of a run whose parameters this one starts from. The run says what it did not take."""
    init: Literal["params", "learner"] = "params"
    """With init_from. params: take the published parameters alone; critics, optimisers and statistics begin anew. learner: take
    the whole learner of the newest checkpoint: optimiser, critics, targets, statistics, temperature."""
    stop_on: Literal["nothing", "collapse"] = "nothing"
    """collapse: end the run, with a checkpoint, as soon as a collapse is reported (docs/guides/collapse.md); its status is then
    `collapsed`. nothing: a collapse is reported, and the run goes on."""
    log_every: int = bounded(1, at_least=1)
    """Write one row of metrics every so many updates, with the means of their numbers."""
    track: tuple[str, ...] = ("tensorboard",)
    """Sinks beside metrics.jsonl: tensorboard, wandb, wandb-offline, mlflow, trackio, csv, parquet, or your own as
    file.py:Name."""
    sinks: SinksConfig = field(default_factory=SinksConfig)
    trace: bool = False
    """Record what every worker does at which time, and the path of every sample; `runnel trace RUN` makes a picture of it."""
    trace_mb: int = bounded(64, at_least=1)
    """Megabytes of records after which a process stops recording."""
    control: bool = False
    """Let the board stop this run, save checkpoints and change live settings, for whoever has the token that the run prints at
    its start."""
    staleness: StalenessConfig = field(default_factory=StalenessConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def lag_rule(
        self, batch_segments: int, *, batch_steps: int = 0, start: int = 0, stop: int | None = None, tokens: bool = False
    ) -> LagRule:
        """The staleness policy of a stream of which `batch_segments` make a batch, for the learner's versions `start ... stop`.

        Where the budget is known in batches (`batch_steps` steps each), no more than those are started.
        """
        ends = [stop, self.total_updates]
        total = self.total_tokens if tokens else self.total_steps
        if total and batch_steps:
            ends.append(start + -(-total // batch_steps))
        known = [n for n in ends if n is not None]
        s = self.staleness
        return LagRule(
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
        """Settings, or groups of them, that this run would not read, and why; changed ones are refused (`graphs/unused.py`)."""
        found = IN_ONE_PROCESS if self.launcher == "inproc" else {}
        found = found | ({} if self.launcher == "ray" else {"cluster.place": "is for launcher ray"})
        found = found | unused_names(self.track)
        found = found | ({} if self.init_from else {"init": "says what to take from another run; give its folder as init_from"})
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
        check_bounds(self)
        refuse_unused(self, self.unused())
        if self.name:
            check_run_name(self.name)
        self.staleness.check()
        if self.total_steps is None and self.total_updates is None and self.total_tokens is None:
            raise ConfigError("total_steps", None, "a run needs a budget; set total_steps, total_updates or total_tokens")
        if self.eval.samples and not all(1 <= k <= self.eval.samples for k in self.eval.pass_k):
            raise ConfigError("eval.pass_k", self.eval.pass_k, f"each k must be from 1 to eval.samples = {self.eval.samples}")
        if self.placement.trainers > 1 and self.launcher == "inproc":
            raise ConfigError("placement.trainers", self.placement.trainers, "ranks are processes; use launcher local, or 1")
        _check_device(self.device, self.placement.trainers, here=self.launcher != "ray")
        if self.deterministic and self.most_actors > self.num_actors:
            raise ConfigError("placement.max_actors", self.placement.max_actors, "a deterministic run keeps its actors; use 0")
        if self.most_policy_workers and not self.placement.policy_workers:
            raise ConfigError("placement.policy_workers", 0, "start with at least 1; a run that is inline stays so")
        self._check_elastic()
        if self.deterministic and self.launcher != "inproc" and self.staleness.mode == "window":
            raise ConfigError(
                "staleness.mode",
                "window",
                "across processes a window depends on timing; use sync or one_step, or launcher inproc",
            )

    def _check_elastic(self) -> None:
        """Refuse numbers of workers that should change where they cannot."""
        elastic = self.most_actors > self.num_actors or self.most_policy_workers > self.placement.policy_workers
        if elastic and self.launcher == "inproc":
            raise ConfigError("launcher", "inproc", "one process cannot grow; use local or ray, or leave placement.max_* at 0")
        fix = "there is room for no other number of workers; set placement.max_actors or placement.max_policy_workers"
        if self.staleness.balance == "auto" and not elastic:
            raise ConfigError("staleness.balance", "auto", fix)
        replan_s = self.placement.replan_s
        if replan_s and not elastic:
            raise ConfigError("placement.replan_s", replan_s, fix)
        if replan_s and self.staleness.balance == "auto":
            raise ConfigError(
                "placement.replan_s", replan_s, "staleness.balance auto sets the same numbers; use one of the two"
            )
        if 0 < replan_s < 1:
            raise ConfigError(
                "placement.replan_s", replan_s, "is too short to measure anything; use at least 1, better minutes"
            )


def _check_device(name: str, trainers: int, *, here: bool) -> None:
    """Refuse an unknown device. `here`: the run computes on this machine; nodes of a cluster may have other GPUs than it."""
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


BUDGETS = ("total_steps", "total_updates", "total_tokens")


def one_budget(config: RunConfig, named: Collection[str]) -> RunConfig:
    """A budget that the user names replaces those that the recipe came with, whatever their unit."""
    if not any(n in named for n in BUDGETS):
        return config
    return replace(
        config,
        total_steps=config.total_steps if "total_steps" in named else None,
        total_updates=config.total_updates if "total_updates" in named else None,
        total_tokens=config.total_tokens if "total_tokens" in named else None,
    )
