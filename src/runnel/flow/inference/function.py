"""An inferencer around a plain function: rules, a lookup, a client of a service. It has no parameters of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.core.state import State


class FunctionInferencer:
    """Serves each request with `function(rows)`, which must return equally many rows.

    Use it for an inference stream that loads no parameters (`InferenceStream(params="")`).

    >>> import torch
    >>> double = FunctionInferencer(lambda rows: Batch(y=2 * rows["x"]))
    >>> double.submit([Request(7, Batch(x=torch.tensor([1.0, 4.0])))])
    >>> [(reply.id, reply.rows["y"].tolist()) for reply in double.step()]
    [(7, [2.0, 8.0])]
    """

    immediate = True

    def __init__(self, function: Callable[[Batch], Batch]) -> None:
        self._function = function
        self._waiting: list[Request] = []
        self._version = 0

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting += requests

    def step(self) -> list[Reply]:
        requests, self._waiting = self._waiting, []
        return [Reply(request.id, self._function(request.rows), self._version) for request in requests]

    def abort(self, ids: Sequence[int]) -> None:
        self._waiting = [request for request in self._waiting if request.id not in ids]

    def pending(self) -> int:
        return len(self._waiting)

    def load_params(self, params: ParamSet) -> None:
        self._version = params.version

    def snapshot(self) -> State:
        # An immediate inferencer has replied to everything before its client returns, so nothing waits at a barrier.
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""
