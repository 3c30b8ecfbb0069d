"""The common part of engines that serve a request by one forward pass of a frozen model."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.contracts.inference import Request
from runnel.core.contracts.params import ParamSet
from runnel.core.state import State
from runnel.llm.engines.requests import request_data, request_of
from runnel.llm.model.token_model import TokenModel


class OnePassEngine:
    """A core `Inferencer` without `step`. Requests wait in `waiting`, the oldest first, until a step takes them."""

    immediate = False
    model: TokenModel

    def __init__(self) -> None:
        self.version = -1
        self.waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting.extend(requests)

    def take(self, num: int) -> list[Request]:
        """Remove the oldest `num` requests from the queue and return them."""
        some, self.waiting = self.waiting[:num], self.waiting[num:]
        return some

    def abort(self, ids: Sequence[int]) -> None:
        self.waiting = [r for r in self.waiting if r.id not in set(ids)]

    def pending(self) -> int:
        return len(self.waiting)

    def load_params(self, params: ParamSet) -> None:
        """Copy the parameters. Sharing them would save little: such a model seldom changes, or has few requests."""
        self.model.load_params(params.params)
        self.version = params.version

    def snapshot(self) -> State:
        return {"waiting": [request_data(r) for r in self.waiting]}

    def restore(self, state: State) -> None:
        self.waiting = [request_of(data) for data in state["waiting"]]
