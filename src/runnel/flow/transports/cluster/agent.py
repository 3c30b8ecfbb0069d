"""The agent of a node: it serves the calls of other nodes to the node's streams.

The agent is one more process on the shared memory of its node. It writes data from other nodes into the tables and mailboxes
there. It receives published parameters once for the whole node, checks them, and publishes them in shared memory.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from runnel.core.contracts.inference import Reply
from runnel.core.errors import DataError
from runnel.core.records import Batch, Header, Slot
from runnel.flow.inference.codec import Bytes, packed, unpack
from runnel.flow.inference.mailboxes import MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import Channel, ChannelSubscriber, checksum
from runnel.flow.slot_memory import RESERVED, VERSION
from runnel.flow.slots import SlotTable
from runnel.flow.transports.cluster.broadcast import ParamBroadcaster
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.ranks import find_share, no_share, put_answer
from runnel.flow.transports.cluster.remote import (
    Head,
    Parcel,
    Peer,
    Peers,
    RemoteClient,
    block_arrays,
    block_places,
    pack_feedback,
)
from runnel.flow.transports.shm import Bells

REMEMBERED = 64
"""Number of replies kept for each sender, for calls that are sent twice."""
REMEMBERED_SHARES = 1
"""The same for parts of batches, which are large. A rank that asks for the next part has received the last."""
BELL_S = 0.5
warnings.filterwarnings("ignore", message="The given buffer is not writable")  # bodies are only read
LIFE_BITS = 32
"""A call number is the sender's restart counter, followed by this many bits that count its calls."""


class NodeAgent:
    """Serves calls of other nodes, all on one event loop. `call` is the only entry; it knows only the methods of one table."""

    def __init__(
        self,
        node: str,
        where: ClusterMap,
        net: Peers,
        *,
        tables: Mapping[str, SlotTable],
        mailbox_tables: Mapping[str, MailboxTable],
        channels: Mapping[str, Channel],
        bells: Bells,
    ) -> None:
        self.node, self.where, self._net = node, where, net
        self._tables, self._mailbox_tables, self._channels, self._bells = tables, mailbox_tables, channels, bells
        self._places = {name: block_places(table.spec)[0] for name, table in tables.items()}
        self._clients: dict[tuple[str, int], MailboxClient] = {}
        self._asked: dict[tuple[str, int], dict[int, asyncio.Future[Parcel]]] = {}
        self._tickets: dict[tuple[str, int], dict[int, int]] = {}
        """For each client: the local ticket of each call in progress, by call number."""
        self._lives: dict[tuple[str, int], int] = {}
        """For each stream and writer: the highest restart counter that has called."""
        self._granted: dict[tuple[str, int], dict[int, int]] = {}
        """For each stream and writer: the slots that it holds, with their sample ids."""
        self._answers: dict[tuple[Any, ...], OrderedDict[int, asyncio.Future[Parcel]]] = {}
        self._moved = asyncio.Event()
        self._methods: dict[str, Callable[[Head, Bytes | None], Awaitable[Parcel]]] = {
            "reserve": self._reserve,
            "commit": self._commit,
            "cancel": self._cancel,
            "give_back": self._give_back,
            "fetch": self._fetch,
            "watch": self._watch,
            "share": self._share,
            "answer": self._answer,
            "ask": self._ask,
            "abort": self._abort,
            "receive": self._receive,
            "stamps": self._stamps,
        }
        self._relays = {name: Relay(self, name, mailboxes) for name, mailboxes in mailbox_tables.items()}
        self.spreader = ParamBroadcaster(node, net, channels)
        self._closed = False
        self._received: dict[str, tuple[int, int]] = {}
        """For each channel: the last accepted publication (version, order)."""
        self.num_refused = 0
        """Number of parameter versions that arrived damaged."""
        self._tidy()

    def start(self) -> None:
        """Start to listen for the doorbell. To be called on the event loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, daemon=True).start()

    def update(self, where: ClusterMap) -> None:
        """Replace the cluster map; new nodes get the current parameters."""
        if where.number < self.where.number:  # a newer map has overtaken this one
            return
        self.where = where
        self._tidy()
        self._pulse()

    def _tidy(self) -> None:
        """Adapt the mailboxes to the map.

        The policy workers of this node share the clients. Requests of clients that are now on another node are dropped, except
        those that the agent itself makes for them.
        """
        for name, mailboxes in self._mailbox_tables.items():
            if mailboxes.spec.fixed:
                mailboxes.serve_by(self.where.mailbox_tables[name].get(self.node, []))
            for client, node in enumerate(self.where.clients.get(name, [])):
                if node not in ("", self.node):
                    known = self._clients.get((name, client))
                    mailboxes.vacate(client, keep=range(0) if known is None else known.tickets())

    def wake(self) -> None:
        """Have the event loop look at the node's memory again. Callable from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so this agent is too
            self._loop.call_soon_threadsafe(self._pulse)

    def close(self) -> None:
        self._closed = True
        self._bells.ring()

    def _listen(self) -> None:
        while not self._closed:
            self._bells.wait(BELL_S)
            self.wake()

    def _pulse(self) -> None:
        """React to a change in the node's memory: wake waiting calls, deliver replies, relay requests, send versions."""
        # A new event for each change: calls that start to wait from now on wait for the next change.
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        for key, client in self._clients.items():
            if self._asked[key]:
                client.poll()
                self._deliver(key, client)
        for name, relay in self._relays.items():
            relay.move(active=not self.where.mailbox_tables[name].get(self.node))
        self.spreader.move(self.where)

    # --------------------------------------------------------------------------------------------------------------- calls
    async def call(self, method: str, head: Head, body: Bytes | None = None) -> Parcel:
        """Do a call. A repeated call (same sender, same number) gets the reply of the first."""
        if method not in self._methods:
            raise DataError(f"an agent has no method {method!r}")
        if body is not None and (not isinstance(body, np.ndarray) or body.dtype != np.uint8 or body.ndim != 1):
            raise DataError(f"the body of a {method!r} must be bytes in one array")
        if "number" not in head:  # such a call may be done twice: its effect is the same
            return await self._methods[method](head, body)
        sender = (method, head["stream"], head.get("writer"), head.get("client"), head.get("rank"))
        known = self._answers.setdefault(sender, OrderedDict())
        if head["number"] not in known:
            # A call comes twice if its reply was late or lost; the task is kept so that its effect happens only once.
            known[head["number"]] = asyncio.ensure_future(self._methods[method](head, body))
            keep = REMEMBERED_SHARES if method == "share" else REMEMBERED
            # A call in progress is kept however old it is: its sender still waits.
            while len(known) > keep and next(iter(known.values())).done():
                known.popitem(last=False)
        # Shielded: if this caller is cancelled, the repeated call still gets the reply.
        return await asyncio.shield(known[head["number"]])

    def peer(self, node: str) -> Peer:
        return self._net.peer(node)

    def channel(self) -> Channel:
        """This node's copy of the policy's parameter channel."""
        return next(iter(self._channels.values()))

    async def _until_moved(self, deadline: float) -> bool:
        """Wait for a change in the node's memory until `deadline` (loop clock); returns whether one came."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(self._moved.wait())), left)
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------------------- samples
    async def _reserve(self, head: Head, body: Bytes | None) -> Parcel:
        table, deadline = self._table(head), asyncio.get_running_loop().time() + head["wait_s"]
        while True:
            slot = table.reserve(head["writer"]) if self._is_newest(head) else None
            version = int(table.globals[VERSION])
            if slot is not None:
                self._granted.setdefault((head["stream"], head["writer"]), {})[slot.index] = slot.header.sample_id
                return {"index": slot.index, "header": vars(slot.header), "version": version}, None
            if not await self._until_moved(deadline):
                return {"index": -1, "version": version, "held_up_by": table.held_up_by()}, None

    def _is_newest(self, head: Head) -> bool:
        """Whether this writer has not been restarted since it sent the call.

        A request of a dead writer must not be granted, because the segment would never be filled. At the first call of the
        restarted writer, all segments that the old one still holds are cancelled.
        """
        key, life = (head["stream"], head["writer"]), head["number"] >> LIFE_BITS
        newest = self._lives.setdefault(key, life)
        if life > newest:
            self._lives[key] = life
            table = self._table(head)
            for index, sample_id in self._granted.pop(key, {}).items():
                if self._holds(table, {**head, "index": index}, sample_id):
                    table.cancel(table.slot(index), "worker_lost")
        return bool(life >= newest)

    def _table(self, head: Head) -> SlotTable:
        name = head["stream"]
        if name not in self._tables:
            raise DataError(f"stream {name!r} is not stored on this node; streams here: {sorted(self._tables)}")
        return self._tables[name]

    def _holds(self, table: SlotTable, head: Head, sample_id: int) -> bool:
        """Whether the writer still holds the segment; a writer that counted as lost does not."""
        index = head["index"]
        known = table.slot(index).header
        return bool(table.state[index] == RESERVED) and (known.writer, known.sample_id) == (head["writer"], sample_id)

    async def _commit(self, head: Head, body: Bytes | None) -> Parcel:
        table, header = self._table(head), Header(**head["header"])
        assert body is not None, "a segment has a body"
        refused = not self._holds(table, head, header.sample_id)
        if not refused:
            slot = Slot(head["index"], table.spec, header, table.memory.arrays[head["index"]])
            if table.spec.variable:
                self._copy_used(slot, unpack(body, len(body)))
            else:
                for key, value in block_arrays(table.spec, body, self._places[table.spec.name]).items():
                    slot.arrays[key].copy_(value)
            table.commit(slot, header.num_steps)
        self._let_go(head, header.sample_id)
        return {"refused": int(refused), "version": int(table.globals[VERSION])}, None

    def _copy_used(self, slot: Slot, rows: Batch) -> None:
        for key, value in rows.items():
            place = slot.arrays[key]
            for axis, size in enumerate(value.shape):
                place = place.narrow(axis, 0, size)
            place.copy_(value)

    async def _cancel(self, head: Head, body: Bytes | None) -> Parcel:
        table = self._table(head)
        refused = not self._holds(table, head, head["sample_id"])
        if not refused:
            table.cancel(table.slot(head["index"]), head["reason"])
        self._let_go(head, head["sample_id"])
        return {"refused": int(refused), "version": int(table.globals[VERSION])}, None

    async def _give_back(self, head: Head, body: Bytes | None) -> Parcel:
        """Undo a reservation: the segment was granted but never begun."""
        table = self._table(head)
        if self._holds(table, head, head["sample_id"]):
            table.give_back(table.slot(head["index"]))
        self._let_go(head, head["sample_id"])
        return {}, None

    def _let_go(self, head: Head, sample_id: int) -> None:
        """Forget a segment that the writer has finished."""
        held = self._granted.get((head["stream"], head["writer"]), {})
        if held.get(head["index"]) == sample_id:
            del held[head["index"]]

    async def _fetch(self, head: Head, body: Bytes | None) -> Parcel:
        table = self._table(head)
        slot = table.slot(head["index"])
        found = {"index": slot.index, "header": vars(slot.header), "version": int(table.globals[VERSION])}
        return found, packed(slot.arrays)

    async def _watch(self, head: Head, body: Bytes | None) -> Parcel:
        table, deadline = self._table(head), asyncio.get_running_loop().time() + head["wait_s"]
        while True:
            found, version = table.collect_feedback(head["writer"]), int(table.globals[VERSION])
            if found or version > head["known"] or not await self._until_moved(deadline):
                ids, values = pack_feedback(found)
                return {"version": version, "ids": ids}, values

    # --------------------------------------------------------------------------------------------------------------- ranks
    async def _share(self, head: Head, body: Bytes | None) -> Parcel:
        table, deadline = self._table(head), asyncio.get_running_loop().time() + head["wait_s"]
        while True:
            found = find_share(table, head)
            if found is not None:
                return found
            if not await self._until_moved(deadline):
                return no_share(table, head)

    async def _answer(self, head: Head, body: Bytes | None) -> Parcel:
        return put_answer(self._table(head), head, body)

    # ----------------------------------------------------------------------------------------------------------- inference
    async def _ask(self, head: Head, body: Bytes | None) -> Parcel:
        assert body is not None, "a request has rows"
        key = (head["stream"], head["client"])
        if key not in self._clients:
            subscriber = ChannelSubscriber(self.channel())
            # Tickets far from all others: a client on this node may have used these mailboxes before, or use them later.
            first = (1 << 62) + (secrets.randbits(29) << LIFE_BITS)
            self._clients[key], self._asked[key] = (
                MailboxClient(self._mailbox_tables[key[0]], key[1], subscriber, first=first),
                {},
            )
        client, answer = self._clients[key], asyncio.get_running_loop().create_future()
        ticket = client.submit(unpack(body, len(body)), version=head["version"], affinity=head["affinity"])
        self._asked[key][ticket] = answer
        tickets = self._tickets.setdefault(key, {})
        tickets[head["number"]] = ticket
        try:
            found: Parcel = await answer
        finally:
            tickets.pop(head["number"], None)
        return found

    def _deliver(self, key: tuple[str, int], client: MailboxClient) -> None:
        for ticket in list(self._asked[key]):
            reply = client.ready(ticket)
            if reply is not None:
                future = self._asked[key].pop(ticket)
                if not future.done():
                    future.set_result(({"version": reply.version}, packed(reply.rows)))

    async def _abort(self, head: Head, body: Bytes | None) -> Parcel:
        """Abort requests that their client has dropped: tell the policy worker and free the mailboxes.

        Calls may overtake each other: a request that arrives after its own abort is not passed on.
        """
        key = (head["stream"], head["client"])
        known = self._answers.setdefault(("ask", key[0], None, key[1], None), OrderedDict())
        tickets = self._tickets.get(key, {})
        gone = [tickets[number] for number in head["tickets"] if number in tickets]
        for answer in [self._asked[key].pop(ticket, None) for ticket in gone]:
            if answer is not None and not answer.done():
                answer.set_result(({"version": -1}, None))
        for number in set(head["tickets"]) - known.keys():
            known[number] = asyncio.get_running_loop().create_future()
            known[number].set_result(({"version": -1}, None))
        if gone:
            self._clients[key].abort(gone)
            self._clients[key].poll()
            self._deliver(key, self._clients[key])
        return {}, None

    # ---------------------------------------------------------------------------------------------------------- parameters
    async def _stamps(self, head: Head, body: Bytes | None) -> Parcel:
        return {"stamps": list(self._channels[head["name"]].stamps().items())}, None

    async def _receive(self, head: Head, body: Bytes | None) -> Parcel:
        """Receive a version from the node of its publisher: check it, then publish it on this node."""
        assert body is not None, "a version has parameters"
        channel, params = self._channels[head["name"]], unpack(body, len(body))
        if checksum(params) != head["crc"]:
            self.num_refused += 1
            return {"taken": False}, None
        # The same version may come twice, or two versions in the wrong order; only a newer one is published.
        publication = (head["version"], head["order"])
        if publication > self._received.get(head["name"], (-1, 0)):
            self._received[head["name"]] = publication
            channel.publish(head["version"], params)
        return {"taken": True}, None


class Relay:
    """Serves the mailboxes of a node without policy workers: forwards requests to a node that has some, and returns the
    replies."""

    def __init__(self, agent: NodeAgent, name: str, mailboxes: MailboxTable) -> None:
        self._agent, self._name, self._mailboxes = agent, name, mailboxes
        self._server: MailboxServer | None = None
        self._clients: dict[int, RemoteClient] = {}
        self._running: dict[int, tuple[int, int]] = {}
        """For each request: its client, and the ticket on the other node."""

    def move(self, *, active: bool) -> None:
        """Forward new requests if `active`, and deliver the replies that have arrived."""
        if active and self._server is None:
            self._server = MailboxServer(replace_servers(self._mailboxes), 0)
        elif not active and self._server is not None:
            self._give_up(self._server)
            self._server = None
        if self._server is None:
            return
        for request in self._server.poll():
            client, affinity = self._server.origin(request.id)
            ticket = self._client(client).submit(request.rows, version=request.version, affinity=affinity)
            self._running[request.id] = (client, ticket)
        self._abort(self._server)
        for remote in self._clients.values():
            remote.poll()
        replies = []
        for request_id, (client, ticket) in list(self._running.items()):
            reply = self._clients[client].ready(ticket)
            if reply is not None:
                del self._running[request_id]
                replies.append(Reply(request_id, reply.rows, reply.version))
        self._server.reply(replies)

    def _give_up(self, server: MailboxServer) -> None:
        """Stop relaying, because this node has policy workers now; they serve the requests in the mailboxes.

        Forwarded requests are aborted. Otherwise the other node would relay them back to this node, where they would wait for
        the mailboxes that they occupy themselves: a deadlock.
        """
        for client, ticket in self._running.values():
            self._clients[client].abort([ticket])
        self._running.clear()
        server.give_up()

    def _abort(self, server: MailboxServer) -> None:
        for request_id in server.aborted():
            client, ticket = self._running.pop(request_id)
            self._clients[client].abort([ticket])

    def _client(self, index: int) -> RemoteClient:
        if index not in self._clients:

            def peer() -> Peer:
                node = self._agent.where.served_by(self._name, index)
                return self._agent.peer(node)

            subscriber = ChannelSubscriber(self._agent.channel())
            first = secrets.randbits(40)  # an earlier agent of this node may have used small tickets there
            self._clients[index] = RemoteClient(
                peer, self._mailboxes.spec, index, subscriber, wake=self._agent.wake, first=first
            )
        return self._clients[index]


def replace_servers(mailboxes: MailboxTable) -> MailboxTable:
    """The same mailboxes, served by one policy worker."""
    spec = replace(mailboxes.spec, num_servers=1, fixed=True)
    return MailboxTable(spec, mailboxes.control.reshape(-1), mailboxes.payload, lock=mailboxes.lock, ring=mailboxes.ring)
