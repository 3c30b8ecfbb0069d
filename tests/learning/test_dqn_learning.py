"""DQN learns with every option: a stated return on a toy task, on k of n seeds, and truncation is never termination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.run import registry
from runnel.run.wiring import place, wire

QUIET: dict[str, Any] = {"track": (), "checkpoint": {"every": 0}}
ATOMS = {"num_atoms": 31, "v_min": -2.0, "v_max": 2.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dqn": {"double": False}, "replay": {"prioritised": False}},
    "dueling, 3 steps, weights annealed": {
        "dqn": {"dueling": True},
        "replay": {"prioritised": True, "n_step": 3, "beta": "linear(0.4, 1)"},
    },
    "c51": {"dqn": {"head": "c51", **ATOMS}},
    "hl_gauss": {"dqn": {"head": "hl_gauss", **ATOMS}},
}


@pytest.mark.parametrize("name", list(VARIANTS))
def test_options_learn_from_replay(name: str, tmp_path: Path) -> None:
    """DictGoal: at least 0.75 (acting at random gives about -0.5, the best possible is about 0.9) on 2 of 2 seeds."""
    settings = {"env": "toy_envs:DictGoal", "total_steps": 1_600, "min_fill": 200, "num_steps": 16}
    dqn = {"lr": 3e-3, "epsilon": "linear(1, 0.05, 0.5)", "target_every": 20, **VARIANTS[name]["dqn"]}
    extra = {k: v for k, v in VARIANTS[name].items() if k != "dqn"}
    for seed in (51, 52):
        run = rl.train("dqn", seed=seed, out=str(tmp_path), eval={"episodes": 50}, dqn=dqn, **settings, **extra, **QUIET)
        assert run.eval is not None
        assert run.eval["mean"] >= 0.75, (seed, run.eval["mean"])


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_core_remembers_what_it_saw(core: str, tmp_path: Path) -> None:
    """Recall: which action pays at the end was shown at the first step only. 1 is perfect, 0 is what forgetting gives."""
    net = {"hidden": (16,), "activation": "relu", "core": core, "core_size": 16}
    dqn = {"lr": 5e-3, "epsilon": "linear(1, 0.05, 0.5)", "batch_size": 16, "burn_in": 2, "target_every": 20, "gamma": 0.9}
    settings = {"env": f"{Path(__file__).parent / 'recall_env.py'}:Recall", "num_envs": 4, "num_steps": 10, "min_fill": 400}
    size = {"total_steps": 6_000, "update_ratio": 0.05}
    run = rl.train("dqn", seed=61, out=str(tmp_path), eval={"episodes": 50}, net=net, dqn=dqn, **settings, **size, **QUIET)
    assert run.eval is not None
    assert run.eval["mean"] >= 0.8, run.eval["mean"]


def test_pixels_learn_from_compressed_frames(tmp_path: Path) -> None:
    """Bright: 4 of 8 is chance, 8 is perfect; at least 7.5 on 1 seed."""
    dqn = {"lr": 1e-3, "epsilon": "linear(1, 0.05, 0.5)", "batch_size": 32, "gamma": 0.5}
    settings = {
        "env": f"{Path(__file__).parent / 'pixel_env.py'}:Bright",
        "num_steps": 16,
        "min_fill": 128,
        "total_steps": 1_200,
    }
    run = rl.train(
        "dqn", seed=71, out=str(tmp_path), eval={"episodes": 20}, net={"hidden": (32,)}, dqn=dqn, **settings, **QUIET
    )
    assert run.eval is not None
    assert run.eval["mean"] >= 7.5, run.eval["mean"]


TRAPS: dict[str, dict[str, Any]] = {
    "value": {},
    "value, 3 steps": {"replay": {"n_step": 3}},
    "c51": {"dqn": {"head": "c51"}},
    "c51, 3 steps": {"dqn": {"head": "c51"}, "replay": {"n_step": 3}},
    "hl_gauss": {"dqn": {"head": "hl_gauss"}},
    "hl_gauss, 3 steps": {"dqn": {"head": "hl_gauss"}, "replay": {"n_step": 3}},
    "lstm, 3 steps": {"dqn": {"burn_in": 2}, "replay": {"n_step": 3}, "net": {"hidden": (8,), "core": "lstm", "core_size": 8}},
}


@pytest.mark.parametrize("name", list(TRAPS))
def test_truncation_is_not_termination(name: str, tmp_path: Path) -> None:
    """A constant reward of 1 and episodes that are only ever cut: Q is 1 / (1 - gamma) = 5 for every action. A learner that
    took a cut for an end would find sum(gamma^t, t < 5) = 3.4 at most."""
    change = TRAPS[name]
    atoms = {"num_atoms": 41, "v_min": 0.0, "v_max": 10.0} if "head" in change.get("dqn", {}) else {}
    dqn = {"gamma": 0.8, "lr": 3e-2, "epsilon": 1.0, "batch_size": 16, "target_every": 8, **atoms, **change.get("dqn", {})}
    settings = {
        "env": "runnel.envs.toy:TruncationTrap",
        "total_updates": 300,
        "num_steps": 8,
        "min_fill": 64,
        "update_ratio": 1.0,
    }
    rest = {k: v for k, v in change.items() if k != "dqn"}
    values = final_q({**settings, **rest, "dqn": dqn, "eval": {"episodes": 0}, "out": str(tmp_path)})
    assert torch.allclose(values, torch.full_like(values, 5.0), rtol=0.1), values


def final_q(settings: dict[str, Any]) -> torch.Tensor:
    """Train in this process; Q of the observation 0 by the learner's network."""
    experiment = registry.build("dqn", registry.configure(registry.load_recipe("dqn"), settings))
    group = wire(experiment, place(experiment), "main", clock=ManualClock())
    group.start()
    assert group.trainer is not None
    while not group.trainer.finished:
        group.round()
    net = group.trainer.learner.net  # type: ignore[attr-defined]
    with torch.no_grad():
        obs = {"obs": torch.zeros(1, 1)}
        state = {k: torch.zeros(1, *leaf.shape) for k, leaf in net.state_spec.items()}
        q: torch.Tensor = net.expected(net.step(obs, state)[0]) if state else net.q(obs)
    group.close()
    return q
