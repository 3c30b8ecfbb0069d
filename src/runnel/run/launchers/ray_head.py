"""The Ray cluster of a run: how it is joined or started, and whether its head still answers.

Without its head a cluster lives for another minute, in which processes that know each other still talk; then Ray ends them all,
the launching process too, without a word. So the head is asked all the time, and a run whose head is gone ends by itself.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from runnel.core.errors import ClusterLost, ConfigError
from runnel.flow.transports.cluster.ray import NAMESPACE
from runnel.run.launchers.guard import ClusterGuard
from runnel.run.wiring import available_cores

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Ray takes 127.0.0.1 for a slip and puts the machine's own address in its place."""
QUIET: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "error"}
ASK_S = 1.0
CONNECT_S = 3.0
"""A machine that takes longer to accept a connection is not there."""
LOST_S = 20.0
"""A head that has not answered for so long is given up. Some clusters start theirs again; Ray itself waits for 60 s, and the
rest of that is needed for a last checkpoint."""
OWN_LOST_S = 2.0
"""Nobody starts the head of a cluster again that a run has made for itself."""
TOKEN = (
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's own, which `ray get-auth-token` on its head prints "
    "(or put it into a file: ~/.ray/auth_token, or RAY_AUTH_TOKEN_PATH)"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


# ------------------------------------------------------------------------------------------------------------------ joining
@contextmanager
def connected(address: str, cores: int, labels: Mapping[str, str] | None = None) -> Iterator[Head]:
    """A cluster: the one we are in, the one at `address` (or RAY_ADDRESS), or a new one on this machine that ends with us."""
    if ray.is_initialized():
        with watched_head() as head:
            yield head
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    cluster = joined(address) if address else made(cores, labels)
    with cluster, watched_head(lost_s=LOST_S if address else OWN_LOST_S) as head:
        yield head


@contextmanager
def watched_head(lost_s: float = LOST_S) -> Iterator[Head]:
    """The head of the cluster that we are in, asked all the time while the block lasts."""
    head = Head(ray.get_runtime_context().gcs_address, lost_s=lost_s)
    threading.Thread(target=head.watch, daemon=True).start()
    try:
        yield head
    finally:
        head.closed.set()


@contextmanager
def joined(address: str) -> Iterator[None]:
    """In the cluster at `address`."""
    attach(address)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def made(cores: int, labels: Mapping[str, str] | None = None) -> Iterator[None]:
    """In a new cluster on this machine, on the loopback; nothing of it outlives this process, even if that is killed. Its cores
    are only numbers: as with the local launcher, processes share what the machine has."""
    guard = ClusterGuard()
    try:
        more = {"include_dashboard": False, "_node_ip_address": LOOPBACK, "labels": dict(labels or {})}
        with own_signals(), guard:
            ray.init(address="local", num_cpus=max(cores, available_cores()), **more, **QUIET)
        yield
    finally:
        ray.shutdown()
        guard.close()


@contextmanager
def own_signals() -> Iterator[None]:
    """Ray puts its own handlers in place, in Python and below it; whoever called us wants theirs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def attach(address: str) -> None:
    """Join the cluster at `address`, or say why that does not work."""
    if (problem := unreachable(address)) is not None:  # Ray itself would try for minutes
        raise ConfigError("cluster.address", address, _nobody(problem))
    try:
        with own_signals():
            ray.init(address=address, **QUIET)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise ConfigError("cluster.address", address, _why(str(error))) from error


def _why(text: str) -> str:
    """Why a cluster could not be joined. Ray says only that it failed; where something listens it is the token."""
    line = text.partition("\n")[0]
    found = re.search(r"Failed to connect to Ray cluster at (\S+:\d+)", text)
    if found is not None and unreachable(found[1]) is None:
        return f"its head ({found[1]}) answers, but does not let us in: most likely it wants another token; {TOKEN}"
    if "no authentication token was found" in text:
        return f"RAY_AUTH_MODE asks for a token, and there is none; {TOKEN}"
    if found is not None or "Could not find any running Ray" in text:
        return _nobody(line)
    return f"cannot be joined ({line})"


def _nobody(problem: str) -> str:
    return f"no Ray cluster answers there ({problem}); start one with `ray start --head`, or mend the address"


def unreachable(address: str) -> str | None:
    """Why nothing can be heard at HOST:PORT; None if something can, or if that is no such address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


# --------------------------------------------------------------------------------------------------------------- the head
class Head:
    """The head of a cluster, HOST:PORT, as a thread sees it that asks it all the time (`watch`, until `closed`)."""

    def __init__(self, address: str, *, lost_s: float = LOST_S) -> None:
        self.address, self.closed = address, threading.Event()
        self._lost_s, self._every_s = lost_s, min(ASK_S, lost_s / 4)
        self._silent_s = 0.0
        self._problem: str | None = None
        self._reachable = unreachable(address) is None
        """Else Ray has a way to it that we have not (a proxy), and its silence would mean nothing."""

    def watch(self) -> None:
        while not self.closed.wait(self._every_s):
            self.ask()

    def ask(self) -> None:
        """Time in which this process itself stood still (Ctrl-Z) is not held against the head."""
        began = time.monotonic()
        self._problem = unreachable(self.address) if self._reachable else None
        took = min(time.monotonic() - began, CONNECT_S) + self._every_s
        self._silent_s = 0.0 if self._problem is None else self._silent_s + took

    def silent(self) -> bool:
        """Whether it did not answer when it was last asked: what Ray needs its head for would wait, and then end us."""
        return self._problem is not None

    def lost(self) -> str:
        """That it is gone, in words; empty as long as it may come back."""
        if self._silent_s < self._lost_s:
            return ""
        return f"the head of the Ray cluster ({self.address}) is gone: {self._problem}, for {self._silent_s:.0f} s"

    def check(self) -> None:
        """Return when it answers; a `ClusterLost` if it is gone. To be called before Ray is asked for what needs the head."""
        self._problem = unreachable(self.address) if self._reachable else None
        while self.silent():
            if how := self.lost():
                raise ClusterLost(how)
            time.sleep(0.05)
