"""What a user calls, on both launchers: callbacks, warm start, seeds, loading, in-process objects, trackers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from tiny_slices import settings

import runnel as rl
from runnel.cli.main import main
from runnel.run.api import evaluate_run
from runnel.run.checkpoint import read_params


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_callbacks_get_every_kind_of_row_and_false_stops_the_run(launcher: str, tmp_path: Path) -> None:
    seen: dict[str, list[dict[str, Any]]] = {"update": [], "episode": [], "eval": [], "checkpoint": []}

    def note(kind: str) -> Any:
        return lambda row: seen[kind].append(row)

    recipe, tiny = settings("ppo", launcher=launcher, total_updates=500)
    run = rl.train(
        recipe,
        out=str(tmp_path),
        on_update=lambda row: seen["update"].append(row) or row["version"] < 9,
        on_episode=note("episode"),
        on_eval=note("eval"),
        on_checkpoint=note("checkpoint"),
        **tiny,
    )
    assert run.status == "stopped"
    assert 9 <= run.version < 500
    assert all(seen.values()), {k: len(v) for k, v in seen.items()}
    assert {"return", "length"} <= seen["episode"][0].keys()
    assert Path(seen["checkpoint"][-1]["path"]).is_dir()


def test_init_from_starts_with_the_parameters_of_another_run(tmp_path: Path) -> None:
    recipe, tiny = settings("ppo", checkpoint={"every": 0}, eval={"episodes": 0})
    first = rl.train(recipe, out=str(tmp_path / "first"), **tiny)
    frozen = {**tiny, "ppo": {**tiny["ppo"], "lr": 0.0, "normalise_obs": True}, "total_updates": 1}
    second = rl.train(recipe, out=str(tmp_path / "second"), init_from=str(first.path), **frozen)
    old, new = (read_params(sorted((r.path / "checkpoints").glob("0*"))[-1]) for r in (first, second))
    weights = [k for k in old if "normalisers" not in k]
    assert weights
    assert all(torch.equal(old[k], new[k]) for k in weights)


def test_init_from_another_network_says_so(tmp_path: Path) -> None:
    recipe, tiny = settings("ppo", checkpoint={"every": 0}, eval={"episodes": 0})
    first = rl.train(recipe, out=str(tmp_path / "first"), **tiny)
    with pytest.raises(rl.ConfigError, match=r"init_from = .*that run has another network than this one; use the same"):
        rl.train(recipe, out=str(tmp_path / "second"), init_from=str(first.path), net={"hidden": (32,)}, **tiny)
    assert not (tmp_path / "second").exists(), "refused before anything was made"


def test_a_run_with_a_setting_that_is_refused_today_is_still_loaded_and_judged(tmp_path: Path) -> None:
    """It was made when nobody minded. What is given now is refused as ever."""
    recipe, tiny = settings("ppo", checkpoint={"every": 0}, eval={"episodes": 0})
    run = rl.train(recipe, out=str(tmp_path), **tiny)
    saved = json.loads((run.path / "config.json").read_text())
    saved["staleness"]["max_lag"], saved["eval"]["stop_return"] = 7, 400.0
    (run.path / "config.json").write_text(json.dumps(saved))
    assert rl.load(run.path).act(gym.make("CartPole-v1").reset(seed=0)[0]) in (0, 1)
    assert len(evaluate_run(run.path, episodes=2).returns) == 2
    for given in ({"staleness": {"max_lag": 5}}, {"staleness.max_lag": 5}):
        with pytest.raises(rl.ConfigError, match=r"staleness.max_lag = 5: is of a window"):
            rl.load(run.path, **given)


def test_a_run_from_a_gpu_is_played_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, tiny = settings("ppo", checkpoint={"every": 0}, eval={"episodes": 0})
    run = rl.train(recipe, out=str(tmp_path), **tiny)
    there = evaluate_run(run.path, episodes=2).returns
    saved = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**saved, "device": "cuda:3"}))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.warns(UserWarning, match="was trained on cuda:3, and torch sees 2 CUDA devices here: its policy is on the CPU"):
        assert rl.load(run.path).act(gym.make("CartPole-v1").reset(seed=0)[0]) in (0, 1)
    with pytest.warns(UserWarning, match="cuda:3"):
        assert evaluate_run(run.path, episodes=2).returns == there
    with pytest.raises(rl.ConfigError, match=r"device = 'cuda:3': torch sees 2 CUDA devices here; use cpu"):
        rl.load(run.path, device="cuda:3")
    (run.path / "config.json").write_text(json.dumps({**saved, "device": "gpu"}))
    with pytest.raises(rl.ConfigError, match=r"device = 'gpu': use cpu, cuda, cuda:0"):
        rl.load(run.path)


def test_a_lambda_runs_in_process_and_is_refused_elsewhere(tmp_path: Path) -> None:
    recipe, tiny = settings("ppo", total_updates=2)
    make = lambda: gym.make("CartPole-v1")  # noqa: E731
    run = rl.train(recipe, env=make, out=str(tmp_path), **tiny)
    assert run.status == "finished"
    with pytest.raises(rl.ConfigError, match=r"env = .*put it in a file.*or use launcher='inproc'"):
        rl.train(recipe, env=make, launcher="local", out=str(tmp_path), **tiny)
    with pytest.raises(rl.ConfigError, match=r"pass it again as env="):
        rl.load(run.path)
    obs, _ = gym.make("CartPole-v1").reset(seed=1)
    assert rl.load(run.path, env=make).act(obs) in (0, 1)


def test_a_loaded_policy_acts_as_the_trained_one(tmp_path: Path) -> None:
    recipe, tiny = settings("ppo", env="Pendulum-v1", total_updates=2)
    run = rl.train(recipe, out=str(tmp_path), **tiny)
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    policy = rl.load(run.path)
    action = policy.act(obs)
    assert env.action_space.contains(action)
    assert (action == rl.load(run.path).act(obs)).all()
    policy.reset()
    assert len(rl.evaluate(policy, env="Pendulum-v1", episodes=3).returns) == 3


def test_a_language_model_run_gives_a_policy_that_chats(tmp_path: Path) -> None:
    recipe, tiny = settings("grpo")
    run = rl.train(recipe, out=str(tmp_path), **tiny)
    policy: Any = rl.load(run.path)
    answer = policy.chat([{"role": "user", "content": "abc"}])
    assert isinstance(answer, str)
    assert answer == policy.chat([{"role": "user", "content": "abc"}])
    samples = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert {"prompt", "completion", "reward", "version"} <= samples[0].keys()


def test_several_seeds_report_their_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--total-updates", "1", "--num-steps", "8", "--eval.episodes", "4", "--track", "--seeds", "2"]
    assert main(["train", "ppo", *args, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"last evaluation: \S+, mean over 2 seeds, 95 % interval .* \(fewer than 5: a rough guess\)", out)
    assert len(list(tmp_path.glob("*.html"))) == 1


def test_bad_settings_end_with_one_line_that_names_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in (
        ("odd.toml", b'name = "\xe9"\n'),
        ("odd.jsonl", b'{"prompt": "\xe9"}'),
        ("pairs.jsonl", b'{"chosen": 1}'),
    ):
        (tmp_path / name).write_bytes(data)
    cases = {
        f"config = '{tmp_path}/odd.toml': is not TOML: 'utf-8'": ["ppo", "--config", str(tmp_path / "odd.toml")],
        "ppo.num_minibatches = 7": ["ppo", "--ppo.num-minibatches", "7"],
        "env = 'CartPole-v9'": ["ppo", "--env", "CartPole-v9"],
        "device = 'cuda:99'": ["ppo", "--device", "cuda:99"],
        "min_fill = 8": ["dqn", "--min-fill", "8"],
        "task = 'nonsense'": ["grpo", "--task", "nonsense"],
        "recipe = 'pppo'": ["pppo"],
        "config = ": ["ppo", "--config", str(tmp_path / "missing.toml")],
        "warmup_updates = 300": ["grpo", "--warmup-updates", "300"],
    }
    for expected, args in cases.items():
        assert main(["train", *args, "--out", str(tmp_path / "out")]) == 2, expected
        error = capsys.readouterr().err
        assert error.startswith(f"runnel: error: {expected}"), error
        assert len(error.strip().splitlines()) == 1
    damaged = {
        f"{tmp_path}/odd.jsonl, line 1: not UTF-8 (byte 13 is 0xe9)": ["grpo", "--task", str(tmp_path / "odd.jsonl")],
        f"{tmp_path}/pairs.jsonl, line 1 needs the fields": ["dpo", "--pairs", str(tmp_path / "pairs.jsonl")],
    }
    for expected, args in damaged.items():
        assert main(["train", *args, "--out", str(tmp_path / "out")]) == 1, expected
        error = capsys.readouterr().err
        assert error.startswith(f"runnel: DataError: {expected}"), error
        assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists(), "nothing was started"
