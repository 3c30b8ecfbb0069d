"""The inline client: the policy runs in the same process as its client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from runnel.core.contracts.inference import Closes, DirectInferencer, Inferencer, Reply, Request, RowPolicy
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import CheckpointError
from runnel.core.records import Batch
from runnel.core.state import State, WorkerEvent
from runnel.flow.params import ChannelSubscriber, Kept, load


class InlineClient:
    """An `InferenceClient` that owns its inferencer. With an immediate inferencer the reply is ready when `submit` returns."""

    def __init__(self, inferencer: Inferencer, subscriber: ChannelSubscriber) -> None:
        self._inferencer, self._subscriber = inferencer, subscriber
        self._replies: dict[int, Reply] = {}
        self._next = 0
        self._loaded: ParamSet | None = None
        self._events: list[WorkerEvent] = []
        self._answer = inferencer.answer if isinstance(inferencer, DirectInferencer) else None
        self.version = -1

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        assert version in (-1, self.version), f"asked for version {version}, loaded is {self.version}; call sync first"
        ticket = self._next
        self._next += 1
        self._inferencer.submit([Request(ticket, rows, version)])
        if self._inferencer.immediate:
            for reply in self._inferencer.step():
                self._replies[reply.id] = reply
        return ticket

    def poll(self) -> int:
        num = self._inferencer.pending()
        if num:
            for reply in self._inferencer.step():
                self._replies[reply.id] = reply
        return num

    def ready(self, ticket: int) -> Reply | None:
        return self._replies.pop(ticket, None)

    def local(self) -> Callable[[Batch], Batch] | None:
        return self._answer

    def row_policy(self) -> RowPolicy | None:
        return self._inferencer.row_policy() if isinstance(self._inferencer, DirectInferencer) else None

    def abort(self, tickets: Sequence[int]) -> None:
        self._inferencer.abort(tickets)
        for ticket in tickets:
            self._replies.pop(ticket, None)

    def pending(self) -> int:
        return self._inferencer.pending()

    def sync(self, version: int = -1) -> bool:
        if version >= 0 and version == self.version:
            return True
        found = self._subscriber.poll(version)
        if found is not None:
            self._events += load(self._inferencer, found)
            self._loaded, self.version = found, found.version
        return self.version >= 0 if version < 0 else self.version == version

    def constants(self, version: int = -1) -> Mapping[str, Tensor] | None:
        return self._subscriber.constants(version)

    def newest(self) -> int:
        """Newest published version, loaded here or not; -1 before the first."""
        return self._subscriber.newest()

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters of the loaded version. Shared parameters change with the learner's next update."""
        return {} if self._loaded is None else self._loaded.params

    def events(self) -> list[WorkerEvent]:
        """Events of versions loaded since the last call."""
        out, self._events = self._events, []
        return out

    def snapshot(self, kept: Kept | None = None) -> State:
        """The client's state, with its parameters if `kept` of the checkpoint (None: the channel's versions) lacks them."""
        # Shared tensors already hold a later version, so the loaded one cannot be saved: -1, and the next `sync` loads anew.
        loaded = self._loaded
        gone = loaded is not None and not self._subscriber.is_kept(self.version, kept)
        return {
            "next": self._next,
            "channel": self._subscriber.channel,
            "version": -1 if gone and loaded is not None and loaded.shared else self.version,
            "params": dict(loaded.params) if gone and loaded is not None and not loaded.shared else None,
            "inferencer": self._inferencer.snapshot(),
            "replies": {str(t): {"rows": dict(r.rows), "version": r.version} for t, r in self._replies.items()},
        }

    def restore(self, state: State) -> None:
        self._next = state["next"]
        if state["params"] is not None:
            self._loaded = ParamSet(state["version"], state["params"])
            self._inferencer.load_params(self._loaded)
            self.version = state["version"]
        elif state["version"] >= 0 and not self.sync(state["version"]):
            version, channel, there = state["version"], self._subscriber.channel, self._subscriber.versions()
            text = f"it holds no parameters of the version that an actor had loaded: version {version} of {channel!r}"
            raise CheckpointError(f"{text}; it has {', '.join(map(str, there)) or 'none'}")
        self._inferencer.restore(state["inferencer"])
        self._replies = {int(t): Reply(int(t), Batch(r["rows"]), r["version"]) for t, r in state["replies"].items()}

    def close(self) -> None:
        if isinstance(self._inferencer, Closes):
            self._inferencer.close()
