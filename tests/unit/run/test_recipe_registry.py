from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from runnel.core.config import flat, override, to_data
from runnel.core.errors import ConfigError
from runnel.graphs.run_config import RunConfig
from runnel.graphs.user_objects import live_objects, name_objects, resolve_live
from runnel.llm.engines.choose import EngineConfig
from runnel.run import registry
from runnel.run.names import ENGINES, RECIPES, list_recipes
from runnel.run.registry import load_recipe

RECIPE = '''"""My recipe.

More about it.
"""
from dataclasses import dataclass
import runnel as rl

@dataclass(frozen=True)
class Config(rl.RunConfig):
    total_updates: int | None = 3

def build(config):
    raise rl.ConfigError("seed", config.seed, "built with this seed")
'''


class Env:
    pass


def make_env() -> Env:
    return Env()


@pytest.mark.parametrize("name", RECIPES)
def test_every_listed_recipe_loads(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert issubclass(recipe.Config, RunConfig)
    assert list_recipes()[name].endswith(".")
    recipe.Config().check()


def test_a_file_is_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("mine.py")
    assert (recipe.name, recipe.module.__doc__) == (str(tmp_path / "mine.py"), "My recipe.\n\nMore about it.\n")
    assert recipe.Config(seed=4).total_updates == 3
    with pytest.raises(ConfigError, match="seed = 4: built with this seed"):
        registry.build(recipe.name, recipe.Config(seed=4))


@pytest.mark.parametrize(
    ("recipe", "field"),
    [("ppo", "curriculum.states"), ("rlpd", "data"), ("bc", "data"), ("dpo", "pairs"), ("kto", "rated")],
)
def test_a_run_knows_its_files_from_any_folder(
    recipe: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    config = override(load_recipe(recipe).Config(), {field: "mine"})
    assert flat(to_data(registry.absolute_paths(config)))[field] == str(tmp_path / "mine")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"recipe = 'pppo': unknown; use one of ppo, a2c.*or the path of your own .py file"):
        load_recipe("pppo")
    with pytest.raises(ConfigError, match="no such file"):
        load_recipe("nowhere.py")


@pytest.mark.parametrize("missing", ["Config", "build"])
def test_a_file_that_lacks_a_part_is_refused(missing: str, tmp_path: Path) -> None:
    path = tmp_path / f"without_{missing}.py"
    path.write_text(RECIPE.replace(f"class {missing}", "class Other").replace(f"def {missing}", "def other"))
    with pytest.raises(ConfigError, match=f"the file defines no {missing}"):
        load_recipe(str(path))


def test_a_bad_config_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    recipe = load_recipe(str(tmp_path / "mine.py"))
    with pytest.raises(ConfigError, match="total_updates = 0: must be at least 1"):
        registry.build(recipe.name, recipe.Config(total_updates=0))


def test_classes_and_functions_become_names() -> None:
    named, objects = name_objects({"env": Env, "network": make_env, "seed": 3, "ppo": {"lr": 1}})
    assert objects == {}
    assert named == {"env": f"{__name__}:Env", "network": f"{__name__}:make_env", "seed": 3, "ppo": {"lr": 1}}


def test_what_has_no_name_lives_in_this_process() -> None:
    make = lambda: Env()  # noqa: E731
    bound = Env().__eq__

    @dataclass
    class Local:
        x: int = 1

    named, objects = name_objects({"env": make, "network": Local, "task": bound})
    assert named == {"env": "live:env", "network": "live:network", "task": "live:task"}
    assert objects == {"live:env": make, "live:network": Local, "live:task": bound}
    with live_objects(objects, "inproc"):
        assert resolve_live("live:env", "env") is make
        assert resolve_live("CartPole-v1", "env") == "CartPole-v1"
        with live_objects({"live:env": Local}, "inproc"):
            assert resolve_live("live:env", "env") is Local
        assert resolve_live("live:env", "env") is make
    with pytest.raises(ConfigError, match=r"pass it again as env=\.\.\."):
        resolve_live("live:env", "env")


def test_a_lambda_cannot_go_to_another_process() -> None:
    with (
        pytest.raises(ConfigError, match=r"network = .*path/to/file.py:name.*launcher='inproc'"),
        live_objects({"live:network": make_env}, "local"),
    ):
        raise AssertionError("refused before anything starts")


def test_every_engine_has_a_line_in_the_list() -> None:
    assert set(ENGINES) == set(get_args(get_type_hints(EngineConfig)["kind"]))
