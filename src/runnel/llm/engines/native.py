"""The native engine: continuous batching in this process, beside the learner or in a worker of its own.

Consumes requests (`requests.py`), produces completions with each token's log-probability and policy version. It waits for
requests, and while paused for `resume`; a request for an exact version waits for that version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError, NonFiniteError
from runnel.core.memory import memory_for
from runnel.core.state import State
from runnel.kernels.graphs import CudaGraphed
from runnel.llm.engines.requests import (
    Decode,
    LogitsHook,
    check_requests,
    check_row,
    check_sizes,
    reply_rows,
    request_data,
    request_of,
)
from runnel.llm.engines.runners import DecoderRunner, PromptChunk, make_runner
from runnel.llm.engines.slots import MAX_STOPS, Running, SlotRows
from runnel.llm.engines.stops import completes, end_ids_of
from runnel.llm.model.causal_lm import load_model_params
from runnel.llm.model.logprobs import draw_within
from runnel.llm.model.lora import SCALE, Adapters
from runnel.llm.model.pack import pack


@dataclass(eq=False)
class Prompt:
    """Tokens on their way into the cache for one or more rows; the first row's slot holds them."""

    tokens: Tensor
    rows: list[Running]
    filled: int = 0
    resumed: bool = False
    """The rows go on after this: they have tokens already."""

    @property
    def room(self) -> int:
        return len(self.tokens) - self.filled


class NativeEngine:
    """Decodes token by token behind `submit` and `step`.

    A step decodes in every running row, `window` tokens in one go where there is an accelerator; then it admits waiting
    requests into free rows and puts at most `prefill_tokens` tokens of their prompts into the cache. Requests with the same
    prompt share that work. Each request draws from its own random stream (Philox, keyed by its seed; one uniform a token,
    inverse cumulative distribution), so its random numbers do not depend on its neighbours; its logits do by rounding, since
    products of other shapes are summed in other orders. With `fixed_shapes` every product has the same shape whoever runs
    beside it.

    New parameters are used from the next step on: running rows keep their keys and values (`on_update="keep"`), or compute
    them again (`"recompute"`). Beside a learner that publishes its own tensors nothing is copied.
    """

    immediate = False

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int,
        max_length: int,
        eos_id: int | Sequence[int],
        decode_text: Decode | None = None,
        window: int = 8,
        prefill_tokens: int = 8192,
        on_update: Literal["keep", "recompute"] = "keep",
        fixed_shapes: bool = False,
        logits_hook: LogitsHook | None = None,
    ) -> None:
        check_sizes(model, num_slots=num_slots, max_length=max_length)
        self.model, self.num_slots, self.max_length, self.end_ids = model.eval(), num_slots, max_length, end_ids_of(eos_id)
        self.version, self.paused, self.num_tokens = -1, False, 0
        self.hook, self._decode_text = logits_hook, decode_text
        self._prefill_tokens, self._on_update, self._fixed = prefill_tokens, on_update, fixed_shapes
        self._runner = make_runner(self.model, num_slots=num_slots, max_length=max_length)
        self.batches = self._runner.batches
        """Whether rows run side by side; else one after the other."""
        self._device = model.get_output_embeddings().weight.device
        self._window = window if self._device.type == "cuda" else 1
        self._admit_from = max(1, num_slots // 8) if self._device.type == "cuda" else 1
        """Free rows for which it is worth putting prompts into the cache, where that costs many small launches."""
        self._rows = SlotRows(num_slots, max_length, device=self._device)
        self._index = torch.arange(num_slots, device=self._device)
        self._captured = CudaGraphed(self._decode_rows, name="a decode step")
        self._waiting: list[Request] = []
        self._running: list[Running] = []
        self._filling: list[Prompt] = []
        self._bound = False

    # -------------------------------------------------------------------------------------------------------- requests
    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.max_length, self._decode_text)
        for request in requests:
            stops, room = request.rows.get("stop_tokens", ()), MAX_STOPS - len(self.end_ids)
            if len(stops) > room:
                raise DataError(f"request {request.id} has {len(stops)} stop tokens; at most {room} beside those of the model")
        self._waiting.extend(requests)

    def pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def abort(self, ids: Sequence[int]) -> None:
        """Forget these requests; their rows are free at once."""
        gone = set(ids)
        self._waiting = [r for r in self._waiting if r.id not in gone]
        self._free([r for r in self._running if r.request.id in gone])

    def pause(self) -> None:
        """`step` does nothing until `resume`; what is running stays."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def so_far(self, id: int) -> list[int]:
        """The tokens that request `id` has got until now."""
        found = [r for r in self._running if r.request.id == id]
        return self._rows.tokens[found[0].row, : found[0].made].tolist() if found else []

    @torch.no_grad()
    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        check_row(prompt, tokens, self.max_length)
        hidden = self._runner.states(torch.cat((prompt, tokens[:-1])))[len(prompt) - 1 :]
        logp = torch.log_softmax(self._runner.logits(hidden), dim=-1)
        return logp.gather(1, tokens[:, None].to(logp.device))[:, 0].cpu()

    def close(self) -> None:
        """Nothing is held outside this process."""

    # ----------------------------------------------------------------------------------------------------------- step
    @torch.no_grad()
    def step(self) -> list[Reply]:
        if self.paused:
            return []
        with memory_for("the engine", f"lower engine.num_slots (now {self.num_slots}) or max_tokens"):
            replies = self._decode()
            self._admit()
            return replies + self._fill()

    def _decode(self) -> list[Reply]:
        """Some more tokens for every row whose prompt is in the cache."""
        filling = {id(row) for prompt in self._filling for row in prompt.rows}
        going = [r for r in self._running if id(r) not in filling]
        if not going:
            return []
        rows = self._num_rows(len(self._running))
        limited = self.hook is not None or any(r.sampling.truncates for r in going)
        longest = self.max_length if self._fixed else max(r.length for r in going)
        for _ in range(min(self._window, max(r.max_tokens - r.made for r in going))):
            if self._runner.records and self.hook is None:
                self._captured(self._index, rows, self.max_length, limited)
            else:
                self._decode_rows(self._index, rows, longest, limited)
            longest = min(longest + 1, self.max_length)
        return self._collect(going)

    def _decode_rows(self, index: Tensor, n: int, longest: int, limited: bool) -> None:
        """One token in each of the rows `0 ... n - 1`; those that are not active change nothing that is read later."""
        self._draw(self._runner.next_logits(self._rows.last[:n], self._rows.position[:n], longest), index[:n], limited)

    def _draw(self, logits: Tensor, rows: Tensor, limited: bool) -> None:
        s = self._rows
        if not limited:
            s.draw(logits, rows)
            return
        heat, uniform = s.heat[rows], s.uniform(rows)
        allowed = logits if self.hook is None else self.hook(logits, [self._running[i].request for i in rows.tolist()])
        limits = {"top_k": s.top_k[rows], "top_p": s.top_p[rows], "min_p": s.min_p[rows]}
        s.record(rows, *draw_within(logits, allowed, heat=heat, uniform=uniform, **limits))

    def _num_rows(self, n: int) -> int:
        """Rows that are computed: the running ones, rounded up where a graph is recorded for each number of them."""
        if self._fixed:
            return self.num_slots
        if not self._runner.records or self.hook is not None:
            return n
        grain = 32 if n > 32 else 8
        return min(self.num_slots, -(-n // grain) * grain)

    # -------------------------------------------------------------------------------------------------------- prompts
    def _admit(self) -> None:
        """Give free rows to waiting requests, oldest first; one for an exact version waits until that is loaded."""
        free = self.num_slots - len(self._running)
        ready = [r for r in self._waiting if r.version in (-1, self.version)]
        if not ready or free < min(len(ready), self._admit_from):
            return
        ready = ready[:free]
        taken = {id(r) for r in ready}
        self._waiting = [r for r in self._waiting if id(r) not in taken]
        joined: dict[bytes, Prompt] = {}
        fresh = [Running.of(r, end_ids=self.end_ids) for r in ready]
        for row in fresh:
            row.row = len(self._running)
            row.mark(self.version)
            self._running.append(row)
            key = row.prompt.numpy().tobytes()
            if key in joined:
                joined[key].rows.append(row)
            else:
                joined[key] = Prompt(row.prompt, [row])
        self._rows.put(fresh)
        self._filling += joined.values()

    def _fill(self) -> list[Reply]:
        """Put a bounded number of prompt tokens into the cache; rows whose prompt is complete get their first token."""
        pieces: list[tuple[Prompt, PromptChunk]] = []
        budget = self._prefill_tokens
        for prompt in self._filling:
            take = min(prompt.room, budget)
            if self._fixed and take < min(prompt.room, self._prefill_tokens):
                break  # where a prompt is cut depends on itself alone
            if take <= 0:
                break
            tokens = prompt.tokens[prompt.filled : prompt.filled + take]
            pieces.append((prompt, PromptChunk(prompt.rows[0].row, tokens, prompt.filled)))
            budget -= take
        if not pieces:
            return []
        hidden = self._prefill([piece for _, piece in pieces])
        for prompt, piece in pieces:
            prompt.filled += len(piece.tokens)
        done = [(i, prompt) for i, (prompt, _) in enumerate(pieces) if not prompt.room]
        self._filling = [p for p in self._filling if p.room]
        return self._begin(hidden, done) if done else []

    def _prefill(self, pieces: Sequence[PromptChunk]) -> Tensor:
        if self._fixed:
            return torch.cat([self._runner.prefill([piece]) for piece in pieces])
        return self._runner.prefill(pieces)

    def _begin(self, hidden: Tensor, done: Sequence[tuple[int, Prompt]]) -> list[Reply]:
        """Rows of complete prompts start: their first tokens, unless they go on from earlier ones."""
        shared = [(prompt.rows[0].row, r.row) for _, prompt in done for r in prompt.rows[1:]]
        if shared:
            sources, targets = zip(*shared, strict=True)
            self._runner.copy(sources, targets, max(len(prompt.tokens) for _, prompt in done))
        where = self._rows.start([r for _, prompt in done for r in prompt.rows])
        fresh = [(i, r) for i, prompt in done if not prompt.resumed for r in prompt.rows]
        if not fresh:
            return []
        states = hidden[[i for i, _ in fresh]]
        logits = self._runner.logits(states) if not self._fixed else torch.cat([self._runner.logits(h[None]) for h in states])
        rows = torch.tensor([r.row for _, r in fresh], device=where.device)
        self._draw(logits, rows, self.hook is not None or any(r.sampling.truncates for _, r in fresh))
        return self._collect([r for _, r in fresh])

    # ------------------------------------------------------------------------------------------------------- replies
    def _collect(self, rows: Sequence[Running]) -> list[Reply]:
        """Look at what `rows` made; the replies of those that have ended, whose places become free."""
        if self._window == 1 and len(rows) == len(self._running) and self._all_go_on(rows):
            return []
        seen = self._rows.seen(len(self._running)).tolist()
        ended: list[tuple[Running, bool]] = []
        for row in rows:
            before = row.made
            row.last, row.made, active, sane = seen[row.row]
            self.num_tokens += row.made - before
            if not sane:
                raise NonFiniteError("engine.logprob", self.version, "the model's logits are NaN or infinite")
            if row.sampling.stop and self._stopped_by_text(row, before):
                ended.append((row, True))
            elif not active:
                ended.append((row, row.last in row.stops))
        if not ended:
            return []
        replies = self._replies(ended)
        self._free([row for row, _ in ended])
        return replies

    def _all_go_on(self, rows: Sequence[Running]) -> bool:
        """Whether nothing happened but one token for each of `rows`, all that there are: most steps on the host."""
        if any(row.sampling.stop for row in rows) or not self._rows.quiet(len(rows)):
            return False
        for row in rows:
            row.made += 1
        self.num_tokens += len(rows)
        return True

    def _stopped_by_text(self, row: Running, before: int) -> bool:
        """Cut a row behind the first token that completes one of its stop texts."""
        assert self._decode_text is not None
        tokens = self._rows.tokens[row.row, : row.made].tolist()
        for end in range(before + 1, row.made + 1):
            if completes(tokens[:end], row.sampling.stop, self._decode_text):
                self.num_tokens -= row.made - end
                row.made = end
                return True
        return False

    def _replies(self, ended: Sequence[tuple[Running, bool]]) -> list[Reply]:
        s, where = self._rows, [row.row for row, _ in ended]
        widest = max(row.made for row, _ in ended)
        tokens, logprobs = s.tokens[where, :widest].cpu(), s.logprobs[where, :widest].cpu()
        limited = self.hook is not None or any(row.sampling.truncates for row, _ in ended)
        drawn = s.drawn[where, :widest].cpu() if limited else logprobs
        replies = []
        for i, (row, terminated) in enumerate(ended):
            n, versions = row.made, row.versions(row.made)
            sampled = drawn[i, :n].clone() if self.hook is not None or row.sampling.truncates else None
            made = (tokens[i, :n].clone(), logprobs[i, :n].clone(), versions)
            rows = reply_rows(*made, terminated=terminated, sampling_logprobs=sampled)
            replies.append(Reply(row.request.id, rows, int(versions[-1])))
        return replies

    def _free(self, rows: Sequence[Running]) -> None:
        """Remove rows; running ones from the end move into the holes, so that what runs is always `0 ... n - 1`."""
        gone = {r.row for r in rows}
        left = len(self._running) - len(gone)
        holes = sorted(i for i in gone if i < left)
        movers = [r for r in self._running[left:] if r.row not in gone]
        self._leave(rows)
        if movers:
            sources = [r.row for r in movers]
            self._runner.copy(sources, holes, max(r.length for r in movers))
            self._rows.move(sources, holes)
            for row, hole in zip(movers, holes, strict=True):
                row.row = hole
                self._running[hole] = row
        del self._running[left:]
        if gone:
            self._rows.active[left:] = 0

    def _leave(self, rows: Sequence[Running]) -> None:
        """Take rows out of prompts that are still on their way; another row of the prompt holds it then."""
        gone = {id(r) for r in rows}
        for prompt in self._filling:
            rest = [r for r in prompt.rows if id(r) not in gone]
            if rest and rest[0] is not prompt.rows[0] and prompt.filled:
                self._runner.copy([prompt.rows[0].row], [rest[0].row], prompt.filled)
            prompt.rows = rest
        self._filling = [p for p in self._filling if p.rows]

    # ----------------------------------------------------------------------------------------------------- parameters
    @torch.no_grad()
    def load_params(self, params: ParamSet) -> None:
        """Use `params` from the next `step` on. One that asked for an exact version must have ended before."""
        held = [r.request.id for r in self._running if r.request.version not in (-1, params.version)]
        if held:
            raise DataError(f"version {params.version} arrived while requests {held[:3]} run at an exact older version")
        plain, adapters = Adapters.split(params.params) if SCALE in params.params else (params.params, None)
        bind = params.shared and self._same_kind(params)
        if plain:
            self._load(plain, bind=bind)
        if self._runner.adapt(adapters, bind=bind):
            self._captured.forget()
        self.version = params.version
        for row in self._running:
            row.mark(self.version)
        if self._on_update == "recompute":
            self._recompute()

    def _same_kind(self, params: ParamSet) -> bool:
        """Whether the learner's tensors can be used as they are: this engine's precision, on its device."""
        own, given = next(iter(self.model.parameters())), next(iter(params.params.values()))
        return (given.dtype, given.device) == (own.dtype, own.device)

    def _load(self, plain: Mapping[str, Tensor], *, bind: bool) -> None:
        """The plain weights of a version; one of adapters alone has none, and stands beside those that the model was built
        with."""
        if not isinstance(self._runner, DecoderRunner):
            self._runner.adapt(None, bind=False)  # adapters are merged there: first take the old ones out
        if bind:
            self._bind(plain)
        else:
            self._copy(plain)

    def _copy(self, params: Mapping[str, Tensor]) -> None:
        """Take the values over into memory of its own."""
        if self._bound:
            pack(self.model)  # what it has now is the learner's
        load_model_params(self.model, params, bind=False)
        if self._bound:
            self._moved()
        self._bound = False

    def _bind(self, params: Mapping[str, Tensor]) -> None:
        """Read the learner's own tensors from now on."""
        own = dict(self.model.named_parameters())
        same = self._bound and own.keys() == params.keys()
        if same and all(own[name].data_ptr() == value.data_ptr() for name, value in params.items()):
            return
        load_model_params(self.model, params, bind=True)
        self._bound = self._moved()

    def _moved(self) -> bool:
        """The model's parameters lie elsewhere; False if they had to be copied to lie as the decoder needs them."""
        kept = not isinstance(self._runner, DecoderRunner) or self._runner.decoder.is_packed()
        if not kept:
            pack(self.model)
        self._runner.refresh()
        self._captured.forget()
        return kept

    def _recompute(self) -> None:
        """Running rows put their tokens into the cache anew, under the parameters of now."""
        waiting = {id(r) for p in self._filling for r in p.rows}
        for prompt in self._filling:
            prompt.filled = 0
        for row in self._running:
            if id(row) not in waiting:
                made = self._rows.tokens[row.row, : row.made - 1].cpu()
                self._filling.append(Prompt(torch.cat((row.prompt, made)), [row], resumed=True))
        self._rows.active.zero_()

    # ---------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        """Requests, what was made of them, and the keys and values in use. Parameters come back with `load_params`."""
        longest = max((r.length for r in self._running), default=0)
        where = {id(r): i for i, r in enumerate(self._running)}
        return {
            "version": self.version,
            "paused": self.paused,
            "num_tokens": self.num_tokens,
            "waiting": [request_data(r) for r in self._waiting],
            "running": [self._row_data(r) for r in self._running],
            "filling": [
                {"tokens": p.tokens, "rows": [where[id(r)] for r in p.rows], "filled": p.filled, "resumed": p.resumed}
                for p in self._filling
            ],
            "cache": self._runner.snapshot(len(self._running), longest),
        }

    def _row_data(self, row: Running) -> State:
        s, n = self._rows, row.made
        return {
            "request": request_data(row.request),
            "tokens": s.tokens[row.row, :n].cpu().clone(),
            "logprob": s.logprobs[row.row, :n].cpu().clone(),
            "drawn": s.drawn[row.row, :n].cpu().clone(),
            "spans": [list(span) for span in row.spans],
        }

    @torch.no_grad()
    def restore(self, state: State) -> None:
        self.version, self.paused, self.num_tokens = state["version"], state["paused"], state["num_tokens"]
        self._waiting = [request_of(r) for r in state["waiting"]]
        self._running = []
        for data in state["running"]:
            self._restore_row(data)
        self._filling = [
            Prompt(p["tokens"], [self._running[i] for i in p["rows"]], p["filled"], p["resumed"]) for p in state["filling"]
        ]
        self._rows.active.zero_()
        filling = {id(r) for p in self._filling for r in p.rows}
        going = [r for r in self._running if id(r) not in filling]
        if going:
            self._rows.start(going)
        self._runner.restore(state["cache"])

    def _restore_row(self, data: State) -> None:
        row = Running.of(request_of(data["request"]), end_ids=self.end_ids)
        row.row, row.made = len(self._running), len(data["tokens"])
        row.last = int(data["tokens"][-1]) if row.made else 0
        row.spans = [(int(a), int(b)) for a, b in data["spans"]]
        self._running.append(row)
        self._rows.put([row])
        self._rows.put_made(row, data["tokens"], data["logprob"], data["drawn"])
