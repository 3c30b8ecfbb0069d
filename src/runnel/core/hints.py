"""Suggestions for an unknown setting: names of other libraries, the same name in another group, and typing errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "learning_rate": ("lr", "actor_lr", "critic_lr"),
    "lr": ("actor_lr", "critic_lr"),
    "total_timesteps": ("total_steps",),
    "timesteps": ("total_steps",),
    "steps": ("total_steps",),
    "max_steps": ("total_steps",),
    "episodes": ("eval.episodes",),
    "env_id": ("env",),
    "gym_id": ("env",),
    "n_envs": ("num_envs",),
    "n_steps": ("num_steps",),
    "rollout_steps": ("num_steps",),
    "n_epochs": ("num_epochs",),
    "epochs": ("num_epochs",),
    "update_epochs": ("num_epochs",),
    "num_mini_batch": ("num_minibatches",),
    "lam": ("gae_lambda",),
    "lambda_": ("gae_lambda",),
    "clip": ("clip_range",),
    "clip_coef": ("clip_range",),
    "clip_eps": ("clip_range", "clip_low"),
    "ring": ("num_env_groups",),
    "epsilon": ("clip_low",),
    "ent_coef": ("entropy_coef",),
    "vf_coef": ("value_coef",),
    "norm_reward": ("normalise_reward",),
    "norm_obs": ("normalise_obs",),
    "buffer_size": ("replay.capacity",),
    "learning_starts": ("min_fill",),
    "train_freq": ("update_ratio",),
    "gradient_steps": ("update_ratio",),
    "target_update_interval": ("target_every",),
    "target_network_frequency": ("target_every",),
    "capture_video": ("record.videos",),
    "save_freq": ("checkpoint.every",),
    "eval_freq": ("eval.every",),
    "eval_episodes": ("eval.episodes",),
    "log_dir": ("out",),
    "logdir": ("out",),
    "output_dir": ("out",),
    "run_name": ("name",),
    "exp_name": ("name",),
    "num_workers": ("num_actors",),
    "num_generations": ("group_size",),
    "max_completion_length": ("max_tokens",),
    "max_new_tokens": ("max_tokens",),
    "beta": ("kl_coef",),
    "model_name_or_path": ("model",),
    "dataset": ("pairs", "task"),
    "data_path": ("pairs", "task"),
    "lora_r": ("lora.rank",),
    "lora_rank": ("lora.rank",),
}
"""Names of settings in other libraries, and our names. Only names that a recipe has are suggested."""
_TALKS = "conversations are trained by grpo, gigpo, turn_ppo and the other recipes of language models that play prompts"
_TEAMS = "several agents are trained by ippo, mappo, qmix, selfplay and the other recipes of teams"
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("chat", "tools", "max_turns", "max_context"), f"is no setting of this recipe; {_TALKS}"),
    "teams": f"is no setting of this recipe; {_TEAMS}",
}
"""Settings that people look for in recipes that have none of the kind, and which recipes have them."""
_MOST = 3


def closest(name: str, known: Iterable[str]) -> str:
    """A question to append to an error: the name in `known` that `name` is like; empty if it is like none.

    >>> closest("calculater", ["calculator", "guess"]), closest("xyz", ["guess"])
    ("did you mean 'calculator'? Else ", '')
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? Else " if close else ""


def meant(name: str, known: Iterable[str]) -> list[str]:
    """The dotted names in `known` that a user may mean by `name`, the likeliest first.

    >>> meant("ppo.learning_rate", ["ppo.lr", "seed"]), meant("lr", ["ppo.lr", "seed"]), meant("sead", ["ppo.lr", "seed"])
    (['ppo.lr'], ['ppo.lr'], ['seed'])
    """
    known = dict.fromkeys(known)
    group, _, last = name.rpartition(".")
    same = [k for k in known if k.rpartition(".")[2] == last]
    for own in () if same else OTHER_NAMES.get(last, ()):
        same += [k for k in known if k == own or k.endswith(f".{own}")]
    near = [k for k in same if k.startswith(f"{group}.")] if group else []
    return (near or same or difflib.get_close_matches(name, known, n=1))[:_MOST]
