"""Measures what a run uses of its machine: cores, memory and GPUs, from /proc and NVIDIA's library.

The process that keeps the ledger measures every few seconds. Systems other than Linux have no /proc; there, rows lack these
numbers.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from runnel.track.folder import Row

GB = 1e9
LOOK_EVERY_S = 2.0
"""Seconds of wall time between two measurements."""
_PPID, _UTIME, _STIME = 1, 11, 12
"""Fields of /proc/PID/stat, counted from the end of the name in brackets (the name may hold spaces)."""


class Load:
    """Measures the load of this process with all its descendants, and of the machine. The first call only starts the count.

    Cores in use are means since the last call. Memory that processes share (streams, libraries) counts once: the sum is each
    process's private memory plus the largest shared part of any of them.
    """

    def __init__(self, *, proc: Path = Path("/proc"), root: int | None = None) -> None:
        self._proc, self._root = proc, root or os.getpid()
        self._foreign: set[int] = set()
        self._ours: dict[int, int] = {}
        self._machine, self._when = 0, 0.0
        self._ticks, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._gpus = Gpus()

    def look(self) -> Row | None:
        """The load of the run (`cores`, `memory_gb`) and of its machine since the last call; None at the first call, and if
        there is no /proc."""
        now = time.monotonic()
        try:
            busy, times = self._busy_ticks(), self._process_ticks()
            ours, machines, total = self._memory()
        except (OSError, ValueError, IndexError):
            return None
        span, first = (now - self._when) * self._ticks, self._when == 0.0
        used = sum(ticks - self._ours.get(pid, 0) for pid, ticks in times.items())
        cores, machine = used / max(span, 1e-9), (busy - self._machine) / max(span, 1e-9)
        self._ours, self._machine, self._when = times, busy, now
        if first:
            return None
        return {
            "cores": round(max(cores, 0.0), 3),
            "machine_cores": round(max(machine, 0.0), 3),
            "num_cores": os.cpu_count() or 1,
            "memory_gb": round(ours / GB, 3),
            "machine_memory_gb": round(machines / GB, 3),
            "total_memory_gb": round(total / GB, 3),
            "gpus": self._gpus.look(),
        }

    def _busy_ticks(self) -> int:
        """Ticks of all cores in user, nice, system, interrupt and stolen time; without idle time and waiting for a disk."""
        fields = [int(n) for n in (self._proc / "stat").read_bytes().partition(b"\n")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4]

    def _process_ticks(self) -> dict[int, int]:
        """Ticks so far of each process of the run. A process that was foreign at the last call stays foreign: only new ones are
        read, since reading thousands of files every two seconds would take much time."""
        there = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        self._foreign &= there
        stats = {pid: stat for pid in sorted(there - self._foreign) if (stat := self._stat(pid))}
        ours, left = {self._root} & stats.keys(), set(stats) - {self._root}
        while found := {pid for pid in left if int(stats[pid][_PPID]) in ours}:
            ours |= found
            left -= found
        self._foreign |= left
        return {pid: int(stats[pid][_UTIME]) + int(stats[pid][_STIME]) for pid in ours}

    def _stat(self, pid: int) -> list[bytes]:
        """The fields behind the name; none if the process has ended meanwhile."""
        try:
            return (self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return []

    def _memory(self) -> tuple[int, int, int]:
        """Bytes in use by the run, in use on the machine, and in the machine."""
        own = shared = 0
        for pid in self._ours or {self._root: 0}:
            try:
                fields = (self._proc / str(pid) / "statm").read_bytes().split()
            except OSError:
                continue
            own, shared = own + int(fields[1]) - int(fields[2]), max(shared, int(fields[2]))
        lines = (self._proc / "meminfo").read_bytes().split(b"\n")
        machine = {line.split(b":")[0]: int(line.split()[1]) * 1024 for line in lines[:5] if line}
        total = machine[b"MemTotal"]
        return (own + shared) * self._page, total - machine.get(b"MemAvailable", total), total


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """The GPUs of this machine, from NVIDIA's management library (NVML), which comes with the driver.

    To ask torch instead would make a CUDA context, which takes GPU memory, in a process that computes nothing.
    """

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._handles: list[ctypes.c_void_p] = []
        self._names: list[str] = []
        try:
            self._open(ctypes.CDLL("libnvidia-ml.so.1"))
        except (OSError, AttributeError):
            self._handles = []

    def _open(self, library: ctypes.CDLL) -> None:
        count = ctypes.c_uint()
        if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        self._library = library
        for index in range(count.value):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                library.nvmlDeviceGetName(handle, name, 96)
                self._handles.append(handle)
                self._names.append(name.value.decode(errors="replace"))

    def look(self) -> list[Row]:
        """The load of each GPU now. A number that its driver does not report is left out."""
        return [self._load(name, handle) for name, handle in zip(self._names, self._handles, strict=True)]

    def _load(self, name: str, handle: ctypes.c_void_p) -> Row:
        load: Row = {"name": name}
        assert self._library is not None, "it has handles"
        rates, memory = _Utilisation(), _Memory()
        if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
            load["utilisation"] = rates.gpu / 100
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            load["memory_gb"], load["total_gb"] = round(memory.used / GB, 3), round(memory.total / GB, 3)
        return load
