"""What engines have in common that answer a request in one forward pass of a frozen model: requests that wait, weights that are
copied in."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.contracts.inference import Request
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.core.state import State
from runnel.llm.model.token_model import TokenModel


class OnePassEngine:
    """Requests wait in `waiting`, the oldest first, until a step takes them (core `Inferencer`, but for `step`)."""

    immediate = False
    model: TokenModel

    def __init__(self) -> None:
        self.version = -1
        self.waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting.extend(requests)

    def take(self, num: int) -> list[Request]:
        """The oldest `num` requests, which wait no more."""
        some, self.waiting = self.waiting[:num], self.waiting[num:]
        return some

    def abort(self, ids: Sequence[int]) -> None:
        self.waiting = [r for r in self.waiting if r.id not in set(ids)]

    def pending(self) -> int:
        return len(self.waiting)

    def load_params(self, params: ParamSet) -> None:
        """Copies: such a model seldom changes, or is seldom asked."""
        self.model.load_params(params.params)
        self.version = params.version

    def snapshot(self) -> State:
        return {"waiting": [{"id": r.id, "version": r.version, "rows": dict(r.rows)} for r in self.waiting]}

    def restore(self, state: State) -> None:
        self.waiting = [Request(r["id"], Batch(r["rows"]), r["version"]) for r in state["waiting"]]
