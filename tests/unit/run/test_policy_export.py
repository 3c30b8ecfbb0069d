"""An exported policy acts as the run's own does: as a program of torch.export, and as ONNX where there is no runnel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import ConfigError
from runnel.nets.policy import EnvPolicy

HERE = Path(__file__).parent
Obs = Any


def normal(*shape: int, scale: float = 1.0) -> Callable[[np.random.Generator, int], Obs]:
    return lambda rng, num: (scale * rng.normal(size=(num, *shape))).astype(np.float32)


def pixels(rng: np.random.Generator, num: int) -> Obs:
    return rng.integers(0, 256, (num, 3, 10, 10)).astype(np.uint8)


@dataclass(frozen=True)
class Case:
    """A kind of policy: what trains it, observations to act on, how many steps, and flags of its mask."""

    recipe: str
    env: str
    obs: Callable[[np.random.Generator, int], Obs]
    steps: int = 1
    num: int = 300
    mask: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


TOY = "runnel.envs.toy:"
CASES = {
    "categorical": Case("ppo", "CartPole-v1", normal(4)),
    "gaussian-normalised": Case("ppo", "Pendulum-v1", normal(3, scale=4.0), settings={"ppo.normalise_obs": True}),
    "dqn": Case("dqn", "CartPole-v1", normal(4)),
    "sac": Case("sac", "Pendulum-v1", normal(3)),
    "td3": Case("td3", "Pendulum-v1", normal(3)),
    "gru": Case("ppo", f"{TOY}Recall", normal(3), steps=12, num=30, settings={"net.core": "gru"}),
    "dqn-lstm": Case("dqn", "CartPole-v1", normal(4), steps=12, num=30, settings={"net.core": "lstm"}),
    "pixels": Case("ppo", f"{HERE.parents[1] / 'learning' / 'pixel_env.py'}:Bright", pixels),
    "masked": Case("dqn", f"{TOY}MaskedBandit", normal(1), mask=4),
    "multi-masked": Case("ppo", "toy_envs:Composite", normal(1), mask=9, settings={"env_kwargs": {"masked": True}}),
}


def arrays_of(action: Any, path: str = "action") -> dict[str, np.ndarray]:
    """An action of the environment under the names of exported outputs."""
    if isinstance(action, dict):
        return {k: v for key, part in action.items() for k, v in arrays_of(part, f"{path}/{key}").items()}
    if isinstance(action, tuple):
        return {k: v for i, part in enumerate(action) for k, v in arrays_of(part, f"{path}/{i}").items()}
    return {path: np.asarray(action)}


def train(case: Case, out: Path) -> rl.Run:
    short: dict[str, Any] = {"total_updates": 2, "num_envs": 4, "eval.episodes": 0, "track": (), "vector.backend": "serial"}
    short["num_steps"] = 32 if case.recipe == "ppo" else 8
    return rl.train(case.recipe, env=case.env, out=str(out), **short, **case.settings)


def play(policy: EnvPolicy, case: Case, folder: Path) -> dict[str, np.ndarray]:
    """Observations for `case`, kept in given.npz as an exported policy takes them; what the run's own policy does."""
    rng, given, wanted = np.random.default_rng(0), {}, {}
    policy.reset()
    for step in range(case.steps):
        obs, mask = case.obs(rng, case.num), None
        given |= {f"{step}|{k}": np.asarray(v, str(policy.env_spec.obs[k].dtype)[6:]) for k, v in policy._flatten(obs).items()}
        if case.mask:
            mask = rng.random((case.num, case.mask)) < 0.5
            mask[:, 0] = mask[:, 2] = mask[:, 5 % case.mask] = True
            given[f"{step}|action_mask"] = mask
        wanted |= {f"{step}|{k}": v for k, v in arrays_of(policy.act(obs, action_mask=mask)).items()}
    np.savez(folder / "given.npz", steps=np.zeros(case.steps), obs_rows=np.zeros(case.num), **given)
    return wanted


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, np.ndarray]]]:
    """Each case trained for a moment and written in both formats; ONNX has answered in a process of its own."""
    root, found = tmp_path_factory.mktemp("export"), {}
    for name, case in CASES.items():
        run = train(case, root)
        for kind in ("torch", "onnx"):
            rl.export(run.path, root / name, format=kind)
        policy = rl.load(run.path)
        assert isinstance(policy, EnvPolicy)
        found[name] = (root / name, play(policy, case, root / name))
    command = [sys.executable, str(HERE / "onnx_child.py"), *(str(folder) for folder, _ in found.values())]
    child = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert child.returncode == 0, child.stderr
    return found


def check(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert set(got) == set(wanted)
    for name, want in wanted.items():
        assert got[name].dtype == want.dtype
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got[name], want, atol=1e-5, rtol=1e-5)
        else:
            assert np.mean(got[name] == want) >= 1.0 - 1 / 300  # two scores may be the same to the last bit but one


@pytest.mark.parametrize("name", CASES)
def test_onnx_acts_the_same_in_a_process_without_runnel(name: str, exported: Any) -> None:
    folder, wanted = exported[name]
    check(dict(np.load(folder / "answers.npz")), wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_program_acts_the_same(name: str, exported: Any) -> None:
    folder, wanted = exported[name]
    about = json.loads((folder / "policy.json").read_text())
    program, given = torch.export.load(folder / "policy.pt2").module(), np.load(folder / "given.npz")
    state = {n: torch.zeros(len(given["obs_rows"]), *about["inputs"][n]["shape"][1:]) for n in about["state"]}
    got: dict[str, np.ndarray] = {}
    for step in range(len(given["steps"])):
        fed = [state[n] if n in state else torch.from_numpy(given[f"{step}|{n}"]) for n in about["inputs"]]
        out = dict(zip(about["outputs"], program(*fed), strict=True))
        state = {n: out.pop(after) for n, after in about["state"].items()}
        got |= {f"{step}|{n}": value.detach().numpy() for n, value in out.items()}
    check(got, wanted)


def test_policies_differ_over_observations(exported: Any) -> None:
    """What is compared is no constant (where two updates could not make it one)."""
    for name in ("gaussian-normalised", "sac", "td3", "masked"):
        wanted = exported[name][1]["0|action"]
        assert len(np.unique(wanted)) > 1, name


def test_policy_json_says_how_to_call_it(exported: Any) -> None:
    about = json.loads((exported["gru"][0] / "policy.json").read_text())
    assert about["inputs"] == {
        "obs": {"shape": ["batch", 3], "dtype": "float32"},
        "state/h": {"shape": ["batch", 64], "dtype": "float32"},
    }
    assert about["outputs"] == ["action", "next_state/h"]
    assert about["state"] == {"state/h": "next_state/h"}
    assert (about["recipe"], about["version"], about["files"]) == ("ppo", 2, {"torch": "policy.pt2", "onnx": "policy.onnx"})
    assert {"torch", "runnel", "onnxruntime"} <= set(about["libraries"])
    masked = json.loads((exported["masked"][0] / "policy.json").read_text())
    assert masked["inputs"]["action_mask"] == {"shape": ["batch", 4], "dtype": "bool"}


OWN = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, env_spec, seed):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def policy(self, obs):
        x = obs["obs"]
        return self.layer(x) if float(x.detach().numpy().sum()) > 0 else -self.layer(x)

    def value(self, obs):
        return obs["obs"].sum(-1)
"""


def test_what_cannot_be_exported_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    settings: dict[str, Any] = {"total_updates": 1, "num_envs": 2, "num_steps": 16, "eval.episodes": 0, "track": ()}
    run = rl.train("ppo", env="CartPole-v1", network=f"{tmp_path / 'odd.py'}:Odd", out=str(tmp_path), **settings)
    with pytest.raises(ConfigError, match="cannot be taken as one graph"):
        rl.export(run.path, tmp_path / "out")
    with pytest.raises(ConfigError, match="hf is for language models"):
        rl.export(run.path, tmp_path / "out", format="hf")
    with pytest.raises(ConfigError, match="torch, onnx, hf"):
        rl.export(run.path, tmp_path / "out", format="tflite")
    assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_onnx_without_its_libraries_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"total_updates": 1, "num_envs": 2, "num_steps": 16, "eval.episodes": 0, "track": ()}
    run = rl.train("ppo", env="CartPole-v1", out=str(tmp_path), **settings)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"pip install 'runnel\[onnx\]'"):
        rl.export(run.path, tmp_path / "out", format="onnx")
    assert not (tmp_path / "out" / "policy.onnx").exists()


def test_a_folder_of_other_things_is_not_written_over(tmp_path: Path) -> None:
    from runnel.run.export import check_model_folder

    (tmp_path / "mine").mkdir()
    check_model_folder(tmp_path / "mine")
    check_model_folder(tmp_path / "new")
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="no model folder"):
        check_model_folder(tmp_path / "mine")
    with pytest.raises(ConfigError, match="no model folder"):
        check_model_folder(tmp_path / "mine" / "thesis.txt")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_an_exported_policy_plays_its_environment(exported: Any) -> None:
    """As a reader of policy.json would use it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported["categorical"][0] / "policy.onnx"))
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        (action,) = session.run(None, {"obs": obs[None]})
        assert action.shape == (1,)
        assert env.action_space.contains(action[0])
        obs, reward, *_ = env.step(action[0])
        assert reward == 1.0
    env.close()
