"""Settings by environment. Where one set of defaults does not serve every environment, a recipe begins with what was measured.

`runnel train RECIPE --env ENV` takes the settings of that pair, if there are some, and says so; what a user sets wins, and
`--no-zoo` (`zoo=False`) leaves them out. A setting of this table that nothing would read beside the user's own is not taken.
Each entry was run over seeds by `benchmarks/learning`; docs/reference/zoo.md has the returns, with their curves. The settings
are written out in the run's config.json, so a run that is loaded or resumed does not depend on this table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from runnel.core.config import default_at, flat, override, to_data
from runnel.core.state import Settings
from runnel.graphs.run_config import RunConfig

ACROBOT: Settings = {"total_steps": 500_000}
LANDER: Settings = {"total_steps": 1_000_000}
"""Where a recipe's own defaults serve, and only the budget is the environment's."""


def _short_sighted(group: str, **settings: object) -> Settings:
    """A swing-up is over in some 50 of its 200 steps: what comes much later only adds noise to the returns."""
    return {f"{group}.gamma": 0.9, f"{group}.gae_lambda": 0.9, **settings}


def _few_steps(group: str, *rates: str) -> Settings:
    """20,000 steps are enough for a pendulum, where the defaults would still fill the replay memory at random."""
    return {"total_steps": 20_000, "min_fill": 1_000} | {f"{group}.{rate}": 1e-3 for rate in rates}


def _swing_up(group: str) -> Settings:
    """One gradient a batch: short returns, and observations as they are. With normalised ones two of five trials failed."""
    return {"total_steps": 1_000_000, "num_steps": 32, f"{group}.gamma": 0.95, f"{group}.normalise_obs": False}


def _landing(group: str) -> Settings:
    """The reward for landing comes late; batches of 512 steps take large steps that are hardly ever cut."""
    credit = {f"{group}.gamma": 0.995, f"{group}.gae_lambda": 0.98, f"{group}.entropy_coef": 0.003}
    rate = {f"{group}.lr": "linear(5e-3, 0)", f"{group}.max_grad_norm": 5.0}
    return {"total_steps": 1_000_000, "num_envs": 16, "num_steps": 32, **credit, **rate}


SMALL_AND_FRESH: Settings = {**_landing("impala"), "num_envs": 8, "staleness.max_lag": 1}
"""A2C's, in updates of the same 512 steps: two actors of eight environments, at most one version behind the learner. With 16
environments an actor, updates have 1,024 steps, and a million steps have room for only half as many."""
LONG_SIGHTED: Settings = {
    "total_steps": 1_000_000,
    "num_envs": 16,
    "num_steps": 1_024,
    "ppo.lr": 3e-4,
    "ppo.gamma": 0.999,
    "ppo.gae_lambda": 0.98,
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 256,
    "ppo.entropy_coef": 0.01,
    "ppo.value_coef": 1.0,
    "ppo.normalise_obs": False,
    "ppo.normalise_reward": False,
}
"""rl-zoo3's for LunarLander: the reward for landing comes hundreds of steps after what earned it."""
FEW_UPDATES: Settings = {
    "num_steps": 10,
    "update_ratio": 0.1,
    "replay.capacity": 10_000,
    "dqn.epsilon": "linear(1, 0.05, 0.5)",
    "dqn.target_every": 50,
    "dqn.double": False,
}
"""CleanRL's for CartPole: with more updates a step, a policy that is solved falls back."""
FIXED_TEMPERATURE: Settings = {
    "total_steps": 100_000,
    "min_fill": 1_000,
    "update_ratio": 0.25,
    "replay.n_step": 8,
    "sac.actor_lr": 1e-3,
    "sac.tau": 0.02,
    "sac.auto_temperature": False,
    "sac.temperature": 0.05,
}
"""Random play hardly ever reaches Acrobot's goal: at the recipe's own settings, two of four seeds never found it. With these,
each of three tuning seeds did in 10,000 steps. Returns reach further, networks follow faster, and exploration does not fade."""

ZOO: Mapping[str, Mapping[str, Settings]] = {
    "ppo": {"Acrobot-v1": ACROBOT, "Pendulum-v1": {"total_steps": 200_000}, "LunarLander-v3": LONG_SIGHTED},
    "appo": {"Acrobot-v1": ACROBOT, "Pendulum-v1": _short_sighted("appo", total_steps=300_000), "LunarLander-v3": LANDER},
    "a2c": {
        "CartPole-v1": {"total_steps": 500_000},
        "Acrobot-v1": ACROBOT,
        "Pendulum-v1": _swing_up("a2c"),
        "LunarLander-v3": _landing("a2c"),
    },
    "impala": {
        "CartPole-v1": {"total_steps": 500_000},
        "Acrobot-v1": ACROBOT,
        "Pendulum-v1": _swing_up("impala"),
        "LunarLander-v3": SMALL_AND_FRESH,
    },
    "dqn": {"CartPole-v1": FEW_UPDATES, "LunarLander-v3": LANDER},
    "sac": {"Acrobot-v1": FIXED_TEMPERATURE, "Pendulum-v1": _few_steps("sac", "actor_lr")},
    "td3": {"Pendulum-v1": _few_steps("td3", "actor_lr", "critic_lr")},
    "ddpg": {"Pendulum-v1": _few_steps("ddpg", "actor_lr", "critic_lr")},
}
"""Recipe, then the name of the environment, then dotted names of settings."""
NOTHING: Settings = MappingProxyType({})


def zoo_settings(recipe: str, env: object) -> Settings:
    """What `recipe` begins with on `env`, beside its own defaults.

    >>> zoo_settings("ppo", "MyOwn-v0")
    mappingproxy({})
    """
    return ZOO.get(recipe, {}).get(env, NOTHING) if isinstance(env, str) else NOTHING


def unused_of_zoo(recipe: str, config: RunConfig) -> dict[str, str]:
    """The zoo's settings that nothing would read beside the other settings of `config`, each with the reason."""
    found = zoo_settings(recipe, getattr(config, "env", None)) if getattr(config, "zoo", True) else NOTHING
    unused = config.unused() if found else {}
    return {name: why for name in found for group, why in unused.items() if _is_of(name, group)}


def without_unused(recipe: str, config: RunConfig, given: Collection[str]) -> RunConfig:
    """`config` with the recipe's own defaults in place of the zoo's settings that it leaves unused.

    `given` are the dotted names of what the user has set, or of whole groups. Those stay as they are: a setting of the user's
    that nothing reads is refused by name.
    """
    left_out = [n for n in unused_of_zoo(recipe, config) if not any(_is_of(n, group) for group in given)]
    return override(config, {name: default_at(config, name) for name in left_out})


def about_zoo(recipe: str, config: RunConfig) -> list[str]:
    """The note of a run: which settings it takes from the zoo and which it leaves out, or that `zoo` is off."""
    env = getattr(config, "env", None)
    found = zoo_settings(recipe, env)
    if not found:
        return []
    if not getattr(config, "zoo", True):
        return [f"zoo = False: begins with the recipe's own defaults, not with what was measured on {env}"]
    values = flat(to_data(config))
    taken = [f"{name} = {value}" for name, value in found.items() if values[name] == to_data(value)]
    if not taken:
        return []
    unused = [f"{name} = {found[name]} ({why})" for name, why in unused_of_zoo(recipe, config).items()]
    left_out = f"; not taken, because nothing would read it in this run: {', '.join(unused)}" if unused else ""
    settings = f"settings that were measured on {env} (docs/reference/zoo.md): {', '.join(taken)}"
    return [f"{settings}; --no-zoo leaves them out{left_out}"]


def _is_of(name: str, group: str) -> bool:
    """Whether the setting `name` is `group`, or is in it."""
    return f"{name}.".startswith(f"{group}.")
