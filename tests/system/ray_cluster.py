"""Ray for tests: one node, or several on loopback addresses of this machine. Nothing of it is left when the tests end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

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
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RUNNEL_TEST_OWNER"] = str(os.getpid())
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)


class Nodes:
    """A cluster whose nodes can be taken away and added."""

    def __init__(self, num: int, *, num_cpus: int = 1) -> None:
        from ray.cluster_utils import Cluster

        _mark()
        self._num_cpus = num_cpus
        head = {**self._arguments(ADDRESSES[0]), "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._free = list(ADDRESSES[1:])
        self._added: list[Any] = []
        for _ in range(num - 1):
            self.add()
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        ray.init(address=self._cluster.address, namespace="runnel", _node_ip_address=ADDRESSES[0], **quiet)

    def _arguments(self, address: str) -> dict[str, Any]:
        return {"num_cpus": self._num_cpus, "node_ip_address": address, "object_store_memory": STORE_BYTES}

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


def ray_processes() -> dict[int, str]:
    """Processes of Ray and its workers that descend from nobody but us: by pid, what they are."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environ = (folder / "environ").read_bytes()
            except (OSError, ProcessLookupError):
                continue
            if f"RUNNEL_TEST_OWNER={os.getpid()}".encode() in environ and int(folder.name) != os.getpid():
                found[int(folder.name)] = command[:80]
    return found


def wait_until(check: Any, timeout_s: float = 20.0) -> bool:
    """Whether `check()` became true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.1)
    return bool(check())
