"""Conversations as they are recorded: rows as a tree, states, seconds, tools, and who said what between the turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from made_tokenizers import family
from test_conversation_rows import learner_of

from runnel.core.records import Header, Segment, trim
from runnel.llm.learning.recorded_turns import RowFork, control_places, find_forks, find_messages, forked_after
from runnel.llm.learning.recording import GroupRecorder, token_texts
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tokenize import CharTokenizer, load_tokenizer

CHARS = CharTokenizer()
SYSTEM, QUESTION = {"role": "system", "content": "S"}, {"role": "user", "content": "Q?"}


def rows_of(*rows: list[tuple[str, list[int]]]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """The tokens of each row, and where its turns (`"turn"`) lie."""
    out = []
    for row in rows:
        ids: list[int] = []
        turns = []
        for kind, tokens in row:
            if kind == "turn":
                turns.append((len(ids), len(ids) + len(tokens)))
            ids += tokens
        out.append((ids, turns))
    return out


def segment_of(trajectories: list[Any], *, keys: list[int], seconds: list[float], rewards: list[float]) -> Segment:
    """A group of conversations; each is its rows, `(tokens, turns)`, and the length of its first prompt."""
    more = {"max_turns": 4, "max_rows": 3, "turn_rewards": ("win",)}
    spec = rollout_stream(group_size=len(trajectories), max_prompt=100, max_tokens=60, rewards=("exact", "win"), **more)
    arrays = spec.allocate()
    at = row = turn = 0
    for owner, (rows, prompt) in enumerate(trajectories):
        arrays["rewards/exact"][owner], arrays["tool_calls"][owner], arrays["tool_errors"][owner] = float(owner), 3, 1
        for ids, turns in rows:
            arrays["row_owner"][row], arrays["row_start"][row], arrays["row_length"][row] = owner, at, len(ids)
            arrays["prompt_length"][row] = prompt
            arrays["tokens"][at : at + len(ids)] = torch.tensor(ids)
            arrays["policy_version"][at : at + len(ids)] = 0
            for start, end in turns:
                arrays["loss_mask"][at + start : at + end] = True
                arrays["turn_row"][turn], arrays["turn_start"][turn], arrays["turn_end"][turn] = row, start, end
                arrays["turn_key"][turn], arrays["duration_s"][turn] = keys[turn], seconds[turn]
                arrays["rewards/win"][turn] = rewards[turn]
                turn += 1
            at, row = at + len(ids), row + 1
    used = {"N": at, "R": row, "U": turn}
    return Segment(0, spec, Header(used=used), trim(spec, arrays, used))


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Two conversations. The second one's template leaves out the first answer, so its last turn is a row of its own."""
    prompt = CHARS.render([SYSTEM, QUESTION])
    answers = [CHARS.answer(text) for text in ("a1", "b", "c\u00e9")]
    between = CHARS.extend([], [{"role": "user", "content": "more <eos>"}])
    whole = rows_of([("prompt", prompt), ("turn", answers[0]), ("said", between), ("turn", answers[1])])
    short = CHARS.render([SYSTEM, {"role": "user", "content": "!"}])
    forked = rows_of([("prompt", prompt), ("turn", answers[0])], [("prompt", short), ("turn", answers[2])])
    segment = segment_of(
        [(whole, len(prompt)), (forked, len(prompt))],
        keys=[9_000, -4, 9_000, 5],
        seconds=[0.25, 1.5, 0.0, 2.0],
        rewards=[1.0, float("nan"), 0.5, -1.0],
    )
    recorder = GroupRecorder(CHARS, every=1, channels={"exact": 1.0})
    learner_of("dr_grpo", recorder=recorder).prepare({"rollouts": [segment]}, progress=0.0)
    (event,) = recorder.take()
    return event


def spoken(row: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (m["role"], *("".join(row["tokens"][m[a] : m[b]]) for a, b in (("start", "said"), ("said", "end"))))
        for m in row["messages"]
    ]


def test_turns_have_their_rewards_seconds_and_states(told: dict[str, Any]) -> None:
    whole, forked = told["rows"]
    assert [(t["rewards"]["win"], t["duration_s"], t["state"], t["row"]) for row in (whole, forked) for t in row["turns"]] == [
        (1.0, 0.25, 0, 0),
        (None, 1.5, 1, 0),
        (0.5, 0.0, 0, 0),
        (-1.0, 2.0, 2, 1),
    ]
    said = ["".join(row["tokens"][t["start"] : t["end"]]) for row in (whole, forked) for t in row["turns"]]
    assert said == ["a1<eos>", "b<eos>", "a1<eos>", "c\u00e9<eos>"]
    assert [(row["tool_calls"], row["tool_errors"]) for row in (whole, forked)] == [(3, 1), (3, 1)]


def test_messages_between_turns_have_roles_and_text_that_looks_like_control_is_text(told: dict[str, Any]) -> None:
    assert told["messages"] == [SYSTEM, QUESTION]
    assert told["prompt"] == "<bos><system>S<user>Q?<assistant>"
    whole = told["rows"][0]
    assert whole["completion"] == "".join(whole["tokens"]) == "a1<eos><user>more <eos><assistant>b<eos>"
    assert spoken(whole) == [("user", "<user>", "more <eos>"), ("assistant", "<assistant>", "")]
    assert [whole["tokens"][place] for place in whole["control"]] == ["<eos>", "<user>", "<assistant>", "<eos>"]
    assert "".join(whole["tokens"]).count("<eos>") == 3, "one of them was written by the environment"


def test_a_row_that_rewrites_history_forks_where_it_differs(told: dict[str, Any]) -> None:
    whole, forked = told["rows"]
    assert "rows" not in whole
    same = len(CHARS.render([SYSTEM, {"role": "user", "content": ""}])) - 1
    assert forked["rows"] == [
        {"start": 0, "parent": None, "shared": 0, "after": -1},
        {"start": 3, "parent": 0, "shared": same, "after": -1},
    ]
    assert spoken(forked) == [("", "", "!"), ("assistant", "<assistant>", "")]


def test_forks_are_found_in_rows_that_grow_and_in_rows_that_go_back() -> None:
    rows = [torch.tensor(r) for r in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 9], [1, 2, 9, 9], [7])]
    forks = find_forks(rows)
    assert forks == [None, RowFork(0, 4), RowFork(1, 2), RowFork(2, 3), RowFork(3, 0)]
    ends = [[(0, 2), (1, 4)], [(2, 6)], [(3, 3)], [(4, 4)], [(5, 1)]]
    assert [forked_after(row, forks, ends) for row in range(5)] == [-1, 1, 0, 3, -1]


@pytest.mark.parametrize("name", ["qwen", "llama3", "spaced"])
def test_roles_are_found_where_a_template_names_them(tmp_path: Any, name: str) -> None:
    tokenizer = load_tokenizer(family(tmp_path / name, name))
    talk = [QUESTION, {"role": "assistant", "content": "user\nA"}, {"role": "user", "content": "B\nuser\nC"}]
    ids = tokenizer.render(talk)
    texts = token_texts(ids, tokenizer.spell)
    found = find_messages(texts, control_places(ids, tokenizer))
    assert "".join(texts) == tokenizer.spell(ids)
    assert [m["start"] for m in found] == [0, *(m["end"] for m in found[:-1])]
    assert found[-1]["end"] == len(ids)
    said = [(m["role"], tokenizer.decode(ids[m["said"] : m["end"]]).strip()) for m in found]
    if name == "spaced":
        assert {role for role, _ in said} == {""}, "it names no roles"
    else:
        assert [one for one in said if one != ("", "")] == [*((m["role"], m["content"]) for m in talk), ("assistant", "")]


def test_a_header_of_several_control_tokens_names_one_role() -> None:
    texts = ["<|start|>", "user", "<|message|>", "tool", "\n", "hi", "<|end|>", "<|start|>", "assist", "ant"]
    found = find_messages(texts, [0, 2, 6, 7])
    assert [(m["role"], m["start"], m["said"], m["end"]) for m in found] == [("user", 0, 3, 7), ("assistant", 7, 10, 10)]
