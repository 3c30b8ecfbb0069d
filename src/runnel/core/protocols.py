"""The contracts by which packages meet. An implementation needs no base class; `runnel.testing` checks it.

State (`snapshot`, `state_dict`) is plain data everywhere: nested dicts and lists of tensors, numpy arrays, numbers, strings
and None, because a checkpoint holds data only. `restore(snapshot())` must give back an object that goes on bit for bit. Tensors
may be views of live memory, to be written at once; parts that never change again are `core.frozen.Frozen`, written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.pieces import Piece
from runnel.core.proof import Proof
from runnel.core.records import Accounting, Segment, Slot, StreamSpec

State = dict[str, Any]
Metrics = dict[str, float]


# ---------------------------------------------------------------------------------------------------------- inference
@dataclass
class Request:
    """Rows that ask a policy for an answer. Self-contained: it carries its noise or seed, and its state or token prefix,
    so any policy worker can serve it and the answer does not depend on its neighbours."""

    id: int
    rows: Batch
    version: int = -1
    """The exact parameter version that must answer; -1 takes what is loaded."""


@dataclass
class Reply:
    """The answer to request `id`, made by parameters of `version`."""

    id: int
    rows: Batch
    version: int


@runtime_checkable
class Inferencer(Protocol):
    """What answers requests: a torch policy, or a language-model engine.

    `step` is one bounded piece of work: a torch policy answers all that is pending in one forward pass; an engine admits,
    decodes one token a slot, and returns what finished. `immediate` says that one `step` answers everything pending.
    """

    immediate: bool

    def submit(self, requests: Sequence[Request]) -> None: ...

    def step(self) -> list[Reply]: ...

    def abort(self, ids: Sequence[int]) -> None: ...

    def pending(self) -> int:
        """Requests submitted and not yet answered."""
        ...

    def load_params(self, params: ParamSet) -> None:
        """Use these parameters from the next `step` on. With `params.shared`, bind to the tensors and do not copy."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


@runtime_checkable
class DirectInferencer(Inferencer, Protocol):
    """An immediate inferencer that also answers rows without a request, for a sampler beside it."""

    def answer(self, rows: Batch) -> Batch: ...

    def row_policy(self) -> RowPolicy | None:
        """The policy in a form that compiled environments can call, where it has one."""
        ...


@runtime_checkable
class Closes(Protocol):
    """An inferencer that holds something outside this process (an engine's child process). Its owner closes it once, at the
    end of a run that finished or failed."""

    def close(self) -> None: ...


@runtime_checkable
class Provable(Protocol):
    """An inferencer that can be asked what its parameters say of given tokens, so that a version's proof can be checked."""

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities at temperature 1 of `tokens` behind `prompt`; what is running goes on as if never asked.
        `[n], [m] int64 -> [m] float32`, on the host."""
        ...


@dataclass(frozen=True)
class RowPolicy:
    """A small actor as compiled code takes it (`kernels/small/numba/rows.py`): the vector of its parameters, and its shape."""

    vector: np.ndarray[Any, Any]
    sizes: tuple[int, int, int, int, bool]
    relu: bool


class InferenceClient(Protocol):
    """A sampler's way to a policy. Inline or remote, by configuration.

    `submit` of an inline, immediate inferencer has answered when it returns. `poll` does one bounded piece of work (an
    inline engine decodes a token; a remote client collects replies); `ready` gives a ticket's reply once, else None.
    """

    version: int
    """Newest parameter version known to answer; -1 before any."""

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        """Ask; returns a ticket. Requests of one `affinity` go to one policy worker where there are several (they share a
        prefix, say); -1 leaves it to the client's own."""
        ...

    def poll(self) -> int: ...

    def ready(self, ticket: int) -> Reply | None: ...

    def abort(self, tickets: Sequence[int]) -> None: ...

    def pending(self) -> int: ...

    def local(self) -> Callable[[Batch], Batch] | None:
        """Where the policy lives beside its client and answers at once: its answer to rows, by the version that `sync` brought.
        None elsewhere; then ask with `submit`."""
        ...

    def row_policy(self) -> RowPolicy | None:
        """`DirectInferencer.row_policy` where the policy lives beside its client."""
        ...

    def sync(self, version: int = -1) -> bool:
        """Bring parameters up to date: to exactly `version`, or to the newest for -1. False: not there yet, ask again."""
        ...


# ------------------------------------------------------------------------------------------------------------ samples
class SampleWriter(Protocol):
    """The producing end of a sample stream."""

    spec: StreamSpec

    def reserve(self) -> Slot | None:
        """A segment to fill, or None: full, or the staleness policy admits no more now (back-pressure)."""
        ...

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        """Hand the segment over. `slot.header` must carry versions, group, task and `used` by then."""
        ...

    def cancel(self, slot: Slot, reason: str) -> None:
        """Give the segment up; its rows are accounted as cancelled for `reason`."""
        ...

    def reclaim(self, index: int) -> Slot:
        """After a restore: the reserved segment that this writer held in slot `index`."""
        ...

    def feedback(self) -> list[Feedback]:
        """What readers sent back about committed segments, oldest first."""
        ...

    def version(self) -> int:
        """How far the learner is, as the stream knows."""
        ...


@dataclass
class Feedback:
    """A reader's word on the rows `sample_id ...` of one segment: priorities, success, whatever the source understands."""

    sample_id: int
    values: dict[str, Tensor]


class SampleReader(Protocol):
    """The consuming end of a sample stream; each named reader has its own cursor and accounting."""

    spec: StreamSpec

    def available(self) -> int:
        """Segments that `take` could give now, after a sweep of those that have grown too old."""
        ...

    def take(self, num_segments: int) -> list[Segment]:
        """Exactly `num_segments` segments in sequence order, or an empty list."""
        ...

    def advance(self, version: int) -> None:
        """Tell the writers how far the learner is: admission depends on it."""
        ...

    def release(self, segments: Sequence[Segment], *, feedback: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        """Rows are consumed; their memory goes back to the writers."""
        ...

    def drop(self, segments: Sequence[Segment], reason: str) -> None:
        """Rows are dropped, unused."""
        ...

    def hold(self, segments: Sequence[Segment]) -> None:
        """The reader has copied the rows and keeps them (replay): memory goes back, rows stay in flight until `settle`."""
        ...

    def settle(self, *, consumed: int = 0, dropped: Mapping[str, int] | None = None) -> None:
        """Held rows that are now consumed or dropped."""
        ...

    def accounting(self) -> Accounting: ...


class RankReader(Protocol):
    """What a rank that follows sees of a stream that several ranks read: its part of what rank 0 has taken.

    Ask for `version` first: what is given belongs to it. A follower knows by its own version whether it had that part already.
    """

    spec: StreamSpec

    def version(self) -> int:
        """How far the learner is: the last `advance`, as far as it is known here; below 0 before anything is."""
        ...

    def given(self, rank: int, ranks: int) -> list[Segment]:
        """The part of `rank` in what rank 0 has taken and not yet released."""
        ...

    def answer(self, segments: Sequence[Segment], feedback: Sequence[Mapping[str, Tensor]], *, rank: int) -> None:
        """Leave a rank's word on its part; rank 0 hands it over when it releases. It has arrived when this returns."""
        ...

    def meeting(self) -> str:
        """Where the ranks meet; empty before it is announced. Of a stream that has given something it is known."""
        ...


class SharedReader(SampleReader, RankReader, Protocol):
    """The consuming end of a stream that several ranks read: rank 0 takes and releases, the others are given their part."""

    def take(self, num_segments: int, *, ranks: int = 1) -> list[Segment]:
        """As for one reader; every rank is given its part (`core.shares`) of what is taken."""
        ...

    def announce(self, address: str) -> None:
        """Rank 0: where the ranks meet (IPv4 host:port)."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """What an actor runs: environments, conversations, or a data set."""

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        """A bounded number of steps. Returns the work done (0: waiting). Both mappings are by stream name."""
        ...

    def waits_for(self) -> str:
        """In words, what `step` last returned 0 for. Shown when nothing moves."""
        ...

    def events(self) -> list[dict[str, Any]]:
        """Finished episodes and counted failures since the last call, as plain data (`{"kind": "episode", ...}`)."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None: ...

    def close(self) -> None: ...


# --------------------------------------------------------------------------------------------------------- parameters
@dataclass
class ParamSet:
    """One published version. `shared`: the tensors are the learner's own (in process, published in the same poll). `proof`:
    what the learner says of some tokens under it, for whoever loads it to compare."""

    version: int
    params: Mapping[str, Tensor]
    shared: bool = False
    proof: Proof | None = None


class ParamPublisher(Protocol):
    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...


class SharedPublisher(ParamPublisher, Protocol):
    """Where several ranks write one version: one opens it, all write their rows, then one commits it."""

    def open(self, version: int, pieces: Mapping[str, Piece]) -> None: ...

    def write(self, version: int, pieces: Mapping[str, Piece]) -> None: ...

    def commit(self, version: int) -> None: ...

    def views(self, version: int) -> Mapping[str, Tensor]:
        """A committed version where it lies."""
        ...


class ParamSubscriber(Protocol):
    def poll(self, version: int = -1) -> ParamSet | None:
        """The newest version not seen yet (or exactly `version`, even if seen), verified; None if there is none."""
        ...


# ------------------------------------------------------------------------------------------------------------ learning
class Collective(Protocol):
    """The ranks of one learner. Every denominator, mean and stop decision goes through it."""

    rank: int
    world_size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over ranks, the same bits on each; it may be made in the memory of `x`, so hand over what you can
        spare. Every rank calls it as often, with as many numbers."""
        ...


class MeshCollective(Collective, Protocol):
    """Ranks over which a model can be taken apart."""

    def mesh(self) -> Any:
        """A `torch.distributed.DeviceMesh` of the ranks; they meet when it is first asked for."""
        ...


class OneProcess:
    """The collective of a learner that is alone."""

    rank = 0
    world_size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Update:
    """What an update says of itself. `feedback` has one mapping per segment, in the order `prepare` got them."""

    metrics: Metrics
    feedback: dict[str, list[Mapping[str, Tensor]]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    """What else there is to tell the run (`kind`, and plain data); the leading rank's is told."""


@runtime_checkable
class Learner(Protocol):
    """An algorithm's update, owner of the optimiser. It knows segments and tensors; never environments or streams."""

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Turn segments, by reader name, into one training batch: advantages, targets, masks. `progress` is in [0, 1]."""
        ...

    def update(self, batch: Batch) -> Update:
        """Consume the batch: one version. Raises `NonFiniteError` before it would step on a bad loss."""
        ...

    def params(self) -> Mapping[str, Tensor]:
        """What is published: weights, and the statistics that acting needs (normalisers, exploration rate)."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Sharded(Protocol):
    """A learner of which each rank keeps some rows of every parameter: nobody has the whole, and `params` is not asked for."""

    def pieces(self) -> Mapping[str, Piece]:
        """This rank's rows of what is published; all of them as long as nothing was computed yet."""
        ...


@runtime_checkable
class StartsFrom(Protocol):
    """A learner that keeps more than it publishes (float32 masters of half-precision weights, the weights beside adapters,
    target networks), or publishes what does not belong to a start (an exploration rate): it takes a start itself."""

    def base_params(self) -> Mapping[str, Tensor]:
        """Live parameters as a start must have them, by name."""
        ...

    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Use `params`, published by another run, as the weights from here on."""
        ...


@runtime_checkable
class StartsInPart(Protocol):
    """A learner that learns with more than what it publishes: a run that starts from another (`init_from`) says what is not
    taken."""

    def not_taken(self) -> Sequence[str]:
        """In words, what stays as it was made."""
        ...


@runtime_checkable
class Proves(Protocol):
    """A learner whose versions prove themselves where they arrive: its proof is published with the parameters."""

    def proof(self) -> Proof | None:
        """What the parameters of now say of some tokens; None before there are any."""
        ...


@runtime_checkable
class Freezes(Protocol):
    """A learner that fixes copies of a model for workers elsewhere to hold (a reference). Each has a parameter channel."""

    def frozen(self) -> Mapping[str, ParamSet]:
        """By channel, the copy that workers are to hold now, under the version at which it was fixed; nothing before that."""
        ...


@runtime_checkable
class Draws(Protocol):
    """A learner that draws random numbers: each rank has a generator of its own, all else is the same on every rank."""

    own_state: tuple[str, ...]
    """Entries of `state_dict` that are the rank's own."""

    def reseed(self, version: int) -> None:
        """A rank that joins at `version`: draw as no other rank does, and not what it drew at the start."""
        ...


class Store(Protocol):
    """Replay memory behind a buffer worker."""

    def insert(self, segment: Segment) -> int:
        """Copy a segment in; returns how many rows were evicted that were never selected."""
        ...

    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        """Fill `slot` with one training batch; returns how many rows were selected for the first time."""
        ...

    def feedback(self, values: Feedback) -> None: ...

    def held_rows(self) -> int:
        """Rows of the source stream that are stored and were never selected yet."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps stored now."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


# ---------------------------------------------------------------------------------------------------------------- tasks
@dataclass(frozen=True)
class Task:
    """What to play next: a prompt, environment parameters, or a start state, with an id that is stable over epochs."""

    id: int
    data: Mapping[str, Any]


class TaskSource(Protocol):
    """Decides what to play next; curricula and filters are implementations."""

    def next(self, n: int) -> list[Task]: ...

    def report(self, task_id: int, outcome: Mapping[str, float]) -> None: ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


# ----------------------------------------------------------------------------------------------------------- evaluation
class Evaluation(Protocol):
    """A measurement of a policy on tasks of its own: returns the score of each episode and what is worth showing."""

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> EvalResult: ...

    def close(self) -> None: ...


class Recorder(Protocol):
    """Plays episodes to be looked at, and gives each as an event of kind `video`. It changes nothing that is measured."""

    def run(
        self, client: InferenceClient, *, round_index: int, progress: Progress | None = None
    ) -> Iterator[dict[str, Any]]: ...


class Progress(Protocol):
    """Called often while an evaluation goes on; raises `EvaluationInterrupted` where the run is to stop."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclass
class EvalResult:
    """Scores of the episodes of one evaluation (`returns`), other per-episode numbers, and a few samples to read.

    `extra["cut"]` flags returns that are those up to a limit of steps; `extra["crashed"]` flags episodes that have no return,
    because their environment broke. Each is there only if there was one. `faults` says what broke.
    """

    returns: list[float]
    extra: dict[str, list[float]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------- agents
@dataclass(frozen=True)
class AgentRoute:
    """Agents whose id matches `pattern` ask `inference` and write to `samples`. The first match wins."""

    pattern: str = ".*"
    inference: str = "policy"
    samples: str = "trajectories"


# --------------------------------------------------------------------------------------------------------------- policy
class Policy(Protocol):
    """What `rl.load` gives back: something that acts."""

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """An action that `env.step` accepts."""
        ...

    def reset(self) -> None:
        """Forget recurrent state."""
        ...
