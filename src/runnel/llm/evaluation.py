"""Evaluation on prompts that training never sees: greedy completions and pass@k, judged by the task's own reward."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from runnel.core.contracts.evaluation import POLICY, Clients, EvalResult, Progress
from runnel.core.contracts.inference import InferenceClient
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.llm.engines.requests import SamplingConfig, request_rows
from runnel.llm.rewards.judging import RewardJob, RewardPool, Verdict, scalar, shown_prompt
from runnel.llm.tasks.text import TextTask
from runnel.llm.tokenize import Tokenizer, messages_of


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """The chance that at least one of `k` samples passes, from `num_samples` of which `num_passed` did: unbiased.

    `1 - C(n - c, k) / C(n, k)` (Chen et al. 2021, "Evaluating large language models trained on code", equation 1).

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.25, 0.5, 1.0)
    """
    return 1.0 - comb(num_samples - num_passed, k) / comb(num_samples, k)


class TextEvaluation:
    """Completes the first `num_prompts` evaluation prompts, greedily and `samples` times at random (core `Evaluation`).

    `returns` are the rewards of the greedy completions. With `samples` (at `temperature`), `extra["pass@k"]` has the estimate
    for each prompt, and `extra["passed"]` how many of its samples got a reward of at least `pass_reward`. Every completion is
    judged by itself; what gets no verdict is left out and counted in `extra["failed"]`, tries of rewards that were made again
    in `extra["retried"]`, and a prompt with more than `max_prompt` tokens in `extra["too_long"]`. Completions end behind the
    texts `stop`, as in training.
    """

    def __init__(
        self,
        task: TextTask,
        tokenizer: Tokenizer,
        *,
        num_prompts: int,
        max_tokens: int,
        seed: int,
        samples: int = 0,
        temperature: float = 1.0,
        stop: Sequence[str] = (),
        pass_k: Sequence[int] = (1,),
        pass_reward: float = 1.0,
        max_prompt: int | None = None,
        num_shown: int = 8,
        reward_timeout_s: float = 30.0,
    ) -> None:
        if samples and not all(1 <= k <= samples for k in pass_k):
            raise ConfigError("eval.pass_k", tuple(pass_k), f"each k must be from 1 to eval.samples = {samples}")
        self.task, self.tokenizer = task, tokenizer
        prompts = [(e, tokenizer.render(messages_of(e.prompt))) for e in task.eval[:num_prompts]]
        kept = [(e, p) for e, p in prompts if max_prompt is None or len(p) <= max_prompt]
        self._too_long = [float(max_prompt is not None and len(p) > max_prompt) for _, p in prompts]
        if not kept:
            raise DataError(f"task {task.name!r}: all {len(prompts)} evaluation prompts are longer than {max_prompt} tokens")
        self._examples, self._prompts = [e for e, _ in kept], [p for _, p in kept]
        self._max_tokens, self._seed, self._num_shown = max_tokens, seed, num_shown
        self._temperatures, self._stop = [0.0] + [temperature] * samples, tuple(stop)
        self._pass_k, self._pass_reward = tuple(pass_k) if samples else (), pass_reward
        self._pool = RewardPool(task.components, timeout_s=reward_timeout_s)

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        found = self._complete(clients[POLICY], round_index, progress)
        texts = [self.tokenizer.decode(tokens) for tokens in found]
        for key, (text, tokens) in enumerate(zip(texts, found, strict=True)):
            example = self._examples[key // len(self._temperatures)]
            columns = {k: [v] for k, v in example.columns.items()}
            self._pool.submit(RewardJob(key, [example.text], [text], columns, [tokens], [messages_of(example.prompt)]))
        verdicts = {v.key: v for v in self._pool.collect(block=True)}
        return self._result(verdicts, texts, [float(len(tokens)) for tokens in found])

    def _complete(self, client: InferenceClient, round_index: int, progress: Progress | None) -> list[list[int]]:
        """The tokens of all completions, those of one prompt side by side, the greedy one first."""
        tickets: dict[int, int] = {}
        each = len(self._temperatures)
        for key in range(each * len(self._prompts)):
            i, j = divmod(key, each)
            seed = make_seed(self._seed, "eval", round_index, i) if j == 0 else make_seed(self._seed, "pass", round_index, i, j)
            sampling = SamplingConfig(self._temperatures[j], stop=self._stop)
            rows = request_rows(self._prompts[i], seed=seed, max_tokens=self._max_tokens, sampling=sampling)
            tickets[key] = client.submit(rows)
        total, found = len(tickets), dict[int, list[int]]()
        while tickets:
            client.poll()
            for key, ticket in list(tickets.items()):
                reply = client.ready(ticket)
                if reply is not None:
                    found[key] = reply.rows["tokens"].tolist()
                    del tickets[key]
            if progress is not None:
                progress(len(found), total)
        return [found[key] for key in range(total)]

    def _result(self, verdicts: dict[int, Verdict], texts: list[str], lengths: list[float]) -> EvalResult:
        each = len(self._temperatures)
        first = {key: v.rewards for key, v in verdicts.items() if key % each == 0 and v.rewards is not None}
        if not first:
            why = f"{verdicts[0].failure} {shown_prompt(self._examples[0].text)}{verdicts[0].lines}"
            raise DataError(f"no evaluation prompt of task {self.task.name!r} got a reward: {why}")
        rewards = {key: {c: values[0] for c, values in r.items()} for key, r in first.items()}
        totals = {key: self.task.total(r) for key, r in rewards.items()}
        extra = {c: [scalar(r[c]) for r in rewards.values() if r[c] is not None] for c in self.task.channels}
        extra |= {
            "completion_length": [lengths[key] for key in rewards],
            "failed": [float(v.rewards is None) for v in verdicts.values()],
        }
        if any(v.retried for v in verdicts.values()):
            extra["retried"] = [float(len(v.retried)) for v in verdicts.values()]
        if any(self._too_long):
            extra["too_long"] = self._too_long
        extra |= self._passes(verdicts)
        shown: list[State] = [
            {"prompt": self._examples[key // each].text, "completion": texts[key], "reward": totals[key]}
            for key in list(totals)[: self._num_shown]
        ]
        return EvalResult(list(totals.values()), extra, shown)

    def _passes(self, verdicts: dict[int, Verdict]) -> dict[str, list[float]]:
        """pass@k of each prompt, over the samples that got a verdict; a prompt with fewer than k of those is left out of it."""
        if not self._pass_k:
            return {}
        each, counts = len(self._temperatures), []
        for i in range(len(self._examples)):
            judged = [v.rewards for j in range(1, each) if (v := verdicts[i * each + j]).rewards is not None]
            totals = [self.task.total({c: values[0] for c, values in r.items()}) for r in judged if r is not None]
            counts.append((len(totals), sum(total >= self._pass_reward - 1e-9 for total in totals)))
        out = {f"pass@{k}": [pass_at_k(n, c, k) for n, c in counts if n >= k] for k in self._pass_k}
        return {**out, "passed": [float(c) for _, c in counts], "judged": [float(n) for n, _ in counts]}

    def close(self) -> None:
        self._pool.close()
