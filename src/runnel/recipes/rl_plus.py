"""RL-PLUS: GRPO with the demonstrated answer as one more member of each group.

runnel train rl_plus --task reverse --warmup-updates 20 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """RL-PLUS (llm/algorithms/rl_plus.py): the first of the `group_size` completions of a prompt is the demonstrated answer."""

    demo_first: ClassVar[bool] = True
    rl_plus: rl.llm.RLPlusConfig = field(default_factory=rl.llm.RLPlusConfig)


def build(c: Config) -> rl.Experiment:
    """Right answers that the policy finds unlikely count most."""
    return rl.prompt_graph(
        c,
        lambda task: rl.llm.RLPlus(
            c.rl_plus, channels=task.channels, max_tokens=task.sizes.completion, vocab_size=task.tokenizer.vocab_size
        ),
    )
