"""The transform worker: reads sample streams, asks inference streams, writes sample streams. A replay buffer is one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from runnel.core.clock import Clock
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleReader, SampleWriter, Transform
from runnel.core.errors import DataError
from runnel.core.state import State, WorkerEvent
from runnel.core.worker import StageTimer, Worker
from runnel.flow.params import Kept
from runnel.flow.workers.actor import SavedClient


class StatelessTransform:
    """A `Transform` that keeps nothing between two steps. A subclass has `step`, and may say what it waits for."""

    waiting = "segments to read, or room to write"

    def step(
        self,
        readers: Mapping[str, SampleReader],
        clients: Mapping[str, InferenceClient],
        writers: Mapping[str, SampleWriter],
        *,
        timer: StageTimer,
    ) -> int:
        raise NotImplementedError("a transform needs step(readers, clients, writers, *, timer) -> int")

    def held(self) -> Mapping[str, int]:
        return {}

    def waits_for(self) -> str:
        return self.waiting

    def events(self) -> list[WorkerEvent]:
        return []

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing is held."""


class TransformWorker(Worker):
    """Consumes segments of its readers and replies of its clients, produces segments.

    It waits for what its transform waits for: segments to read, replies, or free slots of the streams that it writes.
    """

    kind = "transform"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        transform: Transform,
        readers: Mapping[str, SampleReader],
        clients: Mapping[str, SavedClient],
        writers: Mapping[str, SampleWriter],
    ) -> None:
        super().__init__(name, clock)
        self.transform, self.readers, self.clients, self.writers = transform, readers, clients, writers

    def poll(self) -> int:
        work = self.transform.step(self.readers, self.clients, self.writers, timer=self.timer)
        for client in self.clients.values():
            self._events.extend(client.events())
        self._events.extend(self.transform.events())
        return work

    def check(self) -> None:
        """Check that the rows which the transform holds are those of the streams' accounts."""
        said = self.transform.held()
        for stream, reader in self.readers.items():
            if said.get(stream, 0) != reader.held():
                text = f"holds {said.get(stream, 0)} rows of stream {stream!r}, but its account says {reader.held()}"
                raise DataError(f"{self.name!r} {text}")

    def waits_for(self) -> str:
        return self.transform.waits_for()

    def snapshot(self, kept: Kept | None = None) -> State:
        return {"transform": self.transform.snapshot(), "clients": {k: c.snapshot(kept) for k, c in self.clients.items()}}

    def restore(self, state: State) -> None:
        for name, client in self.clients.items():
            client.restore(state["clients"][name])
        # Checkpoints of before transforms have the state of a replay buffer in this place.
        self.transform.restore(state.get("transform", state), self.writers)

    def close(self) -> None:
        with ExitStack() as stack:
            for client in self.clients.values():
                stack.callback(client.close)
            stack.callback(self.transform.close)
