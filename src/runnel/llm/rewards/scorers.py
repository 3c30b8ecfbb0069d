"""Models that score text: a trained reward model from a folder, and a judge behind any OpenAI-compatible address."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from runnel.core.errors import ConfigError, DataError
from runnel.llm.tokenize import Tokenizer, load_tokenizer, messages_of


# ---------------------------------------------------------------------------------------------------------- reward model
def reward_model(
    prompts: Sequence[str], completions: Sequence[str], *, model: str, device: str = "cpu", **columns: Any
) -> list[float]:
    """What a sequence classifier with one output (a Bradley-Terry reward model, say) gives to each prompt and completion."""
    import torch

    scorer, encode = _load_scorer(model, device)
    scores = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([encode(prompt, completion)], device=device)
        with torch.inference_mode():
            scores.append(float(scorer(input_ids=ids).logits[0, 0]))
    return scores


def _conversation(tokenizer: Any, prompt: str, completion: str) -> list[int]:
    if tokenizer.chat_template is None:
        return [int(t) for t in tokenizer.encode(f"{prompt}\n{completion}")]
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return [int(t) for t in tokenizer.encode(text, add_special_tokens=False)]


@lru_cache(maxsize=2)
def _load_scorer(folder: str, device: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if not os.path.isdir(folder):
        raise ConfigError("reward.model", folder, "there is no such folder; give that of a trained reward model")
    model = AutoModelForSequenceClassification.from_pretrained(folder).to(device).eval()
    if model.config.num_labels != 1:
        raise ConfigError("reward.model", folder, f"it has {model.config.num_labels} outputs; a reward model has 1")
    if getattr(model.config, "runnel_rows", False):
        return model, partial(_row, load_tokenizer(folder))
    return model, partial(_conversation, AutoTokenizer.from_pretrained(folder))


def _row(tokenizer: Tokenizer, prompt: str, completion: str) -> list[int]:
    """As the pairs were that one of our reward models was trained on: prompt, answer, eos."""
    return [*tokenizer.render(messages_of(prompt)), *tokenizer.encode(completion), tokenizer.eos_id]


# ----------------------------------------------------------------------------------------------------------------- judge
TEMPLATE = """Grade the answer to the question.

Question: {prompt}

Answer: {completion}

Reply with one number from {low:g} to {high:g} and nothing else."""


def judge(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    base_url: str,
    model: str,
    template: str = TEMPLATE,
    pattern: str = r"-?\d+(?:\.\d+)?",
    low: float = 0.0,
    high: float = 1.0,
    api_key_env: str = "OPENAI_API_KEY",
    max_tokens: int = 16,
    retries: int = 2,
    request_timeout_s: float = 20.0,
    **columns: Any,
) -> list[float]:
    """What a model behind `base_url` (`.../v1`) says of each completion: the last number in its reply that `pattern` finds.

    `template` may use {prompt}, {completion}, {low}, {high} and any column. All completions are asked about at once. A reply
    without a number from `low` to `high`, or an address that stays silent, is an error, and so a counted failure.
    """

    def ask(i: int) -> float:
        row = {k: v[i] for k, v in columns.items() if isinstance(v, list | tuple)}
        text = template.format(**{**row, "prompt": prompts[i], "completion": completions[i], "low": low, "high": high})
        body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens}
        key = os.environ.get(api_key_env, "")
        reply = _post(f"{base_url.rstrip('/')}/chat/completions", body, key, retries=retries, timeout_s=request_timeout_s)
        return _number(reply, pattern, low, high)

    with ThreadPoolExecutor(max_workers=min(16, len(completions))) as pool:
        return list(pool.map(ask, range(len(completions))))


def _number(reply: Mapping[str, Any], pattern: str, low: float, high: float) -> float:
    try:
        text = str(reply["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"the judge's reply has no choices[0].message.content: {str(reply)[:120]}") from error
    found = re.findall(pattern, text)
    if not found or not low <= float(found[-1]) <= high:
        raise DataError(f"the judge gave no number from {low:g} to {high:g}: {text[:80]!r}")
    return float(found[-1])


def _post(url: str, body: Mapping[str, Any], key: str, *, retries: int, timeout_s: float) -> Any:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    for attempt in range(retries + 1):
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if attempt == retries or error.code not in (408, 429, 500, 502, 503, 504):
                raise DataError(f"judge at {url}: HTTP {error.code}") from error
        except (OSError, ValueError) as error:
            if attempt == retries:
                raise DataError(f"judge at {url}: {error}") from error
        time.sleep(min(0.5 * 2**attempt, 8.0))
    raise AssertionError
