"""Scripted conversations as demonstrations: an environment's own script plays, and all that it says is to be imitated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from runnel.core.calls.pool import call
from runnel.core.checks import name_of
from runnel.core.contracts.chat import HasScript, Message
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Slot
from runnel.core.rng import make_seed
from runnel.llm.chat.games import AGENT, checked_turns, close_game, own, tools_of_game
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
        self._prompts = PromptMaker(tokenizer, task.talk, of_data=task.judged)

    def play(self, example: Example, number: int = 0) -> tuple[TokenRow, float]:
        """The row of one play, and what it earned."""
        game, said, messages = self._task.game(example), Said(), list[Message]()
        toolbox = Toolbox([*tools_of_game(game), *self._task.tools], max_chars=self._task.talk.tool_chars)
        given, total = example.columns.get(SEED), 0.0
        seed = int(given) if isinstance(given, int) else make_seed(self.seed, "script", number)
        try:
            turns = checked_turns(game, call(game.reset, (self._task.settings(example),), {"seed": seed}), self._channels)
            new, over = list(turns[AGENT].heard), turns[AGENT].over
            while not over and len(said.turns) < self._max_turns:
                messages += new
                said.ask(self._prompts.prompt(said, messages, new, toolbox.schemas))
                owner = own(game)
                assert isinstance(owner, HasScript)
                tokens, heard = self._prompts.demonstration(owner.script())
                said.reply(_reply(tokens), key=0, engine_s=0.0)
                messages.append(heard)
                if heard.get("tool_calls"):
                    new = [toolbox.answer(one, call(toolbox.target(one), (), {}))[0] for one in heard["tool_calls"]]
                    continue
                turns = checked_turns(game, call(game.step, ({AGENT: self._prompts.heard(heard)},), {}), self._channels)
                new, over = list(turns[AGENT].heard), turns[AGENT].over
                total += sum(self._channels[name] * value for name, value in turns[AGENT].earned.items())
            return said.rows[0], total
        finally:
            toolbox.close()
            call(close_game, (game,), {})

    @property
    def _channels(self) -> Mapping[str, float]:
        return self._task.turn_channels


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
        self._max_length, self._num = max_length, 0

    def _fill(self, slot: Slot) -> int:
        start, rows = 0, slot.spec.num_rows
        for number, row in enumerate(self._rows(slot.spec.sizes["N"], rows)):
            fields, end = row.tensors(), start + len(row.tokens)
            slot.arrays["tokens"][start:end], slot.arrays["loss_mask"][start:end] = fields["tokens"], fields["loss_mask"]
            slot.arrays["row_start"][number], slot.arrays["row_length"][number] = start, end - start
            start = end
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
            row, _ = self._script.play(self._source.next().data["example"], self._num)
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
