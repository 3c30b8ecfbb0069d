"""What golden runs are of, where a language model learns: every recipe and pipeline, other forms, and runs without loops."""

from __future__ import annotations

from pathlib import Path

from golden_cases import Case, Settings, merged
from tiny_recipes import ON_ROLLOUTS, ROLLOUTS, SMALL_LM, TWO_STEPS
from tiny_slices import SLICES

LETTERS: Settings = {k: SLICES["grpo"][1][k] for k in ("task", "learner")}
"""A task on which every completion has a reward of its own: for the recipes' own task a new model gets none."""
GRPO = merged(ROLLOUTS, LETTERS, {"total_updates": 3, "group_size": 4})
ON_GIVEN_PAIRS = ("dpo", "simpo", "cpo", "orpo", "rrhf", "reward_model")
ON_PAIRS = {"total_updates": 3, "learner": LETTERS["learner"]}
PASSES = {"learner": {"num_epochs": 2, "num_minibatches": 2, "micro_batch_tokens": 64}}
"""Several optimiser steps a batch: before the second, ratios are 1 and nothing is clipped."""
ENVIRONMENTS = Path(__file__).parents[1] / "unit/run/field_tasks.py"
TALK = merged(
    {k: v for k, v in GRPO.items() if k != "task"}, {"chat": f"{ENVIRONMENTS}:Talking", "max_turns": 2, "max_tokens": 2}
)
"""Conversations of two turns, in which every message has a reward of its own."""
CALLS = merged(
    TALK,
    {
        "chat": f"{ENVIRONMENTS}:Asking",
        "max_turns": 3,
        "max_tokens": 80,
        "warmup_updates": 2,
        "total_updates": 4,
        "demo_rows": 2,
        "lm": {"max_positions": 1024},
    },
)
"""Conversations with a tool, imitated before they are played."""
FRESH = ("reinforce", "rloo", "remax", "oreal")
"""They take one step a batch."""
RECIPES: dict[str, Settings] = {
    **dict.fromkeys(ON_ROLLOUTS, GRPO),
    **{name: merged(TWO_STEPS[name], ON_PAIRS) for name in ("sft", *ON_GIVEN_PAIRS)},
    "make_pairs": merged(TWO_STEPS["make_pairs"], {"task": LETTERS["task"], "group_size": 4}),
    "reverse": merged(TWO_STEPS["reverse"], LETTERS, {"total_updates": 4, "group_size": 4}),
}
FORMS: dict[str, tuple[str, Settings]] = {
    "grpo warm-up, two layers": ("grpo", merged(SLICES["grpo"][1], {"total_updates": 5})),
    "grpo reference": (
        "grpo",
        merged(GRPO, {"grpo": {"kl_coef": 0.1}, "learner": {"reference_every": 2, "reference_decay": 0.5}, "total_updates": 4}),
    ),
    "grpo reference workers": ("grpo", merged(GRPO, {"grpo": {"kl_coef": 0.1}, "placement": {"reference_workers": 1}})),
    "dpo ipo": ("dpo", merged(TWO_STEPS["dpo"], ON_PAIRS, {"dpo": {"loss": "ipo"}})),
    **{f"{name} passes": (name, merged(GRPO, PASSES)) for name in ON_ROLLOUTS if name not in FRESH},
    "grpo entropy at a target": (
        "grpo",
        merged(GRPO, {"grpo": {"entropy_target": 100.0, "entropy_step": 0.1, "max_entropy_coef": 0.15}}),
    ),
    "grpo resets": ("grpo", merged(GRPO, {"reset_share": 0.7})),
    "grpo adapters": ("grpo", merged(GRPO, {"learner": {"lora": {"rank": 2}}})),
    "grpo recompute": ("grpo", merged(GRPO, {"learner": {"recompute": "block"}})),
    "grpo cut sampling": ("grpo", merged(GRPO, {"top_k": 40, "top_p": 0.9, "min_p": 0.001, "learner": {"temperature": 0.8}})),
    "grpo fixed shapes": ("grpo", merged(GRPO, {"engine": {"fixed_shapes": True}})),
    "grpo plain transformers": ("grpo", merged(GRPO, {"engine": {"kind": "hf"}})),
    "grpo one step off": ("grpo", merged(GRPO, {"num_actors": 2, "staleness": {"mode": "one_step"}})),
    "grpo grouped heads": ("grpo", merged(GRPO, {"lm": {"heads": 4, "kv_heads": 2, "tie_embeddings": False}})),
    **{f"{name} conversations": (name, TALK) for name in ("grpo", "gigpo", "turn_ppo", "spa", "grpo_roc", "token_ppo")},
    "loop conversations by turn": ("loop", merged(TALK, {"loop": {"ratio": "turn"}})),
    "grpo conversations with a tool": ("grpo", CALLS),
    "token_ppo critic warm-up": ("token_ppo", merged(GRPO, {"ppo": {"critic_warmup": 1, "kl_coef": 0.05, "kl_in": "reward"}})),
}
SMALL_STAGES = {"sft_updates": 2, "demo_rows": 8, "pair_batches": 1, "eval_prompts": 2, **SMALL_LM, **LETTERS}
PIPELINES: dict[str, Settings] = {
    "rlhf": merged(SMALL_STAGES, {"reward_updates": 2, "rl_updates": 2, "num_prompts": 2, "ppo": {"critic_warmup": 1}}),
    "iterated_dpo": merged(SMALL_STAGES, {"rounds": 1, "dpo_updates": 2, "num_pairs": 4}),
}
LOOPED = ("recipe grpo", "recipe token_ppo", "recipe sft", "recipe dpo", "grpo adapters", "grpo recompute")
"""Cases that are there without loops as well. (A reward model runs by none.)"""
DEFAULTS: dict[str, Case] = {
    **{f"recipe {name}": Case(name, own) for name, own in RECIPES.items()},
    **{f"pipeline {name}": Case(name, own) for name, own in PIPELINES.items()},
    **{name: Case(recipe, own) for name, (recipe, own) in FORMS.items()},
}
TOKENS: dict[str, Case] = {
    **DEFAULTS,
    **{f"{name}, torch": Case(DEFAULTS[name].recipe, DEFAULTS[name].settings, loops=False) for name in LOOPED},
}
SAME = {name: f"{name}, torch" for name in LOOPED}
"""Cases by loops, and those that compute the same without."""
