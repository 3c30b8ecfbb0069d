"""Writers and clients of streams on another node: each operation is a call to that node's agent.

A call has a head (JSON) and a body (bytes in one array): data, never objects. The sender numbers its calls. It sends a call
again if no reply comes in time or the node was lost; the agent does each number once (`flow/transports/cluster/agent.py`). So
messages that are late, lost or doubled cost time but change no result.

Nothing here blocks: a writer that asks for a segment gets None until the reply is there, and the reply wakes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch

from runnel.core.clock import Clock, WallClock
from runnel.core.contracts.inference import Reply
from runnel.core.contracts.samples import Feedback
from runnel.core.errors import RunnelError
from runnel.core.records import Batch, Header, Slot, StreamSpec, check_used, trim
from runnel.core.worker import progressed
from runnel.flow.inference.codec import Bytes, packed, unpack
from runnel.flow.inference.mailboxes import Asker, InferenceSpec
from runnel.flow.params import ChannelSubscriber

Head = dict[str, Any]
Parcel = tuple[Head, Bytes | None]
FIRST_RETRY_S, RETRY_S = 1.5, 10.0
"""Time before a call is sent again: the first time, and the limit up to which it doubles."""
SLOWEST_BYTES_PER_S = 20e6
"""A call with a body has the time more that its bytes take at this rate."""
LONG_POLL_S = 0.5
"""Time for which an agent holds a request that it cannot grant yet (a long poll)."""
FLUSH_S = 30.0
MAX_SENDING = 2
_ALIGN = 64
CLOCK: Clock = WallClock()
"""Clock for the timeouts of calls; a test may replace it."""


class PeerLost(RunnelError):
    """A node does not answer any more, or nothing can be sent to it now."""


class Peer(Protocol):
    """The agent of another node."""

    def call(self, method: str, head: Head, body: Bytes | None = None) -> Future[Parcel]: ...


class Peers(Protocol):
    """The agents of all nodes."""

    def peer(self, node: str) -> Peer: ...

    def stash(self, body: Bytes) -> Any:
        """Store a body once for all nodes; pass the result to `Peer.call`. Raises `PeerLost` if there is no room."""
        ...


class Call:
    """One numbered call, sent again until a reply comes. `peer` may return another node at each try."""

    def __init__(
        self, peer: Callable[[], Peer], method: str, head: Head, body: Bytes | None = None, *, wake: Callable[[], None]
    ) -> None:
        self._peer, self._method, self._head, self._body, self._wake = peer, method, head, body, wake
        self._tries = 0
        self._send()

    def _send(self) -> None:
        self._tries += 1
        self._sent = CLOCK.now()
        self._future = self._peer().call(self._method, self._head, self._body)
        self._future.add_done_callback(lambda _: self._wake())

    def done(self) -> bool:
        """Whether the reply is there; an overdue call is sent again."""
        if self._future.done():
            if not isinstance(self._future.exception(), PeerLost):
                return True
            # The agent was lost: back off, because its node needs time to start a new one.
            if CLOCK.now() - self._sent > min(0.1 * 2**self._tries, 2.0):
                self._send()
        elif CLOCK.now() - self._sent > self._patience_s():
            self._send()
        return False

    def _patience_s(self) -> float:
        size = 0 if self._body is None else len(self._body)
        return float(min(FIRST_RETRY_S * 2 ** (self._tries - 1), RETRY_S) + size / SLOWEST_BYTES_PER_S)

    def result(self) -> Parcel:
        return self._future.result(0.0)

    def wait(self, timeout_s: float) -> None:
        """Wait until the call is done; raise `PeerLost` after `timeout_s`."""
        deadline = CLOCK.now() + timeout_s
        while not self.done():
            if CLOCK.now() > deadline:
                raise PeerLost(f"{self._method} of {self._head.get('stream')!r} was not answered in {timeout_s:g} s")
            progressed()  # this wait has its own deadline, so it must not count as a hang
            with suppress(TimeoutError, PeerLost):
                self._future.result(0.05)


class RemoteWriter:
    """`SampleWriter` for a stream on another node. A segment is filled here, in one block of memory, and sent whole."""

    def __init__(
        self, peer: Callable[[], Peer], spec: StreamSpec, index: int, *, wake: Callable[[], None], first: int = 0
    ) -> None:
        self._peer, self.spec, self.index, self._wake = peer, spec, index, wake
        self._number = first
        self._asked: Call | None = None
        self._granted: Slot | None = None
        self._late: list[str] = []
        self._sending: deque[tuple[Call, Block | None]] = deque()
        self._blocks: list[Block] = []
        self._out: dict[int, Block] = {}
        self._watch: Call | None = None
        self._feedback: list[Feedback] = []
        self._version = 0
        self.num_refused = 0
        """Segments that the other node had cancelled before they arrived."""

    # ---------------------------------------------------------------------------------------------------------- segments
    def reserve(self) -> Slot | None:
        self._settle()
        if len(self._sending) >= MAX_SENDING:
            return None
        self._hear()
        slot, self._granted = self._granted, None
        if slot is None and self._asked is None:
            self._asked = self._call("reserve", {"wait_s": LONG_POLL_S})
        return slot

    def _hear(self) -> None:
        if self._asked is None or not self._asked.done():
            return
        head, _ = self._asked.result()
        self._asked, self._version, self._late = None, head["version"], head.get("held_up_by", [])
        if head["index"] >= 0:
            self._granted = self._slot(head)

    def _slot(self, head: Head) -> Slot:
        block = self._blocks.pop() if self._blocks else Block(self.spec)
        self._out[head["index"]] = block
        return Slot(head["index"], self.spec, Header(**head["header"]), block.arrays)

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        slot.header.num_steps = num_steps
        check_used(self.spec, slot.header.used)
        block = self._out.pop(slot.index)
        body = block.memory if not self.spec.variable else packed(trim(self.spec, slot.arrays, slot.header.used))
        head = {"index": slot.index, "header": vars(slot.header)}
        self._sending.append((self._call("commit", head, body), block))
        # Ask for the next segment at once: its grant then travels while the actor works.
        if self._asked is None and len(self._sending) < MAX_SENDING:
            self._asked = self._call("reserve", {"wait_s": LONG_POLL_S})

    def cancel(self, slot: Slot, reason: str) -> None:
        self._blocks.append(self._out.pop(slot.index))
        head = {"index": slot.index, "sample_id": slot.header.sample_id, "reason": reason}
        self._sending.append((self._call("cancel", head), None))

    def reclaim(self, index: int) -> Slot:
        call = self._call("fetch", {"index": index})
        call.wait(FLUSH_S)
        head, body = call.result()
        assert body is not None, "a segment has a body"
        slot = self._slot(head)
        for key, value in unpack(body, len(body)).items():
            slot.arrays[key].copy_(value)
        return slot

    def _settle(self) -> None:
        while self._sending and self._sending[0][0].done():
            call, block = self._sending.popleft()
            head, _ = call.result()
            self._version = max(self._version, head["version"])
            self.num_refused += head["refused"]
            if block is not None:
                self._blocks.append(block)

    # ------------------------------------------------------------------------------------------------------------ watching
    def feedback(self) -> list[Feedback]:
        self._look()
        found, self._feedback = self._feedback, []
        return found

    def version(self) -> int:
        self._look()
        return self._version

    def held_up_by(self) -> list[str]:
        return self._late

    def _look(self) -> None:
        """Keep one `watch` call open: its reply comes when the version changes or a reader has left feedback."""
        self._see()
        if self._watch is None:
            self._watch = self._call("watch", {"known": self._version, "wait_s": LONG_POLL_S})

    def _see(self) -> None:
        if self._watch is None or not self._watch.done():
            return
        head, body = self._watch.result()
        self._version, self._watch = max(self._version, head["version"]), None
        if body is not None:
            self._feedback += _unpack_feedback(head["ids"], unpack(body, len(body)))

    # -------------------------------------------------------------------------------------------------------------- calls
    def _call(self, method: str, head: Head, body: Bytes | None = None) -> Call:
        self._number += 1
        head = {"stream": self.spec.name, "writer": self.index, "number": self._number, **head}
        return Call(self._peer, method, head, body, wake=self._wake)

    def flush(self) -> None:
        """Wait until all committed segments have arrived; give back a segment that was granted but not begun."""
        for call, _ in self._sending:
            call.wait(FLUSH_S)
        self._settle()
        if self._asked is not None:
            self._asked.wait(FLUSH_S)
            self._hear()
        if self._granted is not None:
            slot, self._granted = self._granted, None
            self._blocks.append(self._out.pop(slot.index))
            back = self._call("give_back", {"index": slot.index, "sample_id": slot.header.sample_id})
            back.wait(FLUSH_S)


class Block:
    """Memory of one segment, contiguous, so that it goes into the object store without packing."""

    def __init__(self, spec: StreamSpec) -> None:
        places, size = block_places(spec)
        self.memory: Bytes = np.zeros(size, np.uint8)
        self.arrays = block_arrays(spec, self.memory, places)


Places = dict[str, tuple[int, int]]


def block_places(spec: StreamSpec) -> tuple[Places, int]:
    """Layout of a segment's block: (first byte, number of values) of each array, and the size in bytes."""
    at, places = 0, {}
    for name, field in spec.fields.items():
        count = int(np.prod(spec.shape(name), dtype=np.int64))
        places[name] = (at, count)
        at += -(-count * field.dtype.itemsize // _ALIGN) * _ALIGN
    return places, max(at, _ALIGN)


def block_arrays(spec: StreamSpec, memory: Bytes, places: Places) -> Batch:
    """The arrays of a segment as views of its block."""
    arrays = Batch()
    for name, (at, count) in places.items():
        dtype, shape = spec.fields[name].dtype, spec.shape(name)
        whole = torch.frombuffer(memory, dtype=dtype, count=count, offset=at) if count else torch.zeros(0, dtype=dtype)
        arrays[name] = whole.view(shape)
    return arrays


def pack_feedback(found: Sequence[Feedback]) -> tuple[list[int], Bytes | None]:
    """Pack feedback as a message: the sample ids, and the values in one body."""
    rows = Batch({f"{n}/{k}": v for n, one in enumerate(found) for k, v in one.values.items()})
    return [one.sample_id for one in found], packed(rows) if found else None


def _unpack_feedback(ids: Sequence[int], rows: Mapping[str, torch.Tensor]) -> list[Feedback]:
    found = [Feedback(i, {}) for i in ids]
    for name, value in rows.items():
        number, _, key = name.partition("/")
        found[int(number)].values[key] = value
    return found


class RemoteClient(Asker):
    """`InferenceClient` for policy workers on another node."""

    def __init__(
        self,
        peer: Callable[[], Peer],
        spec: InferenceSpec,
        index: int,
        subscriber: ChannelSubscriber,
        *,
        wake: Callable[[], None],
        first: int = 0,
    ) -> None:
        super().__init__(subscriber, first)
        self._peer, self.spec, self.index, self._wake = peer, spec, index, wake
        self._calls: dict[int, Call] = {}

    def _ask(self, ticket: int) -> None:
        request = self._requests[ticket]
        head = {"stream": self.spec.name, "client": self.index, "number": ticket, "version": request.version}
        head["affinity"] = self._affinity.get(ticket, -1)
        body = packed(request.rows, self.spec.max_bytes, self.spec.name)
        self._calls[ticket] = Call(self._peer, "ask", head, body, wake=self._wake)

    def poll(self) -> int:
        done = [ticket for ticket, call in self._calls.items() if call.done()]
        for ticket in done:
            head, body = self._calls.pop(ticket).result()
            assert body is not None, "a reply has rows"
            self._replies[ticket] = Reply(ticket, unpack(body, len(body)), head["version"])
        return len(done)

    def abort(self, tickets: Sequence[int]) -> None:
        running = [t for t in tickets if self._calls.pop(t, None) is not None]
        for ticket in tickets:
            self._forget(ticket)
        if running:
            self._peer().call("abort", {"stream": self.spec.name, "client": self.index, "tickets": running})
