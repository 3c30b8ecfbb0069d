"""A text task as recipes use it: tokenizer and model that fit, with samplers, engines, evaluation and a policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from runnel.core.protocols import Collective, Inferencer, Policy
from runnel.core.records import StreamSpec
from runnel.core.rng import make_seed
from runnel.llm.algorithms.base import Algorithm
from runnel.llm.demos import DemoSampler
from runnel.llm.engines.choose import EngineConfig, make_engine
from runnel.llm.engines.requests import Engine, SamplingConfig
from runnel.llm.evaluation import TextEvaluation
from runnel.llm.export import save_policy
from runnel.llm.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.policy import ChatPolicy
from runnel.llm.recording import GroupRecorder
from runnel.llm.reference import REFERENCE, ReferenceEngine, ReferencePlan, message_bytes
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.sampler import PromptSampler
from runnel.llm.sharded import make_learner
from runnel.llm.sizes import context_of, lost_texts, measure
from runnel.llm.streams import demo_stream, rollout_stream
from runnel.llm.tasks import DataConfig, DifficultyConfig, DifficultySource, TextTask, make_task
from runnel.llm.tokenize import Tokenizer, make_tokenizer
from runnel.nets.causal_lm import ModelConfig, build_model
from runnel.nets.pretrained import model_folder
from runnel.run.experiment import PARAMS, ActorSpec, EvaluationSpec, InferenceStream, RunConfig
from runnel.run.registry import resolve_live


class PromptTask:
    """`task` (a name, data, or `file.py:make_task`) for `model` (a folder, a hub id or smollm2; empty starts a new one of the
    sizes in `lm`)."""

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
    ) -> None:
        data, folder = data or DataConfig(), model_folder(model)
        self.task: TextTask = make_task(resolve_live(task, "task"), data)
        self.measured = self.task
        """What evaluations judge by."""
        self.tokenizer: Tokenizer = make_tokenizer(folder, plain=data.plain)
        self._config, self._lm, self._engine = config, replace(lm, path=folder), engine or EngineConfig()
        self._reward_timeout_s = data.reward_timeout_s
        self._overlap = not config.deterministic and (data.background_rewards or config.launcher != "inproc")
        context = context_of(folder) if folder else lm.max_positions
        self.sizes = measure(self.task, self.tokenizer, max_tokens=max_tokens, max_prompt=data.max_prompt, context=context)
        if lost := lost_texts(self.task, self.tokenizer):
            warnings.warn(f"the tokenizer changes {len(lost)} texts of the task, e.g. {lost[0][:60]!r}", stacklevel=2)

    @property
    def channels(self) -> dict[str, float]:
        """Reward channels and their weights."""
        return dict(zip(self.task.channels, self.task.weights, strict=True))

    def judge_by(self, folder: str) -> None:
        """From now on a trained reward model judges completions; the task's own reward is logged, and evaluated."""
        own = [replace(part, weight=0.0, channels=dict.fromkeys(part.channels, 0.0)) for part in self.task.components]
        judge = RewardComponent("reward_model", "reward_model", options={"model": folder, "device": self._config.device})
        self.task = replace(self.task, reward=[judge, *own])

    def model(self) -> Any:
        """The model at the start of the run: the same in every worker."""
        return build_model(self._lm, self.tokenizer.vocab_size, seed=self._config.seed)

    def engine(self, num_slots: int) -> Engine:
        """A decoding engine over a model of its own, as configured; parameters come over the channel."""
        return make_engine(
            self._engine,
            lambda: self.model().to(self._config.device),
            folder=self._lm.path,
            num_slots=num_slots,
            max_length=self.sizes.prompt + self.sizes.completion,
            eos_id=self.tokenizer.eos_id,
            decode_text=self.tokenizer.decode,
        )

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
        rest: dict[str, Any] = {"algorithms": algorithms, "collective": ranks, "reference": reference}
        rest["recorder"] = self.recorder(self.channels)
        return make_learner(config, self.model(), device=self._config.device, **rest)

    def recorder(self, channels: Mapping[str, float] | None = None) -> GroupRecorder | None:
        """What writes groups as the learner sees them, as `config.record` says; None where it says none."""
        every = self._config.record.group_every(self._config.total_updates)
        if not every:
            return None
        examples = self.task.train
        return GroupRecorder(
            self.tokenizer,
            every=every,
            channels=channels or {},
            pass_reward=self._config.eval.pass_reward,
            example=lambda number: examples[number],
            source=self.task.name,
        )

    def reference(self, config: TokenLearnerConfig, *, depth: int) -> InferenceStream:
        """The stream of a reference model on workers of its own. Where runs must not depend on timing or on where they were
        resumed, each request is answered by itself."""
        c = self._config

        def make() -> ReferenceEngine:
            return ReferenceEngine(
                self.model(),
                temperature=config.temperature,
                device=c.device,
                precision=config.precision_on(c.device),
                max_tokens=config.micro_batch_tokens,
                apart=c.deterministic or c.launcher == "inproc",
            )

        max_bytes = message_bytes(self.sizes.prompt + self.sizes.completion)
        num_workers = c.placement.reference_workers
        return InferenceStream(make, REFERENCE, num_workers, depth=depth, max_bytes=max_bytes, params=REFERENCE)

    def demos(self, *, rows: int, lag: int) -> StreamSpec:
        """The stream of demonstrations: one segment is one batch of `rows`."""
        return demo_stream(rows=rows, max_length=self.sizes.demo, capacity=lag + 1, reader="trainer")

    def rollouts(
        self, *, group_size: int, num_prompts: int, lag: int, truncates: bool = False, reference: bool = False
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
            groups_per_batch=num_prompts,
            capacity=num_prompts * (lag + 1),
            num_writers=self._config.most_actors,
            reader="trainer",
        )

    def demo_actor(self) -> ActorSpec:
        """An actor without inference: it reads demonstrations."""

        def make(incarnation: int) -> DemoSampler:
            return DemoSampler(self.task, self.tokenizer, seed=make_seed(self._config.seed, "demos", incarnation))

        return ActorSpec("demos-0", make, writes=("demos",), asks=())

    def actors(
        self,
        *,
        group_size: int,
        sampling: SamplingConfig,
        greedy_first: bool = False,
        max_refills: int = 0,
        filter: DifficultyConfig | None = None,
        reference: ReferencePlan | None = None,
    ) -> tuple[ActorSpec, ...]:
        """Actors that play prompts, of all difficulties or as `filter` says."""

        def maker(index: int) -> Callable[[int], PromptSampler]:
            def make(incarnation: int) -> PromptSampler:
                seed = make_seed(self._config.seed, "prompts", incarnation, index)
                return PromptSampler(
                    self.task,
                    self.tokenizer,
                    group_size=group_size,
                    max_tokens=self.sizes.completion,
                    seed=seed,
                    source=DifficultySource(self.task.train, filter, seed=seed) if filter is not None and filter.on else None,
                    sampling=sampling,
                    greedy_first=greedy_first,
                    max_refills=max_refills,
                    reference=reference,
                    reward_timeout_s=self._reward_timeout_s,
                    reward_wait_s=0.005 if self._overlap and self._config.launcher == "inproc" else 0.0,
                    blocking_rewards=not self._overlap,
                )

            return make

        asks = (PARAMS,) if reference is None else (PARAMS, REFERENCE)
        return tuple(ActorSpec(f"actor-{i}", maker(i), ("rollouts",), asks) for i in range(self._config.most_actors))

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

    def policy(self, *, temperature: float) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back."""
        policy = ChatPolicy(self.model(), self.tokenizer, max_tokens=self.sizes.completion, temperature=temperature)
        return policy, policy.engine
