"""The default search space of each algorithm: ranges around the values that papers and libraries use."""

from __future__ import annotations

from runnel.core.errors import ConfigError
from runnel.run.registry import Recipe
from runnel.tune.space import Param, parse

RATE, GAMMA, ENTROPY = "log(1e-5, 1e-2)", "{0.95, 0.98, 0.99, 0.995, 0.999}", "{0, 0.001, 0.01, 0.03}"
KL, CLIP, LM_RATE = "{0, 0.001, 0.01, 0.1}", "{0.1, 0.2, 0.3}", "log(1e-6, 1e-2)"

SPACES: dict[str, dict[str, str]] = {
    "ppo": {
        "ppo.lr": RATE,
        "ppo.gamma": GAMMA,
        "ppo.gae_lambda": "0.8..1",
        "ppo.clip_range": CLIP,
        "ppo.num_epochs": "int(1, 20)",
        "ppo.entropy_coef": ENTROPY,
    },
    "appo": {
        "appo.lr": RATE,
        "appo.gamma": GAMMA,
        "appo.clip_range": CLIP,
        "appo.num_epochs": "int(1, 4)",
        "appo.entropy_coef": ENTROPY,
    },
    "a2c": {"a2c.lr": RATE, "a2c.gamma": GAMMA, "a2c.gae_lambda": "0.8..1", "a2c.entropy_coef": ENTROPY},
    "impala": {"impala.lr": RATE, "impala.gamma": GAMMA, "impala.entropy_coef": ENTROPY, "impala.value_coef": "{0.25, 0.5, 1}"},
    "dqn": {
        "dqn.lr": RATE,
        "dqn.gamma": GAMMA,
        "dqn.batch_size": "{32, 64, 128}",
        "dqn.target_every": "int(10, 1000, log)",
        "update_ratio": "{0.125, 0.25, 0.5, 1}",
    },
    "sac": {
        "sac.actor_lr": RATE,
        "sac.critic_lr": RATE,
        "sac.gamma": GAMMA,
        "sac.tau": "log(0.001, 0.05)",
        "sac.batch_size": "{64, 128, 256, 512}",
    },
    **{
        name: {
            f"{name}.actor_lr": RATE,
            f"{name}.critic_lr": RATE,
            f"{name}.gamma": GAMMA,
            f"{name}.tau": "log(0.001, 0.05)",
            f"{name}.exploration_noise": "0.02..0.4",
        }
        for name in ("td3", "ddpg")
    },
    "grpo": {"learner.lr": LM_RATE, "grpo.clip_high": "{0.1, 0.2, 0.3, 0.4}", "grpo.kl_coef": KL},
    "dapo": {"learner.lr": LM_RATE, "dapo.clip_high": "{0.2, 0.28, 0.4}", "dapo.kl_coef": KL},
    **{
        name: {"learner.lr": LM_RATE, f"{name}.kl_coef": KL}
        for name in (
            "gspo",
            "aipo",
            "decoupled",
            "rloo",
            "reinforce",
            "remax",
            "topr",
            "opmd",
            "p3o",
            "pacs",
            "oreal",
            "a_lol",
            "raft",
        )
    },
    **{
        name: {"learner.lr": LM_RATE, f"{name}.clip_high": CLIP, f"{name}.kl_coef": KL}
        for name in ("gigpo", "loop", "grpo_roc")
    },
    "cispo": {"learner.lr": LM_RATE, "cispo.max_ratio": "{2, 5, 10}", "cispo.kl_coef": KL},
    "reinforce_plus_plus": {"learner.lr": LM_RATE, "reinforce_plus_plus.clip_high": CLIP, "reinforce_plus_plus.kl_coef": KL},
    **{
        name: {"learner.lr": LM_RATE, "covariance.share": "log(1e-4, 1e-2)", "covariance.kl_coef": KL}
        for name in ("clip_cov", "kl_cov")
    },
    "rl_plus": {"learner.lr": LM_RATE, "rl_plus.focus": "{0, 0.5, 1, 2}", "rl_plus.kl_coef": KL},
    "ppo_max": {"learner.lr": LM_RATE, "learner.critic_lr": LM_RATE, "ppo_max.kl_coef": KL, "ppo_max.macro": "{1, 3, 5}"},
    "spa": {"learner.lr": LM_RATE, "learner.critic_lr": LM_RATE, "spa.clip_high": CLIP, "spa.kl_coef": KL},
    "turn_ppo": {"learner.lr": LM_RATE, "learner.critic_lr": LM_RATE, "turn_ppo.kl_coef": KL},
    "token_ppo": {"learner.lr": LM_RATE, "learner.critic_lr": LM_RATE, "ppo.kl_coef": KL},
    "dpo": {"learner.lr": LM_RATE, "dpo.beta": "log(0.01, 1)"},
    "simpo": {"learner.lr": LM_RATE, "simpo.beta": "log(1, 10)", "simpo.gap": "{0.3, 1.0, 1.6}"},
    "cpo": {"learner.lr": LM_RATE, "cpo.beta": "log(0.01, 1)"},
    "orpo": {"learner.lr": LM_RATE, "orpo.odds_coef": "log(0.03, 1)"},
    "rrhf": {"learner.lr": LM_RATE, "rrhf.chosen_coef": "{0.1, 0.3, 1.0}"},
    "rebel": {"learner.lr": LM_RATE, "rebel.eta": "log(0.1, 10)"},
    "inpo": {"learner.lr": LM_RATE, "inpo.eta": "log(0.02, 1)"},
    "sft": {"learner.lr": LM_RATE},
}
"""By algorithm: the name of the recipe, or of a group of fields in its config."""


def default_space(recipe: Recipe) -> dict[str, Param]:
    """The space of a recipe, by its name; for a user's recipe, by the algorithm whose fields its config has."""
    config = recipe.Config()
    name = recipe.name if recipe.name in SPACES else next((n for n in SPACES if hasattr(config, n)), "")
    if not name:
        raise ConfigError("search", None, f"nothing is known of {recipe.name!r}; name fields: --search 'FIELD=log(1e-5, 1e-2)'")
    return {field: parse(field, text, config) for field, text in SPACES[name].items()}
