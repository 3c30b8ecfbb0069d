"""The native engine: continuous batching in plain torch, on any Llama-like Hugging Face model.

Consumes requests (`tokens`, `seed`, `max_tokens`, `temperature`), produces completions with each token's log-probability and
policy version. It waits for requests, and while paused for `resume`; a request for an exact version waits for that version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.protocols import ParamSet, Reply, Request, State
from runnel.llm.engines.requests import check_request, reply_rows
from runnel.llm.engines.slots import Running, SlotCache
from runnel.nets.causal_lm import hidden_states, load_model_params


class NativeEngine:
    """Decodes token by token behind `submit` and `step`.

    A step decodes one token in every running slot, in one forward pass; then it admits waiting requests into free slots, with
    one padded prefill pass that gives each its first token. Each request draws from its own random stream (Philox, keyed by
    its seed; one uniform a token, inverse cumulative distribution), so its tokens do not depend on its neighbours, up to the
    rounding of differently sized matrix products.

    Reply rows: `tokens [m]`, `logprob [m]` (at the request's temperature; at 1 if greedy), `policy_version [m]`,
    `terminated [1]`. The model's logits must be its output embedding of its last hidden state.
    """

    immediate = False

    def __init__(self, model: Any, *, num_slots: int, max_length: int, eos_id: int, pad_id: int, greedy: bool = False) -> None:
        limit = int(model.config.max_position_embeddings)
        if max_length > limit:
            raise ConfigError("engine.max_length", max_length, f"the model has {limit} positions; use at most that")
        self.model, self.num_slots, self.max_length = model.eval(), num_slots, max_length
        self.eos_id, self.pad_id, self.greedy = eos_id, pad_id, greedy
        self.version = -1
        self.paused = False
        self._bound = False
        self._head = model.get_output_embeddings()
        self._device = self._head.weight.device
        self._cache = SlotCache(num_slots, max_length)
        self._waiting: list[Request] = []
        self._running: list[Running] = []
        self.num_tokens = 0
        """Tokens made since the start."""

    # ------------------------------------------------------------------------------------------------------- requests
    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            check_request(request, self.max_length)
        self._waiting.extend(requests)

    def pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def abort(self, ids: Sequence[int]) -> None:
        """Forget these requests; their slots are free at once."""
        gone = set(ids)
        self._waiting = [r for r in self._waiting if r.id not in gone]
        self._free([i for i, r in enumerate(self._running) if r.request.id in gone])

    def pause(self) -> None:
        """`step` does nothing until `resume`; what is running stays."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # --------------------------------------------------------------------------------------------------------- decode
    @torch.no_grad()
    def step(self) -> list[Reply]:
        if self.paused:
            return []
        replies = self._decode() if self._running else []
        admitted = self._admit()
        return replies + (self._prefill(admitted) if admitted else [])

    def _decode(self) -> list[Reply]:
        """One more token for every running row. The row's newest token is not in the cache yet: this pass puts it there."""
        running = self._running
        positions = torch.tensor([r.length - 1 for r in running], device=self._device)
        longest = max(r.length for r in running)
        tokens = torch.tensor([[r.last] for r in running], device=self._device)
        mask = torch.arange(longest, device=self._device) <= positions[:, None]
        self._cache.aim_decode(positions, longest)
        hidden = self._forward(tokens, positions[:, None], mask[:, None, None])
        self._sample(hidden[:, -1], running)
        return self._collect(0)

    def _prefill(self, admitted: list[Running]) -> list[Reply]:
        """The first token of each admitted row, from one forward pass over their padded prompts."""
        first = len(self._running)
        self._running += admitted
        lengths = torch.tensor([r.prompt_length for r in admitted], device=self._device)
        longest = int(lengths.max())
        tokens = torch.full((len(admitted), longest), self.pad_id, dtype=torch.int64, device=self._device)
        for i, row in enumerate(admitted):
            tokens[i, : row.prompt_length] = row.request.rows["tokens"]
        steps = torch.arange(longest, device=self._device)
        self._cache.aim_prefill(first, len(admitted), longest)
        mask = (steps[None, :] <= steps[:, None]).expand(len(admitted), 1, longest, longest)
        hidden = self._forward(tokens, steps.expand(len(admitted), -1), mask)
        self._sample(hidden[torch.arange(len(admitted), device=self._device), lengths - 1], admitted)
        return self._collect(first)

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return hidden_states(self.model, tokens, position_ids=positions, attention_mask=mask, past_key_values=self._cache)

    def _sample(self, hidden: Tensor, rows: Sequence[Running]) -> None:
        """Append one token to each of `rows`, from its hidden state `[n, width]`."""
        heat = [0.0 if self.greedy else r.temperature for r in rows]
        scale = torch.tensor([t if t > 0 else 1.0 for t in heat], device=self._device)
        draws = torch.tensor([r.uniforms[len(r.tokens)] for r in rows], dtype=torch.float64, device=self._device)
        logp = torch.log_softmax(self._head(hidden).float() / scale[:, None], dim=-1)
        cdf = logp.double().exp().cumsum(dim=-1)
        tokens = torch.searchsorted(cdf, (draws * cdf[:, -1])[:, None], right=True).squeeze(1).clamp(max=cdf.shape[1] - 1)
        if 0.0 in heat:
            tokens = torch.where(torch.tensor(heat, device=self._device) > 0, tokens, logp.argmax(dim=-1))
        chosen = logp.gather(1, tokens[:, None]).squeeze(1)
        if not bool(torch.isfinite(chosen).all()):
            raise NonFiniteError("engine.logprob", self.version, "the model's logits are NaN or infinite")
        self.num_tokens += len(rows)
        for row, token, logprob in zip(rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.append(token, logprob, self.version)

    # ---------------------------------------------------------------------------------------------------------- slots
    def _admit(self) -> list[Running]:
        """Waiting requests that get a slot now, oldest first; one for an exact version waits until that is loaded."""
        free = self.num_slots - len(self._running)
        ready = [r for r in self._waiting if r.version in (-1, self.version)][:free]
        taken = {id(r) for r in ready}
        self._waiting = [r for r in self._waiting if id(r) not in taken]
        return [Running.of(r) for r in ready]

    def _collect(self, first: int) -> list[Reply]:
        """Replies of the rows from `first` on that have ended, whose slots become free."""
        ended = [i for i, r in enumerate(self._running) if i >= first and self._ended(r)]
        replies = [self._reply(self._running[i]) for i in ended]
        self._free(ended)
        return replies

    def _ended(self, row: Running) -> bool:
        return row.last == self.eos_id or len(row.tokens) == row.max_tokens

    def _reply(self, row: Running) -> Reply:
        rows = reply_rows(row.tokens, row.logprobs, row.versions, terminated=row.last == self.eos_id)
        return Reply(row.request.id, rows, row.versions[-1])

    def _free(self, rows: Sequence[int]) -> None:
        """Remove rows; the last running row moves into each hole."""
        for hole in sorted(rows, reverse=True):
            last = self._running.pop()
            if hole < len(self._running):
                self._cache.move(len(self._running), hole, last.length)
                self._running[hole] = last

    # ------------------------------------------------------------------------------------------------------ parameters
    def load_params(self, params: ParamSet) -> None:
        """Use `params` from the next `step` on. Running completions go on: their keys and values stay, and their next
        tokens carry the new version. One that asked for an exact version must have ended before."""
        held = [r.request.id for r in self._running if r.request.version not in (-1, params.version)]
        if held:
            raise DataError(f"version {params.version} arrived while requests {held[:3]} run at an exact older version")
        if params.shared or not self._bound:
            if not (params.shared and self._is_bound_to(params)):
                load_model_params(self.model, params.params, bind=params.shared)
        else:
            own = {name: value.clone() for name, value in params.params.items()}
            load_model_params(self.model, own, bind=True)
        self._bound, self.version = params.shared, params.version

    def _is_bound_to(self, params: ParamSet) -> bool:
        return self._bound and all(p.data_ptr() == params.params[n].data_ptr() for n, p in self.model.named_parameters())

    # ----------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        """Requests, what was made of them, and the keys and values in use. Parameters come back with `load_params`."""
        longest = max((r.length for r in self._running), default=0)
        return {
            "version": self.version,
            "paused": self.paused,
            "num_tokens": self.num_tokens,
            "waiting": [_request_data(r) for r in self._waiting],
            "running": [
                {
                    "request": _request_data(r.request),
                    "tokens": torch.tensor(r.tokens, dtype=torch.int64),
                    "logprob": torch.tensor(r.logprobs, dtype=torch.float32),
                    "policy_version": torch.tensor(r.versions, dtype=torch.int64),
                }
                for r in self._running
            ],
            "cache": self._cache.snapshot(len(self._running), longest),
        }

    @torch.no_grad()
    def restore(self, state: State) -> None:
        self.version, self.paused, self.num_tokens = state["version"], state["paused"], state["num_tokens"]
        self._waiting = [_request_of(r) for r in state["waiting"]]
        self._running = []
        for data in state["running"]:
            row = Running.of(_request_of(data["request"]))
            row.tokens, row.versions = data["tokens"].tolist(), data["policy_version"].tolist()
            row.logprobs = data["logprob"].tolist()
            self._running.append(row)
        self._cache.restore(state["cache"])


def _request_data(request: Request) -> State:
    return {"id": request.id, "version": request.version, "rows": {k: v.clone() for k, v in request.rows.items()}}


def _request_of(data: State) -> Request:
    return Request(data["id"], Batch({k: torch.as_tensor(np.asarray(v)) for k, v in data["rows"].items()}), data["version"])
