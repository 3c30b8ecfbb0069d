"""All-reduce between the ranks of a trainer, by torch.distributed: gloo over TCP on the host, NCCL between GPUs.

Rank 0 listens (by default on the loopback) and the others connect to its address. They connect at the first sum, not when the
object is made, so ranks may start in any order. Only tensors are sent.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor

from runnel.core.errors import RankError

LOOPBACK = "127.0.0.1"
MEET_S = 86_400.0
"""Timeout of a sum: a day, because one rank may have much more work before a sum than another. A rank that hangs is found by
its heartbeat, and a rank that dies by its socket."""
ROLL_CALL_S = 2.0
"""When a sum fails, each rank that lives reports within this time; the others are named in the error."""
ALIVE = "alive"
GLOO = "runnel"
"""Backend name of our gloo groups in torch's default process group: they listen on a given address only."""


class TorchCollective:
    """`core.contracts.learning.Collective` over processes. Sums are in place, in a fixed order for a fixed number of ranks.

    `stage` is the rank's current stage, for errors. All waiting happens inside `around()`. `timeout_s` is for the rendezvous
    and for messages between two ranks. NCCL sums tensors on GPUs (one GPU for each rank), gloo all others.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        address: str = "",
        host: str = LOOPBACK,
        backend: Literal["gloo", "nccl"] = "gloo",
        timeout_s: float = 180.0,
    ) -> None:
        self.rank, self.world_size, self.address = rank, world_size, address
        self.stage = "start"
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._host, self._backend, self._timeout = host, backend, timedelta(seconds=timeout_s)
        self._listener: socket.socket | None = None
        self._store: Any = None
        self._gloo: Any = None
        self._sum: Any = None
        self._nccl: Any = None
        self._mesh: Any = None

    def listen(self) -> str:
        """Rank 0: open the rendezvous socket; returns HOST:PORT. A second call returns the same address."""
        if self._listener is None and self._store is None:
            port = int(self.address.rpartition(":")[2] or 0)
            self._listener = socket.create_server((self._host, port), backlog=self.world_size + 8)
            self.address = f"{self._host}:{self._listener.getsockname()[1]}"
        return self.address

    # ------------------------------------------------------------------------------------------------------------ sums
    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.detach().contiguous()
        with self.around():
            try:
                self._connect()
                group = self._nccl if x.is_cuda and self._nccl is not None else self._gloo
                group.allreduce([x], self._sum).wait()
            except RuntimeError as error:
                raise self._explain(error) from error
        return x

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """All-gather: the numbers of every rank, by rank. Every rank passes equally many."""
        # A sum of rows that are zero on all other ranks: exact, and it needs no second kind of collective.
        table = torch.zeros(self.world_size, len(numbers), dtype=torch.float64)
        table[self.rank] = torch.tensor(numbers, dtype=torch.float64)
        rows: list[list[float]] = self.all_reduce(table).tolist()
        return rows

    def send(self, x: Tensor, rank: int) -> None:
        """Send a tensor in host memory to one other rank."""
        self._point_to_point("send", x, rank)

    def receive(self, x: Tensor, rank: int) -> Tensor:
        """Receive a tensor from `rank` into `x`."""
        self._point_to_point("recv", x, rank)
        return x

    def _point_to_point(self, what: Literal["send", "recv"], x: Tensor, rank: int) -> None:
        if not x.numel():
            return
        with self.around():
            try:
                self._connect()
                getattr(self._gloo, what)([x], rank, 0).wait()
            except RuntimeError as error:
                raise self._explain(error) from error

    def mesh(self) -> Any:
        """The ranks as a `torch.distributed.DeviceMesh`, for learners that keep a shard of the parameters on each rank (FSDP2).

        The mesh uses torch's default process group, which this call makes. That group ends with the process.
        """
        if self._mesh is None:
            with self.around():
                self._connect()
                dist: Any = importlib.import_module("torch.distributed")
                if GLOO not in dist.Backend.backend_list:
                    dist.Backend.register_backend(GLOO, self._make_gloo, devices=["cpu"])
                kinds = f"cpu:{GLOO},cuda:nccl" if self._backend == "nccl" else f"cpu:{GLOO}"
                store = dist.PrefixStore("world", self._store)
                size = {"rank": self.rank, "world_size": self.world_size}
                dist.init_process_group(kinds, store=store, timeout=self._timeout, **size)
                device = "cuda" if self._backend == "nccl" else "cpu"
                self._mesh = dist.device_mesh.init_device_mesh(device, (self.world_size,))
        return self._mesh

    # --------------------------------------------------------------------------------------------------------- meeting
    def _connect(self) -> None:
        if self._gloo is not None:
            return
        dist: Any = importlib.import_module("torch.distributed")
        self._sum = dist.AllreduceOptions()
        self._sum.timeout = timedelta(seconds=MEET_S)
        self._store = self._open_store(dist)
        # A prefix for each backend, because they use the same keys in the store.
        store = dist.PrefixStore("gloo", self._store)
        self._gloo = self._make_gloo(store, self.rank, self.world_size, self._timeout)
        if self._backend == "nccl":
            fast = dist.ProcessGroupNCCL.Options()
            fast._timeout = timedelta(seconds=MEET_S)
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", self._store), self.rank, self.world_size, fast)

    def _make_gloo(self, store: Any, rank: int, world_size: int, timeout: timedelta) -> Any:
        """Make a gloo group over TCP that listens on this rank's own address only."""
        dist: Any = importlib.import_module("torch.distributed")
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout, options._threads = timeout, 2
        return dist.ProcessGroupGloo(store, rank, world_size, options)

    def _open_store(self, dist: Any) -> Any:
        """The store for the rendezvous. Rank 0 keeps it, on the socket that `listen` has bound to one address."""
        host, _, port = (self.listen() if self.rank == 0 else self.address).rpartition(":")
        extra: dict[str, Any] = {}
        if self._listener is not None:
            extra["master_listen_fd"] = self._listener.detach()  # torch owns and closes the descriptor from here on
            self._listener = None
        leads = self.rank == 0
        return dist.TCPStore(host, int(port), self.world_size, leads, self._timeout, wait_for_workers=False, **extra)

    def _explain(self, error: RuntimeError) -> RankError:
        """An error that names the ranks that are gone: those that do not report themselves in the store."""
        detail = re.sub(r"^\[[^\]]*\] *", "", str(error).splitlines()[0]).partition(". ")[0]
        if self._store is None:
            return RankError([0], self.stage, "cannot be reached", f"no answer at {self.address or 'its address'} ({detail})")
        missing = self._missing()
        what = "are gone" if missing else "lost the others"
        return RankError(missing or [self.rank], self.stage, what, detail)

    def _missing(self) -> list[int]:
        others = [r for r in range(self.world_size) if r != self.rank]
        try:
            self._store.set(f"{ALIVE}/{self.rank}", "1")
            with suppress(RuntimeError):  # some ranks do not report in time
                self._store.wait([f"{ALIVE}/{r}" for r in others], timedelta(seconds=ROLL_CALL_S))
            return [r for r in others if not self._store.check([f"{ALIVE}/{r}"])]
        except RuntimeError:
            return [0]  # rank 0 keeps the store, so it is the one that is gone

    def close(self) -> None:
        """Close the sockets. Ranks that still wait for this one see their connection close."""
        if self._listener is not None:
            self._listener.close()
        self._listener = self._mesh = self._nccl = self._gloo = self._store = None
