"""What recipes should reach: each entry a recipe with its settings, a number of seeds, and a reference where there is one.

References are of three kinds, and `source` says which: means over seeds (CleanRL: 3 to 10 seeds, end of training), single tuned
runs (rl-zoo3: an upper check, not a mean), and a recipe's own goal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Score:
    """A number of a finished run (see `one.py`), with the reference that it is held against."""

    key: str
    title: str
    reference: float | None = None
    spread: float = 0.0
    """Standard deviation that the reference was published with."""
    source: str = ""
    limit: float | None = None
    """The most that a seed may have; reached if four of five seeds keep it."""


@dataclass(frozen=True)
class Learning:
    """A recipe, trained once for each of the seeds 1, 2, ..."""

    name: str
    title: str
    recipe: str
    seeds: int
    scores: tuple[Score, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    limit_s: float = 3600.0


HOUR = 3600.0
LAST, GREEDY = "last 100 training episodes", "greedy episodes"
CLEANRL, ZOO = "CleanRL, its own hyperparameters", "rl-zoo3, one tuned run"
MUJOCO = {
    "sac": {"HalfCheetah": (9635.0, 1424.0), "Hopper": (2310.0, 343.0), "Walker2d": (3591.0, 911.0)},
    "td3": {"HalfCheetah": (9583.0, 126.0), "Hopper": (3135.0, 360.0), "Walker2d": (4058.0, 659.0)},
    "ppo": {"HalfCheetah": (1443.0, 46.0), "Hopper": (2383.0, 272.0), "Walker2d": (2288.0, 572.0)},
}
CLEANRL_CONTINUOUS: dict[str, Any] = {
    "num_envs": 1,
    "num_steps": 2048,
    "net.hidden": (64, 64),
    "net.activation": "tanh",
    "ppo.lr": "linear(3e-4, 0)",
    "ppo.num_epochs": 10,
    "ppo.num_minibatches": 32,
    "ppo.value_clip": 0.2,
    "ppo.value_coef": 0.5,
    "ppo.normalise_obs": True,
    "ppo.normalise_reward": True,
    "checkpoint.every": 50,
}
"""CleanRL's `ppo_continuous_action.py`; its critic loss is half the squared error too."""
IN_EIGHTS: dict[str, Any] = {"num_envs": 8, "num_steps": 1, "checkpoint.every": 100_000}
"""CleanRL's SAC and TD3 are the recipes' own, but for this: the policy acts in eight environments at once, then learns eight
times, where theirs does both once in one. As many updates a step, and an eighth of the passes to act."""
CLEANRL_ATARI: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 128,
    "ppo.lr": "linear(2.5e-4, 0)",
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 4,
    "ppo.clip_range": 0.1,
    "ppo.value_clip": 0.1,
    "ppo.value_coef": 0.5,
    "ppo.entropy_coef": 0.01,
    "placement.threads": 2,
    "total_steps": 10_000_000,
    "eval.episodes": 10,
    "checkpoint.every": 500,
    "ppo.normalise_reward": False,
}
"""CleanRL's `ppo_atari.py`."""
CLEANRL_DQN: dict[str, Any] = {
    "num_steps": 10,
    "update_ratio": 0.1,
    "min_fill": 10_000,
    "replay.capacity": 10_000,
    "replay.prioritised": False,
    "dqn.lr": 2.5e-4,
    "dqn.batch_size": 128,
    "dqn.epsilon": "linear(1, 0.05, 0.5)",
    "dqn.target_every": 50,
    "dqn.double": False,
    "dqn.huber": None,
}
"""CleanRL's `dqn.py`."""
MINATAR_DQN: dict[str, Any] = {
    "replay.prioritised": True,
    "dqn.huber": 1.0,
    "num_envs": 8,
    "num_steps": 4,
    "update_ratio": 0.25,
    "min_fill": 5_000,
    "replay.capacity": 100_000,
    "dqn.lr": 2.5e-4,
    "dqn.batch_size": 32,
    "dqn.epsilon": "linear(1, 0.1, 0.02)",
    "dqn.target_every": 250,
}
MINATAR_PPO: dict[str, Any] = {
    "num_envs": 64,
    "num_steps": 128,
    "ppo.lr": "linear(5e-4, 0)",
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 8,
    "ppo.entropy_coef": 0.01,
    "ppo.normalise_reward": False,
}
NO_TABLE = "no table: Young and Tian 2019 (arXiv:1903.03176) publish curves only"
TASKS: dict[str, tuple[str, dict[str, int]]] = {
    "cartpole": ("CartPole-v1", {"sac": 50_000, "": 500_000}),
    "acrobot": ("Acrobot-v1", {"sac": 100_000, "": 500_000}),
    "pendulum": ("Pendulum-v1", {"ppo": 200_000, "appo": 300_000, "a2c": 1_000_000, "impala": 1_000_000, "": 20_000}),
    "lunarlander": ("LunarLander-v3", {"": 1_000_000}),
    "minatar": ("MinAtar/Breakout-v1", {"": 2_000_000}),
}
"""What defaults are judged on: the environment, and the steps of a recipe (of those that are not named)."""
DISCRETE = ("cartpole", "acrobot", "lunarlander", "minatar")
FITS = {
    **dict.fromkeys(("ppo", "appo", "a2c", "impala"), tuple(TASKS)),
    "dqn": DISCRETE,
    "sac": ("cartpole", "acrobot", "pendulum"),
    "td3": ("pendulum",),
    "ddpg": ("pendulum",),
}
REFERENCES: dict[tuple[str, str], tuple[float, float, str]] = {
    ("ppo", "cartpole"): (490.0, 6.1, CLEANRL),
    ("dqn", "cartpole"): (488.7, 16.0, CLEANRL),
    ("a2c", "cartpole"): (500.0, 0.0, f"{ZOO}, 500k steps"),
    ("ppo", "acrobot"): (-86.4, 1.3, CLEANRL),
    ("dqn", "acrobot"): (-91.5, 7.2, CLEANRL),
    ("a2c", "acrobot"): (-83.4, 0.0, f"{ZOO}, 500k steps"),
    ("ppo", "pendulum"): (-169.9, 0.0, f"{ZOO}, Pendulum-v0, 2M steps"),
    ("a2c", "pendulum"): (-163.0, 0.0, f"{ZOO}, Pendulum-v0, 1M steps"),
    ("sac", "pendulum"): (-157.0, 0.0, f"{ZOO}, Pendulum-v0, 20k steps"),
    ("td3", "pendulum"): (-151.9, 0.0, f"{ZOO}, Pendulum-v0, 20k steps"),
    ("ddpg", "pendulum"): (-152.1, 0.0, f"{ZOO}, Pendulum-v0, 20k steps"),
    ("ppo", "lunarlander"): (242.0, 0.0, f"{ZOO}, LunarLander-v2, 1M steps"),
    ("a2c", "lunarlander"): (155.8, 0.0, f"{ZOO}, LunarLander-v2, 200k steps"),
    ("dqn", "lunarlander"): (154.4, 0.0, f"{ZOO}, LunarLander-v2, 100k steps"),
}
"""CleanRL: mean and standard deviation over seeds, end of training. rl-zoo3: the episodes of one tuned run."""


def default(recipe: str, task: str) -> Learning:
    """What `runnel train RECIPE --env ENV` does with that many steps: the recipe's defaults, or the zoo's settings."""
    env, budgets = TASKS[task]
    steps = budgets.get(recipe, budgets[""])
    value, spread, source = REFERENCES.get((recipe, task), (None, 0.0, ""))
    of_training = source == CLEANRL or not source
    train, greedy = Score("train_return", LAST), Score("eval_return", f"100 {GREEDY}")
    judged = replace(train if of_training else greedy, reference=value, spread=spread, source=source)
    size = f"{steps // 1_000_000}M" if steps >= 1_000_000 else f"{steps // 1000}k"
    return Learning(
        f"{recipe}-{task}",
        f"`{recipe}` on {env}, {size} steps",
        recipe,
        5,
        (judged, greedy if of_training else train),
        {"env": env, "total_steps": steps, "eval.episodes": 100, "checkpoint.every": 0},
        limit_s=2 * HOUR,
    )


def own_defaults(recipe: str, task: str) -> Learning:
    """The same without the zoo, to show what its settings are worth."""
    entry = default(recipe, task)
    return replace(
        entry,
        name=f"{entry.name}-no-zoo",
        title=f"{entry.title}, without the zoo",
        settings={**entry.settings, "zoo": False},
    )


def mujoco(recipe: str, game: str) -> Learning:
    reference, spread = MUJOCO[recipe][game]
    settings: dict[str, Any] = {"env": f"{game}-v5", "total_steps": 1_000_000, "eval.episodes": 10}
    settings |= CLEANRL_CONTINUOUS if recipe == "ppo" else {**IN_EIGHTS, f"{recipe}.metrics_every": 50}
    return Learning(
        f"{recipe}-{game.lower()}",
        f"`{recipe}` on {game}-v5, 1M steps",
        recipe,
        3,
        (
            Score("train_return", LAST, reference, spread, f"{CLEANRL}, {game}-v4"),
            Score("eval_return", f"10 {GREEDY}"),
        ),
        settings,
        limit_s=24 * HOUR,
    )


def atari(game: str, reference: float, spread: float) -> Learning:
    score = Score("eval_return", f"10 {GREEDY}, whole games", reference, spread, f"{CLEANRL}, {game}NoFrameskip-v4")
    settings = {"env": f"atari:{game}", **CLEANRL_ATARI}
    return Learning(f"ppo-{game.lower()}", f"`ppo` on {game}, 10M steps", "ppo", 1, (score,), settings, limit_s=48 * HOUR)


def minatar(recipe: str, game: str) -> Learning:
    settings = {"env": f"MinAtar/{game}-v1", "total_steps": 5_000_000, "eval.episodes": 100}
    settings |= {**MINATAR_DQN, "checkpoint.every": 100_000} if recipe == "dqn" else {**MINATAR_PPO, "checkpoint.every": 60}
    scores = (Score("train_return", LAST, source=NO_TABLE), Score("eval_return", f"100 {GREEDY}"))
    name = f"{recipe}-minatar-{game.lower()}"
    return Learning(name, f"`{recipe}` on MinAtar {game}, 5M frames", recipe, 3, scores, settings, limit_s=24 * HOUR)


def hazard(recipe: str) -> Learning:
    """A goal beyond a hazard: the straight way returns 7.6 and costs 13, the way round 7.1 and nothing."""
    of_ppo = recipe == "ppo"
    settings = {"env": "tensor:GoalBeyondHazard", "total_steps": 100_000, "eval.episodes": 100, "checkpoint.every": 0}
    scores = (
        Score("eval_cost/hazard", f"cost of 100 {GREEDY}", source="" if of_ppo else "the limit", limit=2.0),
        Score("eval_return", f"return of 100 {GREEDY}", 7.5 if of_ppo else 6.9, source="what either way is worth"),
        Score("train_cost/hazard", f"cost of the {LAST}"),
        Score("train_return", f"return of the {LAST}"),
    )
    return Learning(f"{recipe}-hazard", f"`{recipe}` on a goal beyond a hazard, 100k steps", recipe, 5, scores, settings)


ENTRIES = (
    *(default(recipe, task) for recipe, tasks in FITS.items() for task in tasks),
    hazard("ppo"),
    hazard("ppo_lagrangian"),
    own_defaults("dqn", "cartpole"),
    own_defaults("ppo", "lunarlander"),
    own_defaults("sac", "acrobot"),
    Learning(
        "dqn-cartpole-cleanrl",
        "`dqn` on CartPole-v1, all of CleanRL's settings, 500k steps",
        "dqn",
        5,
        (Score("train_return", LAST, 488.7, 16.0, CLEANRL), Score("eval_return", f"100 {GREEDY}")),
        {"env": "CartPole-v1", "total_steps": 500_000, "eval.episodes": 100, "checkpoint.every": 0, **CLEANRL_DQN},
    ),
    *(mujoco(recipe, game) for recipe in ("ppo", "sac", "td3") for game in ("HalfCheetah", "Hopper", "Walker2d")),
    atari("Pong", 20.4, 0.2),
    atari("Breakout", 414.7, 28.0),
    *(
        minatar(recipe, game)
        for recipe in ("ppo", "dqn")
        for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
    ),
    Learning(
        name="cartpole",
        title="`cartpole`: until 100 evaluation episodes average 475",
        recipe="cartpole",
        seeds=5,
        scores=(
            Score("solve_steps", "steps to solve"),
            Score("solve_s", "seconds to solve"),
            Score("eval_return", f"100 {GREEDY}", 475.0, 0.0, "the recipe's own goal"),
        ),
        limit_s=300.0,
    ),
    Learning(
        name="reverse",
        title="`reverse`: a small transformer writes unseen words backwards",
        recipe="reverse",
        seeds=3,
        scores=(
            Score("eval_return", "reward on unseen words", 0.9, 0.0, "the recipe's own goal"),
            Score("train_s", "seconds of training"),
        ),
        limit_s=1200.0,
    ),
)
