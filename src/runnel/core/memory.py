"""Free memory, which is checked before large allocations, and the error for an allocation that fails all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from runnel.core.errors import ConfigError, OutOfMemoryError

UNKNOWN = 1 << 62
"""Result of `free_memory` if neither the system nor a container's limit is known."""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def free_memory(device: str | torch.device = "cpu") -> int:
    """Bytes that a new allocation may use: on a GPU, or on this machine within the limit of the container.

    >>> 0 < free_memory() <= UNKNOWN
    True
    """
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        kept = torch.cuda.memory_reserved(torch.device(device)) - torch.cuda.memory_allocated(torch.device(device))
        return int(free + kept)  # torch keeps freed memory in its own pool, where the driver does not count it as free
    found = []
    if Path("/proc/meminfo").is_file():
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        found += [int(lines["MemAvailable"].split()[0]) * 1024] if "MemAvailable" in lines else []
    for limit, used in zip(_LIMITS, _USED, strict=True):
        if Path(limit).is_file() and Path(used).is_file() and Path(limit).read_text().strip() != "max":
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(0, min(found)) if found else UNKNOWN


def check_room(num_bytes: int, device: str | torch.device, *, field: str, value: int, other: str = "") -> None:
    """Refuse an allocation that does not fit on `device`; the error says which `value` of `field` would fit."""
    room = free_memory(device)
    if num_bytes <= room:
        return
    needs = f"needs {num_bytes / 2**30:.1f} GiB, and {device} has {room / 2**30:.1f} GiB free"
    raise ConfigError(field, value, f"{needs}; use at most {int(room * 0.9 / num_bytes * value)}{other}")


@contextmanager
def memory_for(what: str, fix: str) -> Iterator[None]:
    """Turn a failed allocation in the block into an `OutOfMemoryError` that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        text = str(error).splitlines()[0] if str(error) else "no memory left"
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
            raise OutOfMemoryError(what, fix, text) from error
        raise
