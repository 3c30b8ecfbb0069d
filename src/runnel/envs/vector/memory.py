"""Refuses more environments than memory has room for. Without this check the system would kill the run without a message."""

from __future__ import annotations

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.memory import free_memory
from runnel.core.spaces import EnvSpec

_SHARE = 0.9
PROCESS_BYTES = 20_000_000
"""Memory of a forked worker that it does not share with its parent."""


def obs_bytes(spec: EnvSpec) -> int:
    """Bytes of one observation.

    >>> from runnel.core.spaces import ActionSpec, ArraySpec
    >>> obs_bytes(EnvSpec({"obs": ArraySpec((4, 84, 84), torch.uint8)}, ActionSpec("discrete", num_actions=2)))
    28224
    """
    return sum(int(np.prod(leaf.shape)) * torch.empty(0, dtype=leaf.dtype).element_size() for leaf in spec.obs.values())


def check_memory(
    spec: EnvSpec,
    num_envs: int,
    *,
    num_steps: int,
    num_segments: int = 2,
    num_workers: int = 0,
    free: int | None = None,
) -> int:
    """Bytes for `num_envs` environments with `num_segments` segments of `num_steps`. Refuses more than is free.

    A segment holds `num_steps + 1` observations and up to as many final ones. The environments' own memory is not counted.
    """
    one = obs_bytes(spec) * (2 * num_segments * (num_steps + 1) + 2)
    fixed = num_workers * PROCESS_BYTES
    need, free = one * num_envs + fixed, free_memory() if free is None else free
    if need > _SHARE * free:
        fits = max(0, int((_SHARE * free - fixed) // one))
        raise ConfigError(
            "num_envs",
            num_envs,
            f"they need about {need / 1e9:.1f} GB ({one / 1e6:.2f} MB each with {num_steps} steps), and {free / 1e9:.1f} GB "
            f"are free; at most {fits} fit" + (", or use fewer num_steps" if num_steps > 1 else ""),
        )
    return need
