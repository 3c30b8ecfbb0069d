from __future__ import annotations

import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from runnel.core.errors import ConfigError
from runnel.core.resolve import is_reference, load_module, load_object, reference


class Here:
    class Nested:
        pass

    def method(self) -> int:
        return 1

    @classmethod
    def make(cls) -> Here:
        return cls()

    @staticmethod
    def plain() -> int:
        return 2


def function() -> int:
    return 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my env.py"
    path.write_text("import sys\nCOUNT = []\nclass Env:\n    class Inner: pass\ndef make(): return Env()\nvalue = 3\n")
    return path


def test_objects_of_modules() -> None:
    assert load_object("collections:OrderedDict", "env") is OrderedDict
    assert load_object("os:path.join", "env") is not None


def test_objects_of_files_are_loaded_once(file: Path) -> None:
    first = load_object(f"{file}:Env", "env")
    assert load_object(f"{file}:Env", "env") is first
    assert load_object(f"{file}:Env.Inner", "env") is first.Inner
    assert load_module(str(file), "env") is load_module(str(file), "env")


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "env.py").write_text(f"value = {value}\n")
    assert [load_object(f"{tmp_path}/{f}/env.py:value", "env") for f in "ab"] == [1, 2]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("CartPole-v1", "write module:name"),
        (":name", "write module:name"),
        ("no_such_module_at_all:x", "No module named 'no_such_module_at_all'"),
        ("/no/such/file.py:x", "there is no such file"),
        ("collections:Nothing", "collections has no 'Nothing'"),
        ("collections:OrderedDict.nothing", "collections has no 'nothing'"),
        ("collections:", "collections has no ''"),
    ],
)
def test_errors_name_the_field_and_what_is_missing(target: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_object(target, "network")
    assert text in str(error.value)
    assert error.value.field == "network"


def test_a_file_that_fails_raises_its_own_error_and_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('inside')\n")
    with pytest.raises(ConfigError, match=r"(?s)ValueError: inside.*broken.py:1\n    raise ValueError") as raised:
        load_object(f"{path}:x", "env")
    assert isinstance(raised.value.__cause__, ValueError)
    path.write_text("x = 1\n")
    assert load_object(f"{path}:x", "env") == 1


def test_what_looks_like_a_reference() -> None:
    assert all(map(is_reference, ("pkg.mod:Class", "file.py:make", "/a/b c.py:make_env", "mod:A.b")))
    assert not any(map(is_reference, ("CartPole-v1", "mod:Env-v0", "plain", ":x", "mod:")))


def test_references_load_the_same_object() -> None:
    for obj in (Here, Here.Nested, function, Here.plain, OrderedDict, len, Here.make):
        name = reference(obj)
        assert name is not None, obj
        if name.startswith("builtins") or ":" in name:
            assert load_object(name, "x") == obj


def test_a_file_refers_to_itself_by_path(file: Path) -> None:
    env = load_object(f"{file}:Env", "env")
    assert reference(env) == f"{file}:Env"
    assert reference(env.Inner) == f"{file}:Env.Inner"


def test_what_no_other_process_could_load_has_no_reference() -> None:
    class Local:
        pass

    def inner() -> None: ...

    for obj in (lambda: 1, Local, inner, partial(function), Here(), Here().method):
        assert reference(obj) is None, obj


def test_a_shadowed_function_has_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    old = function
    monkeypatch.setitem(globals(), "function", lambda: 4)
    assert reference(old) is None


def test_a_script_refers_to_itself_and_a_notebook_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("class Env: pass\ndef make(): return Env()", main.__dict__)
    assert reference(main.Env) is None
    main.__file__ = str(tmp_path / "script.py")
    assert reference(main.Env) == f"{tmp_path}/script.py:Env"
    assert reference(main.make) == f"{tmp_path}/script.py:make"
