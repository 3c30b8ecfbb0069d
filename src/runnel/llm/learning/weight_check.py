"""The weight_check: some tokens of the last rollouts, about which every engine must agree with the learner on every version."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.state import State
from runnel.core.weight_check import MAX_TOKENS, WeightCheck
from runnel.llm.learning.trained import Trained
from runnel.ops.ragged import row_index, row_sum

ENOUGH = MAX_TOKENS // 2
"""Sampled tokens from which on a row is as good as any other."""


class Canary:
    """Tokens of one row of the last batch that an engine made: the end of its prompt, and what was sampled behind it.

    Not of an older one: what the policy has unlearnt is improbable, and rounding is largest there.
    """

    def __init__(self) -> None:
        self._prompt: Tensor | None = None
        self._tokens: Tensor | None = None

    @property
    def ready(self) -> bool:
        """Whether there are tokens to be asked about."""
        return self._prompt is not None and self._tokens is not None

    def take(self, batch: Batch) -> None:
        """Choose a row of an annotated batch: the first with enough sampled tokens, else the one with most."""
        if "logprob" not in batch:
            return
        sampled, length = batch["policy_version"] >= 0, batch["row_length"]
        row = int(row_sum(sampled.float(), row_index(length), len(length)).clamp(max=ENOUGH).argmax())
        where = slice(start := int(batch["row_start"][row]), start + int(length[row]))
        tokens, made = batch["tokens"][where], sampled[where].long()
        first = max(int(made.argmax()), 1)  # the first token of a row has no log-probability
        count = int(made[first:].cumprod(dim=0).sum())  # up to where someone else speaks
        if count:
            begin = max(0, first - MAX_TOKENS // 2)
            self._prompt = tokens[begin:first].clone()
            self._tokens = tokens[first : first + min(count, MAX_TOKENS - len(self._prompt))].clone()

    @torch.no_grad()
    def weight_check(self, model: Trained, bound: float) -> WeightCheck | None:
        """What `model` says of the tokens now; None before there are any."""
        if self._prompt is None or self._tokens is None:
            return None
        n, row = len(self._prompt), torch.cat((self._prompt, self._tokens)).to(model.device)
        return WeightCheck(self._prompt, self._tokens, model.row_logprobs(row, n).float().cpu(), bound)

    def state_dict(self) -> State:
        return {"prompt": self._prompt, "tokens": self._tokens}

    def load_state_dict(self, state: State) -> None:
        self._prompt, self._tokens = state.get("prompt"), state.get("tokens")
