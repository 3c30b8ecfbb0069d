"""The built-in calculator with the smallest sums, and a tiny model with random weights that can be taught to use it.

The model's tokenizer has one token a byte, and one for each phrase that comes again and again: so a whole conversation, with
tool, call and result, has 22 tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from runnel.core.contracts.chat import Message
from runnel.core.rng import make_rng
from runnel.core.state import Settings
from runnel.llm.worlds.calculator import Calculator

CALL, CALLED = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "', '"}}\n</tool_call>'
PHRASES = (
    *("calculator: ", "Computes an expression of whole numbers exactly."),
    *("What is ", "? Use the calculator. End with the number.", CALL, CALLED, " + ", "The answer is "),
)
MARKS = ("<u>", "<a>", "<t>")
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}{% endfor %}"
    "{% for m in messages %}{{ {'user': '<u>', 'assistant': '<a>', 'tool': '<t>'}[m.role] }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{% if m.role == 'assistant' %}<e>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


class Sums(Calculator):
    """Sums that are at most 9. The script calls the tool for one problem of three, and guesses the others: who imitates it
    guesses too, since that is likelier, and learns by reward alone that calls pay."""

    name = "sums"

    def draw(self, rng: np.random.Generator) -> Settings:
        first = int(rng.integers(1, 9))
        return {"problem": f"{first} + {rng.integers(1, 10 - first)}"}

    def script(self) -> str | Message:
        rng = make_rng(self.now["seed"], "guess")
        return f"The answer is {rng.integers(2, 10)}." if rng.integers(3) else super().script()


def make_env() -> Sums:
    return Sums(num_train=1000, num_eval=64)


def save_model(folder: Path, *, seed: int) -> str:
    """A folder with the tokenizer and a model of random weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<e>", additional_special_tokens=list(MARKS))
    fast.chat_template = TEMPLATE
    fast.save_pretrained(str(folder))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    # with the usual 0.02, a model of this width takes three times as long to find what it has to copy
    config = LlamaConfig(vocab_size=len(fast), max_position_embeddings=96, initializer_range=0.1, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(str(folder))
    return str(folder)
