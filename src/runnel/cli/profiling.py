"""Where the time of a run goes: a short run in this process, timed by worker, stage and part of a stage.

Workers time their own stages (`sample`, `prepare`, `update`, ...). The parts of a stage (the environment in `sample`, the
backward pass in `update`) are timed here: `Parts.opened` wraps the functions that workers call, until its block ends. A normal
run does not pay for it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import torch
from torch.utils.benchmark import Timer

from runnel.core.clock import WallClock
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.learning import Update
from runnel.core.records import Batch
from runnel.core.state import JsonObject
from runnel.core.worker import Worker
from runnel.envs.vector import VectorEnv
from runnel.flow.workers.actor import ActorWorker
from runnel.flow.workers.trainer import TrainerWorker
from runnel.graphs.experiment import Experiment
from runnel.kernels.small.numba.dqn import NumbaQ
from runnel.kernels.small.numba.ppo import NumbaActorCritic
from runnel.nets.optim import Adam, Target
from runnel.run.ledger import Ledger
from runnel.run.wiring import place, wire
from runnel.track.folder import RunFolder

P = ParamSpec("P")
R = TypeVar("R")
ENVIRONMENT, POLICY, BACKWARD, OPTIMISER, TARGETS = "environment", "policy", "backward", "optimiser", "targets"
COMPILED = "compiled steps"
"""Forward, backward and optimiser in one call (`kernels/small/numba`)."""
MOST_OPERATORS = 12
REST = {"sample": "writing", "update": "forward, losses"}
"""Name for the rest of a stage, without its known parts."""
VECTOR_CALLS = ("reset", "step", "send", "ready", "recv", "play")
"""`play` (tensor environments) also writes the segment."""
CLIENT_CALLS = ("submit", "ready", "poll", "sync")


class Parts:
    """Seconds and calls by name. The time of a wrapped call inside another counts only for the inner name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inner = 0.0

    def timed(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap `function` so that its time counts for `name`."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            outer, self._inner, start = self._inner, 0.0, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[name] += spent - self._inner
                self.calls[name] += 1
                self._inner = outer + spent

        return call

    @contextmanager
    def opened(self, workers: Sequence[Worker]) -> Iterator[None]:
        """Time the parts of these workers' stages until the end of the block."""
        with ExitStack() as undo:
            for worker in workers:
                if isinstance(worker, ActorWorker):
                    for vector in found_in(worker.sampler, VectorEnv):
                        self._open(vector, VECTOR_CALLS, ENVIRONMENT, undo)
                    for client in worker.clients.values():
                        self._open_client(client, undo)
            for owner, call, name in (
                (torch.autograd, "grad", BACKWARD),
                (torch.autograd, "backward", BACKWARD),
                (Adam, "step", OPTIMISER),
                (Adam, "apply", OPTIMISER),
                (NumbaActorCritic, "passes", COMPILED),
                (NumbaQ, "step", COMPILED),
                (Target, "follow", TARGETS),
            ):
                undo.enter_context(replaced(owner, call, self.timed(name, getattr(owner, call))))
            yield

    def _open(self, owner: object, calls: Sequence[str], name: str, undo: ExitStack) -> None:
        """Time each method in `calls` that `owner` has."""
        for call in calls:
            if hasattr(owner, call):
                undo.enter_context(replaced(owner, call, self.timed(name, getattr(owner, call))))

    def _open_client(self, client: InferenceClient, undo: ExitStack) -> None:
        self._open(client, CLIENT_CALLS, POLICY, undo)
        direct = client.local  # inline inference goes round the client: the function that `local` returns is timed too

        def local() -> Callable[[Batch], Batch] | None:
            answer = direct()
            return None if answer is None else self.timed(POLICY, answer)

        undo.enter_context(replaced(client, "local", local))


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """`owner.name` is `value` inside the block."""
    # a method found in the class must be deleted from the object afterwards, not set: else it would hide the class's
    own = name in vars(owner)
    before = vars(owner)[name] if own else None
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def found_in(owner: object, kind: type, depth: int = 3) -> list[object]:
    """Everything of `kind` that `owner` holds, itself or in its lists and objects."""
    if isinstance(owner, kind):
        return [owner]
    if depth == 0:
        return []
    if isinstance(owner, list | tuple):
        held = list(owner)
    elif type(owner).__module__.startswith("runnel."):
        held = list(getattr(owner, "__dict__", {}).values())
    else:
        return []
    return [x for part in held for x in found_in(part, kind, depth - 1)]


@dataclass
class Window:
    """Counts and times of a number of whole updates."""

    wall_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    updates: int = 0
    stages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by `worker/stage`."""

    def rates(self) -> dict[str, float]:
        """Steps, tokens and updates a second, without those that the run does not count."""
        counts = {"steps_per_s": self.steps, "tokens_per_s": self.tokens, "updates_per_s": self.updates}
        return {name: count / self.wall_s for name, count in counts.items() if count}


class Bench:
    """An endless run in this process: workers, streams and the ledger's files, polled as the launcher `inproc` does."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        clock = WallClock()
        self.group = wire(experiment, place(experiment), "main", clock=clock)
        self._ledger = Ledger(folder, clock)
        trainer = self.group.trainer
        assert trainer is not None
        self.trainer: TrainerWorker = trainer
        self.group.start()

    def run(self, seconds: float, *, min_updates: int = 1) -> Window:
        """Play and learn for `seconds` and at least `min_updates`; ends with an update."""
        window, start = Window(), time.perf_counter()
        first = (self.trainer.steps, self.trainer.tokens, self.trainer.version)
        while True:
            before = self.trainer.version
            self.group.round()
            began = time.perf_counter()
            stages = self.group.stages()
            self._ledger.add_stages(stages)
            self._ledger.add(self.group.collect())
            now = time.perf_counter()
            for name, spent in (*stages.items(), ("run/ledger", now - began)):
                window.stages[name] += spent
            updates = self.trainer.version - first[2]
            if self.trainer.version > before and updates >= min_updates and now - start >= seconds:
                break
        window.wall_s = now - start
        window.steps, window.tokens = self.trainer.steps - first[0], self.trainer.tokens - first[1]
        window.updates = updates
        return window

    def operators(self, updates: int) -> list[JsonObject]:
        """Torch operators of `updates` updates, ordered by their own time. One more update before them is the warm-up."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler prints messages about its own stages
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        learner, original, first = self.trainer.learner, self.trainer.learner.update, self.trainer.version
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)

        def update(batch: Batch) -> Update:
            with torch.profiler.profile(activities=activities) as profiler:
                done = original(batch)
            for row in profiler.key_averages() if self.trainer.version > first else ():
                totals[row.key][0] += row.self_cpu_time_total + getattr(row, "self_device_time_total", 0.0)
                totals[row.key][1] += row.count
            return done

        with replaced(learner, "update", update):
            self.run(0.0, min_updates=updates + 1)
        whole = sum(spent for spent, _ in totals.values()) or 1.0
        ranked = sorted(totals.items(), key=lambda item: -item[1][0])[:MOST_OPERATORS]
        return [
            {"operator": name, "us_per_update": spent / updates, "share": spent / whole, "calls_per_update": count / updates}
            for name, (spent, count) in ranked
        ]

    def close(self) -> None:
        self.group.close()
        self._ledger.close()


def split(window: Window, parts: Parts) -> list[JsonObject]:
    """Rows of the table: stages of each worker, parts of `sample` and `update` below them, and the time outside of stages."""
    known = {"sample": (ENVIRONMENT, POLICY), "update": (BACKWARD, OPTIMISER, TARGETS, COMPILED)}
    rows = []
    for name, seconds in sorted(window.stages.items(), key=lambda item: -item[1]):
        worker, _, stage = name.partition("/")
        rows.append(_row(worker, stage, "", seconds, window))
        alone = sum(n.endswith("/" + stage) for n in window.stages) == 1
        if stage in known and alone:
            inner = {part: parts.seconds[part] for part in known[stage] if part in parts.seconds}
            inner[REST[stage]] = max(0.0, seconds - sum(inner.values()))
            rows += [_row(worker, stage, part, spent, window) for part, spent in inner.items()]
    rest = window.wall_s - sum(window.stages.values())
    return [*rows, _row("run", "rounds", "", max(0.0, rest), window)]


def _row(worker: str, stage: str, part: str, seconds: float, window: Window) -> JsonObject:
    count = window.steps or window.tokens or 1
    return {
        "worker": worker,
        "stage": stage,
        "part": part,
        "share": seconds / window.wall_s,
        "us_per_step": 1e6 * seconds / count,
        "ms_per_update": 1e3 * seconds / max(window.updates, 1),
    }


# ---------------------------------------------------------------------------------------------------------------- limits
def machine_limits(threads: int) -> Mapping[str, float]:
    """Limits of this machine: matrix products on one and on all threads, and the cost of a small network."""
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    product, limits = (lambda: a @ b), dict[str, float]()
    for name, num in (("gemm_gflops_1_thread", 1), (f"gemm_gflops_{threads}_threads", threads)):
        limits[name] = 2e-9 * size**3 / _median_s(product, num)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    )
    x = torch.randn(8, 4)
    with torch.no_grad():
        limits["forward_2x64_batch_8_us"] = 1e6 * _median_s(lambda: net(x))
    limits["forward_backward_2x64_batch_8_us"] = 1e6 * _median_s(lambda: net(x).sum().backward())
    return limits


def _median_s(call: Callable[[], object], threads: int = 1) -> float:
    """The median time of a call on so many threads of torch."""
    timer = Timer("call()", globals={"call": call}, num_threads=threads)
    return timer.blocked_autorange(min_run_time=0.2).median
