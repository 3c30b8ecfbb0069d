"""RLHF in three stages: imitation, a reward model from pairs, then PPO (with a critic) on that reward model.

runnel pipeline rlhf --task my_task.py:make_task --pairs pairs.jsonl --model path/to/model --out runs/rlhf
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import runnel as rl


@dataclass(frozen=True)
class Config(rl.run.PipelineConfig):
    """After Ouyang et al. 2022 (arXiv:2203.02155): the KL to the supervised model is part of the reward."""

    task: str = "reverse"
    """Task with prompts, demonstrations and evaluation: a name (see `runnel list`), or your own as
    path/to/file.py:make_task."""
    pairs: str = ""
    """File of JSON lines with prompt, chosen and rejected. Empty: the task's reward makes pairs of completions of the
    supervised model."""
    pair_batches: int = 30
    """Batches of 32 prompts, with 8 completions each, from which these pairs are made."""
    model: str = ""
    """Folder of a Hugging Face model and its tokenizer. Empty: a new, small model of the sizes in `lm`."""
    sft_updates: int = 80
    """Supervised updates."""
    demo_rows: int = 64
    """Demonstrations in a supervised batch."""
    reward_updates: int = 60
    """Updates of the reward model."""
    rl_updates: int = 60
    """Updates of PPO."""
    num_prompts: int = 16
    """Prompts in a batch of PPO."""
    group_size: int = 4
    """Completions of each prompt."""
    eval_prompts: int = 256
    """Number of unseen prompts (or pairs) on which each model is evaluated."""
    stop_on: Literal["nothing", "collapse"] = "nothing"
    """collapse: a stage that collapses (docs/guides/collapse.md) ends with a checkpoint, and the pipeline with it."""
    lm: rl.llm.ModelConfig = field(default_factory=rl.llm.ModelConfig)
    learner: rl.llm.TokenLearnerConfig = field(default_factory=rl.llm.TokenLearnerConfig)
    """`sft_lr` is the learning rate of the supervised stage, `lr` that of the others."""
    ppo: rl.llm.TokenPPOConfig = field(
        default_factory=lambda: rl.llm.TokenPPOConfig(kl_coef=0.05, kl_in="reward", critic_warmup=5)
    )

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together; the stages check their own settings."""
        super().check()
        if self.pairs:
            rl.core.refuse_unused(self, {"pair_batches": "pairs are given"})


def stages(c: Config) -> list[rl.Stage]:
    """`sft`, perhaps `pairs`, `reward`, `rl`. The last stage is evaluated by the task's own reward, which is not part of its
    training."""
    shared = {"task": c.task, "seed": c.seed, "device": c.device, "stop_on": c.stop_on, "eval": {"episodes": c.eval_prompts}}
    data = rl.run.learner_settings(c.learner)
    sft = {"model": c.model, "lm": rl.core.to_data(c.lm), "total_updates": c.sft_updates, "demo_rows": c.demo_rows}
    sft["learner"] = {**data, "lr": c.learner.sft_lr}
    judged = {"model": "{sft}/model", "pairs_out": "{self}/pairs.jsonl", "total_updates": c.pair_batches}
    judged["learner"] = {"temperature": c.learner.temperature}
    pairs = c.pairs or "{pairs}/pairs.jsonl"
    reward = {"model": "{sft}/model", "pairs": pairs, "total_updates": c.reward_updates, "learner": data}
    ppo = {
        "model": "{sft}/model",
        "reward_model": "{reward}/model",
        "total_updates": c.rl_updates,
        "ppo": rl.core.to_data(c.ppo),
    }
    ppo["learner"] = rl.run.learner_settings(c.learner, rollouts=True, reference=True, critic=True)
    batch = {"num_prompts": c.num_prompts, "group_size": c.group_size}
    return [
        rl.Stage("sft", "sft", {**shared, **sft}),
        *([] if c.pairs else [rl.Stage("pairs", "make_pairs", {**shared, **judged, "eval": {"episodes": 0}})]),
        rl.Stage("reward", "reward_model", {**shared, **reward}),
        rl.Stage("rl", "token_ppo", {**shared, **ppo, **batch}),
    ]
