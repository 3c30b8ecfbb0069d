"""Tokenizers of byte pairs with the chat templates that models are published with, as the package `trl` carries them."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

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
OWN = {
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
    found = importlib.util.find_spec("trl")
    if name in OWN:
        return OWN[name]
    file = Path(found.origin or "").parent / "chat_templates" / f"{name}.jinja" if found else None
    return file.read_text() if file and file.is_file() else None


@cache
def chat_tokenizer(name: str, root: Path) -> HFTokenizer:
    eos, special, tags = FAMILIES[name]
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
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=eos, bos_token="<s>", additional_special_tokens=list(special)
    )
    fast.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    fast.chat_template = template(name)
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    return HFTokenizer(folder)
