"""The agent of a node: what the processes of other nodes see of its streams.

It is one more process on the shared memory of its node. It writes into tables and mailboxes there what other nodes send, and
brings published parameters from their node to its own: once per node, checksummed, and from there through shared memory.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from runnel.core.batch import Batch
from runnel.core.errors import DataError
from runnel.core.protocols import Reply
from runnel.core.records import Header, Slot
from runnel.flow.inference import Board, BoardClient, BoardServer, Bytes, packed, unpack
from runnel.flow.params import Channel, ChannelSubscriber, checksum
from runnel.flow.slots import DISPATCHED, FREE, RESERVED, VERSION, SlotTable
from runnel.flow.transports.map import Map
from runnel.flow.transports.remote import (
    Head,
    Net,
    Parcel,
    Peer,
    RemoteClient,
    block_arrays,
    block_places,
    pack_feedback,
)
from runnel.flow.transports.shm import Bells

REMEMBERED = 64
"""Answers that are kept for each sender, for calls that come again."""
BELL_S = 0.5
SPREAD_S = 60.0


class NodeAgent:
    """Serves calls of other nodes; all methods run on one event loop. `call` is the only door, and its table the only names."""

    def __init__(
        self,
        node: str,
        where: Map,
        net: Net,
        *,
        tables: Mapping[str, SlotTable],
        boards: Mapping[str, Board],
        channels: Mapping[str, Channel],
        bells: Bells,
    ) -> None:
        self.node, self.where, self._net = node, where, net
        self._tables, self._boards, self._channels, self._bells = tables, boards, channels, bells
        self._places = {name: block_places(table.spec)[0] for name, table in tables.items()}
        self._clients: dict[tuple[str, int], BoardClient] = {}
        self._asked: dict[tuple[str, int], dict[int, asyncio.Future[Parcel]]] = {}
        self._answers: dict[tuple[Any, ...], OrderedDict[int, asyncio.Future[Parcel]]] = {}
        self._moved = asyncio.Event()
        self._methods: dict[str, Callable[[Head, Bytes | None], Awaitable[Parcel]]] = {
            "reserve": self._reserve,
            "commit": self._commit,
            "cancel": self._cancel,
            "give_back": self._give_back,
            "fetch": self._fetch,
            "watch": self._watch,
            "ask": self._ask,
            "abort": self._abort,
            "receive": self._receive,
        }
        self._relays = {name: Relay(self, name, board) for name, board in boards.items()}
        self._spread: dict[tuple[str, str], int] = {}
        self._spreading: asyncio.Task[None] | None = None
        self._closed = False
        self.num_refused = 0
        """Parameter versions that arrived damaged."""

    def start(self) -> None:
        """Begin to listen for the doorbell. Call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, daemon=True).start()

    def update(self, where: Map) -> None:
        """Nodes have come or gone. Those that are new get the parameters that there are."""
        self.where = where
        self._spread = {key: v for key, v in self._spread.items() if key[1] in where.params[key[0]][1]}
        self._pulse()

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
            relay.move(active=not self.where.boards[name].get(self.node))
        if self._spreading is None or self._spreading.done():
            self._spreading = asyncio.ensure_future(self._spread_all())

    # --------------------------------------------------------------------------------------------------------------- calls
    async def call(self, method: str, head: Head, body: Bytes | None = None) -> Parcel:
        """Do a call; one that comes again (same sender, same number) gets the answer of the first."""
        if method not in self._methods:
            raise DataError(f"an agent has no method {method!r}")
        if body is not None and (not isinstance(body, np.ndarray) or body.dtype != np.uint8 or body.ndim != 1):
            raise DataError(f"the body of a {method!r} must be bytes in one array")
        if "number" not in head:
            return await self._methods[method](head, body)
        sender = (method, head["stream"], head.get("writer"), head.get("client"))
        known = self._answers.setdefault(sender, OrderedDict())
        if head["number"] not in known:
            known[head["number"]] = asyncio.ensure_future(self._methods[method](head, body))
            while len(known) > REMEMBERED and next(iter(known.values())).done():
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
            slot = table.reserve(head["writer"])
            version = int(table.globals[VERSION])
            if slot is not None:
                return {"index": slot.index, "header": vars(slot.header), "version": version}, None
            if not await self._until_moved(deadline):
                return {"index": -1, "version": version}, None

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
        return {"refused": int(refused), "version": int(table.globals[VERSION])}, None

    async def _give_back(self, head: Head, body: Bytes | None) -> Parcel:
        """A segment that was granted and never begun: as if it had not been asked for."""
        table = self._table(head)
        if self._holds(table, head, head["sample_id"]):
            with table.lock:
                table.state[head["index"]] = FREE
                table.globals[DISPATCHED] -= table.spec.num_rows
        return {}, None

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

    # ----------------------------------------------------------------------------------------------------------- inference
    async def _ask(self, head: Head, body: Bytes | None) -> Parcel:
        assert body is not None, "a request has rows"
        key = (head["stream"], head["client"])
        if key not in self._clients:
            subscriber = ChannelSubscriber(self.channel())
            self._clients[key], self._asked[key] = BoardClient(self._boards[key[0]], key[1], subscriber), {}
        client, answer = self._clients[key], asyncio.get_running_loop().create_future()
        self._asked[key][client.submit(unpack(body, len(body)), version=head["version"], affinity=head["affinity"])] = answer
        found: Parcel = await answer
        return found

    def _deliver(self, key: tuple[str, int], client: BoardClient) -> None:
        for ticket in list(self._asked[key]):
            reply = client.ready(ticket)
            if reply is not None:
                future = self._asked[key].pop(ticket)
                if not future.done():
                    future.set_result(({"version": reply.version}, packed(reply.rows)))

    async def _abort(self, head: Head, body: Bytes | None) -> Parcel:
        """Whoever asked does not wait any more; the work ends where it is, and its answer goes nowhere."""
        known = self._answers.get(("ask", head["stream"], None, head["client"]), OrderedDict())
        for number in head["tickets"]:
            if number in known:
                known.pop(number).cancel()
        return {}, None

    # ---------------------------------------------------------------------------------------------------------- parameters
    async def _spread_all(self) -> None:
        for name, (home, readers) in self.where.params.items():
            if home != self.node:
                continue
            channel, nodes = self._channels[name], [n for n in readers if n != home]
            wanted = {v for n in nodes for v in range(self._spread.get((name, n), -1) + 1, channel.newest() + 1)}
            for version in sorted(v for v in wanted if channel.has(v)):
                await self._bring(name, version, [n for n in nodes if self._spread.get((name, n), -1) < version])

    async def _bring(self, name: str, version: int, nodes: list[str]) -> None:
        found = self._channels[name].get(version)
        if found is None:
            return
        head = {"name": name, "version": version, "crc": checksum(found.params)}
        body = self._net.stash(packed(Batch(found.params)))
        calls = [asyncio.wrap_future(self._net.peer(n).call("receive", head, body)) for n in nodes]
        done = await asyncio.gather(*(asyncio.wait_for(c, SPREAD_S) for c in calls), return_exceptions=True)
        for node, answer in zip(nodes, done, strict=True):
            if not isinstance(answer, BaseException) and answer[0]["taken"]:
                self._spread[(name, node)] = max(version, self._spread.get((name, node), -1))

    async def _receive(self, head: Head, body: Bytes | None) -> Parcel:
        """A version from the node where it was published: verified, then published here."""
        assert body is not None, "a version has parameters"
        channel, params = self._channels[head["name"]], unpack(body, len(body))
        if checksum(params) != head["crc"]:
            self.num_refused += 1
            return {"taken": False}, None
        if head["version"] >= channel.newest():
            channel.publish(head["version"], params)
        return {"taken": True}, None


class Relay:
    """Empties the mailboxes of a node without policy workers: brings the requests to a node that has some, and the replies
    back."""

    def __init__(self, agent: NodeAgent, name: str, board: Board) -> None:
        self._agent, self._name, self._board = agent, name, board
        self._server: BoardServer | None = None
        self._clients: dict[int, RemoteClient] = {}
        self._running: dict[int, tuple[int, int]] = {}
        """By request: its client, and the ticket there."""

    def move(self, *, active: bool) -> None:
        """Take new requests if `active`, and give out what was answered."""
        if active and self._server is None:
            self._server = BoardServer(replace_servers(self._board), 0)
        elif not active and not self._running:
            self._server = None
        if self._server is None:
            return
        if active:
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

    def _abort(self, server: BoardServer) -> None:
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
            self._clients[index] = RemoteClient(peer, self._board.spec, index, subscriber, wake=self._agent.wake, first=first)
        return self._clients[index]


def replace_servers(board: Board) -> Board:
    """The same mailboxes, as if one policy worker served them all."""
    spec = replace(board.spec, num_servers=1, fixed=True)
    return Board(spec, board.control.reshape(-1), board.payload, lock=board.lock, ring=board.ring)
