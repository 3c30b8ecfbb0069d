"""Every recipe at a size that takes two steps or a little more, for whoever runs all of them."""

from __future__ import annotations

from typing import Any

from made_data import CARTPOLE, PENDULUM

SMALL_LM: dict[str, Any] = {"lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64}}
OF_TURNS = ("gigpo", "turn_ppo", "loop", "grpo_roc", "spa")
ON_ROLLOUTS = (
    *("grpo", "dr_grpo", "rloo", "reinforce", "remax", "dapo", "gspo", "aipo", "decoupled", "token_ppo", "online_dpo"),
    *("reinforce_plus_plus", "stable_reinforce", "cispo", "topr", "opmd", "p3o", "pacs", "oreal", "a_lol", "raft"),
    *("clip_cov", "kl_cov", "rl_plus", "ppo_max"),
    *("rebel", "inpo"),
    *OF_TURNS,
)
ROLLOUTS: dict[str, Any] = {"total_updates": 2, "num_prompts": 2, "group_size": 2, **SMALL_LM}
PAIRS: dict[str, Any] = {"total_updates": 2, "num_pairs": 4, "lm": SMALL_LM["lm"]}
MIXED: dict[str, Any] = {"total_steps": 300, "min_fill": 256, "num_envs": 1, "log_every": 1}
TWO_STEPS: dict[str, dict[str, Any]] = {
    "ppo": {"total_updates": 2},
    "cartpole": {"total_updates": 2},
    "a2c": {"total_updates": 2},
    "impala": {"total_updates": 2},
    "appo": {"total_updates": 2},
    "ppo_lagrangian": {"total_updates": 2},
    "ippo": {"total_updates": 2, "teams": ("sender=sender", "receiver=receiver")},
    "mappo": {"total_updates": 2, "teams": ("sender=sender", "receiver=receiver")},
    **dict.fromkeys(("qmix", "vdn", "independent_q", "masac"), MIXED),
    "selfplay": {"total_updates": 2, "num_steps": 16, "pool": {"every": 1}},
    "happo": {"total_updates": 2},
    "nfsp": {"total_updates": 2, "teams": ("sender=sender", "receiver=receiver"), "nfsp": {"min_fill": 50}},
    "coma": {"total_updates": 2, "num_steps": 8, "teams": ("each",)},
    "mat": {"total_updates": 2, "num_steps": 8},
    "dqn": {"total_steps": 220, "min_fill": 200, "num_steps": 10},
    "sac": {"env": "Pendulum-v1", "total_steps": 264, "min_fill": 256},
    "td3": {"env": "Pendulum-v1", "total_steps": 264, "min_fill": 256},
    "ddpg": {"env": "Pendulum-v1", "total_steps": 264, "min_fill": 256},
    "drm": {"env": "Pendulum-v1", "total_steps": 264, "min_fill": 256},
    "mex": {"env": "Pendulum-v1", "total_steps": 264, "min_fill": 256},
    "cip": {"env": "Pendulum-v1", "total_steps": 264, "min_fill": 256},
    "gbrl": {"total_updates": 2},
    "soap": {"total_updates": 2},
    "sqirl": {"total_updates": 2, "num_steps": 64},
    "stream_ac": {"total_updates": 40},
    "stream_q": {"total_updates": 40},
    "rlpd": {"env": "Pendulum-v1", "data": PENDULUM, "total_steps": 264, "min_fill": 256, "update_ratio": 1.0},
    "bc": {"data": CARTPOLE, "total_updates": 2},
    "sft": {"total_updates": 2, "demo_rows": 8, **SMALL_LM},
    **dict.fromkeys(ON_ROLLOUTS, ROLLOUTS),
    **dict.fromkeys(("dpo", "simpo", "cpo", "orpo", "rrhf", "reward_model"), PAIRS),
    "make_pairs": ROLLOUTS,
    "reverse": {"total_updates": 3, "warmup_updates": 1, "num_prompts": 2, "group_size": 2, "demo_rows": 8, **SMALL_LM},
}
