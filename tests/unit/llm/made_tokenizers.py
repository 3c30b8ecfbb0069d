"""Tokenizers of one token a byte with the chat templates of model families, saved as Hugging Face folders; and conversations
read back from the tokens of a `CharTokenizer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from runnel.llm.tokenize import CharTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOLLM2 = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful AI assistant named SmolLM.<|im_end|>\n"
    "{% endif %}" + CHATML
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SPACED = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST] "
    "{% else %}{{ m['content'] + ' </s>' }}{% endif %}{% endfor %}"
)
NO_END = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_tokenizer(
    folder: Path, template: str | None, *, eos: str, pad: str | None = None, bos: str | None = None, marks: tuple[str, ...] = ()
) -> Path:
    """Save a tokenizer whose special tokens are `eos`, `pad`, `bos` and `marks`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    named = {k: v for k, v in {"eos_token": eos, "pad_token": pad, "bos_token": bos}.items() if v is not None}
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=list(marks), **named)
    fast.chat_template = template
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    return folder


def family(folder: Path, name: str) -> Path:
    """The tokenizer of a family by name."""
    turns = ("<|im_start|>", "<|im_end|>")
    heads = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    return {
        "smollm2": lambda: save_tokenizer(folder, SMOLLM2, eos="<|im_end|>", pad="<|im_end|>", marks=turns[:1]),
        "qwen-base": lambda: save_tokenizer(folder, CHATML, eos="<|endoftext|>", pad="<|endoftext|>", marks=turns),
        "qwen": lambda: save_tokenizer(folder, CHATML, eos="<|im_end|>", pad="<|endoftext|>", marks=turns),
        "llama3": lambda: save_tokenizer(folder, LLAMA3, eos="<|end_of_text|>", bos="<|begin_of_text|>", marks=heads),
        "llama3-no-pad": lambda: save_tokenizer(folder, LLAMA3, eos="<|eot_id|>", bos="<|begin_of_text|>", marks=heads[:2]),
        "spaced": lambda: save_tokenizer(folder, SPACED, eos="</s>", bos="<s>"),
        "no-end": lambda: save_tokenizer(folder, NO_END, eos="</s>"),
        "no-template": lambda: save_tokenizer(folder, None, eos="</s>", bos="<s>"),
    }[name]()


ROLES = {3: "system", 4: "user", 5: "assistant"}
"""The roles of a `CharTokenizer`, by the tokens that mark them."""


def written_by_assistant(tokens: Sequence[int]) -> list[bool]:
    """Which tokens the assistant wrote, its eos included: what a loss may train on."""
    speaking, out = False, []
    for token in tokens:
        out.append(speaking and token not in ROLES)
        speaking = ROLES[token] == "assistant" if token in ROLES else speaking and token != CharTokenizer.eos_id
    return out


def messages_in(tokens: Sequence[int]) -> list[dict[str, str]]:
    """The messages of a conversation in tokens: the inverse of `CharTokenizer.render`."""
    found: list[tuple[str, list[int]]] = []
    for token in tokens:
        if token in ROLES:
            found.append((ROLES[token], []))
        elif found:
            found[-1][1].append(token)
    if found and found[-1] == ("assistant", []):
        found.pop()
    return [{"role": role, "content": CharTokenizer().decode(ids)} for role, ids in found]
