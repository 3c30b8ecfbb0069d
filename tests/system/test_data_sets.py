"""Data sets from end to end: recorded from a run, trained on, moved, exchanged, damaged; and where none can be made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from made_data import CARTPOLE, PENDULUM, play_anything

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import CheckpointError

TINY: dict[str, Any] = {"track": (), "total_updates": 6, "checkpoint": {"every": 3}, "eval": {"episodes": 4}, "log_every": 1}
PLAIN = {"vector": {"backend": "serial"}}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    """A run of PPO that has learned a little."""
    small = {"num_steps": 32, "total_steps": 4_096, "eval": {"episodes": 4}, "track": ()}
    return rl.train("ppo", env="CartPole-v1", out=str(tmp_path_factory.mktemp("runs")), **small, **PLAIN)


def test_what_is_recorded_is_what_the_environment_does(teacher: rl.Run, tmp_path: Path) -> None:
    """From each recorded state, the recorded action leads plain CartPole to the next recorded state, with its flags."""
    data = rl.record_data(teacher, tmp_path / "set", episodes=6)
    data.verify()
    assert data.num_episodes == 6
    assert data.manifest["about"] | {"run": ""} == {
        **{"run": "", "recipe": "ppo", "seed": 0, "stochastic": False},
        **{"version": teacher.version, "trained_steps": teacher.steps},
    }
    columns, env = data.columns, gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    ends = set((data.lengths.cumsum() - 1).tolist())
    for step in range(0, data.num_steps, 7):
        entry = step + int(data.episode_of(np.array([step]))[0])
        env.state, env.steps_beyond_terminated = columns["obs"][entry].astype(np.float64), None
        obs, reward, terminated, *_ = env.step(int(columns["action"][step]))
        np.testing.assert_allclose(columns["obs"][entry + 1], obs, rtol=1e-4, atol=1e-5)
        assert (reward, terminated) == (columns["rewards/env"][step], columns["terminated"][step])
        assert bool(columns["terminated"][step] | columns["truncated"][step]) == (step in ends)


def test_actions_are_the_greedy_ones_of_the_loaded_policy(teacher: rl.Run, tmp_path: Path) -> None:
    data, policy = rl.record_data(teacher, tmp_path / "set", episodes=3), teacher.policy()
    first = np.concatenate([[0], data.lengths.cumsum()])
    for i in range(3):
        obs = np.array(data.columns["obs"][first[i] + i : first[i + 1] + i])
        np.testing.assert_array_equal(policy.act(obs), data.columns["action"][first[i] : first[i + 1]])


def test_the_same_call_gives_the_same_data_and_another_seed_others(teacher: rl.Run, tmp_path: Path) -> None:
    drawn = {"stochastic": True}
    calls: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {"seed": 1}, "d": drawn, "e": drawn}
    digests = {name: rl.record_data(teacher, tmp_path / name, episodes=3, **asked).digest for name, asked in calls.items()}
    assert digests["a"] == digests["b"]
    assert digests["d"] == digests["e"]
    assert len({digests["a"], digests["c"], digests["d"]}) == 3


def test_a_run_of_ppo_starts_from_a_clone(teacher: rl.Run, tmp_path: Path) -> None:
    rl.record_data(teacher, tmp_path / "set", episodes=6)
    clone = rl.train("bc", data=str(tmp_path / "set"), out=str(tmp_path), name="clone", **TINY, **PLAIN)
    ppo = {"lr": 0.0, "normalise_obs": True}
    run = rl.train("ppo", init_from=str(clone.path), out=str(tmp_path), name="on", num_steps=8, ppo=ppo, **TINY, **PLAIN)
    found, due = (one.policy().net.state_dict() for one in (run, clone))
    weights = [name for name in due if not name.startswith("normalisers")]  # statistics go on with what is seen
    assert weights
    assert all(torch.equal(found[name], due[name]) for name in weights)


def train(out: Path, **settings: Any) -> rl.Run:
    return rl.train("bc", **{"data": CARTPOLE, "out": str(out), "name": "run", **TINY, **PLAIN, **settings})


def test_a_run_keeps_the_digest_of_its_data_and_tells_it(tmp_path: Path) -> None:
    run = train(tmp_path)
    digest = rl.data.Dataset.open(CARTPOLE).digest
    assert rl.data.Dataset.open(CARTPOLE, digest=digest).num_episodes == 12
    told = [row["text"] for row in run.rows("event")]
    assert [text for text in told if text.startswith("data: ") and digest in text and "12 episodes, 347 steps" in text]


def test_data_that_were_moved_are_given_anew(tmp_path: Path) -> None:
    shutil.copytree(CARTPOLE, tmp_path / "here")
    whole, broken = (train(tmp_path / name, data=str(tmp_path / "here")) for name in ("a", "b"))
    (tmp_path / "here").rename(tmp_path / "there")
    before = (broken.path / "config.json").read_bytes()
    with pytest.raises(rl.ConfigError, match=r"data = .*here.*there is no such folder"):
        rl.resume(broken, total_updates=12)
    assert (broken.path / "config.json").read_bytes() == before
    broken = rl.resume(broken, total_updates=12, data=str(tmp_path / "there"))
    (tmp_path / "there").rename(tmp_path / "here")
    whole = rl.resume(whole, total_updates=12)
    strip = [[{k: v for k, v in row.items() if k != "time"} for row in run.rows()] for run in (whole, broken)]
    assert strip[0] == strip[1]
    assert len(strip[0]) == 12


def test_other_data_are_refused_on_resume_and_nothing_is_lost(tmp_path: Path) -> None:
    play_anything("CartPole-v1", tmp_path / "other", episodes=3, seed=5)
    run = train(tmp_path)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(rl.ConfigError, match=r"data = .*other'?: is another data set \(digest .*this run is of the one with"):
        rl.resume(run, total_updates=12, data=str(tmp_path / "other"))
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert rl.resume(run, total_updates=12).version == 12


def test_data_that_were_damaged_meanwhile_are_refused(tmp_path: Path) -> None:
    shutil.copytree(CARTPOLE, tmp_path / "set")
    run = train(tmp_path, data=str(tmp_path / "set"))
    column = bytearray((tmp_path / "set" / "obs.npy").read_bytes())
    column[-1] ^= 1
    (tmp_path / "set" / "obs.npy").write_bytes(bytes(column))
    with pytest.raises(rl.ConfigError, match=r"data = .*column obs.npy is damaged: its checksum.*copy the data set again"):
        rl.resume(run, total_updates=12)
    with pytest.raises(rl.ConfigError, match=r"column obs.npy is damaged"):
        train(tmp_path, data=str(tmp_path / "set"), name="new")
    assert not (tmp_path / "new").exists()


def test_a_policy_is_loaded_and_measured_without_its_data(tmp_path: Path) -> None:
    shutil.copytree(CARTPOLE, tmp_path / "set")
    run = train(tmp_path, data=str(tmp_path / "set"))
    shutil.rmtree(tmp_path / "set")
    assert rl.evaluate(run, episodes=2).returns == rl.evaluate(run, episodes=2).returns
    assert rl.load(run).act(np.zeros(4, np.float32)) in (0, 1)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no data": ("bc", {"data": ""}, r"data = '': this recipe learns from a data set"),
    "no folder": ("bc", {"data": "gone"}, r"data = .*gone.*there is no such folder"),
    "another environment": ("bc", {"data": PENDULUM}, r"data = .*recorded with env = 'Pendulum-v1', and this run has"),
    "other settings of it": (
        "rlpd",
        {"env": "Pendulum-v1", "env_kwargs": {"g": 5.0}, "data": PENDULUM, "total_steps": 10_000},
        r"data = .*recorded with env_kwargs = \{\}, and this run has \{'g': 5.0\}",
    ),
    "wrappers": (
        "bc",
        {"wrappers": ("gymnasium.wrappers:RecordEpisodeStatistics",)},
        r"data = .*recorded with wrappers = \[\], and this run has \['gymnasium.wrappers:RecordEpisodeStatistics'\]",
    ),
    "another digest": ("bc", {"data_digest": "0" * 16}, r"data = .*is another data set .*digest 0{16}"),
    "a share of 0": ("rlpd", {"env": "Pendulum-v1", "data": PENDULUM, "mix": ("offline=0",)}, r"mix = .*between 0 and 1"),
    "no share": ("rlpd", {"env": "Pendulum-v1", "data": PENDULUM, "mix": ()}, r"mix = \(\): a batch of 256 needs rows of both"),
    "another stream": ("rlpd", {"env": "Pendulum-v1", "data": PENDULUM, "mix": ("demos=0.5",)}, "the name is offline"),
    "steps": ("bc", {"total_steps": 100}, r"total_steps = 100: no steps of the environment are counted"),
    "actors": ("bc", {"num_actors": 2}, r"num_actors = 2: data are read and nothing is played"),
    "discrete": ("rlpd", {"env": "CartPole-v1", "data": CARTPOLE, "total_steps": 10_000}, "box of continuous actions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_a_folder_is_made(case: str, tmp_path: Path) -> None:
    recipe, settings, match = REFUSED[case]
    if recipe == "bc":
        settings = {"data": CARTPOLE, **settings}
    with pytest.raises(rl.ConfigError, match=match):
        rl.train(recipe, out=str(tmp_path), **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_rlpd_has_the_stated_share_of_data(tmp_path: Path) -> None:
    small = {"total_steps": 264, "min_fill": 256, "update_ratio": 1.0, "eval": {"episodes": 0}, "track": ()}
    for share, rows in (("0.5", 128), ("0.25", 64)):
        mix = (f"offline={share}",)
        run = rl.train("rlpd", env="Pendulum-v1", data=PENDULUM, mix=mix, out=str(tmp_path), name=share, **small, **PLAIN)
        flow = (run.path / "run.json").read_text()
        assert f"offline[B={rows};" in flow
        assert f"replay[B={256 - rows};" in flow
        end = run.rows("end")[-1]
        assert end["streams"]["offline"]["consumed"] == rows * run.version
        assert run.steps == 264, "rows of the data set are no steps of the environment"


def test_a_run_without_an_environment_of_one_agent_gives_no_data(tmp_path: Path) -> None:
    teams = {"teams": ("sender=sender", "receiver=receiver"), "total_updates": 1, "track": (), "eval": {"episodes": 2}}
    run = rl.train("ippo", out=str(tmp_path), **teams)
    with pytest.raises(rl.ConfigError, match=r"run = .*plays no environment with one agent"):
        rl.record_data(run, tmp_path / "set")
    for name in ("episodes", "max_steps"):
        with pytest.raises(rl.ConfigError, match=f"{name} = 0: use a whole number, at least 1"):
            rl.record_data(run, tmp_path / "set", **{name: 0})
    assert not (tmp_path / "set").exists()


def test_the_command_line_records_and_looks(teacher: rl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "set")
    assert main(["data", "record", str(teacher.path), folder, "--episodes", "2", "--max-steps", "5"]) == 0
    said = capsys.readouterr().out
    assert "2 episodes, 10 steps" in said
    assert "0 episodes terminated, 2 were truncated" in said
    assert main(["data", "inspect", folder]) == 0
    assert capsys.readouterr().out == said
    assert main(["data", "record", str(teacher.path), folder]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["data", "mend", folder]) == 2
    assert "data record or data inspect" in capsys.readouterr().err
    assert main(["data", "record", str(tmp_path), folder + "2"]) in (1, 2)
    assert not Path(folder + "2").exists()


def test_a_damaged_checkpoint_writes_no_data(teacher: rl.Run, tmp_path: Path) -> None:
    shutil.copytree(teacher.path, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").rglob("params.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError):
        rl.record_data(tmp_path / "run", tmp_path / "set", trust=True)
    assert not (tmp_path / "set").exists()
