"""Calls between nodes over Ray: a head is JSON, a body is bytes in one array, which Ray moves through its object store.

A body of more than about 100 KB is copied once, into the store of the sender's node. Ray transfers it to the other node, where
it is read in place.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError

from runnel.core.errors import ConfigError
from runnel.flow.inference.codec import Bytes
from runnel.flow.transports.cluster.remote import Head, Parcel, Peer, PeerLost

NAMESPACE = "runnel"
FULL = (ObjectStoreFullError, OutOfDiskError)
"""Ray has no room for a body, neither in memory nor on disk. The sender keeps the body, waits, and sends it again."""
FAULTS = "RUNNEL_MESSAGE_FAULTS"
"""Environment variable of the launching process, for tests: `drop=0.05,delay=0.2` loses 5 % of the messages between nodes and
delays each by up to 0.2 s."""


def agent_name(run: str, node: str) -> str:
    """The name of a node's agent in Ray."""
    return f"runnel-{run}-agent-{node[:16]}"


class RayNet:
    """`Peers` over Ray: the agents of a run, by node. `faults` (text, see `Faults`) injects lost and late messages."""

    def __init__(self, run: str, faults: str = "") -> None:
        self._run = run
        self._peers: dict[str, RayPeer] = {}
        self._faults = Faults.from_text(faults)

    def peer(self, node: str) -> Peer:
        """The agent of a node. After a loss it is looked up again, because the node may have a new agent."""
        known = self._peers.get(node)
        if known is None or known.lost:
            try:
                known = RayPeer(ray.get_actor(agent_name(self._run, node), namespace=NAMESPACE), self._faults)
            except ValueError:
                return LostPeer(node)
            self._peers[node] = known
        return known

    def stash(self, body: Bytes) -> Any:
        try:
            return ray.put(body)
        except FULL as error:
            raise PeerLost(f"Ray has no room for a body of {len(body)} bytes: {error}") from error


class LostPeer:
    """A node without an agent: every call fails with `PeerLost`."""

    def __init__(self, node: str) -> None:
        self._node = node

    def call(self, method: str, head: Head, body: Any = None) -> Future[Parcel]:
        future: Future[Parcel] = Future()
        future.set_exception(PeerLost(f"node {self._node[:8] or '?'} has no agent"))
        return future


class RayPeer:
    """The agent of another node as a Ray actor."""

    def __init__(self, handle: Any, faults: Faults | None = None) -> None:
        self._handle, self._faults = handle, faults
        self.lost = False

    def call(self, method: str, head: Head, body: Any = None) -> Future[Parcel]:
        if self._faults is not None:
            return self._faults.call(lambda: self._call(method, head, body))
        return self._call(method, head, body)

    def _call(self, method: str, head: Head, body: Any) -> Future[Parcel]:
        answer: Future[Parcel] = Future()
        try:
            reference = self._handle.call.remote(method, json.dumps(head).encode(), body)
        except FULL as error:
            answer.set_exception(PeerLost(f"{method}: {error}"))
            return answer

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                data, found = done.result()
                answer.set_result((json.loads(data), found))
            else:
                found = _as_lost(error, method)
                self.lost = self.lost or isinstance(found, PeerLost)
                answer.set_exception(found)

        reference.future().add_done_callback(settle)
        return answer


def _as_lost(error: BaseException, method: str) -> BaseException:
    """Keep an error that the agent raised; any other error means that the agent is lost (`PeerLost`)."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception) and not isinstance(cause, RayError):
        return cause
    return PeerLost(f"{method}: {error}") if isinstance(error, RayError) else error


@dataclass(frozen=True)
class Faults:
    """Fault injection for tests: loses or delays messages."""

    drop: float = 0.0
    delay: float = 0.0

    @staticmethod
    def from_text(text: str) -> Faults | None:
        """
        >>> Faults.from_text("drop=0.1,delay=0.5")
        Faults(drop=0.1, delay=0.5)
        """
        if not text:
            return None
        pairs: Mapping[str, str] = dict(part.split("=") for part in text.split(","))
        if not pairs.keys() <= {"drop", "delay"}:
            raise ConfigError(FAULTS, text, "use drop=SHARE,delay=SECONDS")
        return Faults(**{name: float(value) for name, value in pairs.items()})

    def call(self, send: Any) -> Future[Parcel]:
        answer: Future[Parcel] = Future()
        if random.random() < self.drop / 2:  # the request is lost
            return answer
        lose_answer = random.random() < self.drop / 2

        def late() -> None:
            threading.Event().wait(random.random() * self.delay)
            if not lose_answer:
                send().add_done_callback(lambda done: _copy(done, answer))
            else:
                send()

        _late().submit(late)
        return answer


_pool: list[ThreadPoolExecutor] = []


def _late() -> ThreadPoolExecutor:
    if not _pool:
        _pool.append(ThreadPoolExecutor(32))
    return _pool[0]


def _copy(done: Future[Parcel], answer: Future[Parcel]) -> None:
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
