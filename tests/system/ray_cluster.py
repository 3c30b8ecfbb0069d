"""Ray for tests: one node, or several on loopback addresses of this machine. Nothing of it is left when the tests end."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a process keeps the mode of its first session, and a cluster has its own
STORE_BYTES = 100 << 20
ADDRESSES = tuple(f"127.0.0.{i}" for i in range(2, 10))
"""Ray takes 127.0.0.1 for a slip, and puts the machine's own address in its place."""


@contextmanager
def local_ray(num_cpus: int = 2) -> Iterator[None]:
    """One node, in which this process is too."""
    _mark()
    options = {"include_dashboard": False, "_node_ip_address": ADDRESSES[0], "object_store_memory": STORE_BYTES}
    ray.init(address="local", num_cpus=num_cpus, namespace="runnel", log_to_driver=False, logging_level="error", **options)
    try:
        yield
    finally:
        ray.shutdown()


def _mark() -> None:
    """What Ray starts from here finds our modules, and can be told from what others start."""
    os.environ["RUNNEL_TEST_OWNER"] = str(os.getpid())
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)


class Nodes:
    """A cluster whose nodes can be taken away and added."""

    def __init__(self, num: int, *, num_cpus: int = 2) -> None:
        from ray.cluster_utils import Cluster

        _mark()
        self._num_cpus = num_cpus
        head = {**self._arguments(ADDRESSES[0]), "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._free = list(ADDRESSES[1:])
        self._added: list[Any] = []
        for _ in range(num - 1):
            self.add()
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        ray.init(address=self._cluster.address, namespace="runnel", _node_ip_address=ADDRESSES[0], **quiet)

    def _arguments(self, address: str) -> dict[str, Any]:
        """Each node is a pool of its own: a, b, c by its address."""
        labels = {"pool": "abcdefgh"[ADDRESSES.index(address)]}
        return {
            "num_cpus": self._num_cpus,
            "node_ip_address": address,
            "object_store_memory": STORE_BYTES,
            "labels": labels,
        }

    def add(self) -> None:
        address = self._free.pop(0)
        self._free.append(address)
        self._added.append(self._cluster.add_node(**self._arguments(address)))

    def remove(self, node_id: str) -> None:
        """As if its power had gone: all its processes are killed. The head node cannot be removed."""
        node = next(n for n in self._added if n.node_id == node_id)
        self._added.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def removable(self) -> set[str]:
        """Ids of the nodes that can be removed."""
        return {n.node_id for n in self._added}

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


def our_actors() -> dict[str, dict[str, Any]]:
    """The groups of the run that goes on: by name, its node and its process."""
    found = {}
    for name in _names():
        group = re.fullmatch(r"runnel-.+-[0-9a-f]{8}-(.+)-[0-9a-f]{4}", name)
        if group is not None and not group[1].startswith("agent-"):
            with suppress(RayError, ValueError, TimeoutError):
                handle = ray.get_actor(name, namespace="runnel")
                found[group[1]] = json.loads(ray.get(handle.where.remote(), timeout=5.0))
    return found


def agent_of(node: str) -> Any:
    """The agent of a node."""
    name = next(n for n in _names() if f"-agent-{node[:16]}" in n)
    return ray.get_actor(name, namespace="runnel")


def _names() -> list[str]:
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["name"].startswith("runnel-")]


def nothing_is_left() -> bool:
    """No actor of a run, no process that shares our memory, nothing of ours under /dev/shm."""
    return not _names() and not memory_holders() and not list(Path("/dev/shm").glob("*runnel*"))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def memory_holders() -> list[int]:
    """Processes started from here that map a run's memory."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                mine = f"RUNNEL_TEST_OWNER={os.getpid()}".encode() in (folder / "environ").read_bytes()
                if mine and "memfd:runnel-" in (folder / "maps").read_text():
                    found.append(int(folder.name))
    return found


def wait_until(check: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether `check()` became true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.1)
    return check()
