"""What recipes should reach: each entry a recipe with its settings, a number of seeds, and a reference where there is one.

References are of three kinds, and `source` says which: means over seeds (CleanRL: 3 to 10 seeds, end of training), single tuned
runs (rl-zoo3: an upper check, not a mean), and a recipe's own goal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    "ppo.clip": 0.1,
    "ppo.value_clip": 0.1,
    "ppo.value_coef": 0.5,
    "ppo.entropy_coef": 0.01,
    "placement.threads": 2,
    "total_steps": 10_000_000,
    "eval.episodes": 10,
    "checkpoint.every": 500,
}
"""CleanRL's `ppo_atari.py`."""
LUNAR_ZOO: dict[str, Any] = {
    "env": "LunarLander-v3",
    "total_steps": 1_000_000,
    "num_envs": 16,
    "num_steps": 1024,
    "ppo.lr": 3e-4,
    "ppo.gamma": 0.999,
    "ppo.lam": 0.98,
    "ppo.num_epochs": 4,
    "ppo.num_minibatches": 256,
    "ppo.entropy_coef": 0.01,
    "ppo.value_coef": 1.0,
    "checkpoint.every": 10,
}
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
}
NO_TABLE = "no table: Young and Tian 2019 (arXiv:1903.03176) publish curves only"
PENDULUM = {"sac": {"sac.actor_lr": 1e-3}, "td3": {"td3.actor_lr": 1e-3, "td3.critic_lr": 1e-3}}


def cartpole(recipe: str, reference: float, spread: float, **settings: Any) -> Learning:
    return Learning(
        f"{recipe}-cartpole",
        f"`{recipe}` on CartPole-v1, 500k steps",
        recipe,
        5,
        (Score("train_return", LAST, reference, spread, CLEANRL), Score("eval_return", f"100 {GREEDY}")),
        {"env": "CartPole-v1", "total_steps": 500_000, "eval.episodes": 100, "checkpoint.every": 0, **settings},
    )


def acrobot(recipe: str, reference: float, spread: float, **settings: Any) -> Learning:
    return Learning(
        f"{recipe}-acrobot",
        f"`{recipe}` on Acrobot-v1, 500k steps",
        recipe,
        5,
        (Score("train_return", LAST, reference, spread, CLEANRL), Score("eval_return", f"100 {GREEDY}")),
        {"env": "Acrobot-v1", "total_steps": 500_000, "eval.episodes": 100, "checkpoint.every": 0, **settings},
    )


def pendulum(recipe: str, reference: float) -> Learning:
    settings = {"env": "Pendulum-v1", "total_steps": 20_000, "min_fill": 1_000, "checkpoint.every": 0, **PENDULUM[recipe]}
    return Learning(
        f"{recipe}-pendulum",
        f"`{recipe}` on Pendulum-v1, 20k steps",
        recipe,
        5,
        (Score("eval_return", f"100 {GREEDY}", reference, 0.0, ZOO), Score("train_return", LAST)),
        {**settings, "eval.episodes": 100},
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


ENTRIES = (
    cartpole("ppo", 490.0, 6.1),
    cartpole("dqn", 488.7, 16.0, **CLEANRL_DQN),
    acrobot("ppo", -86.4, 1.3),
    acrobot("dqn", -91.5, 7.2, **CLEANRL_DQN),
    Learning(
        "ppo-lunarlander",
        "`ppo` on LunarLander-v3, 1M steps",
        "ppo",
        3,
        (Score("eval_return", f"100 {GREEDY}", 242.0, 32.0, f"{ZOO}, LunarLander-v2"), Score("train_return", LAST)),
        {**LUNAR_ZOO, "eval.episodes": 100},
        limit_s=2 * HOUR,
    ),
    pendulum("sac", -157.0),
    pendulum("td3", -152.0),
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
