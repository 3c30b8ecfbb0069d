"""Whose mistake an exception is, and how the user's own lines are shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runnel.core.config import override, settings_of
from runnel.core.errors import ConfigError
from runnel.core.hints import OTHER_NAMES, meant
from runnel.core.resolve import called, load_module, load_object
from runnel.core.user_code import brief, frames, is_users, mistake, place_of, told
from runnel.envs.registry import make_env
from runnel.run.registry import RECIPES, configure, load_recipe


def raised(path: Path, source: str, name: str = "f") -> Exception:
    """What a function of a user's file raises when ours calls it."""
    path.write_text(source)
    try:
        called(load_object(f"{path}:{name}", "env"), field="env", target="f", how="f()")
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def test_the_users_frames_are_shown_and_ours_and_those_of_libraries_are_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    error = raised(file, "import json\ndef f():\n    return g()\ndef g():\n    return json.loads('{')\n")
    assert is_users(error)
    assert told(error).splitlines() == [
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        f"  {file}:3, in f",
        "    return g()",
        f"  {file}:5, in g",
        "    return json.loads('{')",
    ]
    assert brief(told(error)).endswith(f"(char 1) ({file}:5, in g)")


def test_a_mistake_of_ours_is_no_mistake_of_the_user() -> None:
    with pytest.raises(AssertionError) as error:
        override(None, {"x": 1})  # its innermost frame is ours, whoever called us
    assert not is_users(error.value)
    assert "test_user_code" not in frames(error.value)


def test_a_recursion_and_a_cause_are_shown_in_short(tmp_path: Path) -> None:
    deep = told(raised(tmp_path / "deep.py", "def f():\n    return f()\n"))
    assert "more frames" in deep
    assert len(deep.splitlines()) < 24
    source = "def f():\n    try:\n        {}['x']\n    except KeyError as e:\n        raise ValueError('no x') from e\n"
    assert f"\n  because of KeyError: 'x' ({tmp_path}/cause.py:3, in f)" in told(raised(tmp_path / "cause.py", source))


def test_the_same_mistake_is_known_whatever_it_says() -> None:
    one, two = "KeyError: 'a'\n  x.py:3, in f\n    d[k]", "KeyError: 'b'\n  x.py:3, in f\n    d[k]"
    assert mistake(one) == mistake(two) != mistake("KeyError: 'a'\n  x.py:4, in f\n    d[k]")
    assert mistake("timeout after 30 s") == mistake("timeout after 31 s") != mistake("died")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("class Env(\n    pass\n", r"loading it raised SyntaxError: .*\n  .*mine\.py:\d"),
        (
            "import os\nimport not_there_at_all\n",
            r"it imports 'not_there_at_all', which is not there.*\n  .*mine\.py:2\n    import",
        ),
        ("def f():\n    return {}['x']\nf()\n", r"loading it raised KeyError: 'x'\n  .*mine\.py:3\n.*\n  .*mine\.py:2, in f"),
        ("import sys\nsys.exit(3)\n", r"it ended the program while it was loaded.*__main__.*\n  .*mine\.py:2"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_error_with_its_line(tmp_path: Path, source: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(ConfigError, match=r"(?s)env = .*" + told):
        load_object(f"{path}:Env", "env")


def test_the_program_that_runs_is_not_run_again_for_a_class_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "program.py"
    path.write_text("raise SystemExit('run twice')\n")
    main = type(sys)("__main__")
    main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert load_module(str(path), "env") is main


def test_a_file_that_trains_while_it_is_loaded_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text("import runnel as rl\n\nrl.train('ppo', env='CartPole-v1')\n")
    with pytest.raises(ConfigError, match=r"unguarded\.py': line 3 calls rl\.train while the file is loaded.*__main__"):
        load_module(str(path), "env")


def test_what_cannot_be_called_as_it_must_is_refused_with_its_place(tmp_path: Path) -> None:
    error = raised(tmp_path / "made.py", "def f(x):\n    return x\n")
    assert isinstance(error, ConfigError)
    assert f"missing 1 required positional argument: 'x'; it is called as f(); see {tmp_path}/made.py:1" in str(error)
    assert place_of(np.zeros) == place_of(3) == ""


def test_a_name_in_a_file_that_is_not_there_is_answered_with_a_near_one(tmp_path: Path) -> None:
    path = tmp_path / "named.py"
    path.write_text("class MyEnvironment: pass\n")
    with pytest.raises(ConfigError, match=r"has no 'MyEnviroment'; did you mean 'MyEnvironment'\?"):
        load_object(f"{path}:MyEnviroment", "env")


def test_box2d_is_named_where_it_is_missing(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [n for n in sys.modules if n.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    for env in ("LunarLander-v3", "BipedalWalker-v3"):
        with pytest.raises(ConfigError, match=r'needs Box2D: pip install "runnel\[box2d\]"'):
            make_env(env)


def test_settings_under_other_names_are_answered_with_ours() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.learning_rate = 1: unknown field; did you mean ppo\.lr\?"):
        configure(load_recipe("ppo"), {"ppo": {"learning_rate": 1}})
    with pytest.raises(ConfigError, match=r"did you mean sac\.actor_lr or sac\.critic_lr\?"):
        configure(load_recipe("sac"), {"learning_rate": 1})
    assert meant("buffer_size", ["replay.capacity", "env"]) == ["replay.capacity"]


def test_every_name_that_is_offered_is_one_of_a_recipe() -> None:
    known = {name for recipe in RECIPES for name, *_ in settings_of(load_recipe(recipe).Config())}
    for names in OTHER_NAMES.values():
        for name in names:
            assert any(k == name or k.endswith(f".{name}") for k in known), name


def test_the_constructor_of_a_dataclass_of_ours_is_no_line_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    error = raised(file, "from runnel.core.contracts.chat import Turn\ndef f():\n    return Turn('x', 'one')\n")
    assert brief(told(error)).endswith(f"({file}:3, in f)")
    assert "<string>" not in frames(error)
