import pytest

from runnel.core.errors import ConfigError
from runnel.eval.reference import ATARI, CLASSIC, D4RL, find_range, find_ranges, load_ranges, parse_range


def test_the_tables_are_whole():
    assert len(ATARI) == 57
    assert all(high > low for table in (ATARI, D4RL, CLASSIC) for low, high in table.values())


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("ALE/Breakout-v5", (1.7, 30.5)),
        ("BreakoutNoFrameskip-v4", (1.7, 30.5)),
        ("atari:UpNDown", (533.4, 11693.2)),
        ("tensor:CartPole-v1", (22.1, 500.0)),
        ("walker2d-medium-expert-v2", (1.629008, 4592.3)),
        ("antmaze-umaze-diverse-v0", (0.0, 1.0)),
        ("maze2d-umaze-v1", (23.85, 161.86)),
        ("MinAtar/Breakout-v1", None),
        ("Ant-v5", None),
        ("reverse", None),
    ],
)
def test_a_task_is_found_by_its_name(task, expected):
    assert find_range(task) == expected


def test_a_named_table_and_ones_own():
    assert find_range("HalfCheetah-v5", "d4rl") == (-280.178953, 12135.0)
    assert find_ranges(["CartPole-v1", "x"], own={"x": (0.0, 2.0)}) == {"CartPole-v1": (22.1, 500.0), "x": (0.0, 2.0)}
    assert find_ranges(["CartPole-v1"], own={"CartPole-v1": (0.0, 500.0)}) == {"CartPole-v1": (0.0, 500.0)}
    assert find_ranges(["CartPole-v1"], "none") == {}
    assert parse_range("a=b=1:2") == ("a=b", (1.0, 2.0))


def test_a_file(tmp_path):
    (tmp_path / "t.toml").write_text('"my task" = [0, 2.5]\n')
    (tmp_path / "t.json").write_text('{"my task": [0, 2.5], "other": [1, 2]}')
    assert load_ranges(tmp_path / "t.toml") == {"my task": (0.0, 2.5)}
    assert find_ranges(["my task"], str(tmp_path / "t.json")) == {"my task": (0.0, 2.5)}


@pytest.mark.parametrize(
    "text", ['{"a": [1, 1]}', '{"a": [1]}', '{"a": "1:2"}', '{"a": [NaN, 1]}', "[1]", "{", '{"a": [true, 2]}']
)
def test_bad_files_are_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ConfigError):
        load_ranges(tmp_path / "t.json")


@pytest.mark.parametrize("text", ["CartPole-v1", "a=1", "a=1:", "a=x:y", "a=2:2", "a=0:inf"])
def test_bad_flags_are_refused(text):
    with pytest.raises(ConfigError, match="LOW:HIGH"):
        parse_range(text)


def test_an_unknown_table_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="use auto"):
        find_range("x", "human")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_ranges(tmp_path / "nothing.json")
