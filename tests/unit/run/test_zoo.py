"""Settings by environment: taken where they were measured, told, and never over what a user sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runnel as rl
from runnel.cli.main import main
from runnel.core.config import flat, to_data
from runnel.core.errors import UnusedSettingError
from runnel.run import registry
from runnel.run.zoo import ZOO, about_zoo, zoo_settings

PAIRS = [(recipe, env) for recipe, table in ZOO.items() for env in table]
DOCS = Path(__file__).parents[3] / "docs/reference/zoo.md"


def configured(recipe: str, **settings):
    return registry.configure(registry.load_recipe(recipe), settings)


@pytest.mark.parametrize(("recipe", "env"), PAIRS)
def test_every_entry_counts_and_builds(recipe, env):
    config, plain = configured(recipe, env=env), configured(recipe, env=env, zoo=False)
    values, usual = flat(to_data(config)), flat(to_data(plain))
    for name, value in zoo_settings(recipe, env).items():
        assert values[name] == value
        assert usual[name] != value, f"{name} is the recipe's own default: leave it out of the table"
    registry.build(recipe, config)


def test_what_a_user_sets_wins_also_where_it_is_the_recipes_own_default():
    config = configured("td3", env="Pendulum-v1", td3={"actor_lr": 3e-4}, total_steps=5_000)
    assert (config.td3.actor_lr, config.td3.critic_lr, config.total_steps, config.min_fill) == (3e-4, 1e-3, 5_000, 1_000)
    dotted = configured("td3", env="Pendulum-v1", **{"td3.actor_lr": 3e-4, "total_updates": 7})
    assert (dotted.td3.actor_lr, dotted.total_steps, dotted.total_updates) == (3e-4, None, 7)


def test_a_run_says_what_it_took_and_what_it_left_out():
    (told,) = about_zoo("td3", configured("td3", env="Pendulum-v1", min_fill=2_000))
    assert "Pendulum-v1" in told
    assert "td3.actor_lr = 0.001" in told
    assert "min_fill" not in told, "that one is the user's"
    assert "--no-zoo" in told
    (left,) = about_zoo("td3", configured("td3", env="Pendulum-v1", zoo=False))
    assert "zoo = False" in left
    assert about_zoo("ppo", configured("ppo", env="CartPole-v1")) == []
    assert about_zoo("sft", configured("sft")) == []


def test_a_setting_of_the_zoo_that_nothing_would_read_is_left_out_and_told():
    settings = {"env": "LunarLander-v3", "staleness": {"mode": "sync"}}
    config = configured("impala", **settings)
    assert config.staleness.max_lag == configured("impala", zoo=False).staleness.max_lag
    assert config.impala.gamma == 0.995, "the others are taken"
    registry.build("impala", config)
    (told,) = about_zoo("impala", config)
    taken, _, left_out = told.partition("; not taken, because nothing would read it in this run: ")
    assert left_out == "staleness.max_lag = 1 (is of a window; set staleness.mode window)"
    assert "staleness" not in taken
    assert "not taken" not in about_zoo("impala", configured("impala", env="LunarLander-v3"))[0]


@pytest.mark.parametrize(
    "own", [{"staleness": {"mode": "sync", "max_lag": 1}}, {"staleness.mode": "sync", "staleness.max-lag": 1}]
)
def test_the_users_own_setting_that_nothing_reads_is_still_refused(own):
    config = configured("impala", env="LunarLander-v3", **own)
    with pytest.raises(UnusedSettingError, match=r"staleness\.max_lag = 1: is of a window"):
        registry.build("impala", config)


def test_the_command_line_leaves_out_what_its_flags_make_unused(tmp_path, capsys):
    command = ["train", "impala", "--env", "LunarLander-v3", "--dry-run"]
    assert main([*command, "--staleness.mode", "sync"]) == 0
    assert "not taken, because nothing would read it in this run: staleness.max_lag = 1" in capsys.readouterr().out
    assert main([*command, "--staleness.mode", "sync", "--staleness.max-lag", "1"]) == 2
    assert "staleness.max_lag = 1: is of a window" in capsys.readouterr().err
    file = tmp_path / "sync.toml"
    file.write_text('[staleness]\nmode = "sync"\n')
    assert main([*command, "--config", str(file)]) == 0
    file.write_text('[staleness]\nmode = "sync"\nmax_lag = 1\n')
    assert main([*command, "--config", str(file)]) == 2


def test_a_recipe_of_a_file_and_another_environment_take_nothing(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("from runnel.recipes.td3 import Config, build\n")
    recipe = registry.load_recipe(str(own))
    assert registry.configure(recipe, {"env": "Pendulum-v1"}) == recipe.Config(env="Pendulum-v1")
    assert configured("td3", env="HalfCheetah-v5").td3 == registry.load_recipe("td3").Config().td3


@pytest.mark.parametrize(
    ("flags", "lr", "steps"),
    [
        ((), 1e-3, 20_000),
        (("--no-zoo",), 3e-4, 1_000_000),
        (("--td3.actor-lr", "0.0003"), 3e-4, 20_000),
        (("--total-steps", "30000"), 1e-3, 30_000),
    ],
)
def test_the_command_line_takes_the_same(flags, lr, steps, capsys):
    assert main(["train", "td3", "--env", "Pendulum-v1", "--dry-run", *flags]) == 0
    config = json.loads(capsys.readouterr().out.partition("\n\n")[0])
    assert (config["td3"]["actor_lr"], config["total_steps"]) == (lr, steps)


def test_a_file_of_settings_names_the_environment_too(tmp_path, capsys):
    file = tmp_path / "pendulum.toml"
    file.write_text('env = "Pendulum-v1"\nmin_fill = 1500\n')
    assert main(["train", "td3", "--config", str(file), "--dry-run"]) == 0
    config = json.loads(capsys.readouterr().out.partition("\n\n")[0])
    assert (config["total_steps"], config["min_fill"], config["td3"]["critic_lr"]) == (20_000, 1_500, 1e-3)


def test_a_run_keeps_what_it_began_with(tmp_path, monkeypatch):
    settings = {"total_steps": 32, "min_fill": 16, "eval": {"episodes": 0}, "td3": {"batch_size": 8}, "track": ()}
    run = rl.train("td3", env="Pendulum-v1", out=str(tmp_path), **settings)
    said = [row["text"] for row in run.rows("event")]
    assert any("measured on Pendulum-v1" in text for text in said)
    monkeypatch.setattr("runnel.run.zoo.ZOO", {"td3": {"Pendulum-v1": {"td3.gamma": 0.5}}})
    saved = json.loads((run.path / "config.json").read_text())
    assert (saved["td3"]["actor_lr"], saved["td3"]["gamma"]) == (1e-3, 0.99)
    on = rl.resume(run.path, total_steps=48)
    assert json.loads((on.path / "config.json").read_text())["td3"]["gamma"] == 0.99


def test_the_page_lists_every_entry():
    text = DOCS.read_text(encoding="utf-8")
    for recipe, env in PAIRS:
        row = next((line for line in text.splitlines() if line.startswith(f"| `{recipe}` | {env} |")), None)
        assert row is not None, f"docs/reference/zoo.md says nothing of {recipe} on {env}"
        for name, value in zoo_settings(recipe, env).items():
            shown = f"{value:,}" if type(value) is int else str(value)
            assert f"`{name}` {shown}" in row, f"docs/reference/zoo.md says another {name} of {recipe} on {env}"
