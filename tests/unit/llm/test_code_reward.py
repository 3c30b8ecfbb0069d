"""`python_tests` against code that cheats (0, each) and code that is right (1, each)."""

from __future__ import annotations

import os
import sys

import pytest
from code_samples import CHEATS, CHEATS_OF_ONE_TEST, RIGHT
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.llm.rewards.code import python_tests
from runnel.llm.sandbox.plain import decode, encode, from_bytes, to_bytes
from runnel.llm.sandbox.run import SandboxConfig, compiled, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
ROOMY = SandboxConfig(wall_s=20.0, memory_mb=256)
SHORT = SandboxConfig(wall_s=1.0, cpu_s=1, memory_mb=256)
SQUARE = (
    "assert f(3) == 9",
    "assert f(4) == 16",
    "assert abs(f(1.5) - 2.25) < 1e-9",
    "assert f(2) in [4]",
    "assert 4 <= f(2) <= 4",
)


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_get_nothing(name):
    result = run_python(CHEATS[name], checks=SQUARE, config=SHORT)
    assert result.checks == (False,) * len(SQUARE)
    assert all(result.reasons)


def test_rewards_of_both():
    codes = ["def f(x): raise SystemExit", "import os\ndef f(x): os._exit(0)", "def f(x): return x * x", "def f(x): return 9"]
    completions = [f"```python\n{code}\n```" for code in codes]
    tests = [list(SQUARE[:2])] * 4
    assert python_tests([""] * 4, completions, tests=tests) == [0.0, 0.0, 1.0, 0.0]
    assert python_tests([""] * 4, completions, tests=tests, partial=True) == [0.0, 0.0, 1.0, 0.5]


def test_why_a_test_does_not_hold_is_told():
    reasons = {
        name: run_python(CHEATS[name], checks=SQUARE[:2], config=SHORT).reasons
        for name in ("exits", "ends its process", "never ends")
    }
    assert reasons["exits"] == ("the code asked to end the program",) * 2
    assert reasons["ends its process"] == ("the code ended its process",) * 2
    assert reasons["never ends"] == ("timeout",) * 2 or "ended" in reasons["never ends"][0]
    gone = run_python("import sys\ndel sys.modules['solution']\ndef f(x): return x * x", checks=SQUARE[:1], config=SHORT)
    assert gone.reasons == ("KeyError: 'solution'",)
    assert run_python("1 / 0", checks=SQUARE[:1], config=SHORT).reasons == ("the code failed",)
    assert run_python("def f(x): return 1", checks=SQUARE[:1], config=SHORT).reasons == ("AssertionError",)


def test_output_that_is_judged_has_room_for_what_is_expected():
    code = "```python\nimport sys\nprint('e' * 300_000, file=sys.stderr)\nprint('x' * int(input()))\n```"
    cases = [[{"input": "200000", "output": "x" * 200_000}]]
    assert python_tests([""], [code], cases=cases) == [1.0]
    flood = "```python\nwhile True: print('x' * 10**5)\n```"
    assert python_tests([""], [flood], cases=cases) == [0.0]


@pytest.mark.parametrize(("cheat", "test"), CHEATS_OF_ONE_TEST)
def test_cheats_of_one_test(cheat, test):
    assert run_python(cheat, checks=(test,), config=SHORT).checks == (False,)


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_gets_all(name):
    code, tests = RIGHT[name]
    result = run_python(code, checks=tuple(tests), config=ROOMY)
    assert dict(zip(tests, result.reasons, strict=True)) == dict.fromkeys(tests, "")
    assert all(result.checks)


def test_there_are_enough_of_both():
    assert len(CHEATS) >= 20
    assert len(RIGHT) >= 15


def no_reference(value):
    raise ValueError(value)


keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.dates()
)
plain = st.recursive(
    keys | st.complex_numbers(allow_nan=False) | st.builds(bytearray, st.binary()) | st.builds(range, st.integers(-9, 9)),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.sets(keys) | st.frozensets(keys)
    ),
    max_leaves=20,
)


def kinds(value):
    """The exact types of a value, all the way down."""
    if isinstance(value, dict):
        return dict, [(kinds(k), kinds(v)) for k, v in value.items()]
    inside = sorted(map(str, map(kinds, value))) if isinstance(value, set | frozenset) else []
    return type(value), inside or [kinds(v) for v in value] if isinstance(value, list | tuple) else []


@settings(max_examples=150, deadline=None)
@given(plain)
def test_plain_data_comes_out_as_it_went_in(value):
    found = decode(from_bytes(to_bytes(encode(value, no_reference))[4:]), no_reference)
    assert found == value
    assert kinds(found) == kinds(value)


forms = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from("hltszdbycrkviSnNTVDMGEoxa"),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


PLAIN = {type(None), bool, int, float, str, list, tuple, set, frozenset, dict, bytes, bytearray, complex, range, slice, type}
PLAIN |= {type({}.keys()), type({}.values()), type({}.items())}


@settings(max_examples=300, deadline=None)
@given(forms)
def test_nonsense_is_refused_and_nothing_but_plain_types_comes_out(form):
    try:
        value = decode(form, no_reference)
    except (ValueError, TypeError, IndexError, RecursionError):
        return
    assert type(value) in PLAIN or isinstance(value, tuple)


def test_what_later_children_start_with_cannot_be_changed():
    with pytest.raises(PermissionError):
        os.pwrite(compiled("child"), b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(compiled("child"), 0)
