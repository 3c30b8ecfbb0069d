"""The three slices at a size that runs in a second, and what must be equal between two runs of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from made_data import CARTPOLE, PENDULUM

import runnel as rl

SLICES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": (
        "ppo",
        {
            "total_updates": 14,
            "num_steps": 16,
            "num_envs": 4,
            "vector": {"backend": "serial"},
            "ppo": {"num_minibatches": 2, "num_epochs": 2, "normalise_obs": True, "normalise_reward": False},
            "checkpoint": {"every": 3},
            "eval": {"every": 4, "episodes": 4},
        },
    ),
    "dqn": (
        "dqn",
        {
            "total_steps": 700,
            "min_fill": 200,
            "num_steps": 10,
            "vector": {"backend": "serial"},
            "update_ratio": 0.1,
            "dqn": {"batch_size": 32, "lr": 2.3e-3, "epsilon": "linear(1, 0.04, 0.16)", "target_every": 32, "huber": 1.0},
            "replay": {"prioritised": True},
            "log_every": 1,
            "checkpoint": {"every": 7},
            "eval": {"every": 15, "episodes": 4},
        },
    ),
    "grpo": (
        "grpo",
        {
            "task": f"{Path(__file__).with_name('letters_task.py')}:make_task",
            "learner": {"lr": 3e-3, "warmup_updates": 1},
            "total_updates": 9,
            "warmup_updates": 3,
            "num_prompts": 4,
            "group_size": 4,
            "demo_rows": 16,
            "lm": {"layers": 2, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64},
            "placement": {"threads": 1},
            "checkpoint": {"every": 2},
            "eval": {"every": 3, "episodes": 8},
        },
    ),
}
GUIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "guided": (
        str(Path(__file__).parents[2] / "examples" / "intrinsic_reward.py"),
        {
            "total_updates": 12,
            "num_actors": 2,
            "num_envs": 4,
            "num_steps": 16,
            "label_rows": 32,
            "env_kwargs": {"rooms": 2, "size": 2},
            "vector": {"backend": "serial"},
            "ppo": {"num_minibatches": 2, "num_epochs": 2},
            "checkpoint": {"every": 3},
            "eval": {"every": 4, "episodes": 4},
        },
    )
}
"""Two trainers, of which one makes two updates where the other makes one, and a transform between them. Which version the one
loads of the other depends on timing across processes, so it is no slice that launchers agree on."""
PRICED: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo_lagrangian": (
        "ppo_lagrangian",
        {
            "total_updates": 14,
            "num_steps": 16,
            "num_envs": 4,
            "ppo": {"num_minibatches": 2, "num_epochs": 2, "normalise_obs": True},
            "lagrangian": {"multiplier_lr": 0.1},
            "checkpoint": {"every": 3},
            "eval": {"every": 4, "episodes": 4},
        },
    )
}
"""Costs under a limit: critics of costs, multipliers, and sums of episodes that go on over segments."""
IN_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo in parts": ("grpo", {**SLICES["grpo"][1], "learner": {**SLICES["grpo"][1]["learner"], "in_parts": True}})
}
"""A trainer that works on each group as it arrives."""
ON_DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": (
        "bc",
        {
            "data": CARTPOLE,
            "total_updates": 30,
            "bc": {"batch_size": 16},
            "vector": {"backend": "serial"},
            "log_every": 1,
            "checkpoint": {"every": 7},
            "eval": {"every": 10, "episodes": 4},
        },
    ),
    "rlpd": (
        "rlpd",
        {
            "env": "Pendulum-v1",
            "data": PENDULUM,
            "total_steps": 160,
            "min_fill": 64,
            "update_ratio": 0.5,
            "rlpd": {"batch_size": 16, "num_critics": 3, "actor_every": 2},
            "net": {"hidden": (16,)},
            "vector": {"backend": "serial"},
            "replay": {"n_step": 2},
            "log_every": 1,
            "checkpoint": {"every": 7, "keep": 3},
            "eval": {"every": 15, "episodes": 2},
        },
    ),
    "grpo beside demonstrations": (
        "grpo",
        {**SLICES["grpo"][1], "mix": ("demos=0.3",), "learner": {**SLICES["grpo"][1]["learner"], "num_minibatches": 2}},
    ),
}
"""What reads a data set, or demonstrations, alone and beside what actors play."""
BY_ARRIVAL = (
    "return",
    "episode_length",
    "episodes",
    "mismatch/canary_kl",
    "mismatch/canary_max_ratio",
    "mismatch/canary_version",
)
"""Metrics that the launching process makes from what arrives beside updates; across processes that depends on timing."""


def settings(name: str, **extra: Any) -> tuple[str, dict[str, Any]]:
    recipe, tiny = {**SLICES, **GUIDED, **PRICED, **IN_PARTS, **ON_DATA}[name]
    return recipe, {"seed": 3, "track": (), "name": "run", **tiny, **extra}


def obey(order: dict[str, Any]) -> None:
    """Train or resume: `{"slice": "ppo", "out": ..., "settings": ...}` or `{"resume": ...}`."""
    if "resume" in order:
        rl.resume(order["resume"], **order.get("settings", {}))
        return
    recipe, tiny = settings(order["slice"], **order.get("settings", {}))
    rl.train(recipe, out=order["out"], **tiny)


def content(run: Path, *, by_arrival: bool = True) -> tuple[list[dict[str, Any]], bytes]:
    """Rows without what wall time touches, and the bytes of the last parameters."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = []
    for row in rows:
        if row["kind"] not in ("update", "eval"):
            continue
        row.pop("time")
        if not by_arrival:
            row.pop("streams", None)
            row["metrics"] = {k: v for k, v in row.get("metrics", {}).items() if k not in BY_ARRIVAL}
        kept.append(row)
    assert_moved(run)
    newest = sorted((run / "checkpoints").glob("0*"))[-1]
    return kept, (newest / "params.safetensors").read_bytes()


def assert_moved(run: Path) -> None:
    """Every update took a step, and the last checkpoints differ: weights that never moved are equal, and prove nothing."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [(r["version"], r["metrics"]) for r in rows if r["kind"] == "update"]
    still = [version for version, found in updates if not found.get("grad_norm", 0) * found.get("lr", 1.0)]
    assert not still, f"updates {still} moved nothing: the task gives no signal"
    saved = sorted((run / "checkpoints").glob("0*"))
    kept = {p.name[:9]: (p / "params.safetensors").read_bytes() for p in saved}  # a version may be there twice
    assert len(set(kept.values())) == len(kept), "two versions have the same weights"
