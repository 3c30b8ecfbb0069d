"""KTO: learn from single answers that are good or bad, without pairs.

runnel train kto --rated answers.jsonl --model path/to/model --task my_task.py:make_task
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PairConfig):
    """Kahneman-Tversky optimisation (llm/algorithms/kto.py): as many answers an update as `num_pairs` pairs have."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("rated", why="a run is of one task")

    rated: str = ""
    """File of JSON lines with prompt, completion and label (true: a good answer). Empty: both answers of each pair, the chosen
    one as a good answer and the rejected one as a bad one."""
    kto: rl.llm.KTOConfig = field(default_factory=rl.llm.KTOConfig)


def build(c: Config) -> rl.Experiment:
    """The reference policy is the model that the run starts from."""
    return rl.graphs.labelled_graph(c, rl.llm.KTO(c.kto), rated=c.rated)
