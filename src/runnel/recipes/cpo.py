"""CPO: learn from pairs by DPO under a uniform reference, beside cross entropy.

runnel train cpo --pairs pairs.jsonl --model path/to/model --task my_task.py:make_task
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """Contrastive preference optimisation (llm/algorithms/contrast.py): `num_pairs` pairs an update."""

    cpo: rl.llm.CPOConfig = field(default_factory=rl.llm.CPOConfig)


def build(c: Config) -> rl.Experiment:
    """The cross entropy of the chosen answers holds the policy, in place of a reference."""
    return rl.pair_graph(c, rl.llm.CPO(c.cpo))
