"""Broadcast of published parameters to other nodes: each node gets its missing versions at its own pace, oldest first.

A node that is slow, stopped or gone does not delay the others. A version is put into the object store once, for all nodes. A
version that was lost or arrived damaged is sent again at the next `move`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runnel.core.errors import RunnelError
from runnel.core.records import Batch
from runnel.flow.inference.codec import packed
from runnel.flow.params import Channel
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.remote import SLOWEST_BYTES_PER_S, Head, Parcel, PeerLost, Peers

PATIENCE_S = 2.0
"""Timeout of one send, beside the time for its bytes; then the version is sent again."""

Route = tuple[str, str, int]
"""A channel, a node that reads it, and the restart counter of the node's agent."""


class ParamBroadcaster:
    """Sends versions of the channels that are published on this node to the nodes that read them. Runs on one event loop."""

    def __init__(self, node: str, net: Peers, channels: Mapping[str, Channel]) -> None:
        self._node, self._net, self._channels = node, net, channels
        self._newest: dict[Route, tuple[int, int]] = {}
        """The last version that a node has accepted, and its checksum."""
        self._tasks: dict[Route, asyncio.Task[None]] = {}
        self._ready: dict[tuple[str, int], tuple[Head, Any, float]] = {}
        """Versions in the object store: head, body, timeout."""
        self._count = 0
        """Counter of publications. If one version is published twice, the later one counts, in whatever order they arrive."""

    def move(self, where: ClusterMap) -> None:
        """Start to send missing versions to nodes without a send in progress; forget nodes that no longer read."""
        here = [(name, nodes) for name, (home, nodes) in where.params.items() if home == self._node]
        routes = {(name, node, where.lives.get(node, 0)) for name, nodes in here for node in nodes if node != self._node}
        self._newest = {route: found for route, found in self._newest.items() if route in routes}
        for route in [r for r in self._tasks if r not in routes]:
            self._tasks.pop(route).cancel()
        for route in routes:
            task = self._tasks.get(route)
            if (task is None or task.done()) and self._lacking(route):
                self._tasks[route] = asyncio.ensure_future(self._catch_up(route))

    def idle(self) -> bool:
        """Whether no send is in progress."""
        return all(task.done() for task in self._tasks.values())

    def _lacking(self, route: Route) -> list[int]:
        version, stamp = self._newest.get(route, (-1, 0))
        there = self._channels[route[0]].stamps()
        return sorted(v for v, s in there.items() if v > version or (v == version and s != stamp))

    async def _catch_up(self, route: Route) -> None:
        while lacking := self._lacking(route):
            found = None
            with suppress(PeerLost):  # the object store is full; the next `move` tries again
                found = self._parcel(route[0], lacking[0])
            if found is None or not await self._bring(route, *found):
                return

    async def _bring(self, route: Route, head: Head, body: Any, patience_s: float) -> bool:
        call = asyncio.wrap_future(self._net.peer(route[1]).call("receive", head, body))
        call.add_done_callback(_seen)
        with suppress(TimeoutError, RunnelError):
            # Shielded: the timeout must not cancel a call that is under way, it may still be accepted.
            answer, _ = await asyncio.wait_for(asyncio.shield(call), patience_s)
            if answer["taken"]:
                self._newest[route] = (head["version"], head["crc"])
                return True
        return False

    def _parcel(self, name: str, version: int) -> tuple[Head, Any, float] | None:
        """A version as a message; None if the channel no longer has it."""
        channel = self._channels[name]
        stamps = channel.stamps()
        for key in [k for k in self._ready if k[0] == name and stamps.get(k[1]) != self._ready[k][0]["crc"]]:
            del self._ready[key]
        if (name, version) not in self._ready:
            found = channel.get(version)
            if found is None:
                return None
            body = packed(Batch(found.params))
            self._count += 1
            head = {"name": name, "version": version, "crc": stamps[version], "order": self._count}
            self._ready[(name, version)] = (head, self._net.stash(body), PATIENCE_S + len(body) / SLOWEST_BYTES_PER_S)
        return self._ready[(name, version)]


def _seen(call: asyncio.Future[Parcel]) -> None:
    """Read the error of a call after its timeout, so that asyncio does not report it as never retrieved."""
    if not call.cancelled():
        call.exception()
