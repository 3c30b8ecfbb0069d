"""`runnel train RECIPE --help`: few fields come first, and every field is listed with its default and its bounds."""

from __future__ import annotations

import re

import pytest

from runnel.cli.main import main
from runnel.core.config import settings_of
from runnel.run.registry import RECIPES, load_recipe

MOST = dict.fromkeys(RECIPES, 30) | {
    "appo": 32,
    "ppo_lagrangian": 34,
    "mappo": 34,
    **dict.fromkeys(("qmix", "vdn", "independent_q", "masac"), 33),
    "selfplay": 42,
    "happo": 32,
    "mat": 32,
    "dqn": 34,
    "drm": 37,
    "cip": 32,
    "gbrl": 34,
    "decoupled": 32,
    **dict.fromkeys(("clip_cov", "kl_cov"), 34),
    "ppo_max": 36,
    "token_ppo": 33,
    "gigpo": 31,
    "turn_ppo": 33,
    "rlpd": 34,
}
"""Fields before "advanced". APPO, PPO-Lagrangian, MAPPO, QMIX, DQN, DrM, CIP, GBRL and RLPD have more settings of their own,
self-play has a pool, PPO on tokens and on turns have two algorithms' worth, as have the decoupled loss and GiGPO. What
chooses tokens by their covariance, and PPO-max, add settings of their own to those of GRPO and of PPO."""


def help_of(recipe: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["train", recipe, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def flags(text: str) -> list[str]:
    return [name.replace("-", "_") for name in re.findall(r"^  --([\w.-]+)", text, re.MULTILINE)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_few_fields_come_before_advanced_and_all_are_listed(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, advanced = help_of(recipe, capsys).split("\nadvanced:\n")
    assert len(flags(first)) <= MOST[recipe]
    shown = flags(first) + flags(advanced)
    assert len(shown) == len(set(shown))
    assert set(shown) == {
        *(setting.name for setting in settings_of(load_recipe(recipe).Config())),
        "dry_run",
        "seeds",
        "config",
        "trust",
    }


def test_a_field_is_shown_with_its_text_its_default_and_its_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of("ppo", capsys).split())
    assert "--ppo.clip-range FLOAT" in text
    assert "(default: 0.2; > 0)" in text
    assert "--ppo.normalise-obs, --ppo.no-normalise-obs" in text
    assert "Seed of everything random in the run. (default: 1; >= 0)" in text
    assert "--env-kwargs JSON" in text
