"""Runs that learn the value of a whole team from replay: every launcher gives the same, and a resume goes on bit for bit where
some agents have left and others play on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_team_runs import params
from torch.testing import assert_close

import runnel as rl
from runnel.core.records import Batch
from runnel.recipes import qmix
from runnel.run.checkpoint import read_parts

CREW = f"{Path(__file__).parents[1] / 'unit' / 'envs' / 'team_envs.py'}:Crew"
TEAM: dict[str, Any] = {
    "env": CREW,
    "seed": 3,
    "num_envs": 4,
    "num_steps": 5,
    "total_steps": 200,
    "min_fill": 40,
    "log_every": 1,
    "update_ratio": 0.125,
    "net": {"hidden": (8,)},
    "qmix": {"batch_size": 16, "lr": 1e-2, "target_every": 3, "mixer_width": 4, "hypernet": 8},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 3},
    "eval": {"every": 8, "episodes": 5},
    "deterministic": True,
}
MEMORY = {"net": {"hidden": (8,), "core": "gru", "core_size": 4}, "qmix": {**TEAM["qmix"], "batch_size": 4, "burn_in": 1}}
ON_POLICY = {"ppo": {"num_epochs": 2, "lr": 1e-2, "width": 8}}
BOXES = {"env": CREW.replace("Crew", "Rowers"), "masac": {"batch_size": 16, "actor_lr": 1e-2, "critic_lr": 1e-2}}


def train(out: Path, recipe: str = "qmix", **more: Any) -> rl.Run:
    return rl.train(recipe, out=str(out), **{**TEAM, **more})


def content(run: rl.Run) -> tuple[list[Any], bytes]:
    """What updates say of learning, and the bytes of the last parameters."""
    names = ("loss/td", "loss/critic", "loss/actor", "loss/total", "q", "grad_norm")
    said = [{k: v for k, v in row["metrics"].items() if k in names} for row in run.rows()]
    return said, params(run).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "more",
    [
        {"launcher": "local", "placement": {"policy_workers": 1}},
        {"vector": {"backend": "processes", "num_workers": 2}},
    ],
    ids=["local, a policy worker", "environments in processes"],
)
def test_every_launcher_gives_the_same(whole: rl.Run, more: dict[str, Any], tmp_path: Path) -> None:
    assert (whole.status, whole.steps) == ("finished", 200)
    assert content(train(tmp_path, **more)) == content(whole)


def left(run: rl.Run) -> int:
    """Environments of the newest checkpoint in which some agents have left, and others play on."""
    checkpoint = sorted((run.path / "checkpoints").glob("0*"))[-1]
    found: list[torch.Tensor] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "active" in value and isinstance(value["active"], torch.Tensor):
                found.append(value["active"].view(4, 3))
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(read_parts(checkpoint))
    (active,) = found
    return int((active.any(-1) & ~active.all(-1)).sum())


@pytest.mark.parametrize(
    ("recipe", "more", "version"),
    [("qmix", {}, 4), ("qmix", {}, 7), ("qmix", MEMORY, 6), ("masac", BOXES, 6), ("mat", ON_POLICY, 6)],
    ids=["4", "7", "with a memory", "masac", "mat"],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    recipe: str, more: Any, version: int, whole: rl.Run, tmp_path: Path
) -> None:
    others = {"qmix", "masac"} - {recipe} | ({"min_fill", "update_ratio"} if recipe == "mat" else set())
    settings = {k: v for k, v in {**TEAM, **more}.items() if k not in others}
    other = rl.train(recipe, out=str(tmp_path / "other"), **settings) if more else whole
    stopped = rl.train(recipe, out=str(tmp_path), on_update=lambda row: row["version"] < version, **settings)
    assert (stopped.status, stopped.version) == ("stopped", version)
    assert left(stopped), "in some environments an agent has left, and others play on"
    assert content(rl.resume(stopped.path)) == content(other)


def test_a_loaded_team_acts_for_a_dict_of_observations(whole: rl.Run) -> None:
    policy: Any = rl.load(whole.path)
    masks = {"b": np.array([1, 0, 0], np.int8), "c": np.array([1, 0, 1], np.int8)}
    actions = policy.act({agent: np.zeros(3, np.float32) for agent in masks}, action_mask=masks)
    assert actions["b"] == 0
    assert actions["c"] in (0, 2)
    assert len(rl.evaluate(whole.path, episodes=3).returns) == 3


def test_a_transformer_acts_for_those_of_the_team_that_decide(tmp_path: Path) -> None:
    """Nobody else is asked; it chooses for the team as the network does for a row of it."""
    settings = {k: v for k, v in TEAM.items() if k not in ("qmix", "min_fill", "update_ratio")}
    run = rl.train("mat", out=str(tmp_path), **{**settings, **ON_POLICY, "total_steps": 20})
    policy: Any = rl.load(run.path)
    masks = {"b": np.array([1, 0, 0], np.int8), "c": np.array([0, 0, 1], np.int8)}
    seen = {agent: np.full(3, 0.1, np.float32) for agent in "cb"}
    assert policy.act(seen, action_mask=masks) == {"b": 0, "c": 2}
    free = {agent: np.ones(3, np.int8) for agent in "abc"}
    for there in ("abc", "ac", "b"):
        seen = {agent: np.array([0.5, i, 2.0], np.float32) for i, agent in enumerate("abc") if agent in there}
        rows = Batch(
            {
                "obs": torch.stack([torch.from_numpy(seen.get(agent, np.zeros(3, np.float32))) for agent in "abc"])[None],
                "shared/active": torch.tensor([[agent in there for agent in "abc"]]),
            }
        )
        expected = policy.net.act(rows, greedy=True)["action"][0].tolist()
        assert policy.act(seen, action_mask=free) == {a: expected["abc".index(a)] for a in there}
    assert len(rl.evaluate(run.path, episodes=3).returns) == 3
    for given, text in ((np.zeros(3), "a dict of observations by agent"), ({"d": 1}, "knows no agent 'd'")):
        with pytest.raises(rl.core.DataError, match=text):
            policy.act(given)


def test_two_ranks_train_on_the_same_rows_as_one(tmp_path: Path) -> None:
    """Agents that learn alone: ranks have unequal numbers of those that decided."""
    settings = {"launcher": "local", "eval": {"episodes": 0}, "total_steps": 100, "qmix": {"batch_size": 16, "lr": 1e-2}}
    found = []
    for trainers in (1, 2):
        run = train(tmp_path / str(trainers), "independent_q", placement={"trainers": trainers}, **settings)
        found.append(load_file(params(run)))
    assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_actors_that_wait_for_nobody(tmp_path: Path) -> None:
    """Two processes play while the learner learns; every row is accounted for."""
    settings = {"launcher": "local", "num_actors": 2, "staleness": {"mode": "window", "max_lag": 8}, "deterministic": False}
    run = train(tmp_path, "vdn", **{**settings, "qmix": {"batch_size": 16}, "total_steps": 400})
    assert (run.status, run.steps) == ("finished", 400)
    for account in run.rows("end")[-1]["streams"].values():
        settled = account["consumed"] + sum(account["dropped"].values()) + sum(account["cancelled"].values())
        assert account["dispatched"] == settled + account["in_flight"]


def test_what_cannot_work_is_refused_in_words(tmp_path: Path) -> None:
    for more, text in (
        ({"env": "runnel.envs.team.toy:Whisper"}, "differ in their spaces; qmix needs agents of equal spaces: pad them"),
        ({"teams": ("a=x", ".*=y")}, "this recipe learns one team"),
        ({"qmix": {"mixer": "vdn", "hypernet": 3}}, r"qmix\.hypernet.*is of a mixer"),
        ({"qmix": {"mixer": "none"}, "team_reward": "sum"}, "each agent learns from what it is paid itself"),
        ({"env": CREW.replace("Crew", "Rowers")}, "agents with one choice each; use masac"),
        ({"env": "tensor:Spread", "num_envs": 5000}, "ends of more than 4096 worlds in one step are not all told"),
        ({"num_steps": 4, "qmix": {"burn_in": 4}, "net": MEMORY["net"]}, "must leave some of num_steps = 4"),
    ):
        with pytest.raises(rl.ConfigError, match=text):
            train(tmp_path, **more)  # type: ignore[arg-type]
    with pytest.raises(rl.ConfigError, match="; independent_q needs agents of equal spaces"):
        rl.train("independent_q", out=str(tmp_path), env="runnel.envs.team.toy:Whisper", total_steps=10)
    with pytest.raises(rl.ConfigError, match="masac needs agents with one box of continuous actions each; use qmix or vdn"):
        rl.train("masac", out=str(tmp_path), env=CREW, total_steps=10)


@pytest.mark.parametrize(
    ("recipe", "env"),
    [
        ("qmix", "tensor:Kuhn"),
        ("vdn", "openspiel:matrix_rps"),
        ("mat", "tensor:RockPaperScissors"),
        ("vdn", CREW.replace("Crew", "Rivals")),
        ("happo", "tensor:TicTacToe"),
        ("coma", "openspiel:kuhn_poker"),
    ],
)
def test_a_team_whose_agents_take_from_each_other_is_refused(recipe: str, env: str, tmp_path: Path) -> None:
    """All together they always get 0, so there is nothing to learn; a learner for each agent has something."""
    with pytest.raises(rl.ConfigError, match=rf"all together get 0 whatever they do, and {recipe} would learn nothing"):
        rl.train(recipe, env=env, out=str(tmp_path), track=(), total_steps=2000)


def test_agents_that_take_from_each_other_learn_each_by_itself_or_for_the_first(tmp_path: Path) -> None:
    settings = {"env": "tensor:RockPaperScissors", "out": str(tmp_path), "track": (), "total_steps": 200, "min_fill": 100}
    settings |= {"num_envs": 4, "qmix": {"batch_size": 8}, "eval": {"episodes": 0}}
    for recipe, more in (("independent_q", {}), ("vdn", {"team_reward": "first"})):
        assert rl.train(recipe, **settings, **more).status == "finished"
    assert rl.graphs.TeamTask(rl.graphs.TeamConfig(env="tensor:MatrixGame")).spec.zero_sum is False


def test_every_world_of_many_that_end_at_once_is_told() -> None:
    """Two-step games end together after two steps; who would miss the end of some would go on into the next game."""
    config = qmix.Config(num_envs=600, num_steps=2)
    vector = rl.graphs.JointTask(config, algorithm="qmix", global_state=True).vector(600, seed=0)
    vector.reset()
    ends = [vector.step(torch.zeros(600, 2, dtype=torch.int64)).terminated.sum().item() for _ in range(4)]
    assert ends == [0, 600, 0, 600]
    assert len(vector.episodes()) == 1200
