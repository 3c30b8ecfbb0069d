"""The actor worker: makes segments with a sampler. Environments, conversations and data sets differ only in the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol

from runnel.core.clock import Clock
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import Sampler, SampleWriter
from runnel.core.state import State, WorkerEvent
from runnel.core.worker import Worker
from runnel.flow.params import Kept


class SavedClient(InferenceClient, Protocol):
    """An inference client with a state for checkpoints, events about loaded versions, and `close`."""

    def events(self) -> list[WorkerEvent]: ...

    def snapshot(self, kept: Kept | None = None) -> State:
        """The state for a checkpoint that contains the versions `kept`; None: those of the client's own channel."""
        ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


class ActorWorker(Worker):
    """Consumes replies of inference streams, produces segments.

    It waits for free slots of its sample streams (the reader frees them) and for replies or parameter versions (from the policy
    worker or the trainer).
    """

    kind = "actor"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        sampler: Sampler,
        clients: Mapping[str, SavedClient],
        writers: Mapping[str, SampleWriter],
    ) -> None:
        super().__init__(name, clock)
        self.sampler, self.clients, self.writers = sampler, clients, writers

    def poll(self) -> int:
        with self.timer.stage("sample"):
            work = self.sampler.step(self.clients, self.writers)
        for client in self.clients.values():
            self._events.extend(client.events())
        self._events.extend(self.sampler.events())
        return work

    def waits_for(self) -> str:
        late = {reader for writer in self.writers.values() for reader in writer.held_up_by()}
        return self.sampler.waits_for() + (f" (held by reader {', '.join(sorted(late))})" if late else "")

    def snapshot(self, kept: Kept | None = None) -> State:
        return {"sampler": self.sampler.snapshot(), "clients": {k: c.snapshot(kept) for k, c in self.clients.items()}}

    def restore(self, state: State) -> None:
        for name, client in self.clients.items():
            client.restore(state["clients"][name])
        self.sampler.restore(state["sampler"], self.writers)

    def close(self) -> None:
        with ExitStack() as stack:
            for client in self.clients.values():
                stack.callback(client.close)
            stack.callback(self.sampler.close)
