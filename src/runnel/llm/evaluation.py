"""Evaluation on prompts that training never sees: greedy completions, judged by the task's own reward."""

from __future__ import annotations

from typing import Any

from runnel.core.errors import DataError
from runnel.core.protocols import EvalResult, InferenceClient, Progress
from runnel.core.rng import make_seed
from runnel.llm.engines.requests import SamplingConfig, request_rows
from runnel.llm.rewards.judging import RewardJob
from runnel.llm.rewards.pool import RewardPool
from runnel.llm.tasks import TextTask
from runnel.llm.tokenize import Tokenizer, messages_of


class TextEvaluation:
    """Completes the first `num_prompts` evaluation prompts and returns their rewards (core `Evaluation`).

    `temperature` 0 is greedy, the same in every round. Every prompt is judged by itself; one without a verdict is left out of
    the score and counted in `extra["failed"]`.
    """

    def __init__(
        self,
        task: TextTask,
        tokenizer: Tokenizer,
        *,
        num_prompts: int,
        max_tokens: int,
        seed: int,
        temperature: float = 0.0,
        num_samples: int = 8,
        reward_timeout_s: float = 30.0,
    ) -> None:
        self.task, self.tokenizer = task, tokenizer
        self._examples = list(task.eval[:num_prompts])
        self._max_tokens, self._seed, self._temperature, self._num_samples = max_tokens, seed, temperature, num_samples
        self._pool = RewardPool(task.components, timeout_s=reward_timeout_s)

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        completions = self._complete(client, round_index, progress)
        texts = [self.tokenizer.decode(tokens) for tokens in completions]
        for i, (example, text) in enumerate(zip(self._examples, texts, strict=True)):
            columns = {k: [v] for k, v in example.columns.items()}
            self._pool.submit(RewardJob(i, [example.text], [text], columns))
        return self._result(texts, [float(len(tokens)) for tokens in completions])

    def _complete(self, client: InferenceClient, round_index: int, progress: Progress | None) -> list[list[int]]:
        """The tokens of each prompt's completion, in the order of the prompts."""
        tickets: dict[int, int] = {}
        for i, example in enumerate(self._examples):
            prompt = self.tokenizer.render(messages_of(example.prompt))
            seed = make_seed(self._seed, "eval", round_index, i)
            rows = request_rows(prompt, seed=seed, max_tokens=self._max_tokens, sampling=SamplingConfig(self._temperature))
            tickets[i] = client.submit(rows)
        found: dict[int, list[int]] = {}
        while tickets:
            client.poll()
            for i, ticket in list(tickets.items()):
                reply = client.ready(ticket)
                if reply is not None:
                    found[i] = reply.rows["tokens"].tolist()
                    del tickets[i]
            if progress is not None:
                progress(len(found), len(self._examples))
        return [found[i] for i in range(len(self._examples))]

    def _result(self, texts: list[str], lengths: list[float]) -> EvalResult:
        verdicts = self._pool.collect(block=True)
        good = [v for v in verdicts if v.rewards is not None]
        if not good:
            raise DataError(f"no evaluation prompt of task {self.task.name!r} got a reward: {verdicts[0].failure}")
        rewards = {v.key: {c: values[0] for c, values in (v.rewards or {}).items()} for v in good}
        returns = [self.task.total(r) for r in rewards.values()]
        extra = {c: [r[c] for r in rewards.values()] for c in self.task.channels}
        extra |= {"length": [lengths[i] for i in rewards], "failed": [float(v.rewards is None) for v in verdicts]}
        return EvalResult(returns, extra, [self._sample(i, texts[i], rewards[i]) for i in list(rewards)[: self._num_samples]])

    def _sample(self, i: int, text: str, rewards: dict[str, float]) -> dict[str, Any]:
        return {"prompt": self._examples[i].text, "completion": text, "reward": self.task.total(rewards)}

    def close(self) -> None:
        self._pool.close()
