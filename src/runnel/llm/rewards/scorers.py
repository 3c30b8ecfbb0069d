"""Models that score text: a trained reward model from a folder, and a judge at an address with OpenAI's protocol."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from runnel.core.calls.pool import CallPool, CallSpec
from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError, DataError
from runnel.llm.checks.sizes import check_room
from runnel.llm.model.causal_lm import num_positions
from runnel.llm.model.loading import check_weights, load_whole
from runnel.llm.tokenize import Tokenizer, make_tokenizer, messages_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Encode = Callable[[Sequence[Message], str], list[int]]
"""From a conversation and a completion to the tokens that a reward model scores."""


# ---------------------------------------------------------------------------------------------------------- reward model
def reward_model(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    model: str,
    device: str = "cpu",
    prompt_messages: Sequence[Sequence[Message]] | None = None,
    **columns: object,
) -> list[float]:
    """The score of each prompt and completion by a sequence classifier with one output, such as a Bradley-Terry reward model.

    `prompt_messages` are the prompts with their roles; without them a prompt is one message of the user.
    """
    import torch

    scorer, encode = _load_scorer(model, device)
    talks = prompt_messages or [messages_of(prompt) for prompt in prompts]
    scores = []
    for messages, completion in zip(talks, completions, strict=True):
        ids = encode(messages, completion)
        check_room(len(ids), num_positions(scorer.config))
        with torch.inference_mode():
            scores.append(float(scorer(input_ids=torch.tensor([ids], device=device)).logits[0, 0]))
    return scores


def _conversation(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], completion: str) -> list[int]:
    """The tokens of a conversation for a reward model that is not ours: by its chat template, or as text if it has none."""
    if tokenizer.chat_template is None:
        text = "\n".join([*(m["content"] for m in messages), completion])
        return [int(t) for t in tokenizer.encode(text)]
    talk = [*(dict(m) for m in messages), {"role": "assistant", "content": completion}]
    text = tokenizer.apply_chat_template(talk, tokenize=False)
    return [int(t) for t in tokenizer.encode(text, add_special_tokens=False)]


@lru_cache(maxsize=2)
def _load_scorer(folder: str, device: str) -> tuple[PreTrainedModel, Encode]:
    from transformers import AutoModelForSequenceClassification

    _check_outputs(folder, "reward.model")
    model = load_whole(AutoModelForSequenceClassification, folder, field="reward.model").to(device).eval()
    if getattr(model.config, "runnel_rows", ""):
        # Rows come one by one and without padding: with no padding token, transformers reads the score at the last token,
        # which is where it was trained. With one, it would look for the last token that differs from it.
        model.config.pad_token_id = model.config.get_text_config().pad_token_id = None
    return model, _encoder(folder, model.config, "reward.model")


def _check_outputs(folder: str, field: str) -> PretrainedConfig:
    """The config of the reward model in `folder`; a `ConfigError` if it is none."""
    from transformers import AutoConfig

    if not os.path.isdir(folder):
        fix = "there is no such folder; give that of a trained reward model (runnel train reward_model leaves one in model/)"
        raise ConfigError(field, folder, fix)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(field, folder, f"transformers cannot read its config.json: {str(error)[:200]}") from error
    if config.num_labels != 1:
        fix = f"it has {config.num_labels} outputs; a reward model has 1, and a language model none: train one from it"
        raise ConfigError(field, folder, fix)
    return config


def _encoder(folder: str, config: PretrainedConfig, field: str) -> Encode:
    """The function that makes the tokens of a conversation, as the model in `folder` was trained on them."""
    from transformers import AutoTokenizer

    if rows := getattr(config, "runnel_rows", ""):
        try:
            return partial(_row, make_tokenizer(folder, plain=rows == "plain"))
        except ConfigError as error:
            raise ConfigError(field, folder, error.fix) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        fix = f"its tokenizer cannot be loaded ({str(error).splitlines()[0][:200]}); copy it there"
        raise ConfigError(field, folder, fix) from error
    spare = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}  # texts do not contain special tokens
    rows = config.get_text_config().vocab_size
    if any(i >= rows and i not in spare for i in tokenizer.get_vocab().values()):
        fix = f"its tokenizer has {len(tokenizer)} tokens, but its embedding {rows} rows; use the tokenizer that belongs to it"
        raise ConfigError(field, folder, fix)
    return partial(_conversation, tokenizer)


def check_scorer(folder: str, conversations: Sequence[tuple[Sequence[Message], str]], *, field: str) -> list[list[int]]:
    """Raise a `ConfigError` of `field` if the reward model in `folder` could not score, without loading its weights: no folder,
    no score head, a tokenizer that is missing or belongs to another model. Returns the tokens of `conversations`."""
    from transformers import AutoModelForSequenceClassification

    config = _check_outputs(folder, field)
    check_weights(AutoModelForSequenceClassification, folder, field=field)
    encode = _encoder(folder, config, field)
    return [encode(messages, completion) for messages, completion in conversations]


def _row(tokenizer: Tokenizer, messages: Sequence[Message], completion: str) -> list[int]:
    """The tokens of a conversation for our own reward models, as in training (`pair_rows`): prompt, answer, end of turn."""
    return [*tokenizer.render(messages), *tokenizer.answer(completion)]


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
    pattern: str = "",
    low: float = 0.0,
    high: float = 1.0,
    api_key_env: str = "OPENAI_API_KEY",
    max_tokens: int = 16,
    retries: int = 2,
    request_timeout_s: float = 20.0,
    **columns: object,
) -> list[float]:
    """The score of each completion by a model behind `base_url` (`.../v1`).

    `template` may use {prompt}, {completion}, {low}, {high} and any column. The reply must be only a number from `low` to
    `high` ("7", or "7/10" if `high` is 10), or end with a line such as "Score: 7". Or give `pattern`, a regular expression with
    one group, which finds the number. Up to 16 requests are sent at once; one that fails or takes longer than
    `request_timeout_s` is sent up to `retries` times again. Any other reply, a reply that was cut off, and an address that does
    not reply are errors, and so counted failures.
    """

    url = f"{base_url.rstrip('/')}/chat/completions"
    key = os.environ.get(api_key_env, "")
    at_once, limit = min(16, len(completions)), "request_timeout_s of reward 'judge'"
    ask = CallSpec("judge", _post, {}, "thread", at_once, request_timeout_s, retries, limit)
    with closing(CallPool([ask])) as pool:
        for i, completion in enumerate(completions):
            row = {k: v[i] for k, v in columns.items() if isinstance(v, list | tuple)}
            text = template.format(**{**row, "prompt": prompts[i], "completion": completion, "low": low, "high": high})
            body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens}
            pool.submit("judge", url, body, key, request_timeout_s)
        replies = pool.wait_all()
    if wrong := next((reply for reply in replies if reply.reason), None):
        raise DataError(f"judge at {url}: {wrong.reason}")
    return [score_of(reply.value, pattern, low, high) for reply in replies]


_VALUE = r"(-?\d+(?:\.\d+)?)(?:\s*(?:/|out\s+of)\s*(\d+(?:\.\d+)?))?"
ALONE = re.compile(rf"[\s*_`$]*(?:\\boxed\{{|<score>)?[\s*]*{_VALUE}[\s*]*(?:\}}|</score>)?[\s*_`$.]*")
"""Matches a reply that is a number and nothing else except marks."""
LABELLED = re.compile(
    rf"[\s*_`#>-]*(?:(?:the|my|final|overall)\s+)*(?:score|rating|grade)[\s*]*(?::|=|is)?[\s*:]*{_VALUE}[\s*_`.]*", re.I
)
"""Matches a last line that calls its number a score."""


def score_of(reply: Mapping[str, Any], pattern: str, low: float, high: float) -> float:
    """The score in a judge's reply; a `DataError` if there is none in the required form."""
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"the judge's reply has no choices[0].message.content: {str(reply)[:120]}") from error
    if not isinstance(text, str):
        raise DataError(f"the judge's reply has no text: {str(choice)[:120]}")
    if choice.get("finish_reason") == "length":
        raise DataError(f"the judge's reply was cut off; raise max_tokens: {text[-80:]!r}")
    score = _matched(text, pattern) if pattern else _written(text, high)
    if score is None or not low <= score <= high:
        raise DataError(f"the judge gave no score from {low:g} to {high:g} in the form asked for: {text[-80:]!r}")
    return score


def _written(text: str, high: float) -> float | None:
    """A number that is the whole reply, or that the last line calls a score; "7/10" is one if 10 is the highest score."""
    said = text.rpartition("</think>")[2].strip()
    found = ALONE.fullmatch(said) or LABELLED.fullmatch(said.splitlines()[-1] if said else "")
    if found is None or (found[2] is not None and float(found[2]) != high):
        return None
    return float(found[1])


def _matched(text: str, pattern: str) -> float | None:
    """The number in the last match of a user's pattern: its group, or all of it."""
    compiled = re.compile(pattern)
    if compiled.groups > 1:
        raise ConfigError("reward.pattern", pattern, "use at most one group: the number")
    found: list[str] = compiled.findall(text)
    try:
        return float(found[-1]) if found else None
    except ValueError:
        return None


def _post(url: str, body: Mapping[str, Any], key: str, timeout_s: float) -> Any:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code in (408, 429, 500, 502, 503, 504):
            raise
        raise DataError(f"HTTP {error.code}") from error  # it would answer the same again
