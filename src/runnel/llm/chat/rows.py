"""What one agent said and heard, as the tokens that train: rows, and the turns in them.

A conversation is one row as long as each prompt begins with all that was said before. Where it does not (a template that
rewrites the past), a new row of the same trajectory begins. Replies are the engine's own tokens; everything else in a row is
never trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.state import State

PER_TOKEN: Mapping[str, tuple[torch.dtype, float]] = {
    "loss_mask": (torch.bool, 0),
    "logprob": (torch.float32, 0),
    "policy_version": (torch.int64, -1),
    "sampling_logprob": (torch.float32, 0),
}
"""What a row holds of each token beside its id, and the value for tokens that no policy made."""


@dataclass
class TokenRow:
    """One training row: the prompt that it began with, then replies and what was heard between them."""

    prompt_length: int
    tokens: list[int]
    fields: dict[str, list[Any]]

    @staticmethod
    def of(prompt: Sequence[int]) -> TokenRow:
        """A row that holds only its prompt."""
        fields = {name: [value] * len(prompt) for name, (_, value) in PER_TOKEN.items()}
        return TokenRow(len(prompt), list(prompt), fields)

    def hear(self, tokens: Sequence[int]) -> None:
        """Append tokens that no policy made."""
        self.tokens += tokens
        for name, (_, value) in PER_TOKEN.items():
            self.fields[name] += [value] * len(tokens)

    def say(self, reply: Batch) -> None:
        """Append a reply of the engine, as it is."""
        tokens = reply["tokens"].tolist()
        self.tokens += tokens
        self.fields["loss_mask"] += [True] * len(tokens)
        for name in ("logprob", "policy_version"):
            self.fields[name] += reply[name].tolist()
        self.fields["sampling_logprob"] += reply.get("sampling_logprob", reply["logprob"]).tolist()

    def tensors(self) -> dict[str, Tensor]:
        """The tokens, and what is known of each. All `[n]`."""
        found = {name: torch.tensor(self.fields[name], dtype=dtype) for name, (dtype, _) in PER_TOKEN.items()}
        return {"tokens": torch.tensor(self.tokens, dtype=torch.int64), **found}

    def data(self) -> State:
        return {"prompt_length": self.prompt_length, **self.tensors()}

    @staticmethod
    def restored(data: State) -> TokenRow:
        fields = {name: data[name].tolist() for name in PER_TOKEN}
        return TokenRow(int(data["prompt_length"]), data["tokens"].tolist(), fields)


@dataclass
class TurnRecord:
    """One reply: where it lies in its row, what it saw (`key`) and earned, and what it took."""

    row: int
    start: int
    end: int
    key: int
    rewards: dict[str, float] = field(default_factory=dict)
    duration_s: float = 0.0
    """What tools and the environment took after it."""
    engine_s: float = 0.0
    """What the engine took for it."""
    prefilled: int = 0
    """Tokens that the engine computed before it could speak."""
    counts: dict[str, int] = field(default_factory=dict)
    message: int = -1
    """The place of its message among all that the agent heard and said."""

    def earn(self, rewards: Mapping[str, float], counts: Mapping[str, int]) -> None:
        for name, value in rewards.items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number


@dataclass
class Said:
    """The rows and turns of one agent in one conversation, in the order in which they came to be."""

    rows: list[TokenRow] = field(default_factory=list)
    turns: list[TurnRecord] = field(default_factory=list)

    @property
    def last(self) -> list[int]:
        """The tokens of the newest row; none before the first prompt."""
        return self.rows[-1].tokens if self.rows else []

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy made."""
        return sum(turn.end - turn.start for turn in self.turns)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max((len(row.tokens) for row in self.rows), default=0)

    def ask(self, prompt: Sequence[int]) -> None:
        """The next prompt: the newest row goes on where the prompt begins with it, else a new row begins."""
        known = self.last
        if known and list(prompt[: len(known)]) == known:
            self.rows[-1].hear(prompt[len(known) :])
        else:
            self.rows.append(TokenRow.of(prompt))

    def reply(self, reply: Batch, *, key: int, engine_s: float) -> None:
        """The engine's reply to the prompt."""
        row = self.rows[-1]
        start = len(row.tokens)
        row.say(reply)
        computed = int(reply["num_prefilled"]) if "num_prefilled" in reply else start
        self.turns.append(TurnRecord(len(self.rows) - 1, start, len(row.tokens), key, engine_s=engine_s, prefilled=computed))

    def data(self) -> State:
        """Plain data, for a checkpoint."""
        turns = [{**vars(t), "rewards": dict(t.rewards), "counts": dict(t.counts)} for t in self.turns]
        return {"rows": [row.data() for row in self.rows], "turns": turns}

    @staticmethod
    def restored(data: State) -> Said:
        return Said([TokenRow.restored(row) for row in data["rows"]], [TurnRecord(**turn) for turn in data["turns"]])
