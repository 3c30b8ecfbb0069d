"""Requests of an engine: their rows and those of replies, the queue of every engine, and the state of rows that are decoded.

A request holds everything that its reply depends on (tokens, seed, sampling), so any engine of a run can serve it.

While it is decoded, its state is in tensors on the model's device (`SlotRows`), so that decoding never waits for the CPU.
Running completions fill the rows `0 ... num_running - 1`. When a row ends, the last row moves into its place. Row i owns slot i
of the cache. A decode step reads and writes only these tensors. The CPU reads them when it checks which rows have ended.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.inference import Inferencer, Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.state import State
from runnel.kernels.lm.numba.loops import loops
from runnel.llm.model.causal_lm import num_positions
from runnel.llm.model.logprobs import draw

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MAX_STOPS = 16
"""The most tokens that may end a row: the model's, and those of its request."""

Decode = Callable[[Sequence[int]], str]
"""Tokens to text: needed only for stop texts."""
LogitsHook = Callable[[Tensor, Sequence[Request]], Tensor]
"""`hook(logits [n, vocabulary], requests) -> logits`: changes the distribution of the next token. `logprob` stays that of the
model; `sampling_logprob` is that of the changed distribution."""


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is drawn."""

    temperature: float = bounded(1.0, at_least=0)
    """Divides the logits; 0 always chooses the likeliest token."""
    top_k: int = bounded(0, at_least=0)
    """Only the k likeliest tokens; 0 is all."""
    top_p: float = bounded(1.0, above=0, at_most=1)
    """Only the likeliest tokens that together have this probability; 1 is all."""
    min_p: float = bounded(0.0, at_least=0, below=1)
    """Only tokens that are at least this fraction as likely as the likeliest; 0 is all."""
    stop: tuple[str, ...] = ()
    """A completion ends behind any of these texts."""
    stop_tokens: tuple[int, ...] = ()
    """A completion ends behind any of these tokens, as behind eos."""

    def __post_init__(self) -> None:
        check_bounds(self, "sampling.")
        if any(not text for text in self.stop):
            raise ConfigError("sampling.stop", self.stop, "a stop text must not be empty")

    @property
    def truncates(self) -> bool:
        """Whether tokens are sampled from less than the model's whole distribution."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def request_rows(
    tokens: Sequence[int],
    *,
    seed: int,
    max_tokens: int,
    sampling: SamplingConfig | None = None,
    session: int | None = None,
    last: bool = False,
) -> Batch:
    """The rows of a request: `tokens [n]`, `seed`, `max_tokens`, `temperature` `[1]`; and, if set, `top_k`, `top_p`, `min_p`
    `[1]`, `stop_tokens [k]` and `stop_text` (UTF-8, a zero byte after each text); `session` and `last` `[1]`.

    `session` names the conversation that the request is a turn of: a number that no other one has at the time. The engine may
    keep what it has computed for the next turn (`engines/kept.py`), unless this turn is the `last`. The tokens decide what is
    used again, so a wrong number costs time and changes nothing else.
    """
    s = sampling or SamplingConfig()
    rows = Batch(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        seed=torch.tensor([seed], dtype=torch.int64),
        max_tokens=torch.tensor([max_tokens], dtype=torch.int64),
        temperature=torch.tensor([s.temperature], dtype=torch.float32),
    )
    if s.top_k:
        rows["top_k"] = torch.tensor([s.top_k], dtype=torch.int64)
    if s.top_p < 1:
        rows["top_p"] = torch.tensor([s.top_p], dtype=torch.float32)
    if s.min_p > 0:
        rows["min_p"] = torch.tensor([s.min_p], dtype=torch.float32)
    if s.stop_tokens:
        rows["stop_tokens"] = torch.tensor(s.stop_tokens, dtype=torch.int64)
    if s.stop:
        rows["stop_text"] = torch.frombuffer(bytearray(b"".join(t.encode() + b"\0" for t in s.stop)), dtype=torch.uint8)
    if session is not None:
        rows["session"] = torch.tensor([session], dtype=torch.int64)
        if last:
            rows["last"] = torch.tensor([True])
    return rows


def session_of(rows: Batch) -> int | None:
    """The conversation that a request is a turn of; None for a request of its own."""
    return int(rows["session"]) if "session" in rows else None


def sampling_of(rows: Batch) -> SamplingConfig:
    """The inverse of `request_rows`: the sampling settings in `rows`.

    >>> sampling = SamplingConfig(temperature=0.5, top_k=3, stop=("END",))
    >>> sampling_of(request_rows([1], seed=0, max_tokens=1, sampling=sampling)) == sampling
    True
    """
    texts = bytes(rows["stop_text"].tolist()).split(b"\0")[:-1] if "stop_text" in rows else []
    return _sampling(
        float(rows["temperature"]),
        int(rows["top_k"]) if "top_k" in rows else 0,
        float(rows["top_p"]) if "top_p" in rows else 1.0,
        float(rows["min_p"]) if "min_p" in rows else 0.0,
        tuple(t.decode() for t in texts),
        tuple(rows["stop_tokens"].tolist()) if "stop_tokens" in rows else (),
    )


_sampling = lru_cache(maxsize=64)(SamplingConfig)
"""Nearly all requests of a run sample alike: the bounds of such a config are checked once, and not at every request."""


def make_request(
    id: int,
    tokens: Sequence[int],
    *,
    seed: int,
    max_tokens: int,
    sampling: SamplingConfig | None = None,
    version: int = -1,
    session: int | None = None,
    last: bool = False,
) -> Request:
    """A request for one completion of `tokens`."""
    rows = request_rows(tokens, seed=seed, max_tokens=max_tokens, sampling=sampling, session=session, last=last)
    return Request(id, rows, version)


def reply_rows(
    tokens: Sequence[int] | Tensor,
    logprobs: Sequence[float] | Tensor,
    versions: Sequence[int] | Tensor,
    *,
    terminated: bool,
    sampling_logprobs: Sequence[float] | Tensor | None = None,
    num_prefilled: int | None = None,
) -> Batch:
    """The rows of a reply: `tokens`, `logprob`, `policy_version` `[m]` and `terminated [1]`; to a request with a `session` also
    `num_prefilled [1]`, the tokens that were put into the cache for it (those of its prompt that were not there already, and
    those that were computed again after a change of weights).

    `logprob` is at the request's temperature (at 1 if greedy), before truncation and hooks. With either of them,
    `sampling_logprob [m]` is in the distribution from which the tokens were drawn. `terminated`: ended by eos, a stop token or
    a stop text.
    """
    rows = Batch(
        tokens=torch.as_tensor(tokens, dtype=torch.int64),
        logprob=torch.as_tensor(logprobs, dtype=torch.float32),
        policy_version=torch.as_tensor(versions, dtype=torch.int64),
        terminated=torch.tensor([terminated]),
    )
    if sampling_logprobs is not None:
        rows["sampling_logprob"] = torch.as_tensor(sampling_logprobs, dtype=torch.float32)
    if num_prefilled is not None:
        rows["num_prefilled"] = torch.tensor([num_prefilled], dtype=torch.int64)
    return rows


class Engine(Inferencer, Protocol):
    """An inferencer that completes tokens (`testing.check_engine` is its contract)."""

    max_length: int
    """The most tokens of a prompt with its completion."""
    num_tokens: int
    """Tokens generated since the start."""
    num_prefilled: int
    """Tokens that were put into the cache since the start: those of prompts, and those computed again."""
    num_reused: int
    """Tokens of prompts since the start that were in the cache already."""

    def pause(self) -> None:
        """`step` does nothing until `resume`. Running requests stay."""
        ...

    def resume(self) -> None: ...

    def so_far(self, id: int) -> list[int]:
        """The tokens so far of the running request `id`, for streaming."""
        ...

    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities at temperature 1 of `tokens` after `prompt`, by the loaded weights. It does not affect running
        requests. `[n], [m] int64 -> [m] float32`, on the CPU."""
        ...

    def close(self) -> None:
        """Release what the engine holds outside this process."""
        ...


class HasRequest(Protocol):
    """A completion that runs, in whatever form an engine keeps it."""

    request: Request


class QueuedEngine:
    """What every engine does alike: requests wait, the oldest first, until a slot is free and their version is loaded."""

    immediate = False
    _running: Sequence[HasRequest]

    def __init__(
        self,
        model: PretrainedConfig,
        *,
        num_slots: int,
        max_length: int,
        eos_id: int | Sequence[int],
        decode_text: Decode | None,
    ) -> None:
        limit = num_positions(model)
        if limit is not None and max_length > limit:
            raise ConfigError("engine.max_length", max_length, f"the model has {limit} positions; use at most that")
        if num_slots < 1:
            raise ConfigError("engine.num_slots", num_slots, "use at least 1")
        self.num_slots, self.max_length, self.decode_text = num_slots, max_length, decode_text
        self.end_ids = (eos_id,) if isinstance(eos_id, int) else tuple(dict.fromkeys(eos_id))
        self.version, self.paused, self.num_tokens = -1, False, 0
        self.num_prefilled = self.num_reused = 0
        self._told = False
        self._waiting: list[Request] = []
        self._running = []

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.max_length, self.decode_text)
        self._waiting.extend(requests)

    def _tell_unkept(self, requests: Sequence[Request], who: str) -> None:
        """Warn once that the turns of conversations are computed from their start."""
        if not self._told and any("session" in r.rows for r in requests):
            self._told = True
            text = f"{who} keeps nothing between two turns of a conversation: each turn computes all tokens before it again"
            warnings.warn(f"{text} (docs/guides/engines.md)", stacklevel=3)

    def pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def abort(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._waiting = [r for r in self._waiting if r.id not in gone]
        self._remove([r for r in self._running if r.request.id in gone])

    def _remove(self, running: Sequence[Any]) -> None:
        """Free the slots of these completions."""
        raise NotImplementedError

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        """Nothing is held outside this process."""

    def _take_waiting(self, fewest: int = 1) -> list[Request]:
        """Requests for the free slots, oldest first; none while fewer than `fewest` slots are free and more requests wait. A
        request for an exact version waits until that version is loaded."""
        free = self.num_slots - len(self._running)
        ready = [r for r in self._waiting if r.version in (-1, self.version)]
        if free < min(len(ready), fewest):
            return []
        taken = {id(r) for r in ready[:free]}
        self._waiting = [r for r in self._waiting if id(r) not in taken]
        return ready[:free]

    def _check_version(self, version: int) -> None:
        """Raise a `DataError` if requests that run need exactly another version than the one that is to be loaded."""
        held = [r.request.id for r in self._running if r.request.version not in (-1, version)]
        if held:
            raise DataError(f"version {version} arrived while requests {held[:3]} run at an exact older version")

    def snapshot(self) -> State:
        waiting = [request_data(r) for r in self._waiting]
        counts = {"num_tokens": self.num_tokens, "num_prefilled": self.num_prefilled, "num_reused": self.num_reused}
        return {"version": self.version, "paused": self.paused, "waiting": waiting} | counts

    def restore(self, state: State) -> None:
        self.num_prefilled, self.num_reused = state.get("num_prefilled", 0), state.get("num_reused", 0)  # new in checkpoints
        self.version, self.paused, self.num_tokens = state["version"], state["paused"], state["num_tokens"]
        self._waiting = [request_of(data) for data in state["waiting"]]


def fits_in_place(model: PreTrainedModel, params: ParamSet) -> bool:
    """Whether `model` can use the learner's own tensors: they are shared, and have its precision and device."""
    if not params.shared:  # a partner's version has no parameters at all
        return False
    own, given = next(iter(model.parameters())), next(iter(params.params.values()))
    return (given.dtype, given.device) == (own.dtype, own.device)


def check_requests(requests: Sequence[Request], max_length: int, decode: Decode | None) -> None:
    """Raise a `DataError` if a request can never be answered, before any of `requests` is accepted."""
    for request in requests:
        n, m = request.rows["tokens"].shape[0], int(request.rows["max_tokens"])
        if n == 0 or m < 1 or n + m > max_length:
            raise DataError(
                f"request {request.id}: a prompt of {n} tokens and max_tokens = {m} do not fit max_length = {max_length}; both "
                "must be at least 1 and their sum at most max_length"
            )
        if decode is None and "stop_text" in request.rows:
            raise DataError(f"request {request.id} has stop texts; give the engine decode_text to read its tokens")


def check_row(prompt: Tensor, tokens: Tensor, max_length: int) -> None:
    """Raise a `DataError` if an engine cannot compute the log-probabilities of a row."""
    n, m = len(prompt), len(tokens)
    if n == 0 or m == 0 or n + m > max_length:
        raise DataError(f"a prompt of {n} tokens and {m} behind it: both must be at least 1, their sum at most {max_length}")


def request_data(request: Request) -> State:
    """A request as plain data, for a snapshot."""
    return {"id": request.id, "version": request.version, "rows": {k: v.clone() for k, v in request.rows.items()}}


def request_of(data: State) -> Request:
    """The inverse of `request_data`."""
    return Request(data["id"], Batch({k: torch.as_tensor(np.asarray(v)) for k, v in data["rows"].items()}), data["version"])


def generate(engine: Inferencer, requests: Sequence[Request]) -> list[Reply]:
    """Submit `requests`, step until all are answered, and return the replies in the order of the requests."""
    engine.submit(requests)
    replies: dict[int, Reply] = {}
    while len(replies) < len(requests):
        replies |= {reply.id: reply for reply in engine.step()}
    return [replies[request.id] for request in requests]


def stream(engine: Engine, request: Request) -> Iterator[list[int]]:
    """The tokens of one completion as they come, some at a time."""
    engine.submit([request])
    shown = 0
    while True:
        done = [r for r in engine.step() if r.id == request.id]
        tokens = done[0].rows["tokens"].tolist() if done else engine.so_far(request.id)
        if len(tokens) > shown:
            yield tokens[shown:]
            shown = len(tokens)
        if done:
            return


# ------------------------------------------------------------------------------------------------------- while decoding
class SlotRows:
    """The state of every row. `last`: newest token, not in the cache yet; `position`: its position; `count`: tokens made;
    `left`: how many more may follow; `active`: 1 while running; `sane`: 0 after a log-probability that is not finite."""

    def __init__(self, num_rows: int, max_new: int, *, device: torch.device) -> None:
        self._ints = torch.zeros((7, num_rows), dtype=torch.int64, device=device)
        self.last, self.position, self.count, self.left, self.active, self.sane, self.top_k = self._ints.unbind(0)
        self._floats = torch.ones((3, num_rows), dtype=torch.float32, device=device)
        self.heat, self.top_p, self.min_p = self._floats.unbind(0)
        self.stops = torch.full((num_rows, MAX_STOPS), -1, dtype=torch.int64, device=device)
        self.uniforms = torch.zeros((num_rows, max_new), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((num_rows, max_new), dtype=torch.int64, device=device)
        self.logprobs = torch.zeros((num_rows, max_new), dtype=torch.float32, device=device)
        self.drawn = torch.zeros((num_rows, max_new), dtype=torch.float32, device=device)
        self._last_column = max_new - 1

    def draw(self, logits: Tensor, rows: Tensor) -> None:
        """Draw a token for each of `rows` from the whole distribution, and `record` it. `[n, V], [n]`"""
        if loops(logits):
            from runnel.kernels.lm.numba import token_loops

            made = (self.tokens, self.logprobs)
            given = (rows, logits, self.heat, self.uniforms, self._ints, self.stops, made)
            token_loops.advance(*given)  # type: ignore[no-untyped-call]
            return
        self.record(rows, *draw(logits, heat=self.heat[rows], uniform=self.uniform(rows)), None)

    def uniform(self, rows: Tensor) -> Tensor:
        """The uniform number for the next token of each of `rows`. `[n] -> [n]`"""
        return self.uniforms[rows, self.count[rows].clamp(max=self._last_column)]

    def record(self, rows: Tensor, token: Tensor, logprob: Tensor, drawn: Tensor | None) -> None:
        """Append a token to each of `rows` that is active, and end rows that are complete. All on the device."""
        if loops(logprob):
            from runnel.kernels.lm.numba import token_loops

            made = (self.tokens, self.logprobs, self.drawn)
            token_loops.record(rows, token, logprob, drawn, self._ints, self.stops, made)  # type: ignore[no-untyped-call]
            return
        _, position, count, left, active, sane, _ = self._ints[:, rows].unbind(0)
        live, at = active > 0, count.clamp(max=self._last_column)
        self.tokens[rows, at] = torch.where(live, token, self.tokens[rows, at])
        self.logprobs[rows, at] = torch.where(live, logprob, self.logprobs[rows, at])
        if drawn is not None:
            self.drawn[rows, at] = torch.where(live, drawn, self.drawn[rows, at])
        self.last[rows] = torch.where(live, token, self.last[rows])
        sane = sane * torch.where(live, torch.isfinite(logprob), True)
        # `left` counts this token still: a row goes on if more than this one (1 while active) may come
        going = (self.stops[rows] != token[:, None]).all(dim=1) & (left > active)
        self._ints[1:6, rows] = torch.stack((position + active, count + active, left - active, active * going, sane))

    def put(self, rows: Sequence[Running]) -> None:
        """Write the state of completions into their rows. The rows run after `start`."""
        where = torch.tensor([r.row for r in rows], device=self._ints.device)
        ints = [[r.last, r.length - 1, r.made, r.max_tokens - r.made, 0, 1, r.sampling.top_k] for r in rows]
        self._ints[:, where] = torch.tensor(ints, device=where.device).t()
        floats = [[r.sampling.temperature, r.sampling.top_p, r.sampling.min_p] for r in rows]
        self._floats[:, where] = torch.tensor(floats, device=where.device).t()
        stops = [[*r.stops, *[-1] * (MAX_STOPS - len(r.stops))] for r in rows]
        self.stops[where] = torch.tensor(stops, device=where.device)
        widest = max(r.max_tokens for r in rows)
        uniforms = np.zeros((len(rows), widest))
        for i, r in enumerate(rows):
            uniforms[i, : r.max_tokens] = r.uniforms
        self.uniforms[where, :widest] = torch.from_numpy(uniforms).to(where.device)

    def start(self, rows: Sequence[Running]) -> Tensor:
        """Let rows run from now on. Returns their indices `[n]`."""
        where = torch.tensor([r.row for r in rows], device=self._ints.device)
        self.active[where] = 1
        return where

    def seen(self, n: int) -> Tensor:
        """A CPU copy of last, count, active and sane of the rows `0 ... n - 1`. `[n, 4]`"""
        return self._ints[[0, 2, 4, 5], :n].t().cpu()

    def quiet(self, n: int) -> bool:
        """Whether none of the rows `0 ... n - 1` has ended or is broken. Always False on a GPU, where reading it would wait."""
        return self._ints.is_cpu and bool(self._ints[4:6, :n].all())

    def rest(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Note that these slots hold prefixes of `lengths` tokens. On a GPU decode steps run over more rows than there are
        (`NativeEngine._num_rows`), and write one position into the slot of each: so it must be one behind the prefix."""
        if slots:
            where = torch.tensor([list(slots), list(lengths)], device=self._ints.device)
            self.position[where[0]] = where[1]
            self.active[where[0]] = 0

    def put_made(self, row: Running, tokens: Tensor, logprobs: Tensor, drawn: Tensor) -> None:
        """Write the tokens that a restored row had made before the snapshot."""
        self.tokens[row.row, : row.made] = tokens.to(self.tokens.device)
        self.logprobs[row.row, : row.made] = logprobs.to(self.logprobs.device)
        self.drawn[row.row, : row.made] = drawn.to(self.drawn.device)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move the rows `sources` to the rows `targets`."""
        a, b = list(sources), list(targets)
        self._ints[:, b], self._floats[:, b] = self._ints[:, a], self._floats[:, a]
        for part in (self.stops, self.uniforms, self.tokens, self.logprobs, self.drawn):
            part[b] = part[a]


@dataclass(eq=False)
class Running:
    """A running completion, as the CPU knows it."""

    request: Request
    sampling: SamplingConfig
    prompt: Tensor
    max_tokens: int
    stops: tuple[int, ...]
    uniforms: np.ndarray
    """One number in [0, 1) for each possible token, from the request's own seed."""
    num_prompt: int
    """Tokens of the prompt."""
    session: int | None = None
    """The conversation that the request is a turn of, if it says so."""
    row: int = -1
    keys_by: int = -1
    """The version that made all keys and values of the row so far, or `kept.MIXED`."""
    prefilled: int = 0
    """Tokens that were put into the cache for this row."""
    made: int = 0
    """Tokens made at the last check."""
    last: int = 0
    """Newest token at the last check."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version): this version made the tokens from that one on, up to the next span."""

    @staticmethod
    def of(request: Request, *, end_ids: Sequence[int]) -> Running:
        rows = request.rows
        limit, sampling = int(rows["max_tokens"]), sampling_of(rows)
        uniforms = np.random.Generator(np.random.Philox(key=int(rows["seed"]))).random(limit)
        stops = tuple(dict.fromkeys((*end_ids, *sampling.stop_tokens)))
        prompt = rows["tokens"]
        return Running(request, sampling, prompt, limit, stops, uniforms, len(prompt), session_of(rows))

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return self.num_prompt + self.made

    def versions(self, count: int) -> Tensor:
        """The version of each of the first `count` tokens. `[count]`"""
        out = torch.empty(count, dtype=torch.int64)
        for start, version in self.spans:
            out[start:] = version
        return out

    def mark(self, version: int) -> None:
        """Note that `version` makes the tokens from now on."""
        if self.spans and self.spans[-1][0] == self.made:
            self.spans.pop()
        if not self.spans or self.spans[-1][1] != version:
            self.spans.append((self.made, version))
