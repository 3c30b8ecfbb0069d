"""A reward model at work: an inferencer that scores rows, its evaluation on unseen pairs or answers, and what `load` gives
back for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from runnel.core.contracts.chat import Message
from runnel.core.contracts.evaluation import POLICY, Clients, EvalResult, Progress
from runnel.core.contracts.inference import Reply, Request
from runnel.core.records import Batch
from runnel.llm.checks.sizes import check_room
from runnel.llm.engines.one_pass import OnePassEngine
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import ScalarModel, num_positions
from runnel.llm.model.token_model import TokenModel
from runnel.llm.sampling.pairs import pair_rows
from runnel.llm.sampling.rated import rated_row
from runnel.llm.tasks.preferences import Pair, Rated
from runnel.llm.tokenize import Tokenizer, messages_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ScoreEngine(OnePassEngine):
    """Replies to requests of `tokens` with their `score` `[1]`, read at the last token (core `Inferencer`).

    A step scores up to `max_rows` requests in one forward pass.
    """

    def __init__(self, model: ScalarModel, *, device: str = "cpu", max_rows: int = 64) -> None:
        super().__init__()
        self.model = TokenModel(model, device=device, frozen=True)
        self.max_rows = max_rows

    @torch.no_grad()
    def step(self) -> list[Reply]:
        if not (some := self.take(self.max_rows)):
            return []
        rows = PackedRows([len(r.rows["tokens"]) for r in some], device=self.model.device)
        tokens = torch.cat([r.rows["tokens"] for r in some]).to(self.model.device)
        last = rows.bounds[1:].long() - 1
        scores = self.model.model.score(self.model.packed_hidden(tokens, rows)[last]).float().cpu()
        return [Reply(r.id, Batch(score=score), self.version) for r, score in zip(some, scores, strict=True)]


class PairEvaluation:
    """How often a reward model prefers what was chosen, on pairs that it never saw (core `Evaluation`)."""

    def __init__(self, pairs: Sequence[Pair], tokenizer: Tokenizer) -> None:
        self._pairs, self._tokenizer = list(pairs), tokenizer

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        rows = [row for pair in self._pairs for row in pair_rows(pair, self._tokenizer)]
        scores = _scored(clients, rows, each=2, progress=progress)
        margins = [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
        samples = [{"prompt": str(p.prompt), "chosen": p.chosen, "rejected": p.rejected} for p in self._pairs[:8]]
        return EvalResult([float(m > 0) for m in margins], {"margin": margins}, samples)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class ScoreEvaluation:
    """How close a reward model comes to scores of answers that it never saw: minus the squared error (core `Evaluation`)."""

    def __init__(self, some: Sequence[Rated], tokenizer: Tokenizer) -> None:
        self._some, self._tokenizer = list(some), tokenizer

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        scores = _scored(clients, [rated_row(one, self._tokenizer) for one in self._some], each=1, progress=progress)
        errors = [score - one.rating for score, one in zip(scores, self._some, strict=True)]
        samples = [{"prompt": str(one.prompt), "answer": one.answer, "score": one.rating} for one in self._some[:8]]
        return EvalResult([-(e**2) for e in errors], {"error": errors}, samples)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


def _scored(
    clients: Clients, rows: Sequence[tuple[list[int], list[int]]], *, each: int, progress: Progress | None
) -> list[float]:
    """The scores of rows, as prompts and answers; `progress` is told how often `each` of them are there."""
    client = clients[POLICY]
    tickets = [client.submit(Batch(tokens=torch.tensor([*prompt, *answer]))) for prompt, answer in rows]
    scores: list[float] = []
    while len(scores) < len(tickets):
        reply = client.ready(tickets[len(scores)])
        if reply is None:
            client.poll()
            continue
        scores.append(float(reply.rows["score"]))
        if progress is not None:
            progress(len(scores) // each, len(tickets) // each)
    return scores


class ScoringPolicy:
    """A reward model with its tokenizer (core `Policy`): an observation is a prompt and an answer, an action its score."""

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = ScoreEngine(model), tokenizer
        self._context = num_positions(model.config)

    def score(self, prompt: str | Sequence[Message], answer: str) -> float:
        """The score of an answer. Only differences between the scores of answers to one prompt mean something."""
        tokens = [*self.tokenizer.render(messages_of(prompt)), *self.tokenizer.answer(answer)]
        check_room(len(tokens), self._context)
        self.engine.submit([Request(0, Batch(tokens=torch.tensor(tokens)))])
        return float(self.engine.step()[0].rows["score"])

    def act(self, obs: tuple[str | Sequence[Message], str], *, deterministic: bool = True) -> float:
        return self.score(*obs)

    def reset(self) -> None:
        """Does nothing: a score depends on nothing before it."""
