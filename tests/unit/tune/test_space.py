"""The grammar of search spaces, and what is refused before anything starts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.recipes import ppo
from runnel.run import registry
from runnel.tune.defaults import SPACES, default_space
from runnel.tune.space import Param, parse, read_space

CONFIG = ppo.Config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ppo.gamma=0.9..0.999", Param("ppo.gamma", "float", 0.9, 0.999)),
        ("ppo.lr=log(1e-5,1e-2)", Param("ppo.lr", "float", 1e-5, 1e-2, log=True)),
        ("num_envs=int(4,64,log)", Param("num_envs", "int", 4, 64, log=True)),
        ("num-envs=4..64", Param("num_envs", "int", 4, 64)),
        ("num_envs=log(4, 64)", Param("num_envs", "int", 4, 64, log=True)),
        ("ppo.gamma=0..1", Param("ppo.gamma", "float", 0.0, 1.0)),
        ("ppo.clip_range={0.1, 0.2,0.3}", Param("ppo.clip_range", "choice", choices=(0.1, 0.2, 0.3))),
        ("net.hidden={[64, 64],[256]}", Param("net.hidden", "choice", choices=([64, 64], [256]))),
        ("ppo.lr={linear(1e-3, 0), 3e-4}", Param("ppo.lr", "choice", choices=("linear(1e-3, 0)", 3e-4))),
        ("ppo.target_kl={none, 0.02}", Param("ppo.target_kl", "choice", choices=(None, 0.02))),
        ("ppo.normalise_obs={true, false}", Param("ppo.normalise_obs", "choice", choices=(True, False))),
    ],
)
def test_words(text: str, expected: Param) -> None:
    assert list(read_space([text], CONFIG).values()) == [expected]


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("ppo.lrr=log(1e-5,1e-2)", "ppo.lrr", "did you mean ppo.lr?"),
        ("num_env=1..2", "num_env", "did you mean num_envs?"),
        ("ppo.lr.x=1..2", "ppo.lr.x", "ppo.lr has no fields"),
        ("ppo=1..2", "ppo", "a group of fields"),
        ("ppo.lr=log(0,1)", "ppo.lr", "above 0"),
        ("ppo.lr=2..1", "ppo.lr", "a larger one"),
        ("ppo.lr=1..nan", "ppo.lr", "finite"),
        ("ppo.lr=log(1)", "ppo.lr", "write low..high"),
        ("ppo.lr=log(1,2,log)", "ppo.lr", "write low..high"),
        ("ppo.lr=uniform(1,2)", "ppo.lr", "write low..high"),
        ("ppo.lr=1....2", "ppo.lr", "write low..high"),
        ("ppo.num_epochs=1.5..3", "ppo.num_epochs", "whole"),
        ("ppo.num_epochs={1, two}", "ppo.num_epochs", "expected int"),
        ("ppo.normalise_obs=0..1", "ppo.normalise_obs", "expected bool"),
        ("ppo.lr={1e-3}", "ppo.lr", "at least two"),
        ("ppo.lr={1e-3, 0.001}", "ppo.lr", "twice"),
        ("seed=1..5", "seed", "is not searched"),
        ("total_steps=1..5", "total_steps", "is not searched"),
        ("=1..5", "search", "field=what"),
    ],
)
def test_refused(text: str, field: str, part: str) -> None:
    with pytest.raises(ConfigError, match=" = ") as caught:
        read_space([text], CONFIG)
    assert caught.value.field == field
    assert part in caught.value.fix


def test_a_field_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        read_space(["ppo.lr=1..2", "ppo.lr=2..3"], CONFIG)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text('num_envs = "int(4, 8)"\n[ppo]\nlr = "log(1e-4, 1e-2)"\nclip_range = [0.1, 0.3]\n')
    found = read_space([str(file)], CONFIG)
    assert found["ppo.lr"] == Param("ppo.lr", "float", 1e-4, 1e-2, log=True)
    assert found["ppo.clip_range"].choices == (0.1, 0.3)
    assert found["num_envs"].kind == "int"
    file.write_text("[ppo\n")
    with pytest.raises(ConfigError, match="not TOML"):
        read_space([str(file)], CONFIG)
    file.write_text("num_envs = 3\n")
    with pytest.raises(ConfigError, match="a text or a list"):
        read_space([str(file)], CONFIG)
    file.write_text("")
    with pytest.raises(ConfigError, match="names no field"):
        read_space([str(file)], CONFIG)


def test_every_default_space_fits_its_recipe() -> None:
    """The ends of all ranges are values that the recipe's config takes; recipes that share an algorithm share its space."""
    for name in SPACES:
        recipe = registry.load_recipe(name)
        for param in default_space(recipe).values():
            for value in param.ends():
                override(recipe.Config(), {param.name: value}).check()
    assert set(default_space(registry.load_recipe("cartpole"))) == set(SPACES["ppo"])
    assert set(default_space(registry.load_recipe("dr_grpo"))) == set(SPACES["grpo"])
    assert set(default_space(registry.load_recipe("online_dpo"))) == set(SPACES["dpo"])
    with pytest.raises(ConfigError, match="nothing is known"):
        default_space(registry.load_recipe("make_pairs"))


def test_draws_and_neighbours_stay_within() -> None:
    chance = random.Random(0)
    rate, number, choice = (
        parse("ppo.lr", "log(1e-4, 1e-2)", CONFIG),
        parse("num_envs", "int(2, 4)", CONFIG),
        parse("ppo.clip_range", "{0.1, 0.2, 0.3}", CONFIG),
    )
    draws = [rate.draw(chance) for _ in range(400)]
    assert all(1e-4 <= d <= 1e-2 for d in draws)
    assert 120 < sum(d < 1e-3 for d in draws) < 280, "half of the draws are below the geometric middle"
    assert {number.draw(chance) for _ in range(100)} == {2, 3, 4}
    assert {rate.perturb(1e-3, chance) for _ in range(50)} == {8e-4, 1.25e-3}
    assert {rate.perturb(1e-2, chance) for _ in range(50)} == {8e-3, 1e-2}
    assert {number.perturb(2, chance) for _ in range(50)} == {2, 3}, "a small whole number moves too"
    assert {choice.perturb(0.2, chance) for _ in range(50)} == {0.1, 0.3}
    assert {choice.perturb(0.1, chance) for _ in range(50)} == {0.1, 0.2}


def test_grids_and_labels() -> None:
    assert Param("x", "float", 1e-4, 1.0, log=True).grid(3) == [1e-4, 1e-2, 1.0]
    assert Param("n", "int", 1, 10).grid(4) == [1, 4, 7, 10]
    lists = Param("net.hidden", "choice", choices=([64, 64], [256]))
    assert lists.labels() == ["[64, 64]", "[256]"]
    assert [lists.value_of(label) for label in lists.labels()] == [[64, 64], [256]]
    assert lists.label_of([256]) == "[256]"
