"""Plays conversations, many at once: asks the engine for replies, and calls environments and tools.

Each conversation goes on by itself: what one waits for never holds up another, nor the engine. The player consumes replies of
the engine and outcomes of calls; it produces conversations that are over. It waits for user code at most as long as the
settings say (`TalkConfig.step_timeout_s`, `tool_timeout_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

from runnel.core.calls.pool import STEP_S, CallOutcome, CallPool, attempt
from runnel.core.clock import Clock, WallClock
from runnel.core.contracts.chat import ChatGame, Message, ToolFailure, Turn
from runnel.core.contracts.inference import Reply
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.rng import content_id, make_seed
from runnel.core.state import State
from runnel.core.worker import progressed
from runnel.llm.chat.calls import CLOSE, call_specs
from runnel.llm.chat.conversation import TOO_LONG, Conversation, Reason, Speaker
from runnel.llm.chat.games import (
    NO_GAME,
    begin_game,
    can_be_saved,
    close_game,
    lane_of,
    own_turn,
    own_turns,
    plain_turns,
    put_back,
    saved,
    tools_of_game,
    why_unsaved,
)
from runnel.llm.chat.partners import Partner
from runnel.llm.chat.prompts import PromptMaker
from runnel.llm.chat.task import ChatTask
from runnel.llm.chat.tools import Toolbox, too_many
from runnel.llm.engines.requests import SamplingConfig, request_rows
from runnel.llm.tasks.text import Example
from runnel.llm.tokenize import Tokenizer

END_S = 1.0
"""What environments and tools get at the end of a run to let go of what they hold."""


class Asked(Protocol):
    """Whom replies are asked of: the part of an `InferenceClient` that a player uses."""

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int: ...

    def ready(self, ticket: int) -> Reply | None: ...

    def abort(self, tickets: Sequence[int]) -> None: ...

    def pending(self) -> int: ...


ClientOf = Callable[[str], Asked]
"""Whom an agent's replies are asked of."""
QUICK_S = 0.2
"""Seconds in which an environment is to be made."""


class ChatPlayer:
    """Plays conversations of `task`.

    With `blocking`, a step waits for all calls that it has made: such runs do not depend on time. Without it, the engine goes
    on while environments and tools work. `max_context` bounds each prompt with its reply, `max_tokens` a reply. `partners` are
    the agents for which others speak than the policy.
    """

    def __init__(
        self,
        task: ChatTask,
        tokenizer: Tokenizer,
        *,
        max_context: int,
        max_tokens: int,
        seed: int,
        sampling: SamplingConfig | None = None,
        blocking: bool = True,
        clock: Clock | None = None,
        partners: Mapping[str, Partner] | None = None,
    ) -> None:
        self.task, self.talk, self._partners = task, task.talk, dict(partners or {})
        self._prompts = PromptMaker(tokenizer, task.talk, of_data=task.judged)
        self._partner_prompts = {agent: PromptMaker(p.tokenizer, task.talk) for agent, p in self._partners.items()}
        self._max_context, self._max_tokens, self.seed = max_context, max_tokens, seed
        self._sampling, self._blocking = sampling or SamplingConfig(), blocking
        self._clock = clock or WallClock()
        self._calls = CallPool(call_specs(task.talk), ordered=False, clock=self._clock)
        self._open: dict[int, tuple[Conversation, Speaker | None, Message]] = {}
        """By the ticket of a call: its conversation, and for a call of a tool the agent and the call."""
        self._closing: set[int] = set()
        """Tickets of calls that let go of something."""
        self._unwanted: list[tuple[str, int]] = []
        """Agents and tickets of replies that a conversation no longer waits for."""
        self._events: list[State] = []
        self._warned: set[str] = set()

    # -------------------------------------------------------------------------------------------------- conversations
    def open(
        self,
        example: Example,
        *,
        number: int,
        seed: int,
        names: tuple[int | str, ...],
        version: int = -1,
        affinity: int = -1,
        max_turns: int,
        greedy: bool = False,
    ) -> Conversation:
        """A conversation that has not begun."""
        conversation = Conversation(
            number,
            self.task.settings(example),
            seed,
            names,
            NO_GAME,
            {},
            version=version,
            affinity=affinity,
            max_turns=max_turns,
            greedy=greedy,
        )
        self._make(conversation, example)
        return conversation

    def _make(self, conversation: Conversation, example: Example) -> None:
        """Give a conversation its environment and agents; one that cannot be made has failed, as one that cannot be reset."""
        began = self._clock.now()
        made = attempt(self._game, ((example,), {}), self.task.make)
        if (seconds := self._clock.now() - began) > QUICK_S:  # the engine waits for it here
            text = f"an environment took {seconds:.2f} s to be made (with its tools), in which the engine stood still"
            self._tell_once("slow", f"{text}; do slow work in reset(), which runs beside the engine")
        if made.reason:
            self._fail(conversation, f"environment_failed: make: {made.reason}", made.lines)
        conversation.game, conversation.sides = (NO_GAME, {}) if made.reason else made.value
        conversation.released = False

    def _game(self, example: Example) -> tuple[ChatGame, dict[str, Speaker]]:
        game = self.task.game(example)
        return game, {agent: Speaker(agent, self._toolbox(game), agent in self._partners) for agent in game.agents}

    def _prompts_of(self, side: Speaker) -> PromptMaker:
        """What writes and reads for the model that speaks for an agent."""
        return self._partner_prompts.get(side.agent, self._prompts)

    def _context_of(self, side: Speaker) -> int:
        partner = self._partners.get(side.agent)
        return self._max_context if partner is None else partner.max_context

    def _toolbox(self, game: ChatGame) -> Toolbox:
        return Toolbox([*tools_of_game(game), *self.task.tools], max_chars=self.talk.tool_chars)

    def begin(self, conversation: Conversation) -> None:
        """Reset the environment: the first prompt follows."""
        if conversation.failure:
            return
        conversation.began = self._clock.now()
        self._call(conversation, "reset", self._reset(conversation))

    def again(self, client_of: ClientOf, conversation: Conversation, example: Example) -> None:
        """Begin a conversation anew, with a new environment and new draws."""
        self.drop(client_of, conversation)
        conversation.attempt += 1
        conversation.failure, conversation.lines, conversation.called, conversation.lost = "", "", "", False
        conversation.log = []
        self._make(conversation, example)
        self.begin(conversation)

    def drop(self, client_of: ClientOf, conversation: Conversation) -> None:
        """Give a conversation up: the engine stops its replies, and what comes of its calls is not waited for."""
        for side in conversation.sides.values():
            if side.stage == "asked" and side.ticket is not None:
                client_of(side.agent).abort([side.ticket])
        for ticket in [t for t, (owner, _, _) in self._open.items() if owner is conversation]:
            del self._open[ticket]
        self.release(conversation)

    def release(self, conversation: Conversation) -> None:
        """Let go of what its environment and tools hold. A second call changes nothing."""
        if conversation.released:
            return
        conversation.released = True
        for side in conversation.sides.values():
            if side.toolbox.holds:
                self._closing.add(self._calls.submit(CLOSE, side.toolbox.close))
        self._closing.add(self._calls.submit(f"talk.step/{lane_of(conversation.game)}", close_game, conversation.game))

    # ------------------------------------------------------------------------------------------------------------ step
    def step(self, client_of: ClientOf, conversations: Iterable[Conversation]) -> int:
        """Take what has come of the engine, of environments and of tools, and ask for what comes next."""
        found = list(conversations)
        work = self._take_replies(client_of, found) + self._take_calls()
        work += self._ask(client_of, found)
        for agent, ticket in self._unwanted:
            client_of(agent).abort([ticket])
        self._unwanted = []
        return work

    def pending(self) -> int:
        """Calls of environments and tools that run."""
        return len(self._open)

    def wait(self, seconds: float) -> None:
        """Wait for a call, at most so long."""
        for outcome in self._calls.collect(seconds):
            self._settle(outcome)
        progressed()  # waiting is no hang: each call has its own deadline

    def reissue(self, client_of: ClientOf, conversations: Iterable[Conversation]) -> int:
        """Ask again for replies that an engine has lost (in a restart): those of one that has nothing to do. A request has its
        seed, so the reply is equal."""
        num = 0
        for conversation in conversations:
            for side in conversation.sides.values():
                if side.stage == "asked" and not client_of(side.agent).pending():
                    side.stage, num = "ready", num + 1
        return num

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._events.append({"kind": "event", "level": "warning", "text": text})

    def events(self) -> list[State]:
        out, self._events = self._events, []
        return out

    def close(self) -> None:
        """Give up what runs. What lets go of something gets a moment to do it."""
        for _ in range(round(END_S / STEP_S)):
            if not self._closing:
                break
            for outcome in self._calls.collect(STEP_S):
                self._settle(outcome)
        self._calls.close()

    # ---------------------------------------------------------------------------------------------------------- engine
    def _ask(self, client_of: ClientOf, conversations: Sequence[Conversation]) -> int:
        asked = 0
        for conversation in conversations:
            for place, side in enumerate(conversation.sides.values()):
                if side.stage == "ready" and not conversation.failure:
                    version = -1 if side.partner else conversation.version  # a partner has one version for ever
                    side.ticket = client_of(side.agent).submit(
                        self._request(conversation, side, place), version=version, affinity=conversation.affinity
                    )
                    side.stage, side.asked_at, asked = "asked", self._clock.now(), asked + 1
        return asked

    def _request(self, conversation: Conversation, side: Speaker, place: int) -> Batch:
        prompt, turn = side.said.last, len(side.said.turns)
        seed = make_seed(self.seed, "sample", *conversation.names, place, turn, conversation.attempt)
        room = min(self._max_tokens, self._context_of(side) - len(prompt))
        sampling = self._sampling
        if conversation.greedy:
            sampling = SamplingConfig(0.0, stop=sampling.stop, stop_tokens=sampling.stop_tokens)
        return request_rows(
            prompt,
            seed=seed,
            max_tokens=room,
            sampling=sampling,
            session=content_id(repr((conversation.names, place, conversation.attempt)).encode()),
            last=turn + 1 == conversation.max_turns,
        )

    def _take_replies(self, client_of: ClientOf, conversations: Sequence[Conversation]) -> int:
        taken = 0
        for conversation in conversations:
            for side in conversation.sides.values():
                if side.stage == "asked" and side.ticket is not None:
                    reply = client_of(side.agent).ready(side.ticket)
                    if reply is not None:
                        side.ticket, taken = None, taken + 1
                        self._replied(conversation, side, reply.rows)
        return taken

    def _replied(self, conversation: Conversation, side: Speaker, reply: Batch) -> None:
        """An agent has spoken: its calls of tools are answered, or the environment hears it."""
        side.said.reply(reply, key=side.key, engine_s=self._clock.now() - side.asked_at)
        if side.early:
            side.said.turns[0].earn(side.early, {})
            side.early = {}
        message = self._prompts_of(side).message(reply["tokens"].tolist(), tools=bool(side.toolbox.schemas))
        side.said.turns[-1].message = len(side.messages)
        side.messages.append(message)
        side.results = []
        if message.get("tool_calls") or message.get("tool_errors"):
            side.stage = "tools"
            self._use_tools(conversation, side)
        else:
            side.stage = "spoke"
            self._tell_environment(conversation)

    # ----------------------------------------------------------------------------------------------------------- tools
    def _use_tools(self, conversation: Conversation, side: Speaker) -> None:
        """Answer the calls of an agent's newest message, one after another; the first that must be waited for ends this."""
        message = side.spoken
        calls = message.get("tool_calls", ())
        while side.stage == "tools" and (number := len(side.results)) < len(calls):
            if number >= self.talk.max_calls:
                self._answer(conversation, side, calls[number], too_many(self.talk.max_calls), log=False)
                continue
            target, lane = side.toolbox.target(calls[number]), side.toolbox.lane(calls[number])
            self._open[self._calls.submit(f"talk.tool/{lane}", target)] = conversation, side, calls[number]
            return
        if side.stage == "tools":
            unread, counts = side.toolbox.unreadable(message.get("tool_errors", ()))
            side.results += unread
            side.messages += unread
            side.said.turns[-1].earn({}, counts)
            self._prepare(conversation, side, side.results, "")

    def _answer(
        self, conversation: Conversation, side: Speaker, call: Message, outcome: CallOutcome | ToolFailure, *, log: bool = True
    ) -> None:
        """Put the result of a call, or why there is none, into the conversation. `log`: the call was made."""
        try:
            if isinstance(outcome, CallOutcome) and isinstance(outcome.value, Turn):
                outcome = replace(outcome, value=own_turn(outcome.value, self.task.turn_channels))
            message, counts, turn = side.toolbox.answer(call, outcome)
        except DataError as error:  # what it earned would be lost, or it is no fault of the model's
            self._fail(conversation, f"tool_failed: {call['function']['name']}: {error}")
            return
        if side.toolbox.late:
            self._closing.add(self._calls.submit(CLOSE, side.toolbox.close_late))
        side.results.append(message)
        side.messages.append(message)
        side.said.turns[-1].earn(turn.earned if turn is not None else {}, counts)
        if log:
            conversation.log.append(["tool", side.agent, dict(call), message["content"]])
        if turn is not None and turn.over:
            self._end(conversation, "terminated" if turn.terminated else "environment")

    # ----------------------------------------------------------------------------------------------------- environment
    def _tell_environment(self, conversation: Conversation) -> None:
        """Give the environment what was said, once all whose turn it was have spoken."""
        speakers = conversation.speakers()
        if not speakers:
            return
        said = {side.agent: self._prompts.heard(side.messages[-1]) for side in speakers}
        self._call(conversation, "step", conversation.game.step, said)

    @staticmethod
    def _reset(conversation: Conversation) -> Callable[[], Any]:
        """The call of `reset`."""
        return partial(begin_game, conversation.game, conversation.task, conversation.seed)

    def _call(self, conversation: Conversation, what: Literal["reset", "step"], fn: Callable[..., Any], *args: object) -> None:
        conversation.called = what
        ticket = self._calls.submit(f"talk.step/{lane_of(conversation.game)}", fn, *args)
        self._open[ticket] = conversation, None, {}

    def _take_calls(self) -> int:
        """Take what came of calls. What one leads to may be another that is answered at once."""
        taken = 0
        while outcomes := self._outcomes():
            for outcome in outcomes:
                taken += self._settle(outcome)
        return taken

    def _outcomes(self) -> list[CallOutcome]:
        """Outcomes that are there; with `blocking`, it waits for one as long as calls run."""
        found = self._calls.collect()
        while not found and self._blocking and self._open:
            progressed()  # waiting is no hang: each call has its own deadline
            found = self._calls.collect(STEP_S)
        return found

    def _settle(self, outcome: CallOutcome) -> int:
        """Go on with the conversation that has waited for a call."""
        owner = self._open.pop(outcome.ticket, None)
        if owner is None:  # of a conversation that was given up, or a `close`
            if outcome.ticket in self._closing and outcome.reason:
                self._events.append({"kind": "event", "level": "warning", "text": f"closing a conversation: {outcome.reason}"})
            self._closing.discard(outcome.ticket)
            return 0
        conversation, side, call = owner
        if side is not None:
            side.said.turns[-1].duration_s += outcome.duration_s
            self._answer(conversation, side, call, outcome)
            if not conversation.failure:
                self._use_tools(conversation, side)
            return 1
        for speaker in conversation.speakers():
            speaker.said.turns[-1].duration_s += outcome.duration_s
        self._stepped(conversation, outcome)
        return 1

    def _stepped(self, conversation: Conversation, outcome: CallOutcome) -> None:
        """The environment has answered a `reset` or a `step`."""
        called, conversation.called = conversation.called, ""
        if outcome.reason:
            self._fail(conversation, f"environment_failed: {called}: {outcome.reason}", outcome.lines)
            return
        try:
            turns = own_turns(conversation.game, outcome.value, self.task.turn_channels)
            heard = {side.agent: side.messages[-1] for side in conversation.speakers()} if called == "step" else {}
            conversation.log.append([called, heard, plain_turns(turns)])
        except DataError as error:
            self._fail(conversation, f"environment_failed: {called}: {error}")
            return
        told = [side for side in conversation.sides.values() if side.agent in turns]
        for side in conversation.sides.values():
            side.stage = "idle" if side.stage == "spoke" else side.stage
        for side in told:  # all hear what they earned before a limit of one may end it for all
            self._told(side, turns[side.agent])
        for side in told:
            if side.stage != "over" and not conversation.failure:
                self._prepare(conversation, side, turns[side.agent].heard, turns[side.agent].key)
        if conversation.failure:
            return
        stages = {side.stage for side in conversation.sides.values()}
        if stages <= {"idle", "over"} and "idle" in stages:
            why = f"environment_failed: {called}: no agent got a Turn, and the conversation is not over for all"
            self._fail(conversation, why)
        self._check_silent(conversation)

    def _check_silent(self, conversation: Conversation) -> None:
        """An agent that is trained and never spoke has no trajectory."""
        silent = [s for s in conversation.sides.values() if s.stage == "over" and not s.said.turns and not s.partner]
        if silent and not conversation.failure:
            limits = {"turns": " (max_turns, or talk.first)", "context": " (max_context)", "time": " (talk.time_limit_s)"}
            at = limits.get(silent[0].reason, "")
            self._fail(conversation, f"environment_failed: the conversation was over{at} before {silent[0].agent} had spoken")
            conversation.hopeless = True

    def _told(self, side: Speaker, turn: Turn) -> None:
        """An agent gets new messages, what it earned, and perhaps the end. One that is through can still earn."""
        if side.said.turns:
            side.said.turns[-1].earn(turn.earned, turn.counts)
        else:
            side.early |= {name: side.early.get(name, 0.0) + value for name, value in turn.earned.items()}
        if side.stage == "over":
            return
        side.messages += turn.heard
        if turn.over:
            side.stage, side.reason = "over", "terminated" if turn.terminated else "environment"

    def _prepare(self, conversation: Conversation, side: Speaker, new: Sequence[Message], key: str) -> None:
        """Make an agent's next prompt, unless a limit of the run ends the conversation here."""
        limit = self._limit(conversation, side)
        if not limit:
            try:
                prompt = self._prompts_of(side).prompt(side.said, side.messages, new, side.toolbox.schemas)
            except DataError as error:
                self._fail(conversation, f"environment_failed: {error}")
                return
            if len(prompt) < (context := self._context_of(side)):
                side.said.ask(prompt)
                side.key = content_id(key.encode() if key else self._prompts.seen(new))
                side.stage = "ready"
                return
            limit = "context"
            if not side.said.turns:
                self._fail(conversation, f"{TOO_LONG}: {len(prompt)} tokens, room for {context - 1}")
                conversation.hopeless = True
                return
        self._end(conversation, limit)

    def _limit(self, conversation: Conversation, side: Speaker) -> Reason:
        if len(side.said.turns) >= conversation.max_turns:
            return "turns"
        late = self._clock.now() - conversation.began
        return "time" if self.talk.time_limit_s and late >= self.talk.time_limit_s else ""

    def _end(self, conversation: Conversation, reason: Reason) -> None:
        """The conversation ends here for all of its agents."""
        for side in conversation.sides.values():
            if side.stage == "asked" and side.ticket is not None:
                self._unwanted.append((side.agent, side.ticket))
            if side.stage != "over":
                side.stage, side.reason = "over", reason
        self._check_silent(conversation)

    def _fail(self, conversation: Conversation, why: str, lines: str = "") -> None:
        conversation.failure, conversation.lines = why, lines

    # ----------------------------------------------------------------------------------------------------------- state
    def data(self, conversation: Conversation) -> State:
        """Plain data, for a checkpoint. Calls that run are made again; a game or a tool whose state cannot be saved is played
        again."""
        game, *tools = self._states(conversation) or (None,)
        states = {"game": game, "tools": None if game is None else tools}
        return conversation.data(now=self._clock.now()) | states

    def _states(self, conversation: Conversation) -> list[State] | None:
        """The states of the game, and of the tools of each agent; None where one cannot be saved now, or is not needed."""
        if conversation.released:
            return None
        game, boxes = conversation.game, [side.toolbox for side in conversation.sides.values()]
        quiet = not conversation.called and all(side.stage != "tools" for side in conversation.sides.values())
        if not (quiet and can_be_saved(game) and all(box.restorable for box in boxes)):
            return None
        found: list[State] = []
        for lane, get in [
            (f"talk.step/{lane_of(game)}", partial(saved, game)),
            *(("talk.tool/thread" if box.has_state else "talk.tool/inline", box.get_state) for box in boxes),
        ]:
            outcome = self._outcome(self._calls.submit(lane, get))
            if why := outcome.reason or why_unsaved(outcome.value):
                text = f"states of {self.task.name} cannot be saved, so a resume plays conversations again: {why}"
                self._tell_once("unsaved", text)
                return None
            found.append(dict(outcome.value))
        return found

    def restored(self, data: State, example: Example) -> Conversation:
        """The conversation that `data` told, with its environment as it was."""
        conversation = self.open(
            example,
            number=data["number"],
            seed=data["seed"],
            names=tuple(data["names"]),
            version=data["version"],
            affinity=data["affinity"],
            max_turns=data["max_turns"],
            greedy=data["greedy"],
        )
        conversation.restore(data, now=self._clock.now())
        if conversation.lost:
            return conversation
        if not conversation.over and not conversation.failure:
            why = self._replayed(conversation) if data["game"] is None else self._put_back(conversation, data)
            if why:
                self._fail(conversation, f"it cannot be brought back: {why}")
                conversation.lost = True
                return conversation
        self._resume(conversation, data["called"])
        return conversation

    def _put_back(self, conversation: Conversation, data: State) -> str:
        """Give the environment and the tools the states that were saved; why that cannot be done, if so."""
        game = conversation.game
        sets: list[tuple[str, Callable[[], object]]] = [
            (f"talk.step/{lane_of(game)}", partial(put_back, game, data["game"])),
            *(
                ("talk.tool/thread", partial(side.toolbox.set_state, state))
                for side, state in zip(conversation.sides.values(), data["tools"], strict=True)
                if state
            ),
        ]
        failed = (self._outcome(self._calls.submit(lane, put)).reason for lane, put in sets)
        return next((f"its state cannot be set ({reason})" for reason in failed if reason), "")

    def _resume(self, conversation: Conversation, called: str) -> None:
        """Make the calls again that ran."""
        if called == "reset":
            self._call(conversation, "reset", self._reset(conversation))
        elif called == "step":
            self._tell_environment(conversation)
        for side in conversation.sides.values():
            if side.stage == "tools":
                self._use_tools(conversation, side)

    def _replayed(self, conversation: Conversation) -> str:
        """Play a conversation's environment and tools again up to where it stands; why that cannot be done, if so."""
        for what, who, said, *came in conversation.log:
            if what == "tool":
                if self._replay_tool(conversation.sides[who], said) not in came:
                    return f"its tool {said['function']['name']!r} did not give the same result"
                continue
            game, again = conversation.game, self._reset(conversation)
            if what == "step":
                again = partial(game.step, {agent: self._prompts.heard(message) for agent, message in who.items()})
            outcome = self._outcome(self._calls.submit(f"talk.step/{lane_of(game)}", again))
            if outcome.reason:
                return f"its environment failed ({outcome.reason})"
            try:
                same = plain_turns(own_turns(game, outcome.value, self.task.turn_channels)) == said
            except DataError:  # no turns
                same = False
            if not same:
                return "its environment did not give the same messages and rewards"
        return ""

    def _outcome(self, ticket: int) -> CallOutcome:
        while True:
            for outcome in self._calls.collect(STEP_S):
                if outcome.ticket == ticket:
                    return outcome
                self._settle(outcome)
            progressed()

    def _replay_tool(self, side: Speaker, call: Message) -> str | None:
        """The text that a call gives when it is made again; None if it cannot be made."""
        ticket = self._calls.submit(f"talk.tool/{side.toolbox.lane(call)}", side.toolbox.target(call))
        try:
            return str(side.toolbox.answer(call, self._outcome(ticket))[0]["content"])
        except DataError:
            return None
