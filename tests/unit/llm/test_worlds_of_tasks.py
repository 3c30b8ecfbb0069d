"""The worlds `retry` (any text task) and `search` (a corpus): rewards of the task itself, and BM25 by its formula."""

from __future__ import annotations

import json
import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world_players import as_message, by_script, play

from runnel.core.contracts.chat import ToolFailure
from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.tasks import DataConfig, Example, TextTask
from runnel.llm.worlds import make_world
from runnel.llm.worlds.corpus import Corpus, Document, search_tool
from runnel.llm.worlds.search import made_country


# ------------------------------------------------------------------------------------------------------------------- retry
def numbers(reward, **options):
    examples = [Example(f"{i} + {i}", str(2 * i), {"answer": str(2 * i)}) for i in range(1, 7)]
    return TextTask("double", examples[:4], examples[4:], reward, **options)


def parts():
    return [RewardComponent("exact", "exact"), RewardComponent("length", "length", 0.1, options={"target": 1})]


def test_retry_pays_what_the_task_pays_for_the_last_try():
    world = make_world("retry", task=numbers(parts()), max_tries=3, discount=0.5)
    assert (world.rewards, world.lane) == ({"exact": 1.0, "length": 0.1}, "inline")
    start = world.reset({"split": "train", "index": 2}, seed=0)
    assert start.messages == ({"role": "user", "content": "3 + 3"},)
    first, second = world.step(as_message("5")), world.step(as_message("66"))
    assert (first.rewards, first.over, second.over) == ({}, False, False)
    assert first.messages[0]["content"] == "That is not right.\nTry again. Tries left: 2."
    third = world.step(as_message("6"))
    assert (third.rewards, third.terminated) == ({"exact": 0.25, "length": 0.25}, True)
    world.reset({"split": "eval", "index": 1}, seed=0)
    turns = [world.step(as_message("ab")) for _ in range(3)]
    assert [t.over for t in turns] == [False, False, True]
    assert turns[-1].rewards == {"exact": 0.0, "length": 0.0}


def test_retry_plays_any_task_and_its_script_is_the_answer():
    for task in ("reverse", numbers(parts())):
        world = make_world("retry", task=task)
        train, held = world.tasks()
        assert (train[0], held[-1]) == ({"split": "train", "index": 0}, {"split": "eval", "index": len(held) - 1})
        for one in (train[1], held[0]):
            played = play(world, one, 0, by_script)
            assert len(played.turns) == 2
            assert played.total.get("exact", played.total.get("reward")) == 1.0


def test_retry_of_data_in_a_file(tmp_path):
    rows = [{"prompt": f"{i}?", "answer": str(i)} for i in range(20)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    world = make_world("retry", task=str(tmp_path / "data.jsonl"), data=DataConfig(extract="last_number", system="Be brief."))
    assert [m["role"] for m in world.reset(world.tasks()[0][0], seed=0).messages] == ["system", "user"]
    assert play(world, world.tasks()[1][0], 0, by_script).total == {"exact": 1.0}


def test_parts_that_do_not_apply_are_left_out_and_failures_are_failures():
    def some(prompts, completions, **columns):
        if completions[0] == "raise":
            raise ValueError("no such thing")
        return [None]

    reward = {"exact": parts()[0], "some": some}
    world = make_world("retry", task=numbers(reward), max_tries=1)
    assert world.lane == "thread"
    world.reset({"split": "train", "index": 0}, seed=0)
    assert world.step(as_message("2")).rewards == {"exact": 1.0}
    world.reset({"split": "train", "index": 0}, seed=0)
    with pytest.raises(DataError, match=r"the reward failed: some: ValueError: no such thing"):
        world.step(as_message("raise"))


def test_what_retry_cannot_play_is_refused():
    by_token = RewardComponent("each", lambda prompts, completions, **c: [], level="token")
    with pytest.raises(ConfigError, match="by token"):
        make_world("retry", task=numbers([by_token]))
    with pytest.raises(ConfigError, match=r"retry\.data"):
        make_world("retry", task=numbers(parts()), data=DataConfig())
    world = make_world("retry", task=TextTask("none", [Example("a")], [Example("b")], parts()[1:]))
    world.reset({"split": "train", "index": 0}, seed=0)
    with pytest.raises(DataError, match="no answer to imitate"):
        world.script()
    for task in ({"split": "test", "index": 0}, {"split": "train", "index": 1}, {"split": "eval", "index": True}):
        with pytest.raises(DataError, match="retry"):
            world.reset(task, seed=0)


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_code_is_told_its_error():
    example = Example("Write f, which squares.", None, {"tests": ["assert f(0) == 0", "assert f(3) == 9"]})
    other = Example("Print the double.", None, {"cases": [{"input": "2", "output": "4"}]})
    world = make_world("retry", task=TextTask("code", [example, other], [Example("x")], "python_tests"), max_tries=9)
    world.reset({"split": "train", "index": 0}, seed=0)

    def told(code):
        turn = world.step(as_message(f"```python\n{code}\n```" if code else "no idea"))
        return turn.rewards if turn.over else turn.messages[0]["content"]

    assert "I see no code" in told("")
    assert "0 of 2 tests hold." in told("def f(x: return")
    assert "1 of 2 tests hold. The first that does not:\nZeroDivisionError" in told("def f(x): return 0 if x == 0 else 1 / 0")
    assert told("def f(x): return x * x") == {"reward": 1.0}
    world.reset({"split": "train", "index": 1}, seed=0)
    assert "The program fails:\nTraceback" in told("print(2 * int(input()) / 0)")
    assert "something else than expected" in told("print(5)")
    assert told("print(2 * int(input()))") == {"reward": 1.0}


# ------------------------------------------------------------------------------------------------------------------ search
def bm25(query, texts, k1, b):
    """The formula, word by word."""
    split = [re.findall("[a-z0-9]+", t.lower()) for t in texts]
    average = sum(map(len, split)) / len(split)
    out = []
    for words in split:
        score = 0.0
        for word in re.findall("[a-z0-9]+", query.lower()):
            with_word = sum(word in other for other in split)
            if not (often := words.count(word)):
                continue
            norm = k1 * (1 - b + b * len(words) / average)
            score += math.log(1 + (len(split) - with_word + 0.5) / (with_word + 0.5)) * often * (k1 + 1) / (often + norm)
        out.append(score)
    return out


WORDS = st.lists(st.sampled_from(["red", "green", "blue", "one", "two", "three"]), max_size=12).map(" ".join)


@given(st.lists(WORDS.filter(bool), min_size=1, max_size=8), WORDS, st.floats(0, 3), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_bm25_is_its_formula_and_the_order_is_that_of_the_scores(texts, query, k1, b):
    corpus = Corpus([Document(str(i), "", text) for i, text in enumerate(texts)], k1=k1, b=b)
    expected = bm25(query, texts, k1, b)
    found = corpus.search(query, num=len(texts))
    assert {int(f.document.id): f.score for f in found} == pytest.approx({i: s for i, s in enumerate(expected) if s > 0})
    assert [f.score for f in found] == sorted((f.score for f in found), reverse=True)
    assert corpus.search(query, num=2) == found[:2]


def test_bm25_by_hand():
    """Documents of 2 and 4 words (3 on average), the word in both: ln(1 + 0.5 / 2.5) f 2.5 / (f + 1.5 (0.25 + 0.75 l / 3))."""
    corpus = Corpus([Document("a", "", "cat dog"), Document("b", "cat", "cat owl bee")])
    found = corpus.search("CAT!")
    assert [f.document.id for f in found] == ["b", "a"]
    assert [f.score for f in found] == pytest.approx(
        [math.log(1.2) * 5 / (2 + 1.5 * 1.25), math.log(1.2) * 2.5 / (1 + 1.5 * 0.75)]
    )
    assert corpus.search("mouse") == []


def test_a_corpus_is_read_from_a_file_or_a_folder(tmp_path):
    file = tmp_path / "docs.jsonl"
    file.write_text('{"id": 1, "title": "A", "text": "ä b"}\n\n{"id": "x", "text": "c"}\n')
    assert Corpus.read(file).documents == (Document("1", "A", "ä b"), Document("x", "", "c"))
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    (folder / "one.txt").write_text("first")
    (folder.parent / "two.md").write_text("second")
    (folder / "three.pdf").write_bytes(b"\xff")
    read = Corpus.read(str(folder.parent)).documents
    assert read == (Document("deep/one.txt", "one", "first"), Document("two.md", "two", "second"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b'{"id": "a", "text": "b"}\n{"id": ', "docs.jsonl:2: the line is no JSON"),
        (b'{"id": "a", "text": "b"}\n\n{"id": "c"}', "docs.jsonl:3: needs an id"),
        (b'["a"]', "docs.jsonl:1: a line is an object with id and text, not list"),
        (b'{"id": "a", "text": "\xff"}', "docs.jsonl:1: is not UTF-8"),
        (b'{"id": "a", "text": "b"}\n{"id": "a", "text": "c"}', "two documents with the id 'a'"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_refused_with_its_line(tmp_path, content, said):
    (tmp_path / "docs.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(said)):
        Corpus.read(tmp_path / "docs.jsonl")


def test_a_corpus_that_is_not_there_or_empty_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file or folder"):
        Corpus.read(tmp_path / "none")
    with pytest.raises(DataError, match=r"no \.txt"):
        Corpus.read(tmp_path)
    with pytest.raises(DataError, match="no documents"):
        Corpus([])
    with pytest.raises(ConfigError, match=r"corpus\.b"):
        Corpus([Document("a", "", "b")], b=2)


def test_the_tool_shows_the_best_documents_each_in_its_part_of_the_room():
    corpus = Corpus([Document("a", "First", "word " * 100), Document("b", "", "word other"), Document("c", "", "else")])
    tool = search_tool(corpus, num=2, max_chars=100)
    said = tool.open().call({"query": "word other"})
    best, second = said.split("\n\n")
    assert best == "[1] b\nword other"
    assert second.startswith("[2] First\nword word")
    assert second.endswith(" ...")
    assert len(second.split("\n", 1)[1]) == 50
    assert tool.open().call({"query": "nothing"}) == "No document has any of these words."
    for wrong in ({}, {"query": " "}, {"query": 3}):
        with pytest.raises(ToolFailure) as caught:
            tool.open().call(wrong)
        assert caught.value.kind == "arguments"


@pytest.mark.parametrize("hops", [1, 2])
def test_the_answer_is_in_what_the_script_finds_and_nowhere_before(hops):
    world = make_world("search", hops=hops)
    country = made_country(200)
    train, held = world.tasks()
    assert not {t["about"] for t in train} & {t["about"] for t in held}
    for task in [*train[::60], *held[::20]]:
        town = country.born.get(task["about"], task["about"])
        right = country.towns[town][task["asks"]]
        played = play(world, task, 0, by_script)
        assert (len(played.calls), played.total) == (hops, {"reward": 1.0})
        assert [right in text for text in played.calls] == [False] * (hops - 1) + [True]
        assert right not in played.turns[0].messages[0]["content"]
        text = next(d.text for d in country.corpus.documents if d.title == town)
        assert right in text


def test_answers_are_compared_without_marks_and_capitals():
    world = make_world("search")
    task = world.tasks()[0][0]
    right = made_country(200).towns[made_country(200).born[task["about"]]][task["asks"]]
    replies = [
        (f"It is\nThe {right.upper()}.", 1),
        (f"<answer> {right.lower()} </answer> I think", 1),
        (f"It is {right}", 0),
        ("", 0),
    ]
    for text, reward in replies:
        world.reset(task, seed=0)
        assert world.step(as_message(text)).rewards == {"reward": float(reward)}


def test_facts_are_of_one_country_and_names_are_of_one_thing():
    country = made_country(200)
    values = [v for facts in country.towns.values() for v in facts.values()]
    names = [*country.born, *country.towns, *values]
    assert len(names) == len(set(names))
    assert set(country.born.values()) <= set(country.towns)
    assert np.unique([len(c) for c in (country.born, country.towns)]).tolist() == [50, 200]
