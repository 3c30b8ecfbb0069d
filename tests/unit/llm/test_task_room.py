"""The room for new prompts: what becomes of a row, and what is refused, by place, column and fix."""

from __future__ import annotations

from typing import Any

import pytest

import runnel as rl
from runnel.core.errors import DataError
from runnel.data.rows import Row
from runnel.llm.tasks.new_tasks import TaskRoom, example_data, example_of
from runnel.llm.tasks.text import TextTask


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    return [0.0] * len(completions)


def room(*train: rl.Example, data: rl.llm.DataConfig | None = None, sources: tuple[str, ...] = ()) -> TaskRoom:
    task = TextTask("words", list(train), [rl.Example("held out")], reward)
    config = rl.llm.NewTasksConfig(capacity=3)
    return TaskRoom(config, task, data or rl.llm.DataConfig(), lambda e: len(e.text), 12, sources)


def test_a_row_becomes_an_example_like_those_of_the_task() -> None:
    of_file = room(
        rl.Example("a", "1", {"answer": "1", "level": 1}), data=rl.llm.DataConfig(prompt="q", answer="s", suffix="?")
    )
    made = of_file.example(Row({"q": "what", "s": 3, "level": 2}, "line 1"), "line 1")
    assert made == rl.Example("what?", "3", {"answer": 3, "level": 2})
    in_python = room(rl.Example("a", "1"))
    assert in_python.example({"prompt": "b", "answer": "2", "more": [1]}, "x") == rl.Example("b", "2", {"more": [1]})
    assert in_python.example({"prompt": "a", "answer": "1"}, "x").id == rl.Example("a", "1").id
    assert in_python.knows(rl.Example("a", "1").id)
    assert not in_python.knows(rl.Example("a", "2").id)


@pytest.mark.parametrize(
    "example",
    [
        rl.Example("text"),
        rl.Example(
            [{"role": "system", "content": "be"}, {"role": "user", "content": "é"}], "a", {"x": {"y": [None, 1.5, True]}}
        ),
    ],
)
def test_an_example_is_the_same_behind_its_data(example: rl.Example) -> None:
    assert example_of(example_data(example)) == example
    assert example_of(example_data(example)).id == example.id


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"answer": "x"}, "row 7: the column 'prompt' is missing or empty"),
        ({"prompt": ""}, "row 7: the prompt is empty"),
        ({"prompt": []}, "row 7: a prompt is text or a list of messages"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "row 7: the prompt ends with the assistant's turn"),
        ({"prompt": "held out", "level": 1, "source": "a"}, "row 7: the prompt 'held out' is one of the evaluation"),
        (
            {"prompt": "much too long", "level": 1, "source": "a"},
            "row 7: the prompt has 13 tokens, and this run has room for 12",
        ),
        ({"prompt": "x", "level": 1}, "row 7: the column 'source' is None; write one of a, b"),
        ({"prompt": "x", "level": 1, "source": ["a"]}, r"row 7: the column 'source' is \['a'\]; write one of a, b"),
        ({"prompt": "x", "source": "a"}, "row 7: the column 'level' is missing, which the task's own examples have; add it"),
        ({"prompt": "x", "level": {1}, "source": "a"}, "row 7: the columns hold more than plain JSON"),
        ({"prompt": "x", "level": float("inf"), "source": "a"}, "row 7: the columns hold more than plain JSON"),
        ({"prompt": "x", "level": {1: 2}, "source": "a"}, "row 7: the columns hold more than plain JSON"),
        ({"prompt": "x", "level": "\ud83d", "source": "a"}, "row 7 has half a character"),
        (rl.Example("x", None, {"source": "a"}), "row 7: the column 'level' is missing"),
        (rl.Example("x", 3, {}), "row 7: the answer is of type int; write text"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_played_is_refused(given: Any, why: str) -> None:
    own = [rl.Example(word, None, {"level": 1, "source": word, "note": ""}) for word in "ab"]
    with pytest.raises(DataError, match=why):
        room(*own, rl.Example("c", None, {"level": 1, "source": "a"}), sources=("a", "b")).example(given, "row 7")
