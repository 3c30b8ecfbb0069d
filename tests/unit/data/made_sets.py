"""Data sets for tests: episodes of an environment that counts, so that every entry says where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.data.dataset import Dataset, DatasetWriter, Source

SPEC = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=3))
MASKED = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=3), has_mask=True)
SOURCE = Source("Counter-v0")


def episode(number: int, length: int, *, terminated: bool, spec: EnvSpec = SPEC) -> dict[str, Any]:
    """Observation t of episode e is (e, t), the reward of step t is 10 e + t + 1."""
    steps = np.arange(length)
    ends = steps == length - 1
    found = {
        "obs": np.stack([np.full(length + 1, number), np.arange(length + 1)], -1).astype(np.float32),
        "action": (steps + number) % 3,
        "rewards/env": (10.0 * number + steps + 1).astype(np.float32),
        "terminated": ends & terminated,
        "truncated": ends & (not terminated),
    }
    if spec.has_mask:
        found["action_mask"] = np.eye(3, dtype=bool)[(np.arange(length + 1) + number) % 3]
    return found


def make_set(folder: Path, lengths: Sequence[int] = (3, 1, 4), *, spec: EnvSpec = SPEC, source: Source = SOURCE) -> Dataset:
    """Episodes of these lengths; the odd ones are truncated."""
    with DatasetWriter(folder, spec, source) as writer:
        for i, length in enumerate(lengths):
            writer.add(episode(i, length, terminated=i % 2 == 0, spec=spec))
        return writer.finish(run="made")
