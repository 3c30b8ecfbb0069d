"""The reference engine: plain transformers, one request at a time, one forward pass for each token. It is slow and simple.

Other engines are checked against it: in float32, the same request gives the same tokens as in `native`. Truncation uses
transformers' own samplers in the order of its `generate`: top-k, then top-p of the tokens that remain, then min-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import NonFiniteError
from runnel.core.state import State
from runnel.llm.engines.completions import Completion, CompletionEngine
from runnel.llm.engines.requests import Decode, LogitsHook, SamplingConfig, check_row, fits_in_place
from runnel.llm.engines.row_cache import RowCache
from runnel.llm.model.causal_lm import load_model_params, model_params
from runnel.llm.model.lora import Adapters, MergedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HfEngine(CompletionEngine):
    """Completes tokens with a Hugging Face model's own forward pass and its own key-value cache.

    A step adds one token to each of at most `num_slots` requests. Each request has its own pass, so its numbers do not depend
    on other requests. When weights change, running completions keep their keys and values. Stop texts need `decode_text`.
    Nothing is kept between the turns of a conversation: every prompt is computed from its start.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_slots: int,
        max_length: int,
        eos_id: int | Sequence[int],
        decode_text: Decode | None = None,
        logits_hook: LogitsHook | None = None,
    ) -> None:
        super().__init__(model.config, num_slots=num_slots, max_length=max_length, eos_id=eos_id, decode_text=decode_text)
        self.model, self.hook = model.eval(), logits_hook
        self._shared = False
        self._merged = MergedModel(self.model)
        self._rows: dict[int, RowCache] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit(requests)
        self._tell_unkept(requests, "the hf engine")

    def _remove(self, running: Sequence[Completion]) -> None:
        super()._remove(running)
        for completion in running:
            self._rows.pop(completion.request.id, None)

    @torch.no_grad()
    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        check_row(prompt, tokens, self.max_length)
        row = torch.cat((prompt, tokens))[None].to(self.model.device)
        logits: Tensor = self.model(input_ids=row, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        return torch.log_softmax(logits, dim=-1).gather(1, row[0, len(prompt) :, None])[:, 0].cpu()

    # --------------------------------------------------------------------------------------------------------- decode
    @torch.no_grad()
    def step(self) -> list[Reply]:
        if self.paused:
            return []
        self._running += [Completion(r) for r in self._take_waiting()]
        return [reply for completion in list(self._running) for reply in self._next_token(completion)]

    def _next_token(self, completion: Completion) -> list[Reply]:
        logits = self._forward(completion)
        sampling = completion.sampling
        logp = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
        if bool(torch.isnan(logp).any()):
            raise NonFiniteError("engine.logprob", self.version, "the model's logits are NaN or infinite")
        changed = logits if self.hook is None else self.hook(logits[None], [completion.request])[0]
        allowed = truncate(torch.log_softmax(changed / (sampling.temperature or 1.0), dim=-1), sampling)
        token, sampling_logprob = int(allowed.argmax()), 0.0
        if sampling.temperature > 0:  # the request's own stream has one uniform number for each possible token
            stream = np.random.Generator(np.random.Philox(key=completion.seed)).random(completion.max_tokens)
            token = draw(allowed, float(stream[len(completion.tokens)]))
            sampling_logprob = float(allowed[token])
        logprob, truncates = float(logp[token]), sampling.truncates or self.hook is not None
        return self._append(completion, token, logprob=logprob, sampling_logprob=sampling_logprob, truncates=truncates)

    def _forward(self, completion: Completion) -> Tensor:
        """Logits `[vocabulary]` of the next token. The first pass reads the prompt, each later pass the newest token."""
        id = completion.request.id
        if id not in self._rows:
            self._rows[id] = RowCache(self.model)
        row = self._rows[id]
        new = [*completion.prompt, *completion.tokens][len(row.tokens) :]
        if not row.tokens:
            completion.prefilled += len(new)
            self.num_prefilled += len(new)
        return row.run(self.model, new).logits[0, -1].float()  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------------ parameters
    def load_params(self, params: ParamSet) -> None:
        """Use `params` from the next `step` on. Requests for an exact other version must have ended before."""
        self._check_version(params.version)
        plain, adapters = Adapters.split(params.params)
        if plain:
            self._merged.reset()
            bind = fits_in_place(self.model, params)
            if self._shared and not bind:  # the parameters are the learner's memory: copy them before they are overwritten
                load_model_params(self.model, {n: p.clone() for n, p in model_params(self.model).items()}, bind=True)
            load_model_params(self.model, plain, bind=bind)
            self._shared = bind
        self._merged.load(adapters)
        self.version = params.version

    # ----------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        rows = [self._rows.get(c.request.id) for c in self._running]
        return super().snapshot() | {"rows": [{} if row is None else row.state() for row in rows]}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._running = [Completion.of_data(data) for data in state["running"]]
        held = zip(self._running, state["rows"], strict=True)
        self._rows = {c.request.id: RowCache.of(self.model, row) for c, row in held if row}


def truncate(logp: Tensor, sampling: SamplingConfig) -> Tensor:
    """Log-probabilities `[vocabulary]` after truncation: `-inf` for tokens outside of the limits, normalised over the rest."""
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    limits = [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    limits += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    limits += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p > 0 else []
    scores = logp[None]
    for limit in limits:
        scores = limit(None, scores)
    return torch.log_softmax(scores[0], dim=-1) if limits else logp


def draw(logp: Tensor, uniform: float) -> int:
    """The token at `uniform` of the cumulative distribution, in float64. Every engine draws by this rule."""
    cdf = logp.double().exp().cumsum(dim=-1)
    index = int(torch.searchsorted(cdf, cdf[-1] * uniform, right=True))
    last = int(torch.nonzero(logp > -torch.inf)[-1])  # by rounding, `index` could lie behind the last possible token
    return min(index, last)
