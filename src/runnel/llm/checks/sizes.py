"""How many tokens the prompts and demonstrations of a task take: measured on some of them, so that a run starts at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from runnel.core.errors import ConfigError, DataError
from runnel.llm.model.causal_lm import num_positions
from runnel.llm.tasks.text import Example, TextTask
from runnel.llm.tokenize import Tokenizer, check_round_trip, messages_of

MEASURED, MEASURED_LAZY = 1024, 128
"""Examples of each split that are measured, of a list and of prompts that are made on demand."""
HEADROOM = 1.1
"""Where not all prompts are measured, the longest of those that are gets so much more; one beyond is skipped, and counted."""
CHECKED = 32


@dataclass(frozen=True)
class Sizes:
    """Longest prompt, completion and demonstration of a task, in tokens."""

    prompt: int
    completion: int
    demo: int


def measure(
    task: TextTask, tokenizer: Tokenizer, *, max_tokens: int = 0, max_prompt: int = 0, context: int | None = None
) -> Sizes:
    """The sizes of a task for a model with room for `context` tokens; `max_prompt` and `max_tokens` of 0 are found here.

    Prompts that leave no room for a completion are left to the sampler, which counts them as `prompt_too_long`; where none
    would fit, this raises.
    """
    count = MEASURED if isinstance(task.train, list | tuple) else MEASURED_LAZY
    examples = [*some(task.train, count), *some(task.eval, MEASURED)]
    prompts = [len(tokenizer.render(messages_of(e.prompt))) for e in examples]
    answers = [len(tokenizer.answer(e.answer)) if e.answer is not None else 0 for e in examples]
    more = 1.0 if len(examples) == len(task.train) + len(task.eval) else HEADROOM
    completion, longest = max_tokens or task.max_tokens, max_prompt or int(more * max(prompts))
    demo = int(more * max(p + a for p, a in zip(prompts, answers, strict=True)))
    if context is not None:
        longest, demo = min(longest, context - completion), min(demo, context)
    if min(prompts) > longest:
        raise ConfigError(
            "max_tokens",
            completion,
            f"the shortest of {len(prompts)} prompts of task {task.name!r} has {min(prompts)} tokens, and there is room for "
            f"{longest} (the model's context is {context}); lower max_tokens, raise data.max_prompt, or use a longer context",
        )
    return Sizes(prompt=longest, completion=completion, demo=demo)


def learner_bytes(num_params: int, *, trained: bool, precision: str, needs: Collection[str] = ()) -> tuple[int, int]:
    """Bytes of a checkpoint of the token learner, and of the parameters alone, for a model of `num_params`: at least so many.

    Trained weights and their two moments are kept in float32, published ones in the arithmetic of the learner; an algorithm
    that needs a reference has one more copy of those, one with a critic the weights and moments of that. Where adapters are
    trained (not `trained`: the weights), nothing is counted.
    """
    item = {"bfloat16": 2, "float64": 8}.get(precision, 4)
    if not trained:
        return 0, 0
    parts = 12 + item + (item if "reference_logprob" in needs else 0) + (12 if "value" in needs else 0)
    return parts * num_params, item * num_params


def lost_texts(task: TextTask, tokenizer: Tokenizer) -> list[str]:
    """Texts of the task that the tokenizer changes (`check_round_trip`)."""
    examples = some(task.train, CHECKED)
    texts = [m["content"] for e in examples for m in messages_of(e.prompt)]
    return check_round_trip(tokenizer, texts + [e.answer for e in examples if e.answer is not None])


def some(examples: Sequence[Example], count: int) -> list[Example]:
    """At most `count` examples, evenly spread."""
    step = max(1, len(examples) // count)
    return [examples[i] for i in range(0, len(examples), step)][:count]


def context_of(folder: str) -> int | None:
    """The longest row that the model in `folder` can take, if its config says (`num_positions`)."""
    from transformers import AutoConfig

    try:
        return num_positions(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ConfigError("model", folder, f"its config.json cannot be read ({reason}); give a Hugging Face model") from error


def check_room(num_tokens: int, context: int | None) -> None:
    """Raise a `DataError` for a row that is longer than a reward model's context."""
    if context is not None and num_tokens > context:
        fix = "shorten it (max_tokens, data.max_prompt), or use a reward model with a longer context"
        raise DataError(f"a prompt and its answer have {num_tokens} tokens, and the reward model's context is {context}; {fix}")
