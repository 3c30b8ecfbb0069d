"""Settings of hide-and-seek with bodies (`tensor:HideAndSeek`), every one that matters written out.

From Baker et al. 2020 (arXiv:1909.07528) and SRL's reproduction: one policy for both teams with a bit that says which, against
its present self; entity attention; a critic that knows what there is (`omniscient`); gamma 0.998, lambda 0.95, clip 0.2,
entropy 0.01, one scale for rewards. Ours: no memory, an episode of every world in each update (so an update has all its
phases), and batches that fit a run of minutes: 131,000 decisions for an optimiser step, and `wide` with the 520,000 that
OpenAI needed.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def world(size: str, **kwargs: Any) -> Row:
    """Arguments of the world; `compiled` fuses its step into fewer kernels on a GPU."""
    plain = {"size": size, "surfing": False, "omniscient": True, "lidar": 30, "num_layouts": 8192, "preparation": 0.4}
    return {**plain, "compiled": True, **kwargs}


def settings(kwargs: Row, *, num_envs: int, num_steps: int, total_steps: int, **ppo: Any) -> Row:
    """Settings of recipe `ippo`."""
    return {
        "env": "tensor:HideAndSeek",
        "env_kwargs": kwargs,
        "teams": (),
        "total_steps": total_steps,
        "num_envs": num_envs,
        "num_steps": num_steps,
        "net": {"hidden": (128, 128), "activation": "relu", "entities": "attention"},
        "ppo": {
            "num_epochs": 2,
            "num_minibatches": 8,
            "lr": 3e-4,
            "gamma": 0.998,
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "entropy_coef": 0.01,
            "value_coef": 0.5,
            "max_grad_norm": 5.0,
            "normalise_obs": True,
            "normalise_reward": True,
            **ppo,
        },
        "checkpoint": {"every": 25, "keep": 1},
    }


BILLION = 1_000_000_000
BASE: Row = {"num_envs": 4096, "num_steps": 80, "total_steps": BILLION}
ARENA: Row = {"num_envs": 2048, "num_steps": 160, "total_steps": 3 * BILLION}
"""With 4,096 worlds one pass of the critic over a batch would take some 70 GB (reckoned, not measured)."""
WORLDS = {
    "quadrant": settings(world("quadrant"), **BASE),
    "plain-quadrant": settings(world("quadrant", compiled=False), **BASE),
    "fast-quadrant": settings(world("quadrant"), **BASE, lr=1e-3, num_minibatches=16),
    "wide-quadrant": settings(world("quadrant"), **{**BASE, "num_envs": 8192, "total_steps": 3 * BILLION}, num_minibatches=4),
    "masked-quadrant": settings(world("quadrant", omniscient=False), **BASE),
    "short-quadrant": settings(world("quadrant", preparation=0.25), **BASE),
    "curious-quadrant": settings(world("quadrant"), **BASE, entropy_coef=0.03),
    "arena": settings(world("arena"), **ARENA),
    "surf-arena": settings(world("arena", surfing=True), **ARENA),
}
"""`quadrant` is the proof. What to try where a stage does not come: `fast` (larger steps, smaller minibatches), `wide` (larger
batches), `short` (less preparation), `curious` (more entropy); and what must fail: `masked` (a critic that sees no more than
the policy). `plain` is the same without a compiler."""
TINY: Row = {
    **settings(world("quadrant", compiled=False, num_layouts=16, lidar=8), num_envs=32, num_steps=80, total_steps=30_720),
    "net": {"hidden": (16,), "activation": "relu", "entities": "attention"},
    "checkpoint": {"every": 2, "keep": 1},
}
"""Shows on a CPU that the program works, in a minute; it learns nothing."""
WORLDS["tiny"] = TINY
