"""Inference streams: the inline client, and a board of mailboxes for policy workers elsewhere.

A client that gets None from `ready` waits for the policy (inline: for its own `poll` to finish the work; remote: for the
policy worker to answer, which rings the doorbell). A policy worker with no requests waits for clients to submit.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.clock import Clock, WallClock
from runnel.core.errors import CheckpointError, ConfigError
from runnel.core.protocols import Closes, DirectInferencer, Inferencer, ParamSet, Reply, Request, RowPolicy, State
from runnel.flow.params import ChannelSubscriber, Kept, load


class Server(Protocol):
    """The serving end of an inference stream, as a policy worker sees it."""

    def poll(self) -> list[Request]: ...

    def reply(self, replies: Sequence[Reply]) -> None: ...

    def aborted(self) -> list[int]:
        """Requests that their client gave up since the last call."""
        ...


class InlineClient:
    """The policy lives beside its client, which owns it; `submit` of an immediate inferencer has answered when it returns."""

    def __init__(self, inferencer: Inferencer, subscriber: ChannelSubscriber) -> None:
        self._inferencer, self._subscriber = inferencer, subscriber
        self._replies: dict[int, Reply] = {}
        self._next = 0
        self._loaded: ParamSet | None = None
        self._events: list[dict[str, Any]] = []
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

    def newest(self) -> int:
        """Newest version published, loaded here or not; -1 before any."""
        return self._subscriber.newest()

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters of the loaded version; shared ones move on with the learner's next update."""
        return {} if self._loaded is None else self._loaded.params

    def events(self) -> list[dict[str, Any]]:
        """What there was to tell of loaded versions since the last call."""
        out, self._events = self._events, []
        return out

    def snapshot(self, kept: Kept | None = None) -> State:
        """With the parameters, if a checkpoint that holds `kept` (None: what the channel has) lacks the version loaded here.

        Shared tensors have moved on with the learner: nothing can be asked of them before the next `sync`.
        """
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


# --------------------------------------------------------------------------------------------------------- mailboxes
FREE, ASKED, SERVING, ANSWERED, ABORTED, LOST = range(6)
STATE, ID, VERSION, SIZE, AFFINITY = range(5)
BOX = 5
"""Numbers of a mailbox."""
ALIVE_S = 2.0
"""A policy worker that has not looked at its board for so long is taken for gone, and others serve its clients."""
_ALIGN = 16


@dataclass(frozen=True)
class InferenceSpec:
    """An inference stream between processes: its clients, their mailboxes, the bytes of a request and of a reply."""

    name: str
    num_clients: int
    num_servers: int = 1
    depth: int = 4
    """Requests that one client may have outstanding in mailboxes; more wait in the client."""
    max_bytes: int = 1 << 16
    fixed: bool = True
    """Each server has its own clients, whatever the others do (deterministic). Else those that are alive share the requests by
    affinity, and who is idle takes from the others."""

    @property
    def num_boxes(self) -> int:
        return self.num_clients * self.depth

    @property
    def num_numbers(self) -> int:
        """Control numbers: those of the boxes, then one a server: when it last looked (nanoseconds); `fixed`: whether it is one
        of those that serve the board (if none is marked, all are)."""
        return self.num_boxes * BOX + self.num_servers


class Board:
    """Mailboxes in memory that both ends see: a few numbers and a payload each way. Nothing is pickled."""

    def __init__(
        self,
        spec: InferenceSpec,
        control: np.ndarray[Any, np.dtype[np.int64]],
        payload: np.ndarray[Any, np.dtype[np.uint8]],
        *,
        lock: AbstractContextManager[Any] | None = None,
        ring: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.spec, self.clock = spec, clock or WallClock()
        self.control = control[: spec.num_boxes * BOX].reshape(spec.num_boxes, BOX)
        self.looked = control[spec.num_boxes * BOX :]
        self.payload = payload.reshape(spec.num_boxes, spec.max_bytes)
        self.lock: AbstractContextManager[Any] = lock if lock is not None else nullcontext()
        self.ring = ring if ring is not None else lambda: None

    @staticmethod
    def local(spec: InferenceSpec) -> Board:
        return Board(spec, np.zeros(spec.num_numbers, np.int64), np.zeros(spec.num_boxes * spec.max_bytes, np.uint8))

    def serve_by(self, servers: Sequence[int]) -> None:
        """Have these share the clients of a `fixed` board. What was being served goes back: who waits asks again."""
        marks = [int(server in servers) for server in range(self.spec.num_servers)]
        if self.looked.tolist() == marks:
            return
        with self.lock:
            self.looked[:] = marks
            states = self.control[:, STATE]
            states[states == SERVING] = LOST
            states[states == ABORTED] = FREE
        self.ring()

    def vacate(self, client: int, *, keep: range) -> None:
        """A client is gone: its mailboxes are free again, but for tickets that are still waited for. Who serves one is told."""
        boxes = slice(client * self.spec.depth, (client + 1) * self.spec.depth)
        with self.lock:
            states, tickets = self.control[boxes, STATE], self.control[boxes, ID].tolist()
            gone = np.array([ticket not in keep for ticket in tickets])
            served = (states == SERVING) | (states == ABORTED)
            states[:] = np.where(gone, np.where(served, ABORTED, FREE), states)
        self.ring()


class Asker:
    """What clients of policy workers elsewhere have in common: each request is kept until its reply is taken, so that it can be
    asked again after a resume, or where it was lost. Tickets count up from `first`."""

    def __init__(self, subscriber: ChannelSubscriber, first: int) -> None:
        self._subscriber = subscriber
        self._requests: dict[int, Request] = {}
        self._replies: dict[int, Reply] = {}
        self._affinity: dict[int, int] = {}
        self._next = first
        self.version = -1

    def _ask(self, ticket: int) -> None:
        """See to it that a request that is kept is sent."""
        raise NotImplementedError

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        ticket = self._next
        self._next += 1
        self._requests[ticket] = Request(ticket, rows.map(lambda x: x.clone()), version)
        if affinity >= 0:
            self._affinity[ticket] = affinity
        self._ask(ticket)
        return ticket

    def ready(self, ticket: int) -> Reply | None:
        reply = self._replies.get(ticket)
        if reply is not None:
            self._forget(ticket)
            self.version = max(self.version, reply.version)
        return reply

    def _forget(self, ticket: int) -> None:
        self._requests.pop(ticket, None)
        self._affinity.pop(ticket, None)
        self._replies.pop(ticket, None)

    def local(self) -> Callable[[Batch], Batch] | None:
        return None

    def row_policy(self) -> RowPolicy | None:
        return None

    def pending(self) -> int:
        return len(self._requests) - len(self._replies)

    def sync(self, version: int = -1) -> bool:
        """The policy worker loads parameters; here it is enough that the version has been published."""
        found = self._subscriber.newest()
        self.version = max(self.version, found)
        return found >= max(version, 0)

    def events(self) -> list[dict[str, Any]]:
        """The policy worker tells."""
        return []

    def snapshot(self, kept: Kept | None = None) -> State:
        """What was asked is asked again. A version that it names is one that its segment requires, and such a one is never
        further back than the channel keeps: parameters need not be saved here."""
        requests = {str(t): {"rows": dict(r.rows), "version": r.version} for t, r in self._requests.items()}
        return {"next": self._next, "channel": self._subscriber.channel, "version": self.version, "requests": requests}

    def restore(self, state: State) -> None:
        self._next, self.version = state["next"], state["version"]
        for ticket, request in state["requests"].items():
            self._requests[int(ticket)] = Request(int(ticket), Batch(request["rows"]), request["version"])
            self._ask(int(ticket))

    def close(self) -> None:
        """The policy worker closes its inferencer."""


class BoardClient(Asker):
    """`InferenceClient` over a board. Its tickets must not be those of another that has or had the boxes; what one before it
    had asked is given up."""

    def __init__(self, board: Board, client: int, subscriber: ChannelSubscriber, *, first: int = 0) -> None:
        super().__init__(subscriber, first)
        depth = board.spec.depth
        self._board, self._boxes, self._client = board, range(client * depth, (client + 1) * depth), client
        self._unsent: deque[int] = deque()
        self._first = first
        with board.lock:
            states = board.control[self._boxes.start : self._boxes.stop, STATE]
            served = (states == SERVING) | (states == ABORTED)
            states[:] = np.where(served, ABORTED, FREE)

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        ticket = super().submit(rows, version=version, affinity=affinity)
        self._send()
        return ticket

    def _ask(self, ticket: int) -> None:
        self._unsent.append(ticket)

    def _send(self) -> None:
        board, sent = self._board, False
        with board.lock:
            for box in self._boxes:
                if not self._unsent:
                    break
                if board.control[box, STATE] != FREE:
                    continue
                request = self._requests[self._unsent.popleft()]
                size = pack(request.rows, board.payload[box], board.spec.name)
                affinity = self._affinity.get(request.id, self._client)
                board.control[box] = (ASKED, request.id, request.version, size, affinity)
                sent = True
        if sent:
            board.ring()

    def poll(self) -> int:
        board, num = self._board, 0
        with board.lock:
            for box in self._boxes:
                if not self._first <= (ticket := int(board.control[box, ID])) < self._next:
                    continue
                if board.control[box, STATE] == ANSWERED:
                    rows = unpack(board.payload[box], int(board.control[box, SIZE]))
                    if ticket in self._requests:
                        self._replies[ticket] = Reply(ticket, rows, int(board.control[box, VERSION]))
                    board.control[box, STATE] = FREE
                    num += 1
                elif board.control[box, STATE] == LOST:
                    if ticket in self._requests:
                        self._unsent.append(ticket)
                    board.control[box, STATE] = FREE
                    num += 1
        if self._unsent:
            self._send()
        return num

    def abort(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            self._forget(ticket)
            if ticket in self._unsent:
                self._unsent.remove(ticket)
        with self._board.lock:
            for box in self._boxes:
                state, ticket = self._board.control[box, STATE], self._board.control[box, ID]
                if state in (ASKED, SERVING) and int(ticket) in tickets:
                    self._board.control[box, STATE] = FREE if state == ASKED else ABORTED

    def tickets(self) -> range:
        """Those that are or were its own."""
        return range(self._first, self._next)

    def restore(self, state: State) -> None:
        self._first = min(0, state["next"])
        super().restore(state)


class BoardServer:
    """The serving end: of the clients whose number is `server` modulo the number of servers, or (where that is not `fixed`) of
    its share of the requests.

    What one before it was serving when it was lost is given back: the clients ask again.
    """

    def __init__(self, board: Board, server: int) -> None:
        spec = board.spec
        self._board, self._server = board, server
        self._marks: bytes | None = None
        self._boxes = np.zeros(spec.num_boxes, np.bool_)
        self._box_of: dict[int, int] = {}
        self._ticket_of: dict[int, int] = {}
        self._next = 0
        with board.lock:
            states, mine = board.control[:, STATE], self._own() if spec.fixed else board.control[:, VERSION] == _by(server)
            board.control[mine & (states == SERVING), STATE] = LOST
            board.control[mine & (states == ABORTED), STATE] = FREE

    def poll(self) -> list[Request]:
        board, out = self._board, []
        with board.lock:
            for box in self._mine():
                rows = unpack(board.payload[box], int(board.control[box, SIZE]))
                out.append(Request(self._next, rows, int(board.control[box, VERSION])))
                self._box_of[self._next], self._ticket_of[self._next] = box, int(board.control[box, ID])
                self._next += 1
                board.control[box, STATE] = SERVING
                if not board.spec.fixed:
                    board.control[box, VERSION] = _by(self._server)
        return out

    def _own(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Boxes of its clients, by those who serve the board now."""
        board = self._board
        if self._marks != (marks := board.looked.tobytes()):
            here = np.flatnonzero(board.looked).tolist() or list(range(board.spec.num_servers))
            clients = np.arange(board.spec.num_boxes) // board.spec.depth
            is_here = self._server in here
            self._boxes = clients % len(here) == (here.index(self._server) if is_here else -1)
            self._marks = marks
        return self._boxes

    def _mine(self) -> list[int]:
        """Boxes to serve now. Shared: those of its affinity; if it has nothing at all to do, its share of what others have not
        begun."""
        board = self._board
        asked = board.control[:, STATE] == ASKED
        if board.spec.fixed:
            return np.flatnonzero(asked & self._own()).tolist()
        now = int(board.clock.now() * 1e9)
        board.looked[self._server] = now
        alive = np.flatnonzero(now - board.looked < ALIVE_S * 1e9).tolist()
        if len(alive) < board.spec.num_servers:
            states, gone = board.control[:, STATE], ~np.isin(-2 - board.control[:, VERSION], alive)
            states[gone & (states == ABORTED)] = FREE
            states[gone & (states == SERVING)] = LOST
        mine = asked & (board.control[:, AFFINITY] % len(alive) == alive.index(self._server))
        if mine.any() or self._box_of:
            return np.flatnonzero(mine).tolist()
        waiting = np.flatnonzero(asked).tolist()
        return waiting[: -(-len(waiting) // len(alive))]

    def origin(self, request: int) -> tuple[int, int]:
        """Whose request it is, while it is being served, and its affinity."""
        box = self._box_of[request]
        return box // self._board.spec.depth, int(self._board.control[box, AFFINITY])

    def reply(self, replies: Sequence[Reply]) -> None:
        if not replies:
            return
        board = self._board
        with board.lock:
            for reply in replies:
                box = self._close(reply.id)
                if box is None:
                    continue
                if board.control[box, STATE] == ABORTED:
                    board.control[box, STATE] = FREE
                    continue
                size = pack(reply.rows, board.payload[box], board.spec.name)
                board.control[box, [STATE, VERSION, SIZE]] = (ANSWERED, reply.version, size)
        board.ring()

    def _close(self, request: int) -> int | None:
        """The box of a request, which is not served any more; None if the request is no longer there: this server was slow, was
        taken for gone, and the client has asked again."""
        box, ticket = self._box_of.pop(request), self._ticket_of.pop(request)
        is_there = self._board.control[box, ID] == ticket and self._board.control[box, STATE] in (SERVING, ABORTED)
        return box if is_there else None

    def give_up(self) -> None:
        """Serve no more: who waits asks again, and another answers."""
        with self._board.lock:
            for request in list(self._box_of):
                if (box := self._close(request)) is not None:
                    states = self._board.control[:, STATE]
                    states[box] = LOST if states[box] == SERVING else FREE
        self._board.ring()

    def aborted(self) -> list[int]:
        gone, control = [], self._board.control
        with self._board.lock:
            for request, box in list(self._box_of.items()):
                if control[box, STATE] == ABORTED and control[box, ID] == self._ticket_of[request]:
                    del self._box_of[request], self._ticket_of[request]
                    control[box, STATE] = FREE
                    gone.append(request)
        return gone


def _by(server: int) -> int:
    """What stands in place of a request's version while `server` is at it: whoever takes its place then knows."""
    return -2 - server


# ------------------------------------------------------------------------------------------------------------ packing
_HOST: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.bfloat16: None,
}
"""Types that may travel, and what numpy calls them: its views cost a fifth of torch's."""
_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _HOST}
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Leaf = tuple[str, torch.dtype, tuple[int, ...]]


class _Layout(NamedTuple):
    """Where the leaves of a message lie: its first bytes, (start, stop) of each leaf, and the size of it all."""

    head: Bytes
    leaves: tuple[Leaf, ...]
    places: tuple[tuple[int, int], ...]
    size: int


def pack(rows: Batch, out: Bytes, name: str) -> int:
    """Write `rows` into `out`: a length, a JSON header of names, types and shapes, then the arrays. Returns the bytes."""
    layout = _layout(tuple((k, v.dtype, v.shape) for k, v in rows.items()))
    if layout.size > len(out):
        raise ConfigError(f"{name}.max_bytes", len(out), f"a message takes {layout.size} bytes; use at least that")
    out[: len(layout.head)] = layout.head
    for value, (start, stop) in zip(rows.values(), layout.places, strict=True):
        kind = _HOST[value.dtype]
        if kind is not None:
            out[start:stop].view(kind).reshape(value.shape)[...] = value.numpy(force=True)
        elif stop > start:
            out[start:stop] = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return layout.size


def packed(rows: Batch, max_bytes: int = 1 << 62, name: str = "") -> Bytes:
    """`pack` into memory of its own; a message of more than `max_bytes` is refused."""
    size = _layout(tuple((k, v.dtype, v.shape) for k, v in rows.items())).size
    out = np.empty(min(size, max_bytes), np.uint8)
    pack(rows, out, name)
    return out


def unpack(data: Bytes, size: int) -> Batch:
    """Undo `pack`; the tensors own their memory."""
    length = int(data[:8].view(np.int64)[0])
    layout = _parse(data[8 : 8 + length].tobytes())
    body, rows = data[:size].copy(), Batch()
    for (key, dtype, shape), (start, stop) in zip(layout.leaves, layout.places, strict=True):
        kind = _HOST[dtype]
        raw = body[start:stop]
        whole = torch.from_numpy(raw).view(dtype) if kind is None else torch.from_numpy(raw.view(kind))
        rows[key] = whole.view(shape)
    return rows


@lru_cache(maxsize=1024)
def _layout(leaves: tuple[Leaf, ...]) -> _Layout:
    """Messages of one shape are laid out once: a sampler sends the same one at every step."""
    header = json.dumps([[k, str(dtype).removeprefix("torch."), list(shape)] for k, dtype, shape in leaves]).encode()
    return _place(header, leaves)


@lru_cache(maxsize=1024)
def _parse(header: bytes) -> _Layout:
    return _place(header, tuple((k, _NAMES[dtype], tuple(shape)) for k, dtype, shape in json.loads(header)))


def _place(header: bytes, leaves: tuple[Leaf, ...]) -> _Layout:
    at, places = _aligned(8 + len(header)), []
    for _, dtype, shape in leaves:
        size = math.prod(shape) * dtype.itemsize
        places.append((at, at + size))
        at += _aligned(size)
    head = np.frombuffer(np.int64(len(header)).tobytes() + header, np.uint8)
    return _Layout(head, leaves, tuple(places), at)


def _aligned(num: int) -> int:
    return -(-num // _ALIGN) * _ALIGN
