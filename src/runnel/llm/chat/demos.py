"""Scripted conversations as demonstrations: an environment's own script plays, and all that it says is to be imitated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from runnel.core.calls.pool import call
from runnel.core.checks import name_of
from runnel.core.contracts.chat import ChatGame, HasScript, Message, Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Slot
from runnel.core.rng import make_seed
from runnel.llm.chat.games import AGENT, begin_game, close_game, own, own_turn, own_turns, tools_of_game
from runnel.llm.chat.prompts import PromptMaker
from runnel.llm.chat.rows import Said, TokenRow
from runnel.llm.chat.task import SEED, ChatTask
from runnel.llm.chat.tools import Toolbox
from runnel.llm.sampling.demos import MAX_SKIPPED, ExampleSampler
from runnel.llm.tasks import Example, ExampleSource
from runnel.llm.tokenize import Tokenizer


def check_script(task: ChatTask) -> None:
    """Raise a `ConfigError` for conversations that no script plays."""
    owner = own(task.game(task.train[0]))
    if task.agents != (AGENT,) or not isinstance(owner, HasScript):
        fix = "it has no script() to imitate; give it one (what to say now), or use warmup_updates 0"
        raise ConfigError("chat", name_of(owner), fix)


class Script:
    """Plays conversations of `task` by the environment's script. A play is a row: every message of the assistant trains."""

    def __init__(self, task: ChatTask, tokenizer: Tokenizer, *, max_turns: int, seed: int = 0) -> None:
        self._task, self._max_turns, self.seed = task, max_turns, seed
        check_script(task)
        # all that is said stays as it is, whatever `talk.history` says: a play is one row
        self._prompts = PromptMaker(tokenizer, replace(task.talk, history="keep"), of_data=task.judged)

    def play(self, example: Example, number: int = 0) -> tuple[TokenRow, float]:
        """The row of one play, and what it earned."""
        game, said, messages = self._task.game(example), Said(), list[Message]()
        toolbox = Toolbox([*tools_of_game(game), *self._task.tools], max_chars=self._task.talk.tool_chars)
        given, total = example.columns.get(SEED), 0.0
        seed = int(given) if isinstance(given, int) else make_seed(self.seed, "script", number)
        try:
            turn = self._turn(game, call(begin_game, (game, self._task.settings(example), seed), {}))
            new: Sequence[Message] = turn.heard
            while not turn.over and len(said.turns) < self._max_turns:
                messages += new
                said.ask(self._prompts.prompt(said, messages, new, toolbox.schemas))
                owner = own(game)
                assert isinstance(owner, HasScript)
                tokens, heard = self._prompts.demonstration(owner.script())
                said.reply(_reply(tokens), key=0, engine_s=0.0)
                messages.append(heard)
                if heard.get("tool_calls"):
                    turn, new = self._answered(toolbox, heard["tool_calls"])
                else:
                    turn = self._turn(game, call(game.step, ({AGENT: self._prompts.heard(heard)},), {}))
                    new = turn.heard
                total += sum(self._task.turn_channels[name] * value for name, value in turn.earned.items())
            return said.rows[0], total
        finally:
            toolbox.close()
            call(close_game, (game,), {})

    def _turn(self, game: ChatGame, came: object) -> Turn:
        return own_turns(game, came, self._task.turn_channels)[AGENT]

    def _answered(self, toolbox: Toolbox, calls: Sequence[Message]) -> tuple[Turn, list[Message]]:
        """The results of calls, and what they earned; a call that ends the conversation is the last."""
        results, earned = list[Message](), dict[str, float]()
        for one in calls:
            message, _, turn = toolbox.answer(one, call(toolbox.target(one), (), {}))
            results.append(message)
            if turn is not None:
                turn = own_turn(turn, self._task.turn_channels)
                earned = {name: earned.get(name, 0.0) + turn.earned.get(name, 0.0) for name in {**earned, **turn.earned}}
                if turn.over:
                    return Turn((), earned, turn.terminated, turn.truncated), results
        return Turn((), earned), results


def _reply(tokens: list[int]) -> Batch:
    """Tokens of a script in the form of an engine's reply; no policy made them."""
    n = len(tokens)
    return Batch(tokens=torch.tensor(tokens), logprob=torch.zeros(n), policy_version=torch.full((n,), -1))


class ChatDemoSampler(ExampleSampler):
    """Writes scripted conversations, over the train tasks in a seeded order without end. Those with more than `max_length`
    tokens are skipped."""

    def __init__(
        self, task: ChatTask, tokenizer: Tokenizer, *, seed: int, max_turns: int, max_length: int, stream: str = "demos"
    ) -> None:
        super().__init__(ExampleSource(task.train, seed=seed, name="demos"), stream)
        self._script = Script(task, tokenizer, max_turns=max_turns, seed=seed)
        self._max_length, self._num, self._most = max_length, 0, -math.inf

    def _fill(self, slot: Slot) -> int:
        start, rows, begins = 0, slot.spec.num_rows, self._num == 0
        for number, row in enumerate(self._rows(slot.spec.sizes["N"], rows)):
            fields, end = row.tensors(), start + len(row.tokens)
            slot.arrays["tokens"][start:end], slot.arrays["loss_mask"][start:end] = fields["tokens"], fields["loss_mask"]
            slot.arrays["row_start"][number], slot.arrays["row_length"][number] = start, end - start
            start = end
        if begins and self._most <= 0:
            text = f"the script earned nothing in its first {self._num} conversations (at most {self._most:g})"
            self._events.append({"kind": "event", "level": "warning", "text": f"{text}; it is imitated all the same"})
        return start

    def _rows(self, room: int, num: int) -> Iterator[TokenRow]:
        """The next plays that fit."""
        for left in range(num, 0, -1):
            row = self._next(min(self._max_length, room - 2 * (left - 1)))
            room -= len(row.tokens)
            yield row

    def _next(self, room: int) -> TokenRow:
        for _ in range(MAX_SKIPPED):
            self._num += 1
            row, earned = self._script.play(self._source.next().data["example"], self._num)
            self._most = max(self._most, earned)
            if len(row.tokens) <= room:
                return row
            text = f"passed over a scripted conversation: {len(row.tokens)} tokens, room for {room}"
            self._events.append({"kind": "event", "level": "warning", "text": text})
        raise DataError(f"{MAX_SKIPPED} scripted conversations in a row do not fit into {room} tokens; raise max_context")

    def snapshot(self) -> dict[str, object]:
        return super().snapshot() | {"num": self._num, "seed": self._script.seed}

    def restore(self, state: Mapping[str, object], writers: object) -> None:
        super().restore(state, writers)  # type: ignore[arg-type]
        self._num, self._script.seed = int(str(state["num"])), int(str(state["seed"]))
