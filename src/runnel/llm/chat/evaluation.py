"""Evaluation on tasks that training never sees: conversations played greedily and, for pass@k, at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.contracts.evaluation import POLICY, Clients, EvalResult, Progress
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.core.worker import progressed
from runnel.llm.chat.conversation import Conversation, Speaker
from runnel.llm.chat.partners import Partner
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.task import SEED, ChatTask
from runnel.llm.engines.requests import SamplingConfig
from runnel.llm.evaluation import pass_at_k
from runnel.llm.rewards.judging import RewardJob, RewardPool, shown_prompt
from runnel.llm.tokenize import Tokenizer, messages_of

WAIT_S = 0.005
MOST = 256
"""Conversations that are played at a time: each may hold an interpreter, or a connection."""


class ChatEvaluation:
    """Plays the first `num_tasks` held-out tasks, greedily and `samples` times at random (core `Evaluation`).

    `returns` are those of the greedy conversations. What failed has no return and is counted in `extra["failed"]`. `extra` has
    each channel, `turns`, `context` (tokens of the longest row), `tool_calls` and `tool_errors` of the greedy ones, and
    `pass@k` over the samples. Of a conversation of several agents, a return is the mean over those that are trained, and
    `return/<agent>` is what each agent earned; `partners` are the others, and who speaks for them.
    """

    def __init__(
        self,
        task: ChatTask,
        tokenizer: Tokenizer,
        *,
        num_tasks: int,
        max_turns: int,
        max_context: int,
        max_tokens: int,
        seed: int,
        samples: int = 0,
        temperature: float = 1.0,
        stop: Sequence[str] = (),
        pass_k: Sequence[int] = (1,),
        pass_reward: float = 1.0,
        num_shown: int = 8,
        reward_timeout_s: float = 30.0,
        partners: Mapping[str, Partner] | None = None,
    ) -> None:
        if samples and not all(1 <= k <= samples for k in pass_k):
            raise ConfigError("eval.pass_k", tuple(pass_k), f"each k must be from 1 to eval.samples = {samples}")
        self.task, self._max_turns, self._seed, self._num_shown = task, max_turns, seed, num_shown
        self._examples, self._each = list(task.eval[:num_tasks]), 1 + samples
        self._pass_k, self._pass_reward = tuple(pass_k) if samples else (), pass_reward
        self._pool = RewardPool(task.components, timeout_s=reward_timeout_s)
        sampling = SamplingConfig(temperature, stop=tuple(stop))
        self._streams = {agent: partner.stream for agent, partner in (partners or {}).items()}
        self._player = ChatPlayer(
            task,
            tokenizer,
            max_context=max_context,
            max_tokens=max_tokens,
            seed=seed,
            sampling=sampling,
            blocking=False,
            partners=partners,
        )

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        played, going, num = list[Conversation](), list[Conversation](), len(self._examples) * self._each
        asked = {agent: clients[self._streams.get(agent, POLICY)] for agent in self.task.agents}
        engines = [clients[name] for name in (POLICY, *dict.fromkeys(self._streams.values()))]
        while going or len(played) < num:
            opened = [self._opened(key, round_index) for key in range(len(played), min(num, len(played) + MOST - len(going)))]
            played, going = played + opened, going + opened
            work = self._player.step(asked.__getitem__, going) + sum(one.poll() for one in engines if one.pending())
            if not work and self._player.pending():
                self._player.wait(WAIT_S)
            for conversation in [c for c in going if c.over or c.failure]:
                self._player.drop(asked.__getitem__, conversation)  # what it holds may be an interpreter
                going.remove(conversation)
            if progress is not None:
                progress(len(played) - len(going), num)
        return self._result(played, self._judged(played))

    def _opened(self, key: int, round_index: int) -> Conversation:
        number, sample = divmod(key, self._each)
        example = self._examples[number]
        given = example.columns.get(SEED)
        conversation = self._player.open(
            example,
            number=key,
            seed=int(given) if isinstance(given, int) else make_seed(self._seed, "conversation", number),
            names=("eval", round_index, number, sample),
            max_turns=self._max_turns,
            greedy=sample == 0,
        )
        self._player.begin(conversation)
        return conversation

    def _judged(self, played: Sequence[Conversation]) -> dict[int, dict[str, float]]:
        """What each conversation that did not fail earned, by channel: the mean over its agents that are trained."""
        sides = {c.number: _measured(c) for c in played if not c.failure}
        if not self.task.judged:
            channels = self.task.turn_channels
            return {n: {c: sum(s.total(c) for s in some) / len(some) for c in channels} for n, some in sides.items()}
        for number, (side, *_) in sides.items():
            example = self._examples[number // self._each]
            ids = [side.said.last[side.said.turns[-1].start :]]
            columns = {k: [v] for k, v in example.columns.items()}
            talk = [messages_of(example.prompt)]
            self._pool.submit(RewardJob(number, [example.text], [side.answer], columns, ids, talk))
        verdicts = self._pool.collect(block=True)
        for verdict in verdicts:
            if verdict.rewards is None:
                conversation = next(c for c in played if c.number == verdict.key)
                conversation.failure, conversation.lines = f"reward_failed: {verdict.failure}", verdict.lines
        progressed()
        known = {v.key: v.rewards for v in verdicts if v.rewards is not None}
        return {n: {c: _number(values[0]) for c, values in r.items() if values[0] is not None} for n, r in known.items()}

    def _result(self, played: Sequence[Conversation], earned: dict[int, dict[str, float]]) -> EvalResult:
        totals = {n: self._total(e) for n, e in earned.items()}
        first = [c for c in played if c.number % self._each == 0 and c.number in earned]
        if not first:
            why = f"{played[0].failure} {shown_prompt(self._examples[0].text)}{played[0].lines}"
            raise DataError(f"no held-out conversation of {self.task.name!r} came to an end: {why}")
        sides = [_measured(c) for c in first]
        extra = {c: [earned[one.number][c] for one in first if c in earned[one.number]] for c in self.task.channels}
        extra |= {
            "completion_length": [float(sum(s.said.num_tokens for s in some)) for some in sides],
            "turns": [float(sum(len(s.said.turns) for s in some)) for some in sides],
            "context": [float(max(s.said.longest for s in some)) for some in sides],
            "failed": [float(bool(c.failure)) for c in played],
        }
        if any(s.toolbox.schemas for some in sides for s in some):
            extra["tool_calls"] = [float(sum(s.tool_calls for s in some)) for some in sides]
            extra["tool_errors"] = [float(sum(sum(s.tool_errors.values()) for s in some)) for some in sides]
        if len(self.task.agents) > 1:
            extra |= {f"return/{a}": [self._earned_by(c.sides[a]) for c in first] for a in self.task.agents}
        extra |= self._passes(totals)
        shown: list[State] = [
            {"prompt": self._examples[c.number // self._each].text, "completion": _text(c), "reward": totals[c.number]}
            for c in first[: self._num_shown]
        ]
        return EvalResult([totals[c.number] for c in first], extra, shown)

    def _total(self, earned: dict[str, float]) -> float:
        weights = dict(zip(self.task.channels, self.task.weights, strict=True))
        return sum(weights[c] * value for c, value in earned.items())

    def _earned_by(self, side: Speaker) -> float:
        return self._total({channel: side.total(channel) for channel in self.task.turn_channels})

    def _passes(self, totals: dict[int, float]) -> dict[str, list[float]]:
        """pass@k of each task, over the samples that came to an end."""
        if not self._pass_k:
            return {}
        counts = []
        for i in range(len(self._examples)):
            found = [totals[n] for j in range(1, self._each) if (n := i * self._each + j) in totals]
            counts.append((len(found), sum(total >= self._pass_reward - 1e-9 for total in found)))
        out = {f"pass@{k}": [pass_at_k(n, c, k) for n, c in counts if n >= k] for k in self._pass_k}
        return {**out, "passed": [float(c) for _, c in counts], "judged": [float(n) for n, _ in counts]}

    def close(self) -> None:
        self._player.close()
        self._pool.close()


def _measured(conversation: Conversation) -> list[Speaker]:
    """The agents for which the policy speaks."""
    return [side for side in conversation.sides.values() if not side.partner]


def _number(value: object) -> float:
    assert isinstance(value, int | float), "rewards of conversations judge the last message as a whole"
    return float(value)


def _text(conversation: Conversation) -> str:
    """A conversation for people to read, without its first messages."""
    side = _measured(conversation)[0]
    said = [m for m in side.messages if m["role"] != "system"][1:]
    return "\n".join(f"{m['role']}: {m['content']}{_calls(m)}" for m in said)


def _calls(message: object) -> str:
    assert isinstance(message, dict)
    return "".join(f" [{c['function']['name']} {c['function']['arguments']}]" for c in message.get("tool_calls", ()))
