"""The transport between processes on one machine: arrays in shared memory, doorbells for waiting, nothing pickled.

The memory has no name. The parent makes anonymous files and hands their descriptors to its children. When the last process
ends, in whatever way, the kernel frees the memory, so no shared memory can outlive a run.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError
from runnel.core.memory import free_memory
from runnel.core.readable import readable
from runnel.core.records import Batch, StreamSpec
from runnel.core.sharding.param_shards import ParamShard
from runnel.core.state import State
from runnel.flow.collective import LOOPBACK
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import Channel, ChannelSubscriber, checksum
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import AdmissionRule

_ALIGN = 64


def anonymous_file(name: str, size: int = 0) -> int:
    """Make memory without a name; returns a descriptor that children can inherit."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"runnel-{name}")
    else:
        fd, path = tempfile.mkstemp(prefix=f"runnel-{name}-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


def free_shared_memory() -> int:
    """Bytes of shared memory that are free. For anonymous memory this is the machine's free memory."""
    if hasattr(os, "memfd_create"):
        return free_memory()
    stat = os.statvfs(tempfile.gettempdir())
    return stat.f_bavail * stat.f_frsize


class FileLock:
    """A lock between processes; the kernel releases it when its holder dies."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> FileLock:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


def make_bell() -> tuple[int, int]:
    """Make a pipe with two non-blocking ends: (reading end, writing end)."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def press(bell: int) -> None:
    """Ring a bell."""
    # A full pipe means that the bell has rung already and its owner has yet to wake up. A broken pipe means that its owner has
    # died: the supervisor handles that, the process that rings does not.
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(bell, b"!")


def hear(bell: int, timeout_s: float, *also: int) -> bool:
    """Wait for the bell, for a readable descriptor in `also`, or for `timeout_s`; returns whether anything came."""
    ready = readable([bell, *also], timeout_s)
    if bell in ready:
        # Empty the pipe before the caller looks at the memory: a ring after this point wakes it once more, so none is lost.
        with suppress(BlockingIOError):
            while len(os.read(bell, 4096)) == 4096:
                continue
    return bool(ready)


class Doorbells:
    """One pipe per process group: a group rings the pipes of all others and waits on its own."""

    def __init__(self, pipes: Mapping[str, tuple[int, int]], group: str) -> None:
        self._own = pipes[group][0]
        self._others = [write for name, (_, write) in pipes.items() if name != group]

    @staticmethod
    def make(groups: list[str]) -> dict[str, tuple[int, int]]:
        return {name: make_bell() for name in groups}

    def ring(self) -> None:
        for fd in self._others:
            press(fd)

    def wait(self, timeout_s: float, *also: int) -> bool:
        """Wait for a ring, for a readable descriptor in `also`, or for `timeout_s`; returns whether anything came."""
        return hear(self._own, timeout_s, *also)


class Bells(Protocol):
    """How processes that share memory wake each other."""

    def ring(self) -> None:
        """Wake all other processes."""
        ...

    def wait(self, timeout_s: float, *also: int) -> bool: ...


class ShmTransport:
    """Streams in shared memory. The parent makes the descriptors (`allocate`); every child gets them as `fds`."""

    meet_at = LOOPBACK

    def __init__(self, fds: Mapping[str, int], bells: Bells) -> None:
        self._fds, self._bells = fds, bells

    @staticmethod
    def allocate(
        streams: Mapping[str, StreamSpec], channels: list[str], mailbox_tables: Mapping[str, InferenceSpec]
    ) -> dict[str, int]:
        """Make a descriptor for every edge between groups. A parameter channel gets its size at the first publication."""
        sizes = {f"samples/{k}": _stream_layout(v)[1] for k, v in streams.items()}
        sizes |= {f"inference/{k}": v.num_numbers * 8 + v.num_boxes * v.max_bytes for k, v in mailbox_tables.items()}
        need, free = sum(sizes.values()), free_shared_memory()
        if need > free:
            raise ConfigError("streams", f"{need >> 20} MiB", f"only {free >> 20} MiB of shared memory is free; lower capacity")
        sizes |= {f"params/{k}": 0 for k in channels}
        return {name: anonymous_file(name.replace("/", "-"), size) for name, size in sizes.items()}

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        fd = self._fds[f"samples/{spec.name}"]
        layout, size = _stream_layout(spec)
        memory = mmap.mmap(fd, size)
        control = np.frombuffer(memory, np.int64, SlotMemory.control_size(spec))
        blocks = [{k: _tensor(memory, *place) for k, place in fields.items()} for fields in layout["blocks"]]
        slots = [slot for block in blocks for slot in spec.slots_of(block)]
        feedback = [Batch({k: _tensor(memory, *place) for k, place in fields.items()}) for fields in layout["feedback"]]
        return SlotTable(spec, policy, SlotMemory(control, slots, feedback), lock=FileLock(fd), ring=self._bells.ring)

    def inference(self, spec: InferenceSpec) -> MailboxTable:
        fd, split = self._fds[f"inference/{spec.name}"], spec.num_numbers * 8
        memory = mmap.mmap(fd, split + spec.num_boxes * spec.max_bytes)
        control = np.frombuffer(memory, np.int64, spec.num_numbers)
        payload = np.frombuffer(memory, np.uint8, offset=split)
        return MailboxTable(spec, control, payload, lock=FileLock(fd), ring=self._bells.ring)

    def params(self, name: str, *, depth: int) -> Channel:
        return ShmChannel(name, self._fds[f"params/{name}"], depth=depth, ring=self._bells.ring)

    def rank_reader(self, spec: StreamSpec, policy: AdmissionRule, rank: int, ranks: int) -> TableReader:
        return TableReader(self.samples(spec, policy), spec.readers[0])

    def writer(self, spec: StreamSpec, policy: AdmissionRule, index: int) -> TableWriter:
        return TableWriter(self.samples(spec, policy), index)

    def client(self, spec: InferenceSpec, index: int, subscriber: ChannelSubscriber, *, first: int = 0) -> MailboxClient:
        return MailboxClient(self.inference(spec), index, subscriber, first=first)

    def server(self, spec: InferenceSpec, index: int) -> MailboxServer:
        return MailboxServer(self.inference(spec), index)

    def wait(self, timeout_s: float, *also: int) -> bool:
        return self._bells.wait(timeout_s, *also)

    def catch_up(self) -> None:
        """No-op: published versions are visible at once."""

    def flush(self) -> None:
        """No-op: shared memory is visible at once."""


class ShmChannel:
    """A parameter channel: `depth` buffers in shared memory. A reader copies one out, then checks version and checksum.

    Layout: 4096 bytes of numbers (size of the manifest, then version and checksum of each buffer), the manifest (JSON:
    name, type, shape, offset), then the buffers. The first publication makes it; until then a subscriber finds no version.
    """

    def __init__(self, name: str, fd: int, *, depth: int, ring: Callable[[], None]) -> None:
        self.name, self._fd, self._depth, self._ring = name, fd, depth, ring
        self._lock = FileLock(fd)
        self._memory: mmap.mmap | None = None
        self._numbers = np.zeros(0, np.int64)
        self._buffers: list[Batch] = []

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        pieces = {name: ParamShard.of(value) for name, value in params.items()}
        self.open(version, pieces)
        self.write(version, pieces)
        self.commit(version)

    def open(self, version: int, pieces: Mapping[str, ParamShard]) -> None:
        """Open `version` for writing, from any process; `pieces` give names and shapes."""
        if self._memory is None:
            self._create(pieces)
        if version < self.newest():
            raise DataError(f"parameters {self.name!r}: version {version} published after {self.newest()}")
        if odd := sorted(pieces.keys() ^ self._buffers[0].keys()):
            fix = "a channel keeps the names of its first publication; does the checkpoint come from another release?"
            raise DataError(f"parameters {self.name!r}: version {version} differs in {odd[:3]}: {fix}")
        # The oldest buffer is overwritten. The same version published again goes into its own buffer.
        slot = int(np.argmin(self._versions())) if not self.has(version) else int(np.argmax(self._versions() == version))
        with self._lock:
            self._numbers[1 + 2 * slot] = _unfinished(version)

    def write(self, version: int, pieces: Mapping[str, ParamShard]) -> None:
        """Write rows of the open `version`."""
        buffer = self._buffers[self._open_slot(version)]
        for name, piece in pieces.items():
            piece.put(buffer[name])

    def commit(self, version: int) -> None:
        """Close the open `version` after all rows are written: store its checksum and make it visible."""
        slot = self._open_slot(version)
        crc = checksum(self._buffers[slot])
        with self._lock:
            self._numbers[2 + 2 * slot] = crc
            self._numbers[1 + 2 * slot] = version
        self._ring()

    def _open_slot(self, version: int) -> int:
        if not self._attach() or not (self._versions() == _unfinished(version)).any():
            raise DataError(f"parameters {self.name!r}: version {version} is not open for writing")
        return int(np.argmax(self._versions() == _unfinished(version)))

    def newest(self) -> int:
        return max(int(self._versions().max()), -1) if self._attach() else -1

    def has(self, version: int) -> bool:
        return self._attach() and bool((self._versions() == version).any())

    def stamps(self) -> dict[int, int]:
        if not self._attach():
            return {}
        with self._lock:
            numbers = self._numbers[1 : 1 + 2 * self._depth].tolist()
        return {version: crc for version, crc in zip(numbers[::2], numbers[1::2], strict=True) if version >= 0}

    def get(self, version: int) -> ParamSet | None:
        if not self.has(version):
            return None
        slot = int(np.argmax(self._versions() == version))
        crc = int(self._numbers[2 + 2 * slot])
        params = self._buffers[slot].map(lambda x: x.clone())
        # The copy is made without the lock, so the publisher may have overwritten the buffer meanwhile.
        if int(self._versions()[slot]) != version or checksum(params) != crc:
            return None
        return ParamSet(version, params)

    def views(self, version: int) -> Mapping[str, Tensor]:
        """Views of a version in shared memory: no copy, and overwritten `depth` versions later."""
        if not self.has(version):
            raise DataError(f"parameters {self.name!r}: version {version} is not there")
        return self._buffers[int(np.argmax(self._versions() == version))]

    def snapshot(self) -> State:
        if not self._attach():
            return {"versions": {}}
        newest = self.newest()
        old = sorted(int(v) for v in self._versions() if 0 <= v < newest)
        return {"versions": {str(v): self._buffers[int(np.argmax(self._versions() == v))].map(torch.clone) for v in old}}

    def restore(self, state: State) -> None:
        for version, params in state["versions"].items():
            self.publish(int(version), params)

    def _versions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self._numbers[1 : 1 + 2 * self._depth : 2]

    def _create(self, pieces: Mapping[str, ParamShard]) -> None:
        entries, at = [], 0
        for key, piece in pieces.items():
            entries.append([key, str(piece.dtype).removeprefix("torch."), list(piece.shape), at])
            at = _aligned(at + math.prod(piece.shape) * piece.dtype.itemsize)
        manifest = json.dumps({"entries": entries, "size": at}).encode()
        os.ftruncate(self._fd, _aligned(4096 + len(manifest)) + self._depth * at)
        memory = mmap.mmap(self._fd, 0)
        numbers = np.frombuffer(memory, np.int64, 512)
        numbers[1 : 1 + 2 * self._depth] = -1
        memory[4096 : 4096 + len(manifest)] = manifest
        numbers[0] = len(manifest)  # last: `_attach` in another process takes this number as "ready"
        self._attach()

    def _attach(self) -> bool:
        if self._memory is not None:
            return True
        if os.fstat(self._fd).st_size < 4096:
            return False
        memory = mmap.mmap(self._fd, 0)
        numbers = np.frombuffer(memory, np.int64, 512)
        if numbers[0] == 0:
            return False
        manifest = json.loads(memory[4096 : 4096 + int(numbers[0])])
        base = _aligned(4096 + int(numbers[0]))
        for slot in range(self._depth):
            start = base + slot * manifest["size"]
            fields = {k: _tensor(memory, getattr(torch, d), tuple(s), start + at) for k, d, s, at in manifest["entries"]}
            self._buffers.append(Batch(fields))
        self._memory, self._numbers = memory, numbers
        return True


def _unfinished(version: int) -> int:
    """The version number of a buffer while `version` is being written into it."""
    return -2 - version


def _aligned(num: int) -> int:
    return -(-num // _ALIGN) * _ALIGN


Place = tuple[torch.dtype, tuple[int, ...], int]


def _stream_layout(spec: StreamSpec) -> tuple[dict[str, list[dict[str, Place]]], int]:
    """Layout of a stream in memory: the place of each array of each slot, and the total size in bytes."""
    at = _aligned(8 * SlotMemory.control_size(spec))
    layout: dict[str, list[dict[str, Place]]] = {"blocks": [], "feedback": []}
    blocks = [{k: (f.dtype, spec.block_shape(k)) for k, f in spec.fields.items()}] * (spec.capacity // spec.side_by_side)
    feedback = [{k: (f.dtype, spec.shape(k)) for k, f in spec.feedback.items()}] * spec.capacity
    for part, groups in (("blocks", blocks), ("feedback", feedback)):
        for fields in groups:
            places: dict[str, Place] = {}
            for key, (dtype, shape) in fields.items():
                places[key] = (dtype, shape, at)
                at = _aligned(at + int(np.prod(shape, dtype=np.int64)) * torch.empty(0, dtype=dtype).element_size())
            layout[part].append(places)
    return layout, at


def _tensor(memory: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], at: int) -> Tensor:
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=at).reshape(shape)
