"""Conversations of several turns as recipes use them: a `PromptTask` whose actors, streams and evaluations play them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runnel.core.config import refuse_unused
from runnel.core.contracts.evaluation import Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.errors import ConfigError
from runnel.core.records import StreamSpec
from runnel.core.rng import make_seed
from runnel.graphs.experiment import ActorSpec, EvaluationSpec, InferenceStream
from runnel.graphs.partners import PartnerModel, partner_models
from runnel.graphs.prompt_task import PromptTask
from runnel.graphs.user_objects import resolve_live
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.conversation import Conversation
from runnel.llm.chat.demos import ChatDemoSampler, check_script
from runnel.llm.chat.evaluation import ChatEvaluation
from runnel.llm.chat.partners import AGENTS, TRAINED, Partner, speakers_of
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.sampler import ChatSampler
from runnel.llm.chat.task import ChatTask, make_chat_task, with_tools
from runnel.llm.chat.tools import load_tools
from runnel.llm.checks.first_prompt import first_failure, lengths
from runnel.llm.checks.sizes import Sizes
from runnel.llm.learning.learner import DEMOS
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.tasks import DataConfig, TextTask
from runnel.llm.tasks.registry import NOT_OF_WORLDS

USUAL_CONTEXT = 4096
"""Tokens of a conversation where neither the run nor the model says less."""


class ChatPromptTask(PromptTask):
    """Conversations: of the environment `chat`, or of the prompts of `task` with `tools`. A conversation has up to `max_turns`
    replies, and prompts with their reply up to `max_context` tokens (0: as many as the model reads, at most 4096). `agents`
    says who speaks for the agents of a game (`llm/chat/partners.py`)."""

    task: ChatTask

    def __init__(
        self,
        task: str,
        config: Any,
        *,
        chat: str,
        tools: Sequence[str],
        max_turns: int,
        max_context: int,
        talk: TalkConfig,
        agents: Sequence[str] = (),
        **more: Any,
    ) -> None:
        self._chat, self._tools, self._talk, self._agents = chat, tuple(tools), talk, tuple(agents)
        self._max_turns, self._max_context = max_turns, max_context
        super().__init__(task, config, **more)
        if agents and len(self.task.agents) == 1:
            raise ConfigError(AGENTS, list(agents), "these conversations have one agent, which is the policy's; leave it out")
        self._speakers = speakers_of(agents, self.task.agents)
        self._models = partner_models(
            self._speakers,
            lm=self._lm,
            tokenizer=self.tokenizer,
            plain=(more.get("data") or DataConfig()).plain,
            max_context=self.sizes.demo,
        )

    @property
    def trained_agents(self) -> tuple[str, ...]:
        return tuple(agent for agent, who in self._speakers.items() if who == TRAINED)

    @property
    def partner_names(self) -> tuple[str, ...]:
        return tuple(model.known.stream for model in self._models.values())

    def partners(self, *, slots: int, max_bytes: int) -> list[InferenceStream]:
        num = self._config.placement.policy_workers
        return [
            InferenceStream(self._maker(one, slots), one.known.stream, num, depth=slots, max_bytes=max_bytes, params=one.params)
            for one in self._models.values()
        ]

    def _maker(self, model: PartnerModel, num_slots: int) -> Callable[[], Inferencer]:
        c, device = self._engine, self._config.device
        own = lambda: self.model_on(device, c.precision_on(device))  # noqa: E731
        return lambda: model.engine(c, own, num_slots=num_slots, device=device, seed=self._config.seed)

    @property
    def _partners(self) -> dict[str, Partner]:
        return {agent: self._models[who].known for agent, who in self._speakers.items() if who != TRAINED}

    def played(self, task: str, tasks: Sequence[str], data: DataConfig) -> TextTask:
        tools = load_tools([resolve_live(name, "tools") for name in self._tools])
        if not self._chat:
            return with_tools(super().played(task, tasks, data), tools, self._talk)
        refuse_unused(data, NOT_OF_WORLDS, "data.")
        spec = resolve_live(self._chat, "chat")
        return make_chat_task(spec, talk=self._talk, tools=tools, settings=data.parsed_settings())

    def sized(self, max_tokens: int, max_prompt: int) -> Sizes:
        room = self.context or USUAL_CONTEXT
        if self._max_context > room and self.context is not None:
            more = "" if self._lm.path else ", or raise lm.max_positions"
            raise ConfigError("max_context", self._max_context, f"the model reads {room} tokens; use at most that{more}")
        context = self._max_context or min(room, USUAL_CONTEXT)
        reply = min(max_tokens or self.task.max_tokens, context // 2)
        if max_tokens > reply:
            raise ConfigError(
                "max_tokens", max_tokens, f"leaves half of max_context = {context} to no prompt; use at most {reply}"
            )
        return Sizes(prompt=context - reply, completion=reply, demo=context)

    @property
    def most_rows(self) -> int:
        """The most rows that a trajectory may have: one, unless the chat template may rewrite the past."""
        return 1 if self._talk.history == "keep" else self._max_turns

    def rollouts(
        self,
        *,
        group_size: int,
        num_prompts: int,
        lag: int,
        truncates: bool = False,
        reference: bool = False,
        num_replaced: int = 0,
    ) -> StreamSpec:
        if reference:
            fix = (
                "workers of a reference compare single completions; use 0: the learner computes the reference of conversations"
            )
            raise ConfigError("placement.reference_workers", self._config.placement.reference_workers, fix)
        return rollout_stream(
            group_size=group_size,
            max_prompt=self.sizes.demo * self.most_rows,
            max_tokens=0,
            rewards=self.task.channels,
            turn_rewards=tuple(self.task.turn_channels),
            sampling_logprob=truncates,
            num_replaced=num_replaced,
            groups_per_batch=num_prompts,
            max_turns=max(2, self._max_turns),
            max_rows=self.most_rows,
            num_agents=self.num_trained,
            capacity=num_prompts * (lag + 1),
            num_writers=self._config.most_actors,
        )

    def sampler(self, **settings: Any) -> PromptSampler:
        return ChatSampler(
            self.task,
            self.tokenizer,
            max_turns=self._max_turns,
            max_context=self.sizes.demo,
            blocking_calls=self._config.deterministic,
            pass_reward=self._config.eval.pass_reward,
            partners=self._partners,
            **settings,
        )

    def demos(self, *, rows: int, lag: int, name: str = DEMOS) -> StreamSpec:
        # a conversation is one row here too: what a script says is never rewritten
        return super().demos(rows=rows, lag=lag, name=name)

    def demo_actor(self, stream: str = DEMOS) -> ActorSpec:
        def make(incarnation: int) -> ChatDemoSampler:
            seed = make_seed(self._config.seed, stream, incarnation)
            return ChatDemoSampler(
                self.task, self.tokenizer, seed=seed, max_turns=self._max_turns, max_length=self.sizes.demo, stream=stream
            )

        return ActorSpec(f"{stream}-0", make, writes=(stream,), asks=())

    def look(self, *, demos: bool) -> list[str]:
        """Refuses conversations that cannot begin. A script that earns nothing is told by the sampler of its
        conversations."""
        if demos:
            check_script(self.task)
        player = ChatPlayer(
            self.task,
            self.tokenizer,
            max_context=self.sizes.demo,
            max_tokens=self.sizes.completion,
            seed=self._config.seed,
            partners=self._partners,
        )
        failed = first_failure(player, self.task.train)
        if failed is not None and failed.failure:
            raise self._cannot_begin(failed)
        return []

    def _cannot_begin(self, failed: Conversation) -> ConfigError:
        """Which setting keeps conversations from beginning, and what to do."""
        found = lengths(failed.failure)
        if found is None:
            wrong = "TypeError" in failed.failure and not failed.lines
            called = "; it is called as reset(task, seed=seed)" if wrong else ""
            fix = f"no conversation begins: {failed.failure.removeprefix('environment_failed: ')}{called}"
            return ConfigError("chat", self._chat, f"{fix}; runnel check-chat says more{failed.lines}")
        num, room = found
        least = -(-(num + self.sizes.completion) // 256) * 256
        told = f"the first prompt of {self.task.name!r} has {num} tokens, and the replies come behind it"
        if room + 1 < self.sizes.demo:
            return ConfigError(AGENTS, list(self._agents), f"{told}; a partner reads {room + 1}: choose one that reads more")
        if self.context is None or self.context >= least:
            return ConfigError("max_context", self._max_context, f"{told}; use at least {least} (now {self.sizes.demo})")
        if self._lm.path:
            return ConfigError("model", self._lm.path, f"{told}; it reads {self.context}, so use another one, or shorter tasks")
        return ConfigError("lm.max_positions", self.context, f"{told}; use at least {least}, or a --model that reads more")

    def evaluation(self) -> EvaluationSpec | None:
        c = self._config.eval
        episodes = min(c.episodes, len(self.measured.eval))
        if not episodes:
            return None
        slots = min(episodes * (1 + c.samples), 64)
        return EvaluationSpec(
            make=lambda: ChatEvaluation(
                self.task,
                self.tokenizer,
                num_tasks=episodes,
                max_turns=self._max_turns,
                max_context=self.sizes.demo,
                max_tokens=self.sizes.completion,
                seed=make_seed(self._config.seed, "evaluation"),
                samples=c.samples,
                temperature=c.temperature,
                stop=self._stop,
                pass_k=c.pass_k,
                pass_reward=c.pass_reward,
                reward_timeout_s=self._reward_timeout_s,
                partners=self._partners,
            ),
            inferencer=lambda: self.engine(slots),
            others={one.known.stream: (self._maker(one, slots), one.params) for one in self._models.values()},
        )

    def policy(self, *, temperature: float = 1.0, **of_conversations: Any) -> tuple[Policy, Inferencer]:
        limits = {"max_turns": self._max_turns, "max_context": self.sizes.demo}
        return super().policy(temperature=temperature, task=self.task, **limits, **of_conversations)
