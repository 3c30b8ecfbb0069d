"""A reward model from pairs of a chosen and a rejected answer (Bradley-Terry), or from answers with scores (regression).

runnel train reward_model --pairs pairs.jsonl --model path/to/model
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """A scalar head on a language model (llm/algorithms/reward_model.py). The evaluation is its accuracy on unseen pairs; of
    scores, minus the squared error."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("rated", why="a run is of one task")

    rated: str = ""
    """File of JSON lines with prompt, completion and score, to which the model is fitted in place of pairs. A batch has as many
    answers as `num_pairs` pairs have."""
    reward_model: rl.llm.RewardModelConfig = field(default_factory=rl.llm.RewardModelConfig)

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        found = super().unused() | ({"record.groups_every": "single answers are no groups"} if self.rated else {})
        if self.pairs and not self.rated:
            return found
        why = "scores are fitted as they are; give pairs" if self.rated else "reads a field of pairs; give a file of pairs"
        return found | {f"reward_model.{name}": why for name in ("margin_coef", "weighted")}


def build(c: Config) -> rl.Experiment:
    """`rl.load` returns an object with `score(prompt, answer)`."""
    if c.rated:
        return rl.graphs.scored_graph(c, rl.llm.ScoreRegression(), rated=c.rated)
    return rl.pair_graph(c, rl.llm.RewardModelling(c.reward_model), scores=True, asked=c.reward_model.asked)
