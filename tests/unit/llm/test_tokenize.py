from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert [x for x, m in zip(tokens, t.mask(tokens), strict=True) if m] == [c, 2]
    assert t.parse(tokens) == messages


def test_a_turn_is_appended_to_the_engines_own_ids():
    t = CharTokenizer()
    prompt = t.render([{"role": "user", "content": "hi"}])
    completion = [200, 2]
    longer = t.extend(prompt + completion, [{"role": "user", "content": "x"}])
    assert longer[: len(prompt) + 2] == prompt + completion
    assert longer[len(prompt) + 2 :] == [4, 6 + ord("x"), 5]
    assert t.mask(longer)[len(prompt) : len(prompt) + 2] == [True, True]


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
    assert prompt == t.encode("<|user|>hi<|assistant|>")
    longer = t.extend([*prompt, *t.encode("yo"), t.eos_id], [{"role": "user", "content": "x"}])
    assert longer == [*prompt, *t.encode("yo"), t.eos_id, *t.encode("\n<|user|>x<|assistant|>")]
    assert t.pad_id == t.eos_id


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
