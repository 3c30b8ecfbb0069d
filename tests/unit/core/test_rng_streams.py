from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from runnel.core.rng import make_rng, make_seed, rng_state, set_rng_state


def test_names_and_not_order_make_a_stream() -> None:
    first = make_rng(1, "actor", 0).random(8)
    make_rng(1, "noise").random(100)
    assert (make_rng(1, "actor", 0).random(8) == first).all()


def test_streams_differ_by_seed_name_and_number() -> None:
    keys = [(1, "actor", 0), (2, "actor", 0), (1, "actor", 1), (1, "buffer", 0), (1, "actor"), (1,), (1, 0, "actor")]
    draws = {tuple(make_rng(seed, *names).integers(1 << 62, size=4)) for seed, *names in keys}
    assert len(draws) == len(keys)


def test_seeds_fit_in_31_bits_and_differ() -> None:
    seeds = [make_seed(7, "env", i) for i in range(2000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 1 << 31 for s in seeds)
    assert seeds == [make_seed(7, "env", i) for i in range(2000)]


DRAWS: list[Callable[[np.random.Generator], object]] = [
    lambda r: r.random(3).tolist(),
    lambda r: r.integers(10, size=1, dtype=np.uint32).tolist(),
    lambda r: r.integers(0, 3, dtype=np.uint8, size=5).tolist(),
    lambda r: r.standard_normal(5).tolist(),
    lambda r: r.permutation(7).tolist(),
    lambda r: float(r.random(dtype=np.float32)),
]


@pytest.mark.parametrize("num_before", range(12))
def test_a_restored_generator_goes_on_bit_for_bit(num_before: int) -> None:
    """Also in the middle of its buffer, and with half of a 64-bit number left over."""
    rng = make_rng(3, "x")
    for k in range(num_before):
        DRAWS[k % len(DRAWS)](rng)
    state = json.loads(json.dumps(rng_state(rng)))
    other = make_rng(99, "other")
    other.random(5)
    set_rng_state(other, state)
    assert [d(other) for d in DRAWS * 3] == [d(rng) for d in DRAWS * 3]
    assert rng_state(other) == rng_state(rng)


def test_a_state_does_not_change_with_its_generator() -> None:
    rng = make_rng(3, "x")
    state = rng_state(rng)
    first = rng.random(9).tolist()
    set_rng_state(rng, state)
    assert rng.random(9).tolist() == first
