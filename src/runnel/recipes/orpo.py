"""ORPO: fine-tune on the chosen answers of pairs, and make the rejected ones less likely.

runnel train orpo --pairs pairs.jsonl --model path/to/model --task my_task.py:make_task
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """Odds ratio preference optimisation (llm/algorithms/contrast.py): `num_pairs` pairs an update."""

    orpo: rl.llm.ORPOConfig = field(default_factory=rl.llm.ORPOConfig)


def build(c: Config) -> rl.Experiment:
    """One run in place of fine-tuning and DPO."""
    return rl.pair_graph(c, rl.llm.ORPO(c.orpo))
