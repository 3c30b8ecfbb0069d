"""A reward model from pairs of a chosen and a rejected answer (Bradley-Terry).

runnel train reward_model --pairs pairs.jsonl --model path/to/model
"""

from __future__ import annotations

from dataclasses import dataclass

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """A scalar head on a language model (llm/algorithms/reward_model.py); the evaluation is its accuracy on unseen pairs."""


def build(c: Config) -> rl.Experiment:
    """`rl.load` returns an object with `score(prompt, answer)`."""
    return rl.pair_graph(c, rl.llm.RewardModelling(), scores=True)
