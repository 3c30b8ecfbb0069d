"""Mailboxes in shared memory between clients and policy workers in other processes.

A client that gets None from `ready` waits for the policy worker, which rings the doorbell after each reply. A policy worker
without requests waits for clients to submit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from runnel.core.clock import Clock, WallClock
from runnel.core.contracts.inference import Reply, Request, RowPolicy
from runnel.core.records import Batch
from runnel.core.state import State, WorkerEvent
from runnel.flow.inference.codec import pack, unpack
from runnel.flow.params import ChannelSubscriber, Kept


class InferenceServer(Protocol):
    """A policy worker's end of an inference stream."""

    def poll(self) -> list[Request]: ...

    def reply(self, replies: Sequence[Reply]) -> None: ...

    def aborted(self) -> list[int]:
        """Requests that their clients have aborted since the last call."""
        ...


# --------------------------------------------------------------------------------------------------------- mailboxes
FREE, ASKED, SERVING, ANSWERED, ABORTED, LOST = range(6)
STATE, ID, VERSION, SIZE, AFFINITY = range(5)
BOX = 5
"""Count of control numbers of a mailbox."""
ALIVE_S = 2.0
"""A policy worker that has not polled its mailboxes for this time counts as gone, and others serve its clients."""


@dataclass(frozen=True)
class InferenceSpec:
    """Sizes of an inference stream between processes: clients, servers, mailboxes, and bytes of a message."""

    name: str
    num_clients: int
    num_servers: int = 1
    depth: int = 4
    """Number of mailboxes of a client. Further requests wait in the client."""
    max_bytes: int = 1 << 16
    fixed: bool = True
    """Whether each server has its own clients (deterministic). Otherwise the servers that are alive share the requests by
    affinity, and an idle server takes requests of the others."""

    @property
    def num_boxes(self) -> int:
        return self.num_clients * self.depth

    @property
    def num_numbers(self) -> int:
        """Count of control numbers: those of the mailboxes, then one for each server.

        A server's number is the time of its last poll (nanoseconds); with `fixed` it is a mark: 1 if the server serves these
        mailboxes (if no server is marked, all do).
        """
        return self.num_boxes * BOX + self.num_servers


class MailboxTable:
    """Mailboxes in memory that both ends share: a few numbers and a payload for each. Nothing is pickled."""

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
    def local(spec: InferenceSpec) -> MailboxTable:
        return MailboxTable(spec, np.zeros(spec.num_numbers, np.int64), np.zeros(spec.num_boxes * spec.max_bytes, np.uint8))

    def serve_by(self, servers: Sequence[int]) -> None:
        """Divide the clients of `fixed` mailboxes among these servers. Clients send requests in progress again."""
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
        """Free the mailboxes of a client that is gone, except those with a ticket in `keep`; servers see an abort."""
        boxes = slice(client * self.spec.depth, (client + 1) * self.spec.depth)
        with self.lock:
            states, tickets = self.control[boxes, STATE], self.control[boxes, ID].tolist()
            gone = np.array([ticket not in keep for ticket in tickets])
            served = (states == SERVING) | (states == ABORTED)
            states[:] = np.where(gone, np.where(served, ABORTED, FREE), states)
        self.ring()


class Asker:
    """Base of the clients of policy workers in other processes. Tickets count up from `first`.

    A client keeps each request until its reply is read, so it can send the request again after a resume or a loss.
    """

    def __init__(self, subscriber: ChannelSubscriber, first: int) -> None:
        self._subscriber = subscriber
        self._requests: dict[int, Request] = {}
        self._replies: dict[int, Reply] = {}
        self._affinity: dict[int, int] = {}
        self._next = first
        self.version = -1

    def _ask(self, ticket: int) -> None:
        """Send a request, or queue it for sending."""
        raise NotImplementedError

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        ticket = self._next
        self._next += 1
        # A copy, because the caller reuses its rows and this request may be sent again.
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
        """Whether `version` has been published. The policy worker loads the parameters, not this client."""
        found = self._subscriber.newest()
        self.version = max(self.version, found)
        return found >= max(version, 0)

    def constants(self, version: int = -1) -> Mapping[str, Tensor] | None:
        return self._subscriber.constants(version)

    def events(self) -> list[WorkerEvent]:
        """None here: the policy worker emits them."""
        return []

    def snapshot(self, kept: Kept | None = None) -> State:
        """The open requests; after a restore they are sent again."""
        # No parameters are saved: a request only names a version that its segment requires, and the channel still has that one.
        requests = {str(t): {"rows": dict(r.rows), "version": r.version} for t, r in self._requests.items()}
        return {"next": self._next, "channel": self._subscriber.channel, "version": self.version, "requests": requests}

    def restore(self, state: State) -> None:
        self._next, self.version = state["next"], state["version"]
        for ticket, request in state["requests"].items():
            self._requests[int(ticket)] = Request(int(ticket), Batch(request["rows"]), request["version"])
            self._ask(int(ticket))

    def close(self) -> None:
        """No-op: the policy worker closes its inferencer."""


class MailboxClient(Asker):
    """An `InferenceClient` that writes requests to its mailboxes and reads replies from them.

    Tickets must differ from those of any earlier client of the same mailboxes; requests of an earlier client are cancelled.
    """

    def __init__(self, mailboxes: MailboxTable, client: int, subscriber: ChannelSubscriber, *, first: int = 0) -> None:
        super().__init__(subscriber, first)
        depth = mailboxes.spec.depth
        self._mailboxes, self._boxes, self._client = mailboxes, range(client * depth, (client + 1) * depth), client
        self._unsent: deque[int] = deque()
        self._first = first
        # A mailbox in service is not freed here: its server still writes into it, and frees it when it sees the abort.
        with mailboxes.lock:
            states = mailboxes.control[self._boxes.start : self._boxes.stop, STATE]
            served = (states == SERVING) | (states == ABORTED)
            states[:] = np.where(served, ABORTED, FREE)

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        ticket = super().submit(rows, version=version, affinity=affinity)
        self._send()
        return ticket

    def _ask(self, ticket: int) -> None:
        self._unsent.append(ticket)

    def _send(self) -> None:
        mailboxes, sent = self._mailboxes, False
        with mailboxes.lock:
            for box in self._boxes:
                if not self._unsent:
                    break
                if mailboxes.control[box, STATE] != FREE:
                    continue
                request = self._requests[self._unsent.popleft()]
                size = pack(request.rows, mailboxes.payload[box], mailboxes.spec.name)
                affinity = self._affinity.get(request.id, self._client)
                mailboxes.control[box] = (ASKED, request.id, request.version, size, affinity)
                sent = True
        if sent:
            mailboxes.ring()

    def poll(self) -> int:
        mailboxes, num = self._mailboxes, 0
        with mailboxes.lock:
            for box in self._boxes:
                # A ticket of another range: a request of an earlier client of these mailboxes, or of the node's agent.
                if not self._first <= (ticket := int(mailboxes.control[box, ID])) < self._next:
                    continue
                if mailboxes.control[box, STATE] == ANSWERED:
                    rows = unpack(mailboxes.payload[box], int(mailboxes.control[box, SIZE]))
                    if ticket in self._requests:
                        self._replies[ticket] = Reply(ticket, rows, int(mailboxes.control[box, VERSION]))
                    mailboxes.control[box, STATE] = FREE
                    num += 1
                elif mailboxes.control[box, STATE] == LOST:
                    if ticket in self._requests:
                        self._unsent.append(ticket)
                    mailboxes.control[box, STATE] = FREE
                    num += 1
        if self._unsent:
            self._send()
        return num

    def abort(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            self._forget(ticket)
            if ticket in self._unsent:
                self._unsent.remove(ticket)
        with self._mailboxes.lock:
            for box in self._boxes:
                state, ticket = self._mailboxes.control[box, STATE], self._mailboxes.control[box, ID]
                if state in (ASKED, SERVING) and int(ticket) in tickets:
                    self._mailboxes.control[box, STATE] = FREE if state == ASKED else ABORTED

    def tickets(self) -> range:
        """The range of this client's tickets, open and finished."""
        return range(self._first, self._next)

    def restore(self, state: State) -> None:
        self._first = min(0, state["next"])
        super().restore(state)


class MailboxServer:
    """The server's end of the mailboxes. With `fixed`, server i of n serves clients i, i + n, ...

    Without `fixed` the servers share all requests.

    Requests that an earlier server of this number was serving return to their clients, which send them again.
    """

    def __init__(self, mailboxes: MailboxTable, server: int) -> None:
        spec = mailboxes.spec
        self._mailboxes, self._server = mailboxes, server
        self._marks: bytes | None = None
        self._boxes = np.zeros(spec.num_boxes, np.bool_)
        self._box_of: dict[int, int] = {}
        self._ticket_of: dict[int, int] = {}
        self._next = 0
        with mailboxes.lock:
            states, mine = (
                mailboxes.control[:, STATE],
                self._own() if spec.fixed else mailboxes.control[:, VERSION] == _by(server),
            )
            mailboxes.control[mine & (states == SERVING), STATE] = LOST
            mailboxes.control[mine & (states == ABORTED), STATE] = FREE

    def poll(self) -> list[Request]:
        mailboxes, out = self._mailboxes, []
        with mailboxes.lock:
            for box in self._mine():
                rows = unpack(mailboxes.payload[box], int(mailboxes.control[box, SIZE]))
                out.append(Request(self._next, rows, int(mailboxes.control[box, VERSION])))
                self._box_of[self._next], self._ticket_of[self._next] = box, int(mailboxes.control[box, ID])
                self._next += 1
                mailboxes.control[box, STATE] = SERVING
                if not mailboxes.spec.fixed:
                    mailboxes.control[box, VERSION] = _by(self._server)
        return out

    def _own(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask of the mailboxes of this server's clients, given the servers that are marked now."""
        mailboxes = self._mailboxes
        if self._marks != (marks := mailboxes.looked.tobytes()):
            here = np.flatnonzero(mailboxes.looked).tolist() or list(range(mailboxes.spec.num_servers))
            clients = np.arange(mailboxes.spec.num_boxes) // mailboxes.spec.depth
            is_here = self._server in here
            self._boxes = clients % len(here) == (here.index(self._server) if is_here else -1)
            self._marks = marks
        return self._boxes

    def _mine(self) -> list[int]:
        """Mailboxes to serve now. Not `fixed`: those of its affinity; an idle server also takes its part of all that wait."""
        mailboxes = self._mailboxes
        asked = mailboxes.control[:, STATE] == ASKED
        if mailboxes.spec.fixed:
            return np.flatnonzero(asked & self._own()).tolist()
        now = int(mailboxes.clock.now() * 1e9)
        mailboxes.looked[self._server] = now
        alive = np.flatnonzero(now - mailboxes.looked < ALIVE_S * 1e9).tolist()
        if len(alive) < mailboxes.spec.num_servers:
            # -2 - VERSION is the server of a mailbox in service (see `_by`).
            states, gone = mailboxes.control[:, STATE], ~np.isin(-2 - mailboxes.control[:, VERSION], alive)
            states[gone & (states == ABORTED)] = FREE
            states[gone & (states == SERVING)] = LOST
        mine = asked & (mailboxes.control[:, AFFINITY] % len(alive) == alive.index(self._server))
        if mine.any() or self._box_of:
            return np.flatnonzero(mine).tolist()
        waiting = np.flatnonzero(asked).tolist()
        return waiting[: -(-len(waiting) // len(alive))]

    def origin(self, request: int) -> tuple[int, int]:
        """The client of a request in service, and the request's affinity."""
        box = self._box_of[request]
        return box // self._mailboxes.spec.depth, int(self._mailboxes.control[box, AFFINITY])

    def reply(self, replies: Sequence[Reply]) -> None:
        if not replies:
            return
        mailboxes = self._mailboxes
        with mailboxes.lock:
            for reply in replies:
                box = self._close(reply.id)
                if box is None:
                    continue
                if mailboxes.control[box, STATE] == ABORTED:
                    mailboxes.control[box, STATE] = FREE
                    continue
                size = pack(reply.rows, mailboxes.payload[box], mailboxes.spec.name)
                mailboxes.control[box, [STATE, VERSION, SIZE]] = (ANSWERED, reply.version, size)
        mailboxes.ring()

    def _close(self, request: int) -> int | None:
        """End the service of a request; returns its mailbox, or None if the request is no longer there."""
        # It is not there if this server was slow and counted as gone: its client has then sent the request again.
        box, ticket = self._box_of.pop(request), self._ticket_of.pop(request)
        is_there = self._mailboxes.control[box, ID] == ticket and self._mailboxes.control[box, STATE] in (SERVING, ABORTED)
        return box if is_there else None

    def give_up(self) -> None:
        """Stop serving: clients send their requests again, to another server."""
        with self._mailboxes.lock:
            for request in list(self._box_of):
                if (box := self._close(request)) is not None:
                    states = self._mailboxes.control[:, STATE]
                    states[box] = LOST if states[box] == SERVING else FREE
        self._mailboxes.ring()

    def aborted(self) -> list[int]:
        gone, control = [], self._mailboxes.control
        with self._mailboxes.lock:
            for request, box in list(self._box_of.items()):
                if control[box, STATE] == ABORTED and control[box, ID] == self._ticket_of[request]:
                    del self._box_of[request], self._ticket_of[request]
                    control[box, STATE] = FREE
                    gone.append(request)
        return gone


def _by(server: int) -> int:
    """Index of the serving worker, as stored in the version field while it serves: after a restart it finds its requests."""
    return -2 - server


# ------------------------------------------------------------------------------------------------------------ packing
