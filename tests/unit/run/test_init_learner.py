"""`init` learner: a run takes over the whole learner of another one, and says what it did not take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.core.errors import CheckpointError, ConfigError
from runnel.run.checkpoint import Checkpoints, read_learner
from runnel.run.registry import build, configure, load_recipe
from runnel.run.wiring import place, wire

LM = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 2, "inner": 32}
TINY: dict[str, dict[str, Any]] = {
    "ppo": {"total_updates": 3, "num_envs": 2, "num_steps": 8, "ppo": {"num_minibatches": 1, "normalise_obs": True}},
    "dqn": {"total_steps": 90, "min_fill": 40, "num_steps": 10, "update_ratio": 0.2, "dqn": {"batch_size": 8}},
    "sac": {"env": "Pendulum-v1", "total_steps": 60, "min_fill": 40, "sac": {"batch_size": 8}, "net": {"hidden": (8,)}},
    "sft": {"total_updates": 2, "demo_rows": 4, "lm": LM},
}


def settings(name: str, **more: Any) -> dict[str, Any]:
    envs = {} if name == "sft" else {"vector": {"backend": "serial"}}
    return {"track": (), "eval": {"episodes": 0}, "checkpoint": {"every": 1}, **envs, **TINY[name], **more}


def leaves(state: Any, at: str = "") -> dict[str, Any]:
    if isinstance(state, Mapping):
        return {k: v for name, value in state.items() for k, v in leaves(value, f"{at}/{name}").items()}
    return {at: state}


@pytest.fixture(scope="module", params=TINY)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp(request.param)
    return request.param, rl.train(request.param, out=str(out), name="source", **settings(request.param)).path


def test_the_learner_is_that_of_the_other_run(source: tuple[str, Path]) -> None:
    name, path = source
    newest = Checkpoints(path / "checkpoints").newest()[0]
    states = read_learner(newest, "trainer")
    e = build(name, configure(load_recipe(name), settings(name, seed=7)))
    group = wire(e, place(e), "main", clock=ManualClock())
    group.start()
    assert group.trainer is not None
    fresh = leaves(group.trainer.learner.state_dict())
    group.take_learner(states, str(path))
    wanted, found = leaves(states["worker-trainer"]["learner"]), leaves(group.trainer.learner.state_dict())
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if key.endswith("/version"):
            assert found[key] == 0
        elif isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key
    assert any(isinstance(v, torch.Tensor) and not torch.equal(v, found[k]) for k, v in fresh.items() if k in found)
    assert group.trainer.version == 0
    (told,) = [e["text"] for e in group.trainer.drain() if "init_from" in e.get("text", "")]
    assert "took the whole learner of version" in told
    assert "Not taken, and so begun anew: environments, streams, replay memory, counts" in told
    group.close()


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_a_run_goes_on_with_it(launcher: str, tmp_path: Path) -> None:
    first = rl.train("ppo", out=str(tmp_path), name="first", **settings("ppo"))
    with_it = {"init_from": str(first.path), "init": "learner", "launcher": launcher, "ppo": {"lr": 0.0, "num_minibatches": 1}}
    again = rl.train("ppo", out=str(tmp_path), name=f"again-{launcher}", **settings("ppo", total_updates=1) | with_it)
    ours, theirs = (leaves(read_learner(Checkpoints(r.path / "checkpoints").newest()[0], "trainer")) for r in (again, first))
    moments = [k for k in theirs if "optimiser" in k and isinstance(theirs[k], torch.Tensor) and theirs[k].numel() > 1]
    assert moments
    weights = [k for k in theirs if "/net/" in k and "statistics" not in k and "count" not in k]
    assert any(torch.equal(ours[k], theirs[k]) for k in weights), "with a rate of 0 the weights stay"
    assert "took the whole learner of version 3" in "\n".join(r["text"] for r in again.rows("event"))


def test_what_cannot_be_taken_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"init = .learner.: .*give its folder as init_from"):
        rl.train("ppo", out=str(tmp_path), **settings("ppo", init="learner"))
    first = rl.train("ppo", out=str(tmp_path), name="first", **settings("ppo"))
    from_first = {"init_from": str(first.path), "init": "learner"}
    with pytest.raises(ConfigError, match="that run has another network than this one"):
        rl.train("ppo", out=str(tmp_path), **settings("ppo", net={"hidden": (8,)}, **from_first))
    bare = rl.train("ppo", out=str(tmp_path), name="bare", **settings("ppo") | {"checkpoint": {"every": "never"}})
    with pytest.raises(ConfigError, match=r"of that run has no part .worker-trainer., only parameters; use --init params"):
        rl.train("ppo", out=str(tmp_path), **settings("ppo", init_from=str(bare.path), init="learner"))


def test_a_state_of_another_form_is_refused_with_the_fix() -> None:
    e = build("ppo", configure(load_recipe("ppo"), settings("ppo")))
    group = wire(e, place(e), "main", clock=ManualClock())
    group.start()
    wrong = r"init_from 'runs/x': the learner of that run does not fit this one: .*; use the same recipe and network, or --init"
    with pytest.raises(CheckpointError, match=wrong):
        group.take_learner({"worker-trainer": {"version": 3, "learner": {"net": {}}}}, "runs/x")
    group.close()
