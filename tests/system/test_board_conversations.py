"""Conversations of several turns on the board, in headless Chromium: as trained and as played, every number as in its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_board import CHROMIUM, FLAGS, serving

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (make browser)")
EVIL = "<img src=x onerror=\"document.title='owned'\">"


def trained() -> dict[str, Any]:
    """A group of two: a conversation of two turns in one row, and one whose second turn is a row of its own."""
    tokens = ["yes", "<cut>", "<user>", EVIL, "<assistant>", "no", "<end>"]
    first = {
        "tokens": tokens,
        "mask": [1, 0, 0, 0, 0, 1, 1],
        "advantages": [0.5, 0.0, 0.0, 0.0, 0.0, -0.25, -0.25],
        "reward": 1.25,
        "rewards": {"exact": 1.25},
        "advantage": 0.125,
        "tool_calls": 7,
        "tool_errors": 2,
        "control": [1, 2, 4, 6],
        "messages": [
            {"role": "", "start": 1, "said": 1, "end": 2},
            {"role": "user", "start": 2, "said": 3, "end": 4},
            {"role": "assistant", "start": 4, "said": 5, "end": 5},
        ],
        "turns": [
            {"start": 0, "end": 1, "rewards": {"win": 0.75}, "duration_s": 0.375, "state": 0, "row": 0},
            {"start": 5, "end": 7, "rewards": {"win": -0.5}, "duration_s": 1.5, "state": 1, "row": 0},
        ],
    }
    forked = {
        **first,
        "row_starts": [2],
        "rows": [{"start": 0, "parent": None, "shared": 0, "after": -1}, {"start": 2, "parent": 0, "shared": 11, "after": 0}],
        "turns": [first["turns"][0], {**first["turns"][1], "row": 1, "state": 2}],
    }
    messages = [{"role": "system", "content": "You answer."}, {"role": "user", "content": "Is it?"}]
    head = {"version": 3, "task_id": -1, "source": "guess", "agent": "speaker", "weights": {"exact": 1.0, "win": -2.0}}
    return {**head, "prompt": "x", "messages": messages, "rows": [first, forked]}


def played(number: int, reason: str) -> dict[str, Any]:
    call = {"id": "call-0", "type": "function", "function": {"name": "add", "arguments": {"a": number, "b": EVIL}}}
    counts = ({"tool_calls": 1}, {"tool_errors/not_json": 1})
    turns = [
        {"rewards": {"win": 0.125 * t}, "duration_s": 0.25 + t, "engine_s": 0.5, "tokens": 9, "prompt_tokens": 31 + t, "row": t}
        | {"counts": counts[t]}
        for t in range(2)
    ]
    messages = [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": "I add.", "tool_calls": [call], "turn": 0},
        {"role": "tool", "name": "add", "content": f"{EVIL} 42"},
        {"role": "assistant", "content": "{", "turn": 1, "tool_errors": [{"kind": "not_json", "text": "not to be read"}]},
    ]
    told = {"number": number, "agent": "listener"}
    told |= {"version": number, "sample_id": 5, "return": 0.125, "reason": reason, "task": {"a": number}}
    return {**told, "messages": messages, "turns": turns}


def write(root: Path) -> None:
    folder = root / "talks"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"recipe": "grpo", "subject": "guess", "seed": 1}))
    (folder / "config.json").write_text("{}")
    row = {"kind": "update", "version": 3, "tokens": 9, "metrics": {"return": 1.0, "chat/turns": 2.0}}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "groups.jsonl").write_text(json.dumps(trained()) + "\n")
    lines = [json.dumps(talk) + "\n" for talk in (played(1, "terminated"), played(2, "time"))]
    (folder / "conversations.jsonl").write_text("".join(lines) + "{}\n")


def texts(found: Any) -> list[str]:
    return [" ".join(text.split()) for text in found.all_inner_texts()]


def check_trained(page: Any) -> None:
    expect(page.locator(".talk").first).to_contain_text("version 3 speaker")
    expect(page.locator(".group p").first).to_contain_text("trained at version 3 · guess · speaker")
    expect(page.locator("details.said .who").first).to_have_text("system")
    first, second = page.locator(".talkrow").all()
    assert texts(first.locator("summary").first) == ["#1 reward 1.25 advantage 0.125 2 turns 7 tool calls, 2 failed"]
    headers = [
        "turn 1 win 0.75 0.38 s in the environment state 1",
        "turn 2 win -0.5 1.5 s in the environment state 2",
    ]
    assert texts(first.locator(".turn header")) == headers
    assert first.locator(".turnbars title").all_text_contents() == [
        *("turn 1: 0.75", "turn 2: -0.5", "turn 1: 0.38 s", "turn 2: 1.5 s")
    ]
    assert first.locator(".turn .tokens").all_text_contents() == ["yes<cut>", "<assistant>no<end>"]
    assert first.locator(".turn .tok:not(.masked)").all_text_contents() == ["yes", "no", "<end>"]
    assert first.locator(".said.user pre").all_text_contents() == [f"<user>{EVIL}"]
    assert first.locator(".turn header .bad").all_text_contents() == ["win 0.75"], "its weight is negative"
    assert first.locator(".tree").count() == 0
    assert second.locator(".turn").count() == 0, "it is drawn when it is opened"
    second.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(second.locator(".tree p")).to_have_text("row 2 forks from row 1 after turn 1 (11 tokens are the same).")
    expect(second.locator(".new-row")).to_contain_text("row 2")
    second.locator(".tree .dot").nth(1).focus()
    page.keyboard.press("Enter")
    expect(second.locator(".turn").nth(1)).to_be_focused()
    page.get_by_role("button", name="plain").click()
    expect(second.locator(".turn")).to_have_count(2)  # what was open stays open
    page.get_by_role("button", name="state 1").first.click()
    expect(page.locator(".state[aria-pressed=true]")).to_have_count(2)


def check_played(page: Any) -> None:
    page.get_by_role("button", name="as played").click()
    expect(page.locator(".talk")).to_have_count(2)
    expect(page.locator(".notice")).to_contain_text("1 line of conversations.jsonl")
    expect(page.locator(".talk").first).to_contain_text("listener · return 0.125 · 2 turns · cut: no more time")
    expect(page.locator(".group p").first).to_contain_text("sample 5 · listener")
    page.locator(".talk").first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".talk").last).to_have_attribute("aria-selected", "true")
    expect(page.locator(".said.user pre")).to_have_text("question 1")
    facts = ["0.125 return", "2 turns", "ended by itself its end", "1 s in the engine", "1.5 s in the environment"]
    assert texts(page.locator(".group .fact")) == facts
    assert texts(page.locator(".turn header")) == [
        "turn 1 win 0 read 31 tokens wrote 9 0.5 s in the engine 0.25 s in the environment tool calls 1",
        "turn 2 win 0.125 read 32 tokens wrote 9 0.5 s in the engine 1.3 s in the environment tool errors: not json 1",
    ]
    call = page.locator(".call")
    assert not call.evaluate("e => e.open")
    call.locator("summary").click()
    assert json.loads(call.locator("pre").inner_text()) == {"a": 1, "b": EVIL}
    assert not page.locator("details.said.tool").evaluate("e => e.open")
    expect(page.locator(".turn p.warn")).to_have_text("not a call (not_json): not to be read")
    expect(page.locator(".group .new-row")).to_have_count(1)


def test_conversations_are_shown_with_their_turns(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write(root)
    with serving(root) as board, playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for width, scheme in ((1280, "light"), (390, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            wrong: list[str] = []
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            page.on("console", lambda m, wrong=wrong: wrong.append(m.text) if m.type == "error" else None)
            page.goto(f"{board}#/run/talks/conversations")
            check_trained(page)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
            check_played(page)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
            assert (page.title() != "owned", page.locator("main img").count(), wrong) == (True, 0, [])
        browser.close()
