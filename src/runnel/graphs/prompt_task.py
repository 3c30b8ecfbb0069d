"""A text task as recipes use it: tokenizer and model that fit, with samplers, engines, evaluation and a policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from runnel.core.contracts.evaluation import Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.learning import Collective
from runnel.core.contracts.tasks import Curriculum, TaskSource
from runnel.core.records import StreamSpec
from runnel.core.rng import make_seed
from runnel.core.task_store import TaskStore
from runnel.graphs.experiment import PARAMS, ActorSpec, DiskNeed, EvaluationSpec, InferenceStream
from runnel.graphs.run_config import RunConfig
from runnel.graphs.user_objects import resolve_live
from runnel.llm.algorithms.base import Algorithm
from runnel.llm.checks.at_start import check_engine, check_folder, check_learner
from runnel.llm.checks.demonstrations import check_demonstrations
from runnel.llm.checks.sizes import Sizes, context_of, learner_bytes, lost_texts, measure, some
from runnel.llm.engines.choose import EngineConfig, make_engine
from runnel.llm.engines.requests import Engine, SamplingConfig
from runnel.llm.evaluation import TextEvaluation
from runnel.llm.export import save_policy
from runnel.llm.learning.learner import DEMOS, TokenLearner, TokenLearnerConfig
from runnel.llm.learning.recording import GroupRecorder
from runnel.llm.learning.reference import REFERENCE, ReferenceEngine, ReferencePlan, message_bytes
from runnel.llm.learning.sharded import learner_class
from runnel.llm.learning.task_history import DifficultyHistory, JoinedHistory, NewPrompts, SourceHistory
from runnel.llm.model.architecture import model_config
from runnel.llm.model.causal_lm import ModelConfig, build_model, count_parameters, shared_copy
from runnel.llm.model.lora import LoraConfig, check_adapters
from runnel.llm.model.pretrained import model_folder
from runnel.llm.model.token_model import DTYPES, Precision, TokenModel
from runnel.llm.policy import ChatPolicy
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.scorers import check_scorer
from runnel.llm.sampling.demos import DemoSampler
from runnel.llm.sampling.groups import demo_stream, rollout_stream
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.tasks import (
    DataConfig,
    DifficultyConfig,
    DifficultySource,
    Example,
    NewTasksConfig,
    SourcesConfig,
    TextTask,
    make_task,
)
from runnel.llm.tasks.new_examples import NewExamples
from runnel.llm.tasks.new_tasks import TaskRoom
from runnel.llm.tasks.sources import MixedSource, join_tasks, named_tasks
from runnel.llm.tokenize import Tokenizer, make_tokenizer, messages_of

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedModel


class PromptTask:
    """`task` (a name, data, or `file.py:make_task`) for `model` (a folder, a hub id or smollm2; empty starts a new one of the
    sizes in `lm`). Evaluations and the policy end completions behind the texts `stop`, as the sampling of actors does. With
    `lora` (of rank above 0) the learner trains adapters: all who work with the model in one process read the weights beside
    them in one place. With `tasks` (NAME=TASK) it has several sources of prompts, in place of `task`."""

    def __init__(
        self,
        task: str,
        config: RunConfig,
        *,
        model: str,
        lm: ModelConfig,
        max_tokens: int = 0,
        engine: EngineConfig | None = None,
        data: DataConfig | None = None,
        stop: Sequence[str] = (),
        lora: LoraConfig | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        data, folder = data or DataConfig(), model_folder(model)
        self.sources: dict[str, Sequence[Example]] = {}
        """With `tasks`, the train examples of each source."""
        self.task = self.played(task, tasks, data)
        self.measured = self.task
        """What evaluations judge by."""
        self.tokenizer: Tokenizer = make_tokenizer(folder, plain=data.plain)
        self._config, self._lm, self._engine = config, replace(lm, path=folder), engine or EngineConfig()
        if config.deterministic:
            self._engine = self._engine.deterministic()
        self._lora = lora if lora is not None and lora.rank else None
        self._bases: dict[tuple[str, Precision], PreTrainedModel] = {}
        if self._lora is not None:
            check_adapters(model_config(self._lm, self.tokenizer.vocab_size), self._lora)
        self._stop, self._reward_timeout_s = tuple(stop), data.reward_timeout_s
        self._overlap = not config.deterministic and (data.background_rewards or config.launcher != "inproc")
        self.context = context_of(folder) if folder else lm.max_positions
        """The longest row that the model can read, in tokens, if it says."""
        if folder:
            check_folder(folder, engine=self._engine.kind, device=config.device)
        self._unchecked = {"engine", "learner"} if folder else set[str]()
        for part in self.task.components:
            if part.fn == "reward_model" and "model" in part.options:
                self._check_scorer(str(part.options["model"]), "reward.model")
        self.sizes = self.sized(max_tokens, data.max_prompt)

    def played(self, task: str, tasks: Sequence[str], data: DataConfig) -> TextTask:
        """What is played; of several sources it fills `sources`."""
        if not tasks:
            return make_task(resolve_live(task, "task"), data)
        joined, self.sources = join_tasks({name: make_task(one, data) for name, one in named_tasks(tasks).items()})
        return joined

    def sized(self, max_tokens: int, max_prompt: int) -> Sizes:
        """The longest prompt, completion and demonstration. Texts that the tokenizer changes are told."""
        sizes = measure(self.task, self.tokenizer, max_tokens=max_tokens, max_prompt=max_prompt, context=self.context)
        if lost := lost_texts(self.task, self.tokenizer):
            warnings.warn(f"the tokenizer changes {len(lost)} texts of the task, e.g. {lost[0][:60]!r}", stacklevel=2)
        return sizes

    @property
    def channels(self) -> dict[str, float]:
        """Reward channels and their weights."""
        return dict(zip(self.task.channels, self.task.weights, strict=True))

    def judge_by(self, folder: str) -> None:
        """From now on a trained reward model judges completions; the task's own reward is logged, and evaluated."""
        own = [replace(part, weight=0.0, channels=dict.fromkeys(part.channels, 0.0)) for part in self.task.components]
        judge = RewardComponent("reward_model", "reward_model", options={"model": folder, "device": self._config.device})
        self.task = replace(self.task, reward=[judge, *own])
        self._check_scorer(folder, "reward_model")

    def _check_scorer(self, folder: str, field: str) -> None:
        """A reward model that could not judge is refused here; one with another tokenizer than the policy's is told."""
        asked = [(messages_of(e.prompt), e.answer or "") for e in some(self.task.train, 4)]
        ours = [[*self.tokenizer.render(messages), *self.tokenizer.answer(answer)] for messages, answer in asked]
        if check_scorer(folder, asked, field=field) != ours:
            text = f"{field} {folder} has another tokenizer than the policy, or another chat template: it judges text"
            warnings.warn(text, stacklevel=2)

    def model(self) -> PreTrainedModel:
        """The model at the start of the run: the same in every worker."""
        return build_model(self._lm, self.tokenizer.vocab_size, seed=self._config.seed)

    def model_on(self, device: str, precision: Precision) -> PreTrainedModel:
        """The model for whoever takes its parameters over a channel, or trains adapters beside them: then it is built once for
        each device and precision, and what is given out are modules over the same weights."""
        if self._lora is None:
            return self.model().to(device)
        key = (device, precision)
        if key not in self._bases:
            seed = self._config.seed
            self._bases[key] = build_model(
                self._lm, self.tokenizer.vocab_size, seed=seed, dtype=DTYPES[precision], device=device
            )
        return shared_copy(self._bases[key])

    def trained_model(self, config: TokenLearnerConfig) -> PreTrainedModel:
        """The model for a learner: in float32 where it is trained, shared where adapters are trained beside it."""
        device = self._config.device
        return self.model_on(device, config.precision_on(device)) if config.lora.rank else self.model()

    def engine(self, num_slots: int) -> Engine:
        """A decoding engine, as configured; parameters come over the channel."""
        device = self._config.device
        engine = make_engine(
            self._engine,
            lambda: self.model_on(device, self._engine.precision_on(device)),
            folder=self._lm.path,
            num_slots=num_slots,
            max_length=self.sizes.prompt + self.sizes.completion,
            eos_id=self.tokenizer.end_ids,
            decode_text=self.tokenizer.spell,
        )
        if "engine" in self._unchecked:
            check_engine(engine)
            self._unchecked.remove("engine")
        return engine

    def message_bytes(self, sampling: SamplingConfig) -> int:
        """Bytes that a request for a completion, or the reply to it, may take."""
        stops = sum(len(text.encode()) + 1 for text in sampling.stop) + 8 * len(sampling.stop_tokens)
        return 4096 + stops + 32 * (self.sizes.prompt + self.sizes.completion)

    def learner(
        self,
        config: TokenLearnerConfig,
        algorithms: Mapping[str, Algorithm],
        ranks: Collective,
        reference: ReferencePlan | None = None,
    ) -> TokenLearner:
        """The learner of one rank of the trainer, with an algorithm for each reader."""
        made = learner_class(config, ranks, self._config.device)(
            config,
            self.trained_model(config),
            algorithms=algorithms,
            collective=ranks,
            device=self._config.device,
            reference=reference,
            recorder=None if config.in_parts else self.recorder(self.channels),
        )
        return self.checked(made)

    def checked(self, learner: TokenLearner) -> TokenLearner:
        """A learner that was held against a given model's own forward pass; one in parts runs that very pass."""
        if "learner" in self._unchecked and isinstance(learner.policy, TokenModel):
            check_learner(learner.policy)
            self._unchecked.remove("learner")
        return learner

    def disk(self, config: TokenLearnerConfig, needs: Collection[str] = ()) -> DiskNeed:
        """What a run that trains the model writes; the exported model is in float32."""
        num = count_parameters(model_config(self._lm, self.tokenizer.vocab_size))
        precision = config.precision_on(self._config.device)
        each, params = learner_bytes(num, trained=not config.lora.rank, precision=precision, needs=needs)
        return DiskNeed(each=each, params=params, once=4 * num)

    def recorder(self, channels: Mapping[str, float] | None = None) -> GroupRecorder | None:
        """What writes groups as the learner sees them, as `config.record` says; None where it says none."""
        every = self._config.record.group_every(self._config.total_updates)
        if not every:
            return None
        return GroupRecorder(
            self.tokenizer,
            every=every,
            channels=channels or {},
            pass_reward=self._config.eval.pass_reward,
            example=self.task.find,
            source=self.task.name,
            agents=self.trained_agents,
        )

    def reference(self, config: TokenLearnerConfig, *, depth: int, temperature: float) -> InferenceStream:
        """The stream of a reference model on workers of its own, with log-probabilities at `temperature`. Where runs must not
        depend on timing or on where they were resumed, each request is answered by itself."""
        c = self._config

        def make() -> ReferenceEngine:
            return ReferenceEngine(
                self.model_on(c.device, config.precision_on(c.device)),
                temperature=temperature,
                device=c.device,
                precision=config.precision_on(c.device),
                max_tokens=config.micro_batch_tokens,
                apart=c.deterministic or c.launcher == "inproc",
            )

        max_bytes = message_bytes(self.sizes.prompt + self.sizes.completion)
        num_workers = c.placement.reference_workers
        return InferenceStream(make, REFERENCE, num_workers, depth=depth, max_bytes=max_bytes, params=REFERENCE)

    def demos(self, *, rows: int, lag: int, name: str = DEMOS) -> StreamSpec:
        """A stream of demonstrations: one segment has the `rows` of a batch."""
        return replace(demo_stream(rows=rows, max_length=self.sizes.demo, capacity=lag + 1), name=name)

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
        """The stream of groups: `num_prompts` segments make a batch."""
        return rollout_stream(
            group_size=group_size,
            max_prompt=self.sizes.prompt,
            max_tokens=self.sizes.completion,
            rewards=self.task.channels,
            token_rewards=self.task.token_channels,
            sampling_logprob=truncates,
            reference_logprob=reference,
            num_replaced=num_replaced,
            groups_per_batch=num_prompts,
            capacity=num_prompts * (lag + 1),
            num_writers=self._config.most_actors,
        )

    def demo_actor(self, stream: str = DEMOS) -> ActorSpec:
        """An actor without inference: it reads demonstrations."""

        def make(incarnation: int) -> DemoSampler:
            seed = make_seed(self._config.seed, stream, incarnation)
            return DemoSampler(self.task, self.tokenizer, seed=seed, max_length=self.context, stream=stream)

        return ActorSpec(f"{stream}-0", make, writes=(stream,), asks=())

    def look(self, *, demos: bool) -> list[str]:
        """What is looked at before a run is made, as it takes a while: `demos`, whether demonstrations are imitated."""
        return self.check_demos() if demos else []

    def check_demos(self) -> list[str]:
        """What to tell of demonstrations that the task's reward does not like; raises where it likes none."""
        return check_demonstrations(self.measured, self.tokenizer, timeout_s=self._reward_timeout_s)

    def actors(
        self,
        *,
        group_size: int,
        sampling: SamplingConfig,
        greedy_first: bool = False,
        max_refills: int = 0,
        demo_first: bool = False,
        reset_share: float = 0.0,
        filter: DifficultyConfig | None = None,
        room: bool = False,
        reference: ReferencePlan | None = None,
    ) -> tuple[ActorSpec, ...]:
        """Actors that play prompts, of all difficulties or as `filter` says; with `room` also those that are added while the
        run goes on."""

        def maker(index: int) -> Callable[[int], PromptSampler]:
            def make(incarnation: int) -> PromptSampler:
                seed = make_seed(self._config.seed, "prompts", incarnation, index)
                source: TaskSource | None = None
                if self.sources or room or (filter is not None and filter.on):  # all actors draw as one would
                    seed = make_seed(self._config.seed, "prompts")
                    source = self._chosen(filter or DifficultyConfig(), seed, room)
                return self.sampler(
                    group_size=group_size,
                    max_tokens=self.sizes.completion,
                    seed=seed,
                    source=source,
                    sampling=sampling,
                    greedy_first=greedy_first,
                    max_refills=max_refills,
                    demo_first=demo_first,
                    reset_share=reset_share,
                    reference=reference,
                    reward_timeout_s=self._reward_timeout_s,
                    reward_wait_s=0.005 if self._overlap else 0.0,  # a reward that is ready rings no bell
                    blocking_rewards=not self._overlap,
                    too_old=self._config.lag_rule(1).should_abort if self._config.staleness.mode == "window" else None,
                )

            return make

        asks = (PARAMS, *self.partner_names) if reference is None else (PARAMS, REFERENCE)
        return tuple(ActorSpec(f"actor-{i}", maker(i), ("rollouts",), asks) for i in range(self._config.most_actors))

    @property
    def trained_agents(self) -> tuple[str, ...]:
        """Names of the agents that are trained; empty where there are no agents."""
        return ()

    @property
    def num_trained(self) -> int:
        """Trajectories of each of the `group_size` plays of a task: one for each agent that is trained."""
        return max(1, len(self.trained_agents))

    @property
    def partner_names(self) -> tuple[str, ...]:
        """Inference streams that are asked beside the policy's, for agents that are not trained."""
        return ()

    def partners(self, *, slots: int, max_bytes: int) -> list[InferenceStream]:
        """The inference streams `partner_names`."""
        return []

    def sampler(self, **settings: Any) -> PromptSampler:
        """A sampler of an actor."""
        return PromptSampler(self.task, self.tokenizer, **settings)

    def _chosen(self, filter: DifficultyConfig, seed: int, room: bool) -> TaskSource:
        if self.sources:
            new = {name: NewExamples(name) for name in self.sources} if room else None
            return MixedSource(self.sources, filter, seed=seed, new=new)
        return DifficultySource(self.task.train, filter, seed=seed, new=NewExamples() if room else None)

    def room(self, config: NewTasksConfig, data: DataConfig) -> TaskRoom:
        """What may be added to the prompts while the run goes on."""
        return TaskRoom(
            config,
            self.task,
            data,
            num_tokens=lambda example: len(self.tokenizer.render(messages_of(example.prompt))),
            longest=self.sizes.prompt,
            sources=tuple(self.sources),
        )

    def curriculum(
        self, filter: DifficultyConfig, sources: SourcesConfig, new: NewTasksConfig, first_of: Callable[[int], int]
    ) -> Curriculum:
        """What the trainer learns of prompts and of their sources, and the prompts that are added (`new`). `first_of`: the
        first segment that sees the history of a version."""
        parts: dict[str, Curriculum] = {}
        if filter.on:
            capacity = len(self.task.train) + new.capacity
            parts["prompts"] = DifficultyHistory(filter, channels=self.channels, capacity=capacity)
        if self.sources:
            names, find = list(self.sources), self.task.find
            parts["sources"] = SourceHistory(sources, names, channels=self.channels, find=find)
        if new.capacity:
            store = TaskStore(capacity=new.capacity, max_bytes=new.max_bytes)
            parts["new"] = NewPrompts(store, first_of=first_of, task=self.task)
        return JoinedHistory(parts)

    def evaluation(self) -> EvaluationSpec | None:
        """Greedy answers to unseen prompts, and samples of them, as `config.eval` says."""
        c = self._config.eval
        episodes = min(c.episodes, len(self.measured.eval))
        if not episodes:
            return None
        return EvaluationSpec(
            make=lambda: TextEvaluation(
                self.measured,
                self.tokenizer,
                num_prompts=episodes,
                max_tokens=self.sizes.completion,
                seed=make_seed(self._config.seed, "evaluation"),
                samples=c.samples,
                temperature=c.temperature,
                stop=self._stop,
                pass_k=c.pass_k,
                pass_reward=c.pass_reward,
                max_prompt=self.sizes.prompt,
                reward_timeout_s=self._reward_timeout_s,
            ),
            inferencer=lambda: self.engine(min(episodes * (1 + c.samples), 64)),
        )

    def export(self, params: Mapping[str, Tensor], folder: Path) -> None:
        """Save the model with the weights `params`, and its tokenizer."""
        save_policy(self.model(), params, self.tokenizer, folder)

    def policy(self, *, temperature: float = 1.0, **of_conversations: Any) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back."""
        limits: dict[str, Any] = {"max_tokens": self.sizes.completion, "stop": self._stop}
        policy = ChatPolicy(self.model(), self.tokenizer, temperature=temperature, **limits, **of_conversations)
        return policy, policy.engine
