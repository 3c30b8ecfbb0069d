"""Inference: requests and replies, the inferencers that serve them, and the clients through which samplers send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.core.state import Array, State


@dataclass
class Request:
    """Rows for which a policy is to compute a reply.

    A request carries its noise or seed, and its state or token prefix. So any policy worker can serve it, and the reply does
    not depend on the other requests of its batch.
    """

    id: int
    rows: Batch
    version: int = -1
    """The exact parameter version that must serve the request; -1 accepts the version that is loaded."""


@dataclass
class Reply:
    """The reply to request `id`, computed with parameters of `version`."""

    id: int
    rows: Batch
    version: int


@runtime_checkable
class Inferencer(Protocol):
    """Serves requests: a torch policy, or a language-model engine.

    `step` is one bounded piece of work. A torch policy serves all pending requests in one forward pass. An engine admits
    requests, decodes one token in each slot, and returns finished replies. `immediate` says that one `step` serves every
    pending request.
    """

    immediate: bool

    def submit(self, requests: Sequence[Request]) -> None: ...

    def step(self) -> list[Reply]: ...

    def abort(self, ids: Sequence[int]) -> None: ...

    def pending(self) -> int:
        """Number of requests that were submitted and have no reply yet."""
        ...

    def load_params(self, params: ParamSet) -> None:
        """Use these parameters from the next `step` on. If `params.shared`, use the tensors themselves, without a copy."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


@runtime_checkable
class DirectInferencer(Inferencer, Protocol):
    """An immediate inferencer that also serves rows without a request, for a sampler in the same process."""

    def answer(self, rows: Batch) -> Batch: ...

    def row_policy(self) -> RowPolicy | None:
        """The policy in a form that compiled environments can call; None if it has no such form."""
        ...


@runtime_checkable
class Closes(Protocol):
    """An inferencer that holds something outside this process (an engine's child process).

    Its owner closes it once, when the run has finished or failed.
    """

    def close(self) -> None: ...


@runtime_checkable
class ChecksWeights(Protocol):
    """An inferencer that can compute log-probabilities of given tokens, so that a published version can be verified."""

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities at temperature 1 of `tokens` after `prompt`. Running requests are not affected.
        `[n], [m] int64 -> [m] float32`, on the host."""
        ...


@dataclass(frozen=True)
class RowPolicy:
    """A small actor as compiled code reads it (`kernels/small/numba/rows.py`): its parameter vector and its sizes."""

    vector: Array
    sizes: tuple[int, int, int, int, bool]
    relu: bool


class InferenceClient(Protocol):
    """Sends a sampler's requests to a policy, which is inline or remote, by configuration.

    With an inline, immediate inferencer the reply is ready when `submit` returns. `poll` does one bounded piece of work (an
    inline engine decodes a token; a remote client collects replies); `ready` gives a ticket's reply once, else None.
    """

    version: int
    """Newest parameter version that is known to serve requests; -1 before the first."""

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        """Send rows; returns a ticket. Requests with the same `affinity` go to the same policy worker (for example because
        they share a prefix). With -1 the client uses its own affinity."""
        ...

    def poll(self) -> int: ...

    def ready(self, ticket: int) -> Reply | None: ...

    def abort(self, tickets: Sequence[int]) -> None: ...

    def pending(self) -> int: ...

    def local(self) -> Callable[[Batch], Batch] | None:
        """A function that computes replies at once, with the version that `sync` loaded, if the policy is in this process.
        None otherwise; then use `submit`."""
        ...

    def row_policy(self) -> RowPolicy | None:
        """`DirectInferencer.row_policy`, if the policy is in this process; else None."""
        ...

    def sync(self, version: int = -1) -> bool:
        """Load exactly `version`, or the newest version for -1. False: the version has not arrived yet; call again."""
        ...

    def constants(self, version: int = -1) -> Mapping[str, Tensor] | None:
        """Small values that the trainer publishes beside the parameters of exactly `version`, or of the newest one for -1: the
        history of tasks. None: they have not arrived yet; call again."""
        ...
