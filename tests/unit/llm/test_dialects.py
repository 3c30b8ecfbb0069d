"""Dialects: what is written is read back, what cannot be read is told, and templates say which one they know."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from chat_families import template
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError, DataError
from runnel.llm.chat.dialects import DIALECTS, MAX_CALLS, Dialect, Hermes, Llama, Python, dialect_for, make_call, results

HERMES, LLAMA, PYTHON = Hermes(), Llama(), Python()
JSON_FORMS = [HERMES, LLAMA]


def meant(dialect: Dialect, text: str) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in dialect.parse(text).calls]


def why(dialect: Dialect, text: str) -> str:
    (failure,) = dialect.parse(text).failures
    assert failure["kind"] == "not_json"
    return str(failure["text"])


# ------------------------------------------------------------------------------------------------------ what is written
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "```",
    "```python\n",
    "{",
    "}",
    "\n",
    '"',
    "\\",
    " ",
]
TEXTS = st.lists(st.sampled_from(MARKS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=6).map(
    "".join
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=3)), max_size=4)
CODES = st.lists(TEXTS.map(lambda code: ("python", {"code": code})), max_size=4)


def goes_round(dialect: Dialect, content: str, pairs: list[tuple[str, dict[str, Any]]]) -> None:
    calls = tuple(make_call(i, name, arguments) for i, (name, arguments) in enumerate(pairs))
    read = dialect.parse(dialect.write(content, calls))
    assert (read.content, read.calls, read.failures) == (content, calls, ())


@pytest.mark.parametrize("dialect", JSON_FORMS, ids=lambda d: d.name)
@settings(max_examples=60, deadline=None)
@given(content=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<{")), pairs=CALLS)
def test_calls_that_are_written_are_read_back(dialect: Dialect, content: str, pairs: list[tuple[str, dict[str, Any]]]) -> None:
    goes_round(dialect, content, pairs)


@settings(max_examples=60, deadline=None)
@given(content=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<`")), pairs=CODES)
def test_code_that_is_written_is_read_back(content: str, pairs: list[tuple[str, dict[str, Any]]]) -> None:
    goes_round(PYTHON, content, pairs)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda d: d.name)
@settings(max_examples=60, deadline=None)
@given(content=TEXTS, pairs=CODES)
def test_a_message_that_would_be_read_otherwise_is_refused(
    dialect: Dialect, content: str, pairs: list[tuple[str, dict[str, Any]]]
) -> None:
    with contextlib.suppress(DataError):  # either it goes round, or it is refused
        goes_round(dialect, content, pairs)


def test_what_json_cannot_hold_is_refused() -> None:
    for value in (float("nan"), object()):
        with pytest.raises(DataError, match="JSON cannot hold the arguments of a call"):
            HERMES.write("", [make_call(0, "f", {"x": value})])
    with pytest.raises(DataError, match="writes calls of the tool python"):
        PYTHON.write("", [make_call(0, "add", {"a": 1})])


def test_the_forms_are_those_of_the_models() -> None:
    calls = [make_call(0, "add", {"a": 1, "b": "ä"}), make_call(1, "now", {})]
    assert HERMES.write("So.", calls) == (
        'So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "ä"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    )
    assert LLAMA.write("", calls[:1]) == '{"name": "add", "parameters": {"a": 1, "b": "ä"}}'
    assert PYTHON.write("So.", [make_call(0, "python", {"code": "1 + 1"})]) == "So.\n```python\n1 + 1\n```"


# -------------------------------------------------------------------------------------------------------- what is read
ADD = ("add", {"a": 1})


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', [ADD]),
        (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [ADD]),  # as OpenAI has them
        (HERMES, '<tool_call>{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}</tool_call>', [ADD]),
        (HERMES, '<tool_call>[{"name": "add", "arguments": {"a": 1}}, {"name": "now"}]</tool_call>', [ADD, ("now", {})]),
        (HERMES, '<tool_call>{"name": "add", "parameters": {"a": 1}}', [ADD]),  # a stop string took the tag
        (
            HERMES,
            '<tool_call>{"name": "say", "arguments": {"t": "</tool_call><think>"}}</tool_call>',
            [("say", {"t": "</tool_call><think>"})],
        ),
        (HERMES, "no call", []),
        (HERMES, '{"name": "add", "arguments": {"a": 1}}', []),
        (LLAMA, ' {"name": "add", "parameters": {"a": 1}}\n', [ADD]),
        (LLAMA, '{"name": "add", "arguments": {"a": 1}};{"name": "now"}', [ADD, ("now", {})]),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}}\n{"name": "now"}', [ADD, ("now", {})]),
        (LLAMA, 'I add.<|python_tag|>{"name": "add", "parameters": {"a": 1}}', [ADD]),
        (LLAMA, '<think>hm</think>\n{"name": "add", "parameters": {"a": 1}}', [ADD]),
        (LLAMA, 'The call is {"name": "add", "parameters": {"a": 1}}', []),
        (LLAMA, '{"answer": 3}', []),
        (PYTHON, "```py\nx\n```\nand\n```python\ny\n```", [("python", {"code": "x"}), ("python", {"code": "y"})]),
        (PYTHON, "````python\n```\n````", [("python", {"code": "```"})]),
        (PYTHON, "```python\n```", [("python", {"code": ""})]),
        (PYTHON, "```\nx\n```\n```json\n{}\n```\n```pythonic\nx\n```", []),
    ],
)
def test_calls_are_found(dialect: Dialect, text: str, expected: list[tuple[str, Any]]) -> None:
    assert meant(dialect, text) == expected
    assert dialect.parse(text).failures == ()


@pytest.mark.parametrize(
    ("dialect", "text", "says"),
    [
        (
            HERMES,
            '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>',
            "no valid JSON: Expecting ',' delimiter at character 38",
        ),
        (HERMES, '<tool_call>{"name": "add", "argu', "no valid JSON: Unterminated string"),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}} and so on', "does not end after its JSON"),
        (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "the arguments of 'add' must be an object"),
        (HERMES, '<tool_call>{"name": "add", "arguments": "a"}</tool_call>', "no valid JSON"),
        (HERMES, '<tool_call>{"arguments": {}}</tool_call>', "must be an object with a name"),
        (HERMES, "<tool_call>3</tool_call>", "must be an object with a name"),
        (HERMES, "<tool_call>[]</tool_call>", "must be an object with a name"),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is no number of JSON"),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": -1e999}}</tool_call>', "-1e999 is too large a number"),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "holds half of a character"),
        (HERMES, "<tool_call>" + "[" * 100_000, "nested too deeply"),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 80 + "]" * 80 + "}}</tool_call>", "nested too deeply"),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "no valid JSON"),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}', "no valid JSON"),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}} is the call', "nothing may follow a call"),
        (LLAMA, "<|python_tag|>print(1)", "no valid JSON"),
        (PYTHON, "```python\nprint(1)", "does not end, so it was not run"),
    ],
)
def test_what_cannot_be_read_is_told(dialect: Dialect, text: str, says: str) -> None:
    assert says in why(dialect, text)
    assert dialect.parse(text).calls == ()
    assert len(why(dialect, text)) < 400


def test_a_bad_call_takes_no_good_one_with_it() -> None:
    good = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    read = HERMES.parse(f"One <tool_call>{{'a'}}</tool_call> two {good} three <tool_call>{{ {good}")
    assert [c["id"] for c in read.calls] == ["call-0", "call-1"]
    assert len(read.failures) == 2
    assert read.content == "One  two  three "


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda d: d.name)
def test_what_stands_in_a_thought_is_no_call(dialect: Dialect) -> None:
    call = dialect.write("", [make_call(0, "python", {"code": "1"})])
    real = dialect.write("Now.", [make_call(0, "python", {"code": "2"})])
    for thought in (f"<think>\n{call}\n</think>", f"\n{call}\n</think>"):  # the second was begun in the prompt
        read = dialect.parse(f"{thought}\n{real}")
        assert [c["function"]["arguments"] for c in read.calls] == [{"code": "2"}]
        assert (read.content, read.failures) == (f"{thought}\nNow.", ())
    unfinished = f"<think>\n{call}"
    assert dialect.parse(unfinished).calls == ()
    assert dialect.parse(unfinished).content == unfinished


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda d: d.name)
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        '<tool_call>{"a":"',
        "```python\n",
        "`",
        '{"name":',
        "<think>",
        "</think>  ",
        "<|python_tag|>",
        "[",
        " ",
        "\n",
    ],
)
def test_no_text_takes_long_to_read(dialect: Dialect, unit: str) -> None:
    """A megabyte of openings: each would be a pass over the rest of the text, if they were all tried."""
    read = dialect.parse("<tool_call>" + unit * (1_000_000 // len(unit)))
    assert len(read.failures) <= MAX_CALLS + 1


def test_calls_beyond_the_limit_are_told() -> None:
    one = '<tool_call>{"name": "now"}</tool_call>'
    read = HERMES.parse(one * (MAX_CALLS + 10))
    assert len(read.calls) == MAX_CALLS
    assert [f["text"] for f in read.failures] == [f"only {MAX_CALLS} calls of a message are read; make fewer"]


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_any_text_can_be_read(text: str) -> None:
    for dialect in DIALECTS.values():
        read = dialect.parse(text)
        json.dumps([read.content, read.calls, read.failures]).encode()
        if not read.calls and not read.failures:
            assert read.content == text


# ------------------------------------------------------------------------------------------------- what a template knows
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TAGS = """{% if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}{% endfor %}
Call with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
XML = TAGS.replace(
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
    "<function={{ c.function.name }}><parameter=value>probed</parameter></function>",
)
HEADERS = """{% for m in messages %}\
{% if m.role not in ['user', 'assistant', 'system'] %}{{ raise_exception('no such role') }}{% endif %}\
<|start|>{{ m.role }}<|end|>

{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}\
{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>

{% endif %}"""
STRICT = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "name", "takes_tools", "tool_role"),
    [
        (TAGS, "hermes", True, True),
        (HEADERS, "llama", False, False),
        (CHATML, "hermes", False, False),
        (XML, "hermes", False, False),  # it writes <tool_call>, but not as we read it: its description would mislead
        (STRICT, "hermes", False, False),
    ],
)
def test_the_dialect_is_the_one_that_the_template_writes(template: str, name: str, takes_tools: bool, tool_role: bool) -> None:
    found = dialect_for(template)
    assert (found.name, found.takes_tools, found.tool_role) == (name, takes_tools, tool_role)
    assert found.told.startswith(
        f"{name}: the chat template {'writes no' if name == 'hermes' and not takes_tools else 'writes calls so'}"
    )


@pytest.mark.parametrize(
    ("family", "name", "takes_tools", "tool_role"),
    [
        ("qwen2_5", "hermes", True, True),
        ("qwen3", "hermes", True, True),
        ("llama3_1", "llama", True, True),
        ("gemma", "hermes", False, False),
        ("gptoss", "hermes", False, False),
        ("smollm2", "hermes", False, False),
        ("mistral", "hermes", False, False),
    ],
)
def test_the_dialects_of_published_templates(family: str, name: str, takes_tools: bool, tool_role: bool) -> None:
    source = template(family)
    if source is None:
        pytest.skip(f"the template of {family} comes with the package trl")
    found = dialect_for(source)
    assert (found.name, found.takes_tools, found.tool_role) == (name, takes_tools, tool_role)


def test_a_dialect_that_is_asked_for_is_taken() -> None:
    assert dialect_for(TAGS, "hermes").takes_tools
    found = dialect_for(TAGS, "python")
    assert (found.name, found.takes_tools) == ("python", False)  # the template's own description would tell of another form
    with pytest.raises(ConfigError, match="use auto or one of hermes, llama, python"):
        dialect_for(TAGS, "xml")


SCHEMA = {"type": "function", "function": {"name": "python", "description": "Run Python.", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda d: d.name)
def test_the_system_text_says_what_there_is_and_makes_no_call(dialect: Dialect) -> None:
    text = dialect.describe([SCHEMA])
    assert "Run Python." in text
    if dialect.name != "python":
        assert json.dumps(SCHEMA) in text


def test_results_for_templates_without_the_role_of_tools() -> None:
    def told(text: str) -> Message:
        return {"role": "tool", "content": text, "tool_call_id": "call-0", "name": "f"}

    user: Message = {"role": "user", "content": "go on"}
    assert results(HERMES, [told("1"), told("2"), user]) == (
        {
            "role": "user",
            "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\ngo on",
        },
    )
    assert results(HERMES, [user, user]) == (user, user)  # what the environment says is left as it is
    assert results(Hermes(tool_role=True), [told("1"), user]) == (told("1"), user)
    assert LLAMA.result(told("1"))["content"] == "Result of f:\n1"
    assert PYTHON.result(told("```\n1"))["content"] == "````output\n```\n1\n````"
