"""The actor: plays with a sampler. Environments, conversations and data sets differ only in the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from runnel.core.clock import Clock
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import Sampler, SampleWriter
from runnel.core.state import State
from runnel.core.worker import Worker
from runnel.flow.params import Kept


class SavedClient(InferenceClient, Protocol):
    """An inference client that can be part of a checkpoint, tells of the versions it loads, and lets go of its policy."""

    def events(self) -> list[dict[str, Any]]: ...

    def snapshot(self, kept: Kept | None = None) -> State:
        """For a checkpoint that holds `kept` of the parameter channels; None: what the client's own channel has."""
        ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


class ActorWorker(Worker):
    """Consumes replies of inference streams, produces segments.

    Waits for room on its sample streams (the reader or the learner makes it) and for replies or parameter versions (the
    policy worker or the trainer makes them).
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
        return self.sampler.waits_for()

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
