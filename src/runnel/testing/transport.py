"""The contract check for transports: the guarantees of sample streams, parameter channels and inference streams.

A transport is given as factories of its ends. If possible, a factory attaches the two ends separately (two mappings of the same
memory, two connections), so that they share only what the transport carries. Each check returns one sentence for each broken
property; an empty list is a pass. The single properties, by name, and the types of the ends are in the modules imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from runnel.testing.inference_properties import INFERENCE, MakeInference
from runnel.testing.param_properties import PARAMS, MakeParams
from runnel.testing.rank_properties import RANKS, MakeRanks
from runnel.testing.sample_account import MakeSamples
from runnel.testing.sample_properties import SAMPLES

Make = TypeVar("Make")


def check_samples(make: MakeSamples) -> list[str]:
    """What is wrong with a sample stream; `make(spec, policy)` gives a fresh one."""
    return _check(SAMPLES, make)


def check_ranks(make: MakeRanks) -> list[str]:
    """What is wrong with a sample stream that several ranks of a trainer share; `make(spec, policy)` gives a fresh one."""
    return _check(RANKS, make)


def check_params(make: MakeParams) -> list[str]:
    """What is wrong with a parameter channel; `make(depth)` gives the ends of a fresh one that keeps `depth` versions."""
    return _check(PARAMS, make)


def check_inference(make: MakeInference) -> list[str]:
    """What is wrong with an inference stream; `make(spec)` gives the ends of a fresh one."""
    return _check(INFERENCE, make)


def _check(properties: Mapping[str, Callable[[Make], None]], make: Make) -> list[str]:
    found = []
    for name, check in properties.items():
        try:
            check(make)
        except AssertionError as error:
            found.append(f"{name}: {error}")
    return found
