"""The agent of a node: what the processes of other nodes see of its streams.

It is one more process on the shared memory of its node. It writes into tables and mailboxes there what other nodes send, and
brings published parameters from their node to its own: once per node, checksummed, and from there through shared memory.
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
from runnel.flow.slots import RESERVED, VERSION, SlotTable
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
"""Answers that are kept for each sender, for calls that come again."""
REMEMBERED_SHARES = 1
"""Parts of batches are large. Who asks for the next has heard the last."""
BELL_S = 0.5
warnings.filterwarnings("ignore", message="The given buffer is not writable")  # bodies are only read
LIFE_BITS = 32
"""A sender counts its calls in the lower bits of a number; the bits above say which life of the sender it is."""


class NodeAgent:
    """Serves calls of other nodes; all methods run on one event loop. `call` is the only door, and its table the only names."""

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
        """By client: the ticket here of each number that is being asked."""
        self._lives: dict[tuple[str, int], int] = {}
        """By stream and writer: the newest life of it that has called."""
        self._granted: dict[tuple[str, int], dict[int, int]] = {}
        """By stream and writer: slots that it was given here and has not given back, with their sample ids."""
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
        """By channel: the last publication that was taken, by version and order."""
        self.num_refused = 0
        """Parameter versions that arrived damaged."""
        self._tidy()

    def start(self) -> None:
        """Begin to listen for the doorbell. Call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, daemon=True).start()

    def update(self, where: ClusterMap) -> None:
        """Nodes have come or gone. Those that are new get the parameters that there are."""
        if where.number < self.where.number:  # it was overtaken on its way
            return
        self.where = where
        self._tidy()
        self._pulse()

    def _tidy(self) -> None:
        """Mailboxes are for who is here: fixed policy workers share the clients, and what clients had asked that are elsewhere
        by now is given up, but for what the agent itself asks for them."""
        for name, mailboxes in self._mailbox_tables.items():
            if mailboxes.spec.fixed:
                mailboxes.serve_by(self.where.mailbox_tables[name].get(self.node, []))
            for client, node in enumerate(self.where.clients.get(name, [])):
                if node not in ("", self.node):
                    known = self._clients.get((name, client))
                    mailboxes.vacate(client, keep=range(0) if known is None else known.tickets())

    def wake(self) -> None:
        """Look again, from any thread."""
        with suppress(RuntimeError):  # the loop is closed: so are we
            self._loop.call_soon_threadsafe(self._pulse)

    def close(self) -> None:
        self._closed = True
        self._bells.ring()

    def _listen(self) -> None:
        while not self._closed:
            self._bells.wait(BELL_S)
            self.wake()

    def _pulse(self) -> None:
        """Something moved on this node."""
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
        """Do a call; one that comes again (same sender, same number) gets the answer of the first."""
        if method not in self._methods:
            raise DataError(f"an agent has no method {method!r}")
        if body is not None and (not isinstance(body, np.ndarray) or body.dtype != np.uint8 or body.ndim != 1):
            raise DataError(f"the body of a {method!r} must be bytes in one array")
        if "number" not in head:
            return await self._methods[method](head, body)
        sender = (method, head["stream"], head.get("writer"), head.get("client"), head.get("rank"))
        known = self._answers.setdefault(sender, OrderedDict())
        if head["number"] not in known:
            known[head["number"]] = asyncio.ensure_future(self._methods[method](head, body))
            keep = REMEMBERED_SHARES if method == "share" else REMEMBERED
            while len(known) > keep and next(iter(known.values())).done():
                known.popitem(last=False)
        return await asyncio.shield(known[head["number"]])

    def peer(self, node: str) -> Peer:
        return self._net.peer(node)

    def channel(self) -> Channel:
        """The parameters of the policy, as this node knows them."""
        return next(iter(self._channels.values()))

    async def _until_moved(self, deadline: float) -> bool:
        """Whether something moved before `deadline` (of the loop's clock)."""
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
            slot = table.reserve(head["writer"]) if self._lives_on(head) else None
            version = int(table.globals[VERSION])
            if slot is not None:
                self._granted.setdefault((head["stream"], head["writer"]), {})[slot.index] = slot.header.sample_id
                return {"index": slot.index, "header": vars(slot.header), "version": version}, None
            if not await self._until_moved(deadline):
                return {"index": -1, "version": version}, None

    def _lives_on(self, head: Head) -> bool:
        """Whether no later life of the writer has called. A question of one that died meanwhile must not be granted: nobody
        would fill the segment. What it was granted after it was given up for lost is cancelled when its successor calls."""
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
            raise DataError(f"stream {name!r} does not lie on this node; here are {sorted(self._tables)}")
        return self._tables[name]

    def _holds(self, table: SlotTable, head: Head, sample_id: int) -> bool:
        """Whether the writer still has that segment; it may have been given up for lost."""
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
        """A segment that was granted and never begun: as if it had not been asked for."""
        table = self._table(head)
        if self._holds(table, head, head["sample_id"]):
            table.give_back(table.slot(head["index"]))
        self._let_go(head, head["sample_id"])
        return {}, None

    def _let_go(self, head: Head, sample_id: int) -> None:
        """The writer has ended with a segment."""
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
            first = (1 << 62) + (
                secrets.randbits(29) << LIFE_BITS
            )  # its boxes may have been, or become, those of a client here
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
        """Whoever asked does not wait any more: the policy worker is told, and the mailboxes serve others. A question that
        comes after its own abort is not asked."""
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
        """A version from the node where it was published: verified, then published here."""
        assert body is not None, "a version has parameters"
        channel, params = self._channels[head["name"]], unpack(body, len(body))
        if checksum(params) != head["crc"]:
            self.num_refused += 1
            return {"taken": False}, None
        publication = (head["version"], head["order"])
        if publication > self._received.get(head["name"], (-1, 0)):
            self._received[head["name"]] = publication
            channel.publish(head["version"], params)
        return {"taken": True}, None


class Relay:
    """Empties the mailboxes of a node without policy workers: brings the requests to a node that has some, and the replies
    back."""

    def __init__(self, agent: NodeAgent, name: str, mailboxes: MailboxTable) -> None:
        self._agent, self._name, self._mailboxes = agent, name, mailboxes
        self._server: MailboxServer | None = None
        self._clients: dict[int, RemoteClient] = {}
        self._running: dict[int, tuple[int, int]] = {}
        """By request: its client, and the ticket there."""

    def move(self, *, active: bool) -> None:
        """Take new requests if `active`, and give out what was answered."""
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
        """Policy workers have come to this node. They find the requests in their mailboxes; what was brought elsewhere would
        come back here, and wait for the very boxes that it holds."""
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
            first = secrets.randbits(40)  # another life of this node may have asked there before
            self._clients[index] = RemoteClient(
                peer, self._mailboxes.spec, index, subscriber, wake=self._agent.wake, first=first
            )
        return self._clients[index]


def replace_servers(mailboxes: MailboxTable) -> MailboxTable:
    """The same mailboxes, as if one policy worker served them all."""
    spec = replace(mailboxes.spec, num_servers=1, fixed=True)
    return MailboxTable(spec, mailboxes.control.reshape(-1), mailboxes.payload, lock=mailboxes.lock, ring=mailboxes.ring)
