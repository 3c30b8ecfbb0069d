"""The Ray cluster of a run: join or start it, and watch whether its head still answers.

When the head is lost, processes that know each other can still talk for a minute. Then Ray kills them all, the launching
process too, without a message. So a thread probes the head all the time, and a run that has lost it saves itself and ends.
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
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from runnel.core.errors import ClusterLost, ConfigError
from runnel.flow.transports.cluster.ray import NAMESPACE
from runnel.run.launchers.guard import ClusterGuard
from runnel.run.wiring import available_cores

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Ray replaces 127.0.0.1 by the machine's own address; another loopback address it keeps."""
QUIET: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "error"}
ASK_S = 1.0
CONNECT_S = 3.0
"""Timeout of a connection to the head."""
LOST_S = 20.0
"""A head that has not answered for this time counts as lost. Some clusters restart their head. Ray itself waits for 60 s; the
remaining time is for the last checkpoint."""
OWN_LOST_S = 2.0
"""The same, for a cluster that this run started itself: its head is never restarted."""
TOKEN = (
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's own, which `ray get-auth-token` on its head prints "
    "(or put it into a file: ~/.ray/auth_token, or RAY_AUTH_TOKEN_PATH)"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


# ------------------------------------------------------------------------------------------------------------------ joining
@contextmanager
def connected(address: str, cores: int, labels: Mapping[str, str] | None = None) -> Iterator[Head]:
    """Connect to the current cluster, to the one at `address` (or RAY_ADDRESS), or to a new one that ends with this process.

    While the block lasts, a thread probes the head.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    with ExitStack() as stack:
        own = not address and not ray.is_initialized()
        if own:
            stack.enter_context(made(cores, labels))
        elif not ray.is_initialized():
            attach(address)
            stack.callback(ray.shutdown)
        head = Head(ray.get_runtime_context().gcs_address, lost_s=OWN_LOST_S if own else LOST_S)
        threading.Thread(target=head.watch, daemon=True).start()
        stack.callback(head.closed.set)
        yield head


@contextmanager
def made(cores: int, labels: Mapping[str, str] | None = None) -> Iterator[None]:
    """Start a new cluster on this machine's loopback; it ends with the block, also when this process is killed.

    Its number of cores is only a number: as with the local launcher, processes share the machine's cores.
    """
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
    """Restore the caller's signal handlers after the block: Ray installs its own, in Python and below it."""
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
    """Join the cluster at `address`; a `ConfigError` says why that fails."""
    if (problem := unreachable(address)) is not None:  # Ray itself would try for minutes
        raise ConfigError("cluster.address", address, _no_cluster(problem))
    try:
        with own_signals():
            ray.init(address=address, **QUIET)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise ConfigError("cluster.address", address, _why(str(error))) from error


def _why(text: str) -> str:
    """Why a cluster could not be joined, from Ray's message."""
    line = text.partition("\n")[0]
    found = re.search(r"Failed to connect to Ray cluster at (\S+:\d+)", text)
    # Ray gives the same message for a wrong token as for a dead head; only the port tells them apart.
    if found is not None and unreachable(found[1]) is None:
        return f"its head ({found[1]}) accepts connections but refuses this process: its token is probably another; {TOKEN}"
    if "no authentication token was found" in text:
        return f"RAY_AUTH_MODE asks for a token, but none was found; {TOKEN}"
    if found is not None or "Could not find any running Ray" in text:
        return _no_cluster(line)
    return f"cannot be joined ({line})"


def _no_cluster(problem: str) -> str:
    return f"no Ray cluster answers there ({problem}); start one with `ray start --head`, or correct the address"


def unreachable(address: str) -> str | None:
    """Why HOST:PORT accepts no connection; None if it does, or if `address` has another form."""
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
    """Liveness of a cluster's head (HOST:PORT). A thread probes it in `watch`, until `closed`."""

    def __init__(self, address: str, *, lost_s: float = LOST_S) -> None:
        self.address, self.closed = address, threading.Event()
        self._lost_s, self._every_s = lost_s, min(ASK_S, lost_s / 4)
        self._silent_s = 0.0
        self._problem: str | None = None
        self._reachable = unreachable(address) is None
        """If not, Ray reaches the head by another way (a proxy), and a failed connection says nothing about the head."""

    def watch(self) -> None:
        while not self.closed.wait(self._every_s):
            self.ask()

    def ask(self) -> None:
        """Probe the head once, and add to its silent time if it does not answer."""
        # One probe adds at most its own timeout: time in which this process was suspended (Ctrl-Z) must not count.
        began = time.monotonic()
        self._problem = unreachable(self.address) if self._reachable else None
        took = min(time.monotonic() - began, CONNECT_S) + self._every_s
        self._silent_s = 0.0 if self._problem is None else self._silent_s + took

    def silent(self) -> bool:
        """Whether the last probe failed. Calls of Ray that need the head would then block, and later kill this process."""
        return self._problem is not None

    def lost(self) -> str:
        """Why the head counts as lost, in words; empty while it may come back."""
        if self._silent_s < self._lost_s:
            return ""
        return f"the head of the Ray cluster ({self.address}) is gone: {self._problem}, for {self._silent_s:.0f} s"

    def check(self) -> None:
        """Wait until the head answers, or raise `ClusterLost`. To be called before any call of Ray that needs the head."""
        self._problem = unreachable(self.address) if self._reachable else None
        while self.silent():
            if how := self.lost():
                raise ClusterLost(how)
            time.sleep(0.05)
