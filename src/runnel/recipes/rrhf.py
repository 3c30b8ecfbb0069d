"""RRHF: of two answers the better one shall be likelier, and is imitated.

runnel train rrhf --pairs pairs.jsonl --model path/to/model --task my_task.py:make_task
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """Rank responses to align (llm/algorithms/contrast.py): `num_pairs` pairs an update."""

    rrhf: rl.llm.RRHFConfig = field(default_factory=rl.llm.RRHFConfig)


def build(c: Config) -> rl.Experiment:
    """A pair that is in order costs nothing but its cross entropy."""
    return rl.pair_graph(c, rl.llm.RRHF(c.rrhf))
