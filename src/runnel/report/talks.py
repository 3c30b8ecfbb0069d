"""Some conversations of a run as HTML: who said what, calls of tools, and what each turn earned and took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runnel.report.conversations import ENDS
from runnel.report.page import fold, notices, text
from runnel.track.files import is_regular
from runnel.track.folder import Row, read_rows
from runnel.track.history import History, as_table, is_number
from runnel.track.numbers import seconds, short

NUM_SHOWN = 3
"""Conversations from each end of the file."""
LONGEST = 2000
"""Characters of a message that are shown."""


def conversations_html(run: History) -> str:
    """The first and the last conversations that the run kept."""
    path = run.folder.conversations
    if not is_regular(path):
        return ""
    rows, problems = read_rows(path)
    talks = [row for row in rows if isinstance(row.get("messages"), list)]
    first, last = talks[:NUM_SHOWN], talks[NUM_SHOWN:][-NUM_SHOWN:]
    title = f"First conversations ({len(talks):,} kept in conversations.jsonl)"
    return notices(problems) + fold(title, "".join(map(_talk, first))) + fold("Last conversations", "".join(map(_talk, last)))


def _talk(talk: Row) -> str:
    turns = talk.get("turns")
    known = turns if isinstance(turns, list) else []
    value = f'<span class="reward">return {short(talk["return"])}</span>' if is_number(talk.get("return")) else ""
    reason = str(talk.get("reason") or "")
    end = f" · {text(ENDS.get(reason, reason))}" if reason else ""
    who = f" · {text(talk['agent'])}" if talk.get("agent") else ""
    said = "".join(_message(message, known) for message in talk["messages"] if isinstance(message, Mapping))
    head = f'<div class="soft small">version {text(talk.get("version", "–"))}{who}{end}</div>'
    return f'<div class="sample">{value}{head}{said}</div>'


def _message(message: Mapping[str, object], turns: Sequence[object]) -> str:
    at = message.get("turn")
    turn = as_table(turns[at]) if isinstance(at, int) and 0 <= at < len(turns) else {}
    name = f" · {message['name']}" if message.get("name") else ""
    number = f" · turn {at + 1}" if turn and isinstance(at, int) else ""
    head = " · ".join([f"{message.get('role', '')}{name}{number}", *_numbers(turn)])
    calls = message.get("tool_calls")
    unread = message.get("tool_errors")
    lines = [_cut(message.get("content")), *map(_call, calls if isinstance(calls, list) else [])]
    lines += [_unread(as_table(error)) for error in (unread if isinstance(unread, list) else [])]
    return f'<span class="soft small">{text(head)}</span><pre>{text(chr(10).join(filter(None, lines)))}</pre>'


def _numbers(turn: Mapping[str, object]) -> list[str]:
    """What a turn earned, and how long it took."""
    found = [f"{name} {short(value)}" for name, value in as_table(turn.get("rewards")).items() if is_number(value)]
    for key, where in (("engine_s", "engine"), ("duration_s", "environment")):
        if is_number(spent := turn.get(key)):
            found.append(f"{seconds(spent) if spent >= 10 else f'{spent:.2g} s'} in the {where}")
    return found


def _call(call: object) -> str:
    made = as_table(as_table(call).get("function"))
    return _cut(f"→ {made.get('name', '?')}({json.dumps(made.get('arguments'), ensure_ascii=False)})")


def _unread(error: Mapping[str, object]) -> str:
    """A call that could not be read."""
    return _cut(f"not a call ({error.get('kind', '?')}): {error.get('text', '')}")


def _cut(content: object) -> str:
    said = content if isinstance(content, str) else json.dumps(content)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]} … ({len(said) - LONGEST:,} more characters)"
