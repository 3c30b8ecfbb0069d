"""SimPO: learn from pairs by the mean log-probability of an answer, without a reference.

runnel train simpo --pairs pairs.jsonl --model path/to/model --task my_task.py:make_task
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """Simple preference optimisation (llm/algorithms/contrast.py): `num_pairs` pairs an update."""

    simpo: rl.llm.SimPOConfig = field(default_factory=rl.llm.SimPOConfig)


def build(c: Config) -> rl.Experiment:
    """There is no second model: the memory is that of fine-tuning."""
    return rl.pair_graph(c, rl.llm.SimPO(c.simpo))
