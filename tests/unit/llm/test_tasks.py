from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.tasks import Example, ExampleSource, TextTask, make_reverse, make_task
from runnel.testing.rewards import check_reward


def test_reverse_splits_share_nothing_and_are_the_same_every_time():
    task = make_reverse(num_words=500, num_eval=50)
    again = make_reverse(num_words=500, num_eval=50)
    assert [e.prompt for e in task.train] == [e.prompt for e in again.train]
    train, held = {e.text for e in task.train}, {e.text for e in task.eval}
    assert (len(train), len(held), train & held) == (500, 50, set())
    assert all(e.answer == e.text[::-1] and 3 <= len(e.text) <= 6 for e in [*task.train, *task.eval])
    check_reward(task.reward, channels=task.channels)
    assert task.reward(["abc", "abc"], ["cba", "cb"]) == [1.0, 0.0]


def test_source_visits_everything_once_a_pass_and_resumes():
    examples = [Example(str(i)) for i in range(5)]
    source = ExampleSource(examples, seed=3)
    indices = [source.next().data["index"] for _ in range(13)]
    assert sorted(indices[:5]) == sorted(indices[5:10]) == list(range(5))
    assert indices[:5] != indices[5:10]
    state = source.snapshot()
    expected = [source.next().id for _ in range(9)]
    assert set(expected) == {e.id for e in examples}
    other = ExampleSource(examples, seed=99)
    other.restore(state)
    assert [other.next().id for _ in range(9)] == expected


@given(st.lists(st.tuples(st.text(), st.none() | st.text(), st.dictionaries(st.text(), st.integers())), min_size=1))
def test_an_id_is_that_of_the_content_wherever_it_stands(rows):
    examples = [Example(prompt, answer, columns) for prompt, answer, columns in rows]
    again = [Example(prompt, answer, dict(reversed(columns.items()))) for prompt, answer, columns in reversed(rows)]
    assert [e.id for e in examples] == [e.id for e in reversed(again)]
    assert all(0 <= e.id < 2**53 for e in examples)
    different = {(prompt, answer, tuple(sorted(columns.items()))) for prompt, answer, columns in rows}
    assert len({e.id for e in examples}) == len(different)


def test_an_id_is_the_same_in_every_process():
    example = Example([{"role": "user", "content": "ü"}], "a", {"tests": np.array([1, 2]), "kinds": {"b", "a"}, "b": b"x"})
    columns = """{"b": "b'x'", "kinds": ["a", "b"], "tests": [1, 2]}"""
    text = rf'[[{{"content": "\u00fc", "role": "user"}}], "a", {columns}]'
    assert example.id == int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 11
    with pytest.raises(DataError, match="plain data"):
        Example("x", columns={"judge": object()}).id  # noqa: B018


class LazyExamples(Sequence):
    """100 examples, of which the second half repeats the first; `made` says which were made."""

    def __init__(self):
        self.made = []

    def __len__(self):
        return 100

    def __getitem__(self, i):
        if i >= 100:
            raise IndexError(i)
        self.made.append(i)
        return Example(str(i % 50))


def test_an_example_is_found_by_its_id_and_only_as_many_are_made_as_needed():
    lazy = LazyExamples()
    task = TextTask("t", lazy, [Example("b")], len)
    assert task.find(Example("3").id).text == "3"
    assert max(lazy.made) == 3
    assert task.find(Example("49").id).text == "49"
    assert max(lazy.made) == 49
    assert task.find(Example("no").id) is None
    assert max(lazy.made) == 99
    lazy.made.clear()
    assert task.find(Example("7").id).text == "7"
    assert lazy.made == [7]


def test_bad_tasks_are_refused():
    with pytest.raises(DataError, match="1 evaluation prompts are in the train split"):
        TextTask("t", [Example("a")], [Example("a")], len)
    with pytest.raises(ConfigError, match=r"task\.weights"):
        TextTask("t", [Example("a")], [Example("b")], len, channels=("x", "y"))
    with pytest.raises(ConfigError, match="reverse"):
        make_task("revers")
    with pytest.raises(DataError, match="has no eval examples"):
        TextTask("t", [Example("a")], [], len)


def test_a_users_own_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from runnel.llm.tasks import Example, TextTask\n"
        "def reward(prompts, completions, **columns):\n    return [float(len(c)) for c in completions]\n"
        "def make_task():\n    return TextTask('mine', [Example('a', 'b')], [Example('c', 'd')], reward)\n"
        "def wrong():\n    return 3\n"
    )
    assert make_task(f"{file}:make_task").name == "mine"
    with pytest.raises(ConfigError, match="it returned int"):
        make_task(f"{file}:wrong")


def test_several_rewards_are_channels_with_weights_and_what_does_not_apply_is_left_out():
    parts = {"exact": "exact", "brief": RewardComponent("brief", lambda p, c: [0.0], weight=0.5)}
    task = TextTask("t", [Example("a")], [Example("b")], parts)
    assert (task.channels, task.weights, task.token_channels) == (("exact", "brief"), (1.0, 0.5), ())
    assert task.total({"exact": 1.0, "brief": 1.0}) == 1.5
    assert task.total({"exact": None, "brief": 1.0}) == 0.5
    dense = TextTask("t", [Example("a")], [Example("b")], [RewardComponent("dense", len, 2.0, level="token")])
    assert dense.token_channels == ("dense",)
    assert dense.total({"dense": [0.5, 1.0]}) == 3.0
