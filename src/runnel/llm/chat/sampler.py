"""The sampler of conversations: what an actor runs to make groups of them.

It consumes tasks, replies of the engine and what environments and tools answer, and produces one segment for each group. It
waits for what `PromptSampler` waits for, and for environments and tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.records import Slot
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.llm.chat.conversation import Conversation, Speaker
from runnel.llm.chat.groups import ChatGroup, fill_conversations
from runnel.llm.chat.partners import Partner
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.task import SEED, TASK, ChatTask
from runnel.llm.rewards.judging import RewardJob, Verdict, shown_prompt
from runnel.llm.sampling.groups import CompletionGroup, group_data, group_from
from runnel.llm.sampling.sampler import POLICY, SAMPLE_EVERY, PromptSampler
from runnel.llm.tasks import Example
from runnel.llm.tokenize import Tokenizer, messages_of

WAIT_S = 0.005
"""How long a step with nothing else to do waits for an environment or a tool: they ring no bell of the actor's."""


class ChatSampler(PromptSampler):
    """A core `Sampler` that plays conversations in groups of `group_size`, all of a group from one task and one seed.

    What a segment requires of versions, refills, old groups and history is as with `PromptSampler`. A conversation whose
    environment fails is begun anew, `talk.retries` times; then its group is cancelled with the reason. `partners` are the
    agents that are not trained, and who speaks for them; each of the others has a trajectory in every conversation.
    """

    _groups: list[ChatGroup]  # type: ignore[assignment]

    def __init__(
        self,
        task: ChatTask,
        tokenizer: Tokenizer,
        *,
        max_turns: int,
        max_context: int,
        blocking_calls: bool,
        pass_reward: float = 1.0,
        partners: Mapping[str, Partner] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(task, tokenizer, **more)
        self._streams = {agent: partner.stream for agent, partner in (partners or {}).items()}
        self._clients: Mapping[str, InferenceClient] = {}
        self._trained = tuple(agent for agent in task.agents if agent not in self._streams)
        self._chat, self._max_turns, self._pass_reward = task, max_turns, pass_reward
        self._known: list[Verdict] = []
        """Verdicts that need no reward function."""
        self.player = ChatPlayer(
            task,
            tokenizer,
            max_context=max_context,
            max_tokens=self._max_tokens,
            seed=self._seed,
            sampling=self._sampling,
            blocking=blocking_calls,
            partners=partners,
        )

    @property
    def num_rows(self) -> int:
        return self.group_size * len(self._trained)

    def step(self, clients: Any, writers: Any) -> int:
        self._clients = clients
        work = sum(client.poll() for client in self._partner_clients() if client.pending())
        work += super().step(clients, writers)
        if unanswered := sum(client.pending() for client in self._partner_clients()):
            self._waits_for = self._waits_for or f"{unanswered} completions of partners"
        if work == 0 and self.player.pending():
            self._waits_for = f"{self.player.pending()} calls of environments and tools"
            self.player.wait(WAIT_S)
            return 1
        return work

    def _client_of(self, agent: str) -> InferenceClient:
        return self._clients[self._streams.get(agent, POLICY)]

    def _partner_clients(self) -> list[InferenceClient]:
        return [self._clients[stream] for stream in dict.fromkeys(self._streams.values())]

    # ------------------------------------------------------------------------------------------------------- a group
    def _ready(self, client: InferenceClient, version: int, synced: set[int]) -> bool:
        return super()._ready(client, version, synced) and all(partner.sync() for partner in self._partner_clients())

    def _new_group(self, slot: Slot, example: Example, attempt: int) -> ChatGroup:
        return ChatGroup(slot, example, [], attempt=attempt, trained=self._trained)

    def _no_room(self, group: CompletionGroup) -> str:
        return ""  # a prompt that is too long ends its conversation

    def _begin(self, client: InferenceClient, group: CompletionGroup) -> None:
        assert isinstance(group, ChatGroup)
        header = group.slot.header
        version = group.required if group.required >= 0 else client.version
        given = group.example.columns.get(SEED)
        names = (header.sequence, group.attempt) if self._source.uses_history else (header.sample_id,)
        seed = int(given) if isinstance(given, int) else make_seed(self._seed, "conversation", *names)
        for number in range(self.group_size):
            conversation = self.player.open(
                group.example,
                number=number,
                seed=seed,
                names=self._names(group, number),
                version=group.required,
                affinity=header.sequence,
                max_turns=self._chat.talk.horizon(self._max_turns, version),
                greedy=self._greedy_first and number == 0,
            )
            group.conversations.append(conversation)
            self.player.begin(conversation)
        group.begun = True

    def _collect(self, client: InferenceClient, reference: InferenceClient | None) -> int:
        """Let all conversations go on; begin those anew that have failed; have groups judged that are complete."""
        going = [g for g in self._groups if g.runs]
        work = self.player.step(self._client_of, [c for g in going for c in g.conversations])
        for group in going:
            for conversation in group.conversations:
                if conversation.failure and self._may_retry(conversation):
                    self._retry(group, conversation)
                    work += 1
                elif conversation.over:
                    self.player.release(conversation)  # the others of its group may take long
            if group.complete:
                group.judged = True
                self._judge(group)
                work += 1
        return work

    def _may_retry(self, conversation: Conversation) -> bool:
        return conversation.lost or (not conversation.hopeless and conversation.attempt < self._chat.talk.retries)

    def _retry(self, group: ChatGroup, conversation: Conversation) -> None:
        told = {"what": "a conversation was begun anew", "reason": conversation.failure}
        self._events.append({"kind": "call_retried", **told, "prompt": self._shown(group.example)})
        self.player.again(self._client_of, conversation, group.example)

    def _shown(self, example: Example) -> str:
        """A prompt, or the task of an environment."""
        shown = shown_prompt(example.text)
        return shown if self._chat.judged else shown.replace("(prompt ", "(task ", 1)

    @property
    def _fix(self) -> str:
        if self._chat.judged:
            return super()._fix
        return f"fix the environment {self.task.name!r}; `runnel check-chat` says what is wrong with it"

    def _reissue(self, client: InferenceClient) -> None:
        asked = [c for g in self._groups for c in g.conversations if c.runs]
        if num := self.player.reissue(self._client_of, asked):
            self._events.append({"kind": "event", "text": f"asked again for {num} completions"})

    def _abort(self, client: InferenceClient, writer: SampleWriter, reference: InferenceClient | None) -> None:
        if self._too_old is None:
            return
        for group in [g for g in self._groups if g.runs]:
            oldest = group.oldest()
            if oldest is not None and self._too_old(oldest, writer.version()):
                for conversation in group.conversations:
                    self.player.drop(self._client_of, conversation)
                self._groups.remove(group)
                writer.cancel(group.slot, "aborted")

    # ------------------------------------------------------------------------------------------------------- rewards
    def _judge(self, group: CompletionGroup) -> None:
        """Have last messages judged. What an environment pays is there already, and so is why a conversation has failed."""
        assert isinstance(group, ChatGroup)
        key = group.slot.header.sample_id
        failed = next((c for c in group.conversations if c.failure), None)
        if failed is not None:
            self._known.append(Verdict(key, None, failed.failure, failed.lines))
            return
        sides = list(group.sides())
        if not self._chat.judged:
            self._known.append(Verdict(key, {c: [side.total(c) for side in sides] for c in self._chat.turn_channels}))
        else:
            said = [side.answer for side in sides]
            ids = [side.said.last[side.said.turns[-1].start :] for side in sides]
            columns = {k: [v] * len(sides) for k, v in group.example.columns.items()}
            prompts, talks = [group.example.text] * len(sides), [messages_of(group.example.prompt)] * len(sides)
            self._pool.submit(RewardJob(key, prompts, said, columns, ids, talks))

    def _verdicts(self) -> list[Verdict]:
        known, self._known = self._known, []
        return known + super()._verdicts()

    def _finish(self, verdict: Verdict, writer: SampleWriter, reference: InferenceClient | None) -> int:
        group = next(g for g in self._groups if g.slot.header.sample_id == verdict.key)
        if all(not c.failure for c in group.conversations):
            return super()._finish(verdict, writer, reference)
        self._drop(group, reference)
        self._cancel(group, writer, verdict.failure, verdict.lines)
        return 1

    def _drop(self, group: CompletionGroup, reference: InferenceClient | None) -> None:
        assert isinstance(group, ChatGroup)
        super()._drop(group, reference)
        for conversation in group.conversations:
            self.player.release(conversation)

    def _fill(self, group: CompletionGroup) -> int:
        assert isinstance(group, ChatGroup)
        for conversation in group.conversations:
            self.player.release(conversation)
        return fill_conversations(group, self._chat.turn_channels, greedy_first=self._greedy_first)

    def _says_nothing(self, totals: Sequence[float]) -> bool:
        num = len(self._trained)  # each agent is compared with itself in the other conversations
        return all(len(set(totals[i::num])) == 1 for i in range(num))

    def _report(self, group: CompletionGroup, totals: Sequence[float]) -> None:
        assert isinstance(group, ChatGroup)
        sides = list(group.sides())
        for side, total in zip(sides, totals, strict=True):
            mine = {"by_policy": {side.agent: total}} if len(self._trained) > 1 else {}
            self._events.append(episode(side, total) | {"passed": total >= self._pass_reward - 1e-9} | mine)
        if self._num_groups % SAMPLE_EVERY == 0:
            shown = self._num_groups // SAMPLE_EVERY % len(self._trained)  # of several agents, each has its turn
            weights = dict(zip(self._chat.channels, self._chat.weights, strict=True))
            self._events.append(told(group, sides[shown], totals[shown], weights))
        self._num_groups += 1

    # ----------------------------------------------------------------------------------------------------------- state
    def events(self) -> list[State]:
        return super().events() + self.player.events()

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self.player.seed = state["seed"]  # a sampler that goes on was made with another
        super().restore(state, writers)

    def _group_data(self, group: CompletionGroup) -> State:
        assert isinstance(group, ChatGroup)
        played = [self.player.data(c) for c in group.conversations]
        return group_data(group) | {"begun": group.begun, "conversations": played}

    def _group_from(self, data: State, writer: SampleWriter) -> ChatGroup:
        plain = group_from(data, writer)
        group = ChatGroup(plain.slot, plain.example, [], rewards=plain.rewards, attempt=plain.attempt, trained=self._trained)
        group.begun = data["begun"]
        group.conversations = [self.player.restored(one, group.example) for one in data["conversations"]]
        return group

    def close(self) -> None:
        for group in self._groups:
            for conversation in group.conversations:
                self.player.release(conversation)
        self.player.close()
        super().close()


def episode(side: Speaker, total: float) -> State:
    """What is counted of a trajectory."""
    turns, versions = side.said.turns, [v for row in side.said.rows for v in row.fields["policy_version"]]
    return {
        "kind": "episode",
        "return": total,
        "length": side.said.num_tokens,
        "version": max(versions),
        "turns": len(turns),
        "context": side.said.longest,
        "reason": side.reason,
        "env_s": sum(turn.duration_s for turn in turns),
        "engine_s": sum(turn.engine_s for turn in turns),
        "prefilled": sum(turn.prefilled for turn in turns),
        "tool_calls": side.tool_calls,
        "tool_errors": side.tool_errors,
    }


def told(group: ChatGroup, side: Speaker, total: float, weights: Mapping[str, float]) -> State:
    """A conversation for people to read. Weights of channels are told where they are not all 1."""
    turns = [
        {
            "rewards": dict(turn.rewards),
            "duration_s": turn.duration_s,
            "engine_s": turn.engine_s,
            "tokens": turn.end - turn.start,
            "prompt_tokens": turn.start,
            "row": turn.row,
            "counts": dict(turn.counts),
        }
        for turn in side.said.turns
    ]
    messages = [{name: value for name, value in m.items() if name != "turn"} for m in side.messages]
    for number, turn in enumerate(side.said.turns):  # an environment may show messages of an assistant, too
        messages[turn.message]["turn"] = number
    return {
        "kind": "conversation",
        "version": episode(side, total)["version"],
        "sample_id": group.slot.header.sample_id,
        "return": total,
        "reason": side.reason,
        **({"agent": side.agent} if len(group.conversations[0].sides) > 1 else {}),
        "task": {} if group.example.columns.get(TASK) is None else group.example.columns[TASK],
        **({"weights": dict(weights)} if set(weights.values()) - {1.0} else {}),
        "messages": messages,
        "turns": turns,
    }
