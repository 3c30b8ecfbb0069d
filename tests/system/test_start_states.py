"""Runs whose episodes begin at recorded states: recorded by a command, resumed bit for bit, the same on every launcher; states
of another environment, of another version of it, and damaged ones are refused before anything starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_slices import content

import runnel as rl
from runnel.cli.main import main
from runnel.core.contracts.tasks import Draw
from runnel.core.errors import DataError
from runnel.data.dataset import Dataset
from runnel.envs.curricula.start_states import StartTasks, group_states
from runnel.envs.vector import VectorConfig
from runnel.graphs.experiment import PlayConfig

ENVS = Path(__file__).parents[1] / "unit" / "envs"
WALK = f"{ENVS / 'saved_env.py'}:Walk"
TINY: dict[str, Any] = {
    "total_updates": 8,
    "num_envs": 4,
    "num_steps": 8,
    "ppo": {"num_epochs": 1, "num_minibatches": 2},
    "checkpoint": {"every": 3},
    "eval": {"episodes": 0},
    "track": (),
}
OFF_POLICY: dict[str, Any] = {
    "env": WALK,
    "total_steps": 160,
    "num_envs": 2,
    "num_steps": 4,
    "min_fill": 32,
    "log_every": 10,
    "update_ratio": 1.0,
    "dqn": {"batch_size": 8},
    "checkpoint": {"every": 20},
    "eval": {"episodes": 0},
    "track": (),
}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Data sets with states, by environment."""
    root = tmp_path_factory.mktemp("states")
    found = {}
    for name, env in (("walk", WALK), ("tensors", "tensor:CartPole-v1"), ("pole", "CartPole-v1")):
        teacher = rl.train("ppo", env=env, out=str(root), name=f"teacher-{name}", **{**TINY, "eval": {"episodes": 1}})
        command = ["data", "record", str(teacher.path), str(root / name), "--episodes", "4", "--states-every", "3"]
        assert main([*command, "--stochastic"]) == 0
        found[name] = str(root / name)
    return found


def train(tmp_path: Path, name: str, states: str, **settings: Any) -> rl.Run:
    given = {"kind": "states", "states": states, "until": 1.0, **settings.pop("curriculum", {})}
    recipe = settings.pop("recipe", "ppo")
    small = OFF_POLICY if recipe == "dqn" else {"env": WALK, **TINY}
    return rl.train(recipe, out=str(tmp_path), name=name, **{**small, "curriculum": given, **settings})


def test_a_data_set_has_the_states_of_every_third_step(states: dict[str, str]) -> None:
    found = Dataset.open(states["walk"])
    found.verify()
    steps = np.concatenate(
        [np.arange(0, n, 3) + start for n, start in zip(found.lengths, found.lengths.cumsum() - found.lengths, strict=True)]
    )
    assert np.array_equal(found.states.steps, steps)
    assert len(found.states) == 16
    assert found.states[-1] == found.states[15] != found.states[0]
    assert "16 start states" in str(found)
    shown = found.columns["obs"][found.states.entries]
    sys.path.insert(0, str(ENVS))
    from saved_env import Walk

    for record, obs in zip(found.states, shown, strict=True):
        assert np.array_equal(rl.envs.StartedEnv(Walk()).reset(options={"state": record})[0], obs)


@pytest.mark.parametrize(
    "settings",
    [
        {"curriculum": {"cut": 2}},
        {"vector": {"backend": "processes", "num_workers": 2}, "staleness": {"mode": "one_step"}},
        {"env": "tensor:CartPole-v1", "set": "tensors"},
        {"env": "CartPole-v1", "set": "pole"},
        {"recipe": "dqn"},
    ],
    ids=["serial", "processes, one step", "tensors", "known environment", "replay"],
)
def test_a_stopped_run_goes_on_as_if_it_had_not(settings: dict[str, Any], states: dict[str, str], tmp_path: Path) -> None:
    settings = dict(settings)
    given = states[settings.pop("set", "walk")]
    whole = train(tmp_path, "whole", given, **settings)
    stop = 60 if settings.get("recipe") else 5
    part = train(tmp_path, "part", given, on_update=lambda row: row["version"] < stop, **settings)
    rl.resume(part.path)
    assert content(Path(part.path)) == content(Path(whole.path))


def test_one_process_and_several_begin_at_the_same_states(states: dict[str, str], tmp_path: Path) -> None:
    here = train(tmp_path, "here", states["walk"], num_actors=2)
    there = train(tmp_path, "there", states["walk"], num_actors=2, launcher="local", deterministic=True)
    one, two = (r.rows("update")[-1]["metrics"] for r in (here, there))
    assert one["loss/policy"] == two["loss/policy"]
    plain = rl.train("ppo", env=WALK, out=str(tmp_path), name="plain", num_actors=2, **TINY)
    assert plain.rows("update")[-1]["metrics"]["loss/policy"] != one["loss/policy"]


def test_shares_groups_and_the_end_of_the_curriculum() -> None:
    states = [bytes([i]) for i in range(10)]
    groups = group_states(np.array([[0.0]] * 9 + [[100.0]]), 2, seed=1)
    source = StartTasks(states, groups, seed=3, share=0.5, last=100)
    drawn = [int(source.next(Draw(sequence, row=row)).data["task"][0]) for sequence in range(100) for row in range(20)]
    started = [n for n in drawn if n >= 0]
    assert len(started) / len(drawn) == pytest.approx(0.5, abs=0.05)
    assert started.count(9) / len(started) == pytest.approx(0.5, abs=0.05), "each group is as likely as another"
    assert all(int(source.next(Draw(100, row=row)).data["task"][0]) == -1 for row in range(50))
    again = StartTasks(states, groups, seed=3, share=0.5, last=100)
    assert again.next(Draw(7, row=3)).id == source.next(Draw(7, row=3)).id


def test_states_of_other_environments_are_refused(states: dict[str, str], tmp_path: Path) -> None:
    longer = f"{ENVS / 'saved_env.py'}:LongerSteps"
    changed = Path(states["walk"]).with_name("changed")
    copy_as(changed, Path(states["walk"]), "saved_env.py:LongerSteps")
    for env, folder, match in (
        ("CartPole-v1", states["walk"], r"curriculum\.states.*was recorded with env = 'saved_env\.py:Walk'"),
        (
            longer,
            str(changed),
            r"start state \d+ shows something else than was recorded \d steps after it: the environment is another",
        ),
    ):
        with pytest.raises(rl.ConfigError, match=match):
            train(tmp_path, "bad", folder, env=env)
    with pytest.raises(DataError, match=r"does not fit environment 'tensor:CartPole-v1'"):
        train(tmp_path, "bad", states["pole"], env="tensor:CartPole-v1")
    assert not list(tmp_path.iterdir())


def copy_as(folder: Path, source: Path, env: str) -> None:
    """The same data, as if they had been recorded in another environment."""
    from runnel.data import dataset

    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((folder / dataset.MANIFEST).read_text())
    manifest["source"]["env"] = env
    manifest["digest"] = dataset._digest(manifest)
    (folder / dataset.MANIFEST).write_text(json.dumps(manifest))


def test_a_run_is_of_one_set_of_states(states: dict[str, str], tmp_path: Path) -> None:
    run = train(tmp_path, "run", states["walk"])
    more = Path(states["walk"]).with_name("more")
    rl.record_data(run.path, more, episodes=2, states_every=5)
    with pytest.raises(rl.ConfigError, match=r"curriculum\.states.*is another data set"):
        rl.resume(run.path, total_updates=9, **{"curriculum.states": str(more)})
    moved = Path(states["walk"]).with_name("moved")
    copy_as(moved, Path(states["walk"]), "saved_env.py:Walk")
    assert rl.resume(run.path, total_updates=9, **{"curriculum.states": str(moved)}).version == 9
    other = {"states_digest": Dataset.open(more).digest}
    with pytest.raises(rl.ConfigError, match=r"curriculum\.states.*is another data set.*this run is of the one with digest"):
        train(tmp_path, "other", states["walk"], curriculum=other)


def test_damage_is_found_before_the_run_starts(states: dict[str, str], tmp_path: Path) -> None:
    spoiled = tmp_path / "spoiled"
    copy_as(spoiled, Path(states["walk"]), "saved_env.py:Walk")
    path = spoiled / "state.bytes.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(rl.ConfigError, match=r"column state\.bytes\.npy is damaged: its checksum"):
        train(tmp_path / "runs", "bad", str(spoiled))
    path.unlink()
    with pytest.raises(rl.ConfigError, match=r"column state\.bytes\.npy is missing"):
        train(tmp_path / "runs", "bad", str(spoiled))
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"curriculum": {"kind": "states", "until": 1.0}}, r"curriculum\.states = '': give the folder"),
        ({"curriculum": {"kind": "states", "states": "plain", "until": 1.0}}, r"curriculum\.states = .*has no start states"),
        ({"curriculum": {"kind": "states", "states": "walk"}}, r"curriculum\.until = 0\.5: is a part of total_steps"),
        ({"curriculum": {"kind": "uniform", "share": 0.9}}, r"curriculum\.share = 0\.9: is of curriculum\.kind states"),
        ({"curriculum": {"kind": "states", "states": "walk", "share": 0.0}}, r"curriculum\.share"),
        ({"curriculum": {"kind": "plr"}, "recipe": "dqn", "env": "CartPole-v1"}, r"curriculum\.kind = 'plr'.*drawn batches"),
        ({"curriculum": {"kind": "states", "states": "walk"}, "vector": {"frame_stack": 2}}, r"vector\.frame_stack = 2"),
        (
            {"curriculum": {"kind": "states", "states": "walk", "until": 1.0}, "vector": {"backend": "gymnasium"}},
            r"vector\.backend = 'gymnasium'",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    settings: dict[str, Any], why: str, states: dict[str, str], tmp_path: Path
) -> None:
    plain = Path(__file__).with_name("data_sets") / "cartpole"
    folders = {"plain": str(plain), "walk": states["walk"]}
    given = settings["curriculum"]
    settings = {**settings, "curriculum": given | ({"states": folders[given["states"]]} if "states" in given else {})}
    recipe = settings.pop("recipe", "ppo")
    small = OFF_POLICY if recipe == "dqn" else {"env": WALK, **TINY}
    with pytest.raises(rl.ConfigError, match=why):
        rl.train(recipe, out=str(tmp_path), name="bad", **{**small, **settings})
    assert not list(tmp_path.iterdir())


def test_an_episode_of_tensors_is_not_cut(states: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=r"curriculum\.cut = 5: .*a tensor environment has one limit"):
        train(tmp_path, "bad", states["tensors"], env="tensor:CartPole-v1", curriculum={"cut": 5})
    assert not list(tmp_path.iterdir())


def test_what_plans_an_episode_from_its_beginning_takes_no_states(states: dict[str, str], tmp_path: Path) -> None:
    given = {"kind": "states", "states": states["pole"], "until": 1.0}
    with pytest.raises(rl.ConfigError, match=r"curriculum\.kind = 'states': an episode is planned"):
        rl.train("sqirl", env="CartPole-v1", out=str(tmp_path), curriculum=given)


def test_states_are_not_recorded_where_they_cannot_be(tmp_path: Path) -> None:
    run = rl.train("ppo", env=f"{ENVS / 'saved_env.py'}:NoState", out=str(tmp_path), **{**TINY, "eval": {"episodes": 1}})
    with pytest.raises(rl.ConfigError, match=r"its state cannot be saved.*get_state\(\)"):
        rl.record_data(run.path, tmp_path / "data", states_every=1)
    for name, value in (("states_every", -1), ("seed", -1), ("seed", 1.5)):
        with pytest.raises(rl.ConfigError, match=f"{name} = {value}: use a whole number, at least 0"):
            rl.record_data(run.path, tmp_path / "data", **{"states_every": 1, name: value})
    stacked = rl.EnvConfig(total_steps=1, vector=VectorConfig(frame_stack=2))
    task = rl.EnvTask(f"{ENVS / 'saved_env.py'}:Picture", stacked)
    with pytest.raises(rl.ConfigError, match=r"states_every = 3: a run that stacks frames \(vector\.frame_stack 2\)"):
        task.player(pytest.fail, PlayConfig(1, 0, 10, 3))
    assert not (tmp_path / "data").exists()
