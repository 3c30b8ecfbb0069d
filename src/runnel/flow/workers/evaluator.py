"""The evaluator worker: measures the newest parameters on its own tasks, every n versions and at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from torch import Tensor

from runnel.core.clock import Clock
from runnel.core.contracts.evaluation import POLICY, EpisodeRecorder, Evaluation, Progress
from runnel.core.disk import refused
from runnel.core.errors import EvaluationInterrupted
from runnel.core.state import State
from runnel.core.worker import Worker
from runnel.flow.inference.inline import InlineClient

Keep = Callable[[int, Sequence[float], Mapping[str, Tensor]], str]
"""Receives a measured version, its returns and its parameters; returns an error text, empty if all went well."""


class EvaluatorWorker(Worker):
    """Consumes parameter versions, produces evaluations. It waits for the trainer to publish the next version that is due.

    One evaluation is one poll, so a checkpoint never falls inside one. If the run stops during an evaluation, the evaluation
    is dropped and done after the resume (`owes`).
    """

    kind = "evaluator"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        evaluation: Evaluation,
        client: InlineClient,
        others: Mapping[str, InlineClient] | None = None,
        every: int,
        progress: Progress | None = None,
        recorder: EpisodeRecorder | None = None,
        record_every: int = 1,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(name, clock)
        self._keep = keep
        self._recorder, self._record_every = recorder, record_every
        self._evaluation, self._client, self._every, self._progress = evaluation, client, every, progress
        self._clients = {**(others or {}), POLICY: client}
        self._round = 0
        self._last = -1
        self.owes = False
        """Whether an evaluation was dropped: after a resume it is done before anything else."""

    def poll(self) -> int:
        if not self._every or self._client.newest() < (max(self._last, 0) // self._every + 1) * self._every:
            return 0
        if any(client.newest() < 0 for client in self._clients.values()):  # another trainer has published nothing yet
            return 0
        self.evaluate()
        return 1

    def evaluate(self) -> None:
        """Measure the newest version now, unless it was measured already."""
        ready = True
        for client in self._clients.values():
            ready = client.sync() and ready
            self._events.extend(client.events())
        if not ready or self._client.version == self._last:
            return
        try:
            with self.timer.stage("evaluate"):
                result = self._evaluation.run(self._clients, round_index=self._round, progress=self._progress)
        except EvaluationInterrupted:
            self._give_up("evaluation", owes=True)
            return
        self._round += 1
        self._last, self.owes = self._client.version, False
        for fault in result.faults:
            self.emit(fault)
        self.emit(
            {
                "kind": "eval",
                "version": self._last,
                "returns": result.returns,
                "extra": result.extra,
                "samples": result.samples,
                "tables": {title: table.as_data() for title, table in result.tables.items()},
            }
        )
        if self._keep is not None and (problem := self._keep(self._last, result.returns, self._client.params)):
            self.emit({"kind": "note", "level": "warning", "text": problem})
        if self._recorder is not None and (self._round - 1) % self._record_every == 0:
            self._record(self._recorder)

    def _record(self, recorder: EpisodeRecorder) -> None:
        try:
            with self.timer.stage("record"):
                for event in recorder.run(self._client, round_index=self._round - 1, progress=self._progress):
                    self.emit({**event, "version": self._last})
        except EvaluationInterrupted:
            self._give_up("recording", owes=False)
        except OSError as error:  # a failed video must not end a run
            told = refused(error, tempfile.gettempdir(), what=f"no video of version {self._last} was recorded")
            if told is None:
                raise
            self.emit({"kind": "event", "level": "warning", "text": str(told)})

    def _give_up(self, what: str, *, owes: bool) -> None:
        if not self.owes:
            self.emit({"kind": "note", "text": f"the {what} of version {self._client.version} was interrupted"})
        self.owes = self.owes or owes

    def waits_for(self) -> str:
        return "the next version to evaluate"

    def snapshot(self) -> State:
        return {"round": self._round, "last": self._last, "owes": self.owes}

    def restore(self, state: State) -> None:
        self._round, self._last = state["round"], state["last"]
        self.owes = state.get("owes", False)  # older checkpoints do not have this key

    def close(self) -> None:
        with ExitStack() as stack:
            for client in self._clients.values():
                stack.callback(client.close)
            stack.callback(self._evaluation.close)
