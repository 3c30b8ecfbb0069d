"""Iterated DPO: imitation, then rounds of generating, making pairs by reward, and DPO, each on the model of the round before.

runnel pipeline iterated_dpo --task reverse --rounds 3 --out runs/words
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import runnel as rl


@dataclass(frozen=True)
class Config(rl.run.PipelineConfig):
    """Supervised start, then `rounds` rounds (after Yuan et al. 2024, arXiv:2401.10020, with the task's reward in
    place of the model's own)."""

    task: str = "reverse"
    """Name of a task (see `runnel list`), or your own as path/to/file.py:make_task."""
    model: str = ""
    """Folder of a Hugging Face model and its tokenizer. Empty: a new, small model of the sizes in `lm`."""
    rounds: int = 3
    """Rounds of generating, making pairs and DPO."""
    sft_updates: int = 80
    """Supervised updates before the first round."""
    demo_rows: int = 64
    """Demonstrations in a supervised batch."""
    pair_batches: int = 10
    """Batches of 32 prompts, with 8 completions each, from which the pairs of a round are made."""
    dpo_updates: int = 20
    """Updates of DPO in a round."""
    num_pairs: int = 32
    """Pairs in an update of DPO."""
    eval_prompts: int = 256
    """Number of unseen prompts on which each model is evaluated."""
    stop_on: Literal["nothing", "collapse"] = "nothing"
    """collapse: a stage that collapses (docs/guides/collapse.md) ends with a checkpoint, and the pipeline with it."""
    lm: rl.llm.ModelConfig = field(default_factory=rl.llm.ModelConfig)
    learner: rl.llm.TokenLearnerConfig = field(default_factory=rl.llm.TokenLearnerConfig)
    """`sft_lr` is the learning rate of the supervised stage, `lr` that of DPO."""
    dpo: rl.llm.DPOConfig = field(default_factory=lambda: rl.llm.DPOConfig(chosen_coef=1.0))

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together; the stages check their own settings."""
        super().check()
        why = "DPO learns from pairs, not from what an engine says while it samples"
        rl.core.refuse_unused(self, {"learner.critic_lr": "no stage has a critic", "learner.max_mismatch": why})


def stages(c: Config) -> list[rl.Stage]:
    """`sft`, then `pairs-1`, `dpo-1`, `pairs-2`, ... Weights and pairs go from stage to stage by their folders."""
    shared = {"task": c.task, "seed": c.seed, "device": c.device, "stop_on": c.stop_on}
    measured = {**shared, "eval": {"episodes": c.eval_prompts}}
    sft = {"model": c.model, "lm": rl.core.to_data(c.lm), "total_updates": c.sft_updates, "demo_rows": c.demo_rows}
    sft["learner"] = {**rl.run.learner_settings(c.learner), "lr": c.learner.sft_lr}
    out, model = [rl.Stage("sft", "sft", {**measured, **sft})], "{sft}/model"
    for i in range(1, c.rounds + 1):
        pairs = {"model": model, "pairs_out": "{self}/pairs.jsonl", "total_updates": c.pair_batches}
        pairs["learner"] = {"temperature": c.learner.temperature}
        out.append(rl.Stage(f"pairs-{i}", "make_pairs", {**shared, **pairs, "seed": c.seed + i}))
        dpo = {"model": model, "pairs": f"{{pairs-{i}}}/pairs.jsonl", "num_pairs": c.num_pairs, "dpo": rl.core.to_data(c.dpo)}
        dpo["learner"] = rl.run.learner_settings(c.learner, reference=True)
        out.append(rl.Stage(f"dpo-{i}", "dpo", {**measured, **dpo, "total_updates": c.dpo_updates}))
        model = f"{{dpo-{i}}}/model"
    return out
