"""Runs of neural fictitious self-play: every launcher gives the same, a resume goes on, and what is played is the average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_team_runs import content, params

import runnel as rl
from runnel.core.records import Batch

POKER: dict[str, Any] = {
    "env": "tensor:Kuhn",
    "teams": ("player_0=sender", "player_1=receiver"),  # `content` reads the metrics of policies of these names
    "seed": 3,
    "num_envs": 16,
    "num_steps": 9,  # games go on behind the end of a segment
    "total_updates": 8,
    "net": {"hidden": (8,)},
    "nfsp": {"min_fill": 60, "num_updates": 4, "anticipation": 0.4, "replay_size": 300, "reservoir_size": 80},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 3},
    "eval": {"every": 4, "episodes": 5},
    "deterministic": True,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return rl.train("nfsp", out=str(tmp_path_factory.mktemp("whole")), **POKER)


def test_processes_and_policy_workers_give_the_same(whole: rl.Run, tmp_path: Path) -> None:
    apart = {"launcher": "local", "placement": {"policy_workers": 1}}
    assert content(rl.train("nfsp", out=str(tmp_path), **POKER | apart)) == content(whole)


@pytest.mark.parametrize("version", [4, 5])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(version: int, whole: rl.Run, tmp_path: Path) -> None:
    """In the middle of games, of which the policy that plays them is known; both memories are full by then."""
    stopped = rl.train("nfsp", out=str(tmp_path), on_update=lambda row: row["version"] < version, **POKER)
    assert (stopped.status, stopped.version) == ("stopped", version)
    assert stopped.rows()[-1]["metrics"]["sender/reservoir"] == 80.0
    assert content(rl.resume(stopped.path), evaluations=False) == content(whole, evaluations=False)


def test_a_finished_run_plays_its_average_policy(whole: rl.Run, tmp_path: Path) -> None:
    """Loaded, and as an opponent from a run: there it draws from the average policy, and nothing of it is learned."""
    policy: Any = rl.load(whole.path)
    net = policy.policies["player_0"].net
    saved = load_file(params(whole))
    assert torch.equal(net.state_dict()["average.layers.weight.0"], saved["sender/average.layers.weight.0"])
    obs = torch.eye(11)[:5]
    drawn = policy.probabilities({"player_0": obs.numpy()}, action_mask={"player_0": np.ones((5, 2), bool)})["player_0"]
    assert np.allclose(drawn, net.average.logits(Batch(obs=obs)).softmax(-1).detach().numpy())
    teams = ("player_0=sender", f"player_1=run:{whole.path}@newest#receiver")
    against = rl.train("nfsp", out=str(tmp_path), **POKER | {"teams": teams, "total_updates": 2})
    assert against.status == "finished"
    assert not any(name.startswith("receiver") for name in load_file(params(against)))


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    for more, words in (
        ({"net": {"core": "gru"}}, "net.core"),
        ({"teams": ("player_0=sender: 9 steps, burn-in 2", "player_1=receiver")}, "burn-in"),
        ({"nfsp": {"min_fill": 500, "replay_size": 300}}, r"nfsp.replay_size = 300: must hold nfsp.min_fill"),
        ({"env": "pettingzoo:mpe2.simple_spread_v3", "env_kwargs": {"continuous_actions": True}, "teams": ()}, "discrete"),
        ({"compiled": "on"}, "compiled"),
    ):
        with pytest.raises(rl.ConfigError, match=words):
            rl.train("nfsp", out=str(tmp_path), **POKER | more)
