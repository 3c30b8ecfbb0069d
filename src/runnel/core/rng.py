"""Random streams: every consumer has its own, named after what it is, not after when it runs; and ids by content."""

from __future__ import annotations

import zlib
from hashlib import blake2b

import numpy as np

from runnel.core.state import State


def make_rng(seed: int, *names: str | int) -> np.random.Generator:
    """An independent generator for `names` under `seed`; the same names always give the same numbers.

    >>> make_rng(1, "actor", 0).integers(100) == make_rng(1, "actor", 0).integers(100)
    np.True_
    """
    return np.random.Generator(np.random.Philox(seed_sequence(seed, *names)))


def seed_sequence(seed: int, *names: str | int) -> np.random.SeedSequence:
    """The entropy behind `make_rng`."""
    key = tuple(n if isinstance(n, int) else zlib.crc32(n.encode()) for n in names)
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def make_seed(seed: int, *names: str | int) -> int:
    """A 31-bit seed for `names`: what Gymnasium's `reset(seed=...)` and torch accept."""
    return int(seed_sequence(seed, *names).generate_state(1, np.uint32)[0] >> 1)


def rng_state(rng: np.random.Generator) -> State:
    """The generator's state as plain data (for a checkpoint)."""
    state = rng.bit_generator.state
    inner = state["state"]
    return {
        "kind": state["bit_generator"],
        "counter": [int(x) for x in inner["counter"]],
        "key": [int(x) for x in inner["key"]],
        "buffer": [int(x) for x in state["buffer"]],
        "buffer_pos": int(state["buffer_pos"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def set_rng_state(rng: np.random.Generator, state: State) -> None:
    """Undo `rng_state`."""
    rng.bit_generator.state = {
        "bit_generator": state["kind"],
        "state": {
            "counter": np.array(state["counter"], dtype=np.uint64),
            "key": np.array(state["key"], dtype=np.uint64),
        },
        "buffer": np.array(state["buffer"], dtype=np.uint64),
        "buffer_pos": state["buffer_pos"],
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


def content_id(content: bytes) -> int:
    """The id of a task by what it holds: a hash of 53 bits, which is exact in JSON and in float64."""
    return int.from_bytes(blake2b(content, digest_size=8).digest()) >> 11
