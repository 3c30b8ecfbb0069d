"""Inference: requests and replies, what answers them, and a sampler's way to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.core.state import Array, State


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
class ChecksWeights(Protocol):
    """An inferencer that can say what its parameters make of given tokens, so that a published version can be verified."""

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities at temperature 1 of `tokens` behind `prompt`; what is running goes on as if never asked.
        `[n], [m] int64 -> [m] float32`, on the host."""
        ...


@dataclass(frozen=True)
class RowPolicy:
    """A small actor as compiled code takes it (`kernels/small/numba/rows.py`): the vector of its parameters, and its shape."""

    vector: Array
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
