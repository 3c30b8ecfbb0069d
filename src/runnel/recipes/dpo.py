"""DPO: learn from pairs of a chosen and a rejected answer, without a reward model.

runnel train dpo --pairs pairs.jsonl --model path/to/model --task my_task.py:make_task
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """Direct preference optimisation (llm/algorithms/dpo.py): `num_pairs` pairs an update."""

    dpo: rl.llm.DPOConfig = field(default_factory=rl.llm.DPOConfig)


def build(c: Config) -> rl.Experiment:
    """The reference policy is the model that the run starts from."""
    return rl.pair_graph(c, rl.llm.DPO(c.dpo))
