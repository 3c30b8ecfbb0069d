"""A text task as recipes use it: tokenizer and model that fit, with samplers, engines, evaluation and a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from runnel.core.protocols import Inferencer, Policy
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
from runnel.llm.sampler import PromptSampler
from runnel.llm.streams import demo_stream, rollout_stream
from runnel.llm.tasks import TextTask, make_task
from runnel.llm.tokenize import CharTokenizer, Tokenizer, load_tokenizer, messages_of
from runnel.nets.causal_lm import ModelConfig, build_model
from runnel.run.experiment import ActorSpec, EvaluationSpec, RunConfig
from runnel.run.registry import resolve_live


@dataclass(frozen=True)
class Sizes:
    """Longest prompt, completion and demonstration of a task, in tokens."""

    prompt: int
    completion: int
    demo: int


class PromptTask:
    """`task` (a name, or `file.py:make_task`) for `model` (a folder; empty starts a new one of the sizes in `lm`)."""

    def __init__(
        self,
        task: str,
        config: RunConfig,
        *,
        model: str,
        lm: ModelConfig,
        max_tokens: int = 0,
        engine: EngineConfig | None = None,
    ) -> None:
        found = resolve_live(task, "task")
        self.task: TextTask = make_task(found)
        self.tokenizer: Tokenizer = load_tokenizer(model) if model else CharTokenizer()
        self._config, self._lm, self._engine = config, replace(lm, path=model), engine or EngineConfig()
        self.sizes = self._measure(max_tokens)

    def _measure(self, max_tokens: int) -> Sizes:
        examples = [*self.task.train, *self.task.eval]
        prompts = [len(self.tokenizer.render(messages_of(e.prompt))) for e in examples]
        answers = [len(self.tokenizer.encode(e.answer)) + 1 if e.answer is not None else 0 for e in examples]
        demo = max(p + a for p, a in zip(prompts, answers, strict=True))
        return Sizes(prompt=max(prompts), completion=max_tokens or self.task.max_tokens, demo=demo)

    @property
    def channels(self) -> dict[str, float]:
        """Reward channels and their weights."""
        return dict(zip(self.task.channels, self.task.weights, strict=True))

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

    def learner(self, config: TokenLearnerConfig, algorithms: Mapping[str, Algorithm]) -> TokenLearner:
        """The trainer's learner, with an algorithm for each reader."""
        return TokenLearner(config, self.model(), algorithms=algorithms, device=self._config.device)

    def demos(self, *, rows: int, lag: int) -> StreamSpec:
        """The stream of demonstrations: one segment is one batch of `rows`."""
        return demo_stream(rows=rows, max_length=self.sizes.demo, capacity=lag + 1, reader="trainer")

    def rollouts(self, *, group_size: int, num_prompts: int, lag: int) -> StreamSpec:
        """The stream of groups: `num_prompts` segments make a batch."""
        return rollout_stream(
            group_size=group_size,
            max_prompt=self.sizes.prompt,
            max_tokens=self.sizes.completion,
            rewards=self.task.channels,
            token_rewards=self.task.token_channels,
            groups_per_batch=num_prompts,
            capacity=num_prompts * (lag + 1),
            num_writers=self._config.num_actors,
            reader="trainer",
        )

    def demo_actor(self) -> ActorSpec:
        """An actor without inference: it reads demonstrations."""

        def make(incarnation: int) -> DemoSampler:
            return DemoSampler(self.task, self.tokenizer, seed=make_seed(self._config.seed, "demos", incarnation))

        return ActorSpec("demos-0", make, writes=("demos",), asks=())

    def actors(
        self, *, group_size: int, temperature: float, greedy_first: bool = False, max_refills: int = 0
    ) -> tuple[ActorSpec, ...]:
        """Actors that play prompts."""

        def maker(index: int) -> Callable[[int], PromptSampler]:
            def make(incarnation: int) -> PromptSampler:
                return PromptSampler(
                    self.task,
                    self.tokenizer,
                    group_size=group_size,
                    max_tokens=self.sizes.completion,
                    seed=make_seed(self._config.seed, "prompts", incarnation, index),
                    sampling=SamplingConfig(temperature),
                    greedy_first=greedy_first,
                    max_refills=max_refills,
                    blocking_rewards=self._config.launcher == "inproc" or self._config.deterministic,
                )

            return make

        return tuple(ActorSpec(f"actor-{i}", maker(i), writes=("rollouts",)) for i in range(self._config.num_actors))

    def evaluation(self) -> EvaluationSpec | None:
        """Greedy answers to unseen prompts, as `config.eval` says."""
        episodes = min(self._config.eval.episodes, len(self.task.eval))
        if not episodes:
            return None
        return EvaluationSpec(
            make=lambda: TextEvaluation(
                self.task,
                self.tokenizer,
                num_prompts=episodes,
                max_tokens=self.sizes.completion,
                seed=make_seed(self._config.seed, "evaluation"),
            ),
            inferencer=lambda: self.engine(min(episodes, 64)),
        )

    def export(self, params: Mapping[str, Tensor], folder: Path) -> None:
        """Save the model with the weights `params`, and its tokenizer."""
        save_policy(self.model(), params, self.tokenizer, folder)

    def policy(self, *, temperature: float) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back."""
        policy = ChatPolicy(self.model(), self.tokenizer, max_tokens=self.sizes.completion, temperature=temperature)
        return policy, policy.engine
