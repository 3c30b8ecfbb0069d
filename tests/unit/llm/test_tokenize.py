from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tokenizers import family, messages_in, written_by_assistant

from runnel.core.errors import ConfigError, DataError
from runnel.llm.tokenize import CharTokenizer, HFTokenizer, check_round_trip, load_tokenizer, make_tokenizer


@given(st.text())
def test_text_survives(text):
    t = CharTokenizer()
    tokens = t.encode(text)
    assert t.decode(tokens) == text
    assert all(6 <= x < t.vocab_size for x in tokens)


def test_render_and_mask_and_parse():
    t = CharTokenizer()
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    a, b, c, d, s = (6 + ord(x) for x in "abcds")
    tokens = t.render(messages)
    assert tokens == [1, 3, s, 4, a, b, 5, c, 2, 4, d, 5]
    assert [x for x, m in zip(tokens, written_by_assistant(tokens), strict=True) if m] == [c, 2]
    assert messages_in(tokens) == messages


def test_a_turn_is_appended_to_the_engines_own_ids():
    t = CharTokenizer()
    prompt = t.render([{"role": "user", "content": "hi"}])
    completion = [200, 2]
    longer = t.extend(prompt + completion, [{"role": "user", "content": "x"}])
    assert longer[: len(prompt) + 2] == prompt + completion
    assert longer[len(prompt) + 2 :] == [4, 6 + ord("x"), 5]
    assert written_by_assistant(longer)[len(prompt) : len(prompt) + 2] == [True, True]


def test_unknown_role_and_folder():
    with pytest.raises(DataError, match="role 'robot'"):
        CharTokenizer().render([{"role": "robot", "content": ""}])
    with pytest.raises(ConfigError, match=r"model"):
        load_tokenizer("/no/such/folder")


def test_save_and_load(tmp_path):
    CharTokenizer().save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), CharTokenizer)
    (tmp_path / "char_tokenizer.json").write_text('{"kind": "words"}')
    with pytest.raises(DataError, match="another tokenizer"):
        load_tokenizer(tmp_path)


TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% if m['role'] == 'assistant' %}</s>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", additional_special_tokens=["<|user|>", "<|assistant|>"]
    )
    fast.chat_template = TEMPLATE
    folder = tmp_path_factory.mktemp("hf")
    fast.save_pretrained(str(folder))
    return folder


def test_hugging_face_folder(hf_folder):
    t = load_tokenizer(hf_folder)
    assert isinstance(t, HFTokenizer)
    assert t.decode(t.encode("añ b")) == "añ b"
    prompt = t.render([{"role": "user", "content": "hi"}])
    assert prompt == t.encode("<|user|>hi<|assistant|>", control=True)
    longer = t.extend([*prompt, *t.encode("yo"), t.eos_id], [{"role": "user", "content": "x"}])
    assert longer == [*prompt, *t.encode("yo"), t.eos_id, *t.encode("\n<|user|>x<|assistant|>", control=True)]
    assert t.pad_id == t.eos_id


@pytest.mark.parametrize(
    ("name", "end", "behind"),
    [
        ("smollm2", "<|im_end|>", "\n"),
        ("qwen-base", "<|im_end|>", "\n"),
        ("llama3", "<|eot_id|>", ""),
        ("spaced", " </s>", ""),
    ],
)
def test_an_answer_ends_as_the_chat_template_ends_a_turn(tmp_path, name, end, behind):
    """Against the template's own rendering of the whole conversation."""
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(str(family(tmp_path, name))), load_tokenizer(tmp_path)
    prompt = [{"role": "user", "content": "2 + 2?"}]
    for answer in ("4", "it is\nfour", "0123456789"):
        whole = theirs.apply_chat_template([*prompt, {"role": "assistant", "content": answer}], tokenize=False)
        row = [*ours.render(prompt), *ours.answer(answer)]
        assert row == theirs.encode(whole.removesuffix(behind), add_special_tokens=False)
        assert theirs.decode(row).endswith(answer + end)
        assert ours.decode(ours.answer(answer)).strip() == answer
        assert row[-1] in ours.end_ids
    more = [{"role": "user", "content": "more"}]
    talk = [*prompt, {"role": "assistant", "content": "4"}, *more]
    assert ours.extend([*ours.render(prompt), *ours.answer("4")], more) == ours.render(talk)


@pytest.mark.parametrize("name", ["no-end", "no-template"])
def test_an_answer_ends_with_eos_where_no_template_ends_it(tmp_path, name):
    tokenizer = load_tokenizer(family(tmp_path, name))
    assert tokenizer.answer("4") == [*tokenizer.encode("4"), tokenizer.eos_id]
    plain = make_tokenizer(family(tmp_path / "plain", "qwen-base"), plain=True)
    assert plain.answer("4") == [*plain.encode("4"), plain.eos_id]


def test_half_a_character_is_refused(hf_folder):
    for tokenizer in (CharTokenizer(), load_tokenizer(hf_folder)):
        with pytest.raises(DataError, match=r"a text has half a character \(.ud83d, a lone surrogate\) at place 4"):
            tokenizer.encode("cut \ud83d")


def without_template(folder, tmp_path):
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(str(folder))
    inner.chat_template = None
    inner.save_pretrained(str(tmp_path))
    return tmp_path


def test_a_model_without_a_chat_template(hf_folder, tmp_path):
    folder = without_template(hf_folder, tmp_path)
    with pytest.raises(ConfigError, match=r"model = .*no chat template; use plain prompts \(--data.plain\)"):
        load_tokenizer(folder).render([{"role": "user", "content": "hi"}])
    plain = make_tokenizer(folder, plain=True)
    prompt = plain.render([{"role": "user", "content": "hi"}])
    assert prompt == plain.encode("hi")
    assert plain.extend([*prompt, 5], [{"role": "user", "content": "x"}]) == [*prompt, 5, *plain.encode("\nx\n")]
    assert isinstance(make_tokenizer(""), CharTokenizer)


def test_a_template_that_refuses(hf_folder, tmp_path):
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(str(hf_folder))
    inner.chat_template = "{{ raise_exception('no system role') }}"
    inner.save_pretrained(str(tmp_path))
    with pytest.raises(DataError, match="refuses a conversation of system, user: no system role"):
        load_tokenizer(tmp_path).render([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match="its tokenizer cannot be loaded"):
        load_tokenizer(tmp_path)


def test_round_trip(hf_folder, tmp_path):
    assert check_round_trip(load_tokenizer(hf_folder), ["añ b", "x\n y", ""]) == []
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="<unk>"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>").save_pretrained(str(tmp_path))
    lossy = load_tokenizer(tmp_path)
    assert check_round_trip(lossy, ["a b"] * 40 + ["A"]) == ["A"]
    with pytest.raises(ConfigError, match="does not give this text back"):
        check_round_trip(lossy, ["a b", "a c"])


def test_a_tokenizer_that_is_larger_than_its_model_is_refused_with_both_numbers(hf_folder, tmp_path):
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(str(hf_folder))
    inner.save_pretrained(str(tmp_path))
    config, size = tmp_path / "config.json", len(inner)
    config.write_text(json.dumps({"vocab_size": size}))
    HFTokenizer(tmp_path)
    config.write_text(json.dumps({"text_config": {"vocab_size": size - 4}}))
    fix = rf"its tokenizer has {size} tokens, but its embedding {size - 4} rows; .*resize_token_embeddings\({size}\)"
    with pytest.raises(ConfigError, match=fix):
        HFTokenizer(tmp_path)
    CharTokenizer().save(tmp_path)
    with pytest.raises(ConfigError, match=r"its tokenizer has 262 tokens, but its embedding 255 rows"):
        load_tokenizer(tmp_path)


def test_special_tokens_that_the_model_does_not_know_are_refused_where_they_are_written(hf_folder, tmp_path):
    """Gemma 3 of 1B: the tokenizer has one token for images, the model has none."""
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(str(hf_folder))
    rows = len(inner)
    inner.add_special_tokens({"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    inner.save_pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
    t = HFTokenizer(tmp_path)
    assert t.decode(t.encode("hi")) == "hi"
    with pytest.raises(DataError, match=r"the text 'a <image>' has '<image>', for which .* has no embedding; leave it out"):
        t.encode("a <image>", control=True)
    assert t.decode(t.encode("a <image>")) == "a <image>"
