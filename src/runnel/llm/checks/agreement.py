"""Compares engine and learner with the model's own forward pass in plain transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import Engine, SamplingConfig, make_request
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import copy_model, model_params
from runnel.llm.model.token_model import TokenModel

EngineKind = Literal["native", "hf", "vllm"]
if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENGINES: dict[str, Callable[..., Engine]] = {"native": partial(NativeEngine, prefill_tokens=10), "hf": HfEngine}
"""Prompts come in chunks where an engine can process them so."""
LENGTHS = (3, 15, 9, 9, 1)
"""Prompts of a comparison: ragged, longer than a tiny window, one twice (rows of one prompt share its keys)."""
MADE = 9
"""Tokens that each gets."""


@dataclass(frozen=True)
class Agreement:
    """How far engine and learner are from the model's own forward pass."""

    same_tokens: int
    """Rows whose greedy tokens are those of transformers."""
    num_rows: int
    engine: float
    """Largest difference of a log-probability, engine against transformers."""
    learner: float
    """The same of the learner."""
    causal: float
    """Largest difference between a prefix alone and the prefix of a row: of a causal model it is rounding."""


def compare(model: PreTrainedModel, *, engine: EngineKind = "native") -> Agreement:
    """Greedy completions of ragged prompts, in chunks, three rows at a time; then the rows in the learner.

    Of `vllm`, which is another program, only the learner is compared, on the same rows.
    """
    prompts = _prompts(model)
    rows, logprobs = _completions(copy_model(model), prompts, HfEngine if engine == "vllm" else ENGINES[engine])
    tables = [own_logprobs(model, row) for row in rows]
    same, gap = 0, 0.0
    for prompt, row, found, table in zip(prompts, rows, logprobs, tables, strict=True):
        table, made = table[len(prompt) - 1 :], row[len(prompt) :]
        same += int(torch.equal(table.argmax(dim=1), made))
        gap = max(gap, _gap(found, table.gather(1, made[:, None])[:, 0]))
    longest = max(rows, key=len)
    half = own_logprobs(model, longest[: len(longest) // 2])
    whole = own_logprobs(model, longest)[: len(half)]
    return Agreement(same, len(rows), gap, _learner_gap(copy_model(model), rows, tables), _gap(half, whole))


def _prompts(model: PreTrainedModel) -> list[Tensor]:
    """Tokens from 8 on: the first ones have a meaning in some families (pad, begin, end)."""
    generator = torch.Generator().manual_seed(1)
    size = int(model.config.get_text_config().vocab_size)
    texts = torch.randint(min(8, size - 1), size, (max(LENGTHS),), generator=generator)
    return [texts[:n] for n in LENGTHS]


def _completions(
    model: PreTrainedModel, prompts: Sequence[Tensor], make: Callable[..., Engine]
) -> tuple[list[Tensor], list[Tensor]]:
    engine = make(model, num_slots=3, max_length=max(LENGTHS) + MADE, eos_id=-1)
    weights = ParamSet(0, {name: p.clone() for name, p in model_params(model).items()})
    engine.load_params(weights)
    greedy = SamplingConfig(temperature=0.0)
    requests = [make_request(i, p.tolist(), seed=i, max_tokens=MADE, sampling=greedy) for i, p in enumerate(prompts)]
    engine.submit(requests)
    replies: dict[int, Batch] = {}
    while engine.pending():
        replies |= {reply.id: reply.rows for reply in engine.step()}
        engine.load_params(weights)  # the same ones again: a forward pass must not have changed them
    rows = [torch.cat((p, replies[i]["tokens"])) for i, p in enumerate(prompts)]
    return rows, [replies[i]["logprob"] for i in range(len(prompts))]


@torch.no_grad()
def own_logprobs(model: PreTrainedModel, row: Tensor) -> Tensor:
    """Log-probabilities that transformers computes for every next token of one row. `[n] -> [n - 1, vocabulary]`"""
    logits: Tensor = model(input_ids=row[None, :-1].to(model.device), use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), dim=-1).cpu()


@torch.no_grad()
def _learner_gap(model: PreTrainedModel, rows: Sequence[Tensor], tables: Sequence[Tensor]) -> float:
    learner = TokenModel(model, frozen=True)
    packed = PackedRows([len(row) - 1 for row in rows], device=torch.device("cpu"))
    hidden = learner.packed_hidden(torch.cat([row[:-1] for row in rows]), packed)
    targets = torch.cat([row[1:] for row in rows])
    found = learner.target_logprobs(hidden, targets, temperature=1.0)[0]
    return _gap(found, torch.cat(list(tables)).gather(1, targets[:, None])[:, 0])


def _gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite where one is not a number."""
    gap = float((found.float() - expected.float()).abs().max())
    return gap if gap == gap else float("inf")
