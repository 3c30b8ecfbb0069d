"""The loss components of several algorithms under one roof: their names, the metrics that they show, and means of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.errors import ConfigError
from runnel.core.state import Metrics
from runnel.llm.algorithms.base import Algorithm, Component


def metrics_of(active: Mapping[str, Component]) -> list[str]:
    """The metrics of the components that train."""
    return [f"loss/{name}" for name in active] + [metric for c in active.values() for metric in c.metrics]


def name_components(algorithms: Mapping[str, Algorithm]) -> tuple[dict[str, Component], dict[str, str]]:
    """The components of all algorithms by name, and the reader of each."""
    found: dict[str, Component] = {}
    readers: dict[str, str] = {}
    for reader, algorithm in algorithms.items():
        for name, component in algorithm.components.items():
            if name in found:
                fix = f"readers {readers[name]!r} and {reader!r} both have a loss component {name!r}; names must be unique"
                raise ConfigError("algorithms", reader, fix)
            found[name], readers[name] = component, reader
    return found, readers


def mean_of(steps: Sequence[Metrics]) -> Metrics:
    """The mean of each number over the optimiser steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    found = {name: [step[name] for step in steps if name in step] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
