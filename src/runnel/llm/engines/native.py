"""The native engine: continuous batching in this process, together with the learner or in a worker of its own.

It consumes requests (`requests.py`) and produces completions with the log-probability and policy version of each token. It
waits for requests, and while paused for `resume`; a request for an exact version waits for that version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError, NonFiniteError
from runnel.core.memory import memory_for
from runnel.core.state import State
from runnel.kernels.graphs import CudaGraphed
from runnel.llm.engines.kept import MIXED, Held, KeptPrefixes, Move, Prefix
from runnel.llm.engines.requests import (
    MAX_STOPS,
    Decode,
    LogitsHook,
    QueuedEngine,
    Running,
    SlotRows,
    check_row,
    fits_in_place,
    reply_rows,
    request_data,
    request_of,
)
from runnel.llm.engines.runners import DecoderRunner, PromptChunk, make_runner
from runnel.llm.engines.stops import completes
from runnel.llm.model.causal_lm import load_model_params
from runnel.llm.model.logprobs import draw_within
from runnel.llm.model.lora import SCALE, Adapters
from runnel.llm.model.pack import pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(eq=False)
class Prompt:
    """Tokens that are being put into the cache for one or more rows, in the slot of the first row."""

    tokens: Tensor
    rows: list[Running]
    filled: int = 0
    resumed: bool = False
    """Whether the rows have generated tokens already and continue (after a change of weights)."""

    @property
    def room(self) -> int:
        return len(self.tokens) - self.filled


class NativeEngine(QueuedEngine):
    """Decodes token by token behind `submit` and `step`.

    A step decodes one token in every running row (up to `window` tokens on a GPU). Then it admits waiting requests to free rows
    and puts at most `prefill_tokens` tokens of their prompts into the cache. Requests with the same prompt share that work.

    Each request draws from its own random stream (Philox with its seed as the key, one uniform number for each token, inverse
    cumulative distribution), so its random numbers do not depend on other rows. Its logits depend on them by rounding, because
    products of different shapes sum in different orders. With `fixed_shapes`, the shapes of all products are always the same.

    New parameters are used from the next step on. Running rows keep their keys and values (`on_update="keep"`), or compute
    them again (`"recompute"`). In the process of a learner that publishes its own tensors, nothing is copied.

    With `keep_prefixes`, the rows of conversations (requests with a `session`) stay in free slots for the next turn
    (`kept.py`). `abort` of a request that was answered frees its slot. A prompt whose beginning was decoded gives other bits
    than one that is computed at once, so with `fixed_shapes` nothing is kept. Kept prefixes are part of a snapshot.
    """

    _running: list[Running]

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_slots: int,
        max_length: int,
        eos_id: int | Sequence[int],
        decode_text: Decode | None = None,
        window: int = 8,
        prefill_tokens: int = 8192,
        on_update: Literal["keep", "recompute"] = "keep",
        fixed_shapes: bool = False,
        keep_prefixes: bool = True,
        logits_hook: LogitsHook | None = None,
    ) -> None:
        super().__init__(model.config, num_slots=num_slots, max_length=max_length, eos_id=eos_id, decode_text=decode_text)
        self.model, self.hook = model.eval(), logits_hook
        self._prefill_tokens, self._on_update, self._fixed = prefill_tokens, on_update, fixed_shapes
        self._runner = make_runner(self.model, num_slots=num_slots, max_length=max_length)
        self.batches = self._runner.batches
        """Whether rows run side by side, or one after the other."""
        self._device = model.get_output_embeddings().weight.device
        self._window = window if self._device.type == "cuda" else 1
        self._admit_from = max(1, num_slots // 8) if self._device.type == "cuda" else 1
        """The fewest free rows for which prompts are admitted: on a GPU each prefill costs many small launches."""
        self._rows = SlotRows(num_slots, max_length, device=self._device)
        self._index = torch.arange(num_slots, device=self._device)
        self._captured = CudaGraphed(self._decode_rows, name="a decode step")
        self._filling: list[Prompt] = []
        self._keeps = keep_prefixes and not fixed_shapes and self._runner.continues
        self._kept = KeptPrefixes(num_slots)
        self._bound = False

    # -------------------------------------------------------------------------------------------------------- requests
    def abort(self, ids: Sequence[int]) -> None:
        super().abort(ids)
        self._kept.release(ids)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            stops, room = request.rows.get("stop_tokens", ()), MAX_STOPS - len(self.end_ids)
            if len(stops) > room:
                raise DataError(f"request {request.id} has {len(stops)} stop tokens; at most {room} beside those of the model")
        super().submit(requests)
        if not self._runner.continues:
            self._tell_unkept(requests, f"the engine for models of type {self.model.config.model_type!r}")

    def so_far(self, id: int) -> list[int]:
        found = [r for r in self._running if r.request.id == id]
        return self._rows.tokens[found[0].row, : found[0].made].tolist() if found else []

    @torch.no_grad()
    def logprobs(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        check_row(prompt, tokens, self.max_length)
        hidden = self._runner.states(torch.cat((prompt, tokens[:-1])))[len(prompt) - 1 :]
        logp = torch.log_softmax(self._runner.logits(hidden), dim=-1)
        return logp.gather(1, tokens[:, None].to(logp.device))[:, 0].cpu()

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
        """Decode in every row whose prompt is in the cache."""
        going = self._decoding()
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

    def _decoding(self) -> list[Running]:
        """The rows whose prompt is in the cache."""
        filling = {id(row) for prompt in self._filling for row in prompt.rows}
        return [r for r in self._running if id(r) not in filling]

    def _decode_rows(self, index: Tensor, n: int, longest: int, limited: bool) -> None:
        """Decode one token in each of the rows `0 ... n - 1`. Inactive rows among them write only what is never read."""
        self._draw(self._runner.next_logits(self._rows.last[:n], self._rows.position[:n], longest), index[:n], limited)

    def _draw(self, logits: Tensor, rows: Tensor, limited: bool) -> None:
        s = self._rows
        if not limited:
            s.draw(logits, rows)
            return
        heat, uniform = s.heat[rows], s.uniform(rows)
        allowed = logits if self.hook is None else self.hook(logits, [self._running[i].request for i in rows.tolist()])
        top_k, top_p, min_p = s.top_k[rows], s.top_p[rows], s.min_p[rows]
        s.record(rows, *draw_within(logits, allowed, heat=heat, uniform=uniform, top_k=top_k, top_p=top_p, min_p=min_p))

    def _num_rows(self, n: int) -> int:
        """Number of rows to compute: the running ones, rounded up where each number needs a CUDA graph of its own."""
        if self._fixed:
            return self.num_slots
        if not self._runner.records or self.hook is not None:
            return n
        grain = 32 if n > 32 else 8
        return min(self.num_slots, -(-n // grain) * grain)

    # -------------------------------------------------------------------------------------------------------- prompts
    def _admit(self) -> None:
        """Give free rows to waiting requests."""
        fresh = [Running.of(r, end_ids=self.end_ids) for r in self._take_waiting(self._admit_from)]
        if not fresh:
            return
        prompts = self._join(fresh)
        self._place(fresh, prompts)
        self._running += sorted(fresh, key=lambda row: row.row)
        self._rows.put(fresh)
        self._filling += [prompt for prompt, _ in prompts]

    def _join(self, fresh: Sequence[Running]) -> list[tuple[Prompt, Prefix | None]]:
        """The prompts of new rows, each with the part of it that a slot holds already. Rows with the same prompt share one."""
        running = self._running_prompts() if self._keeps and any(r.session is not None for r in fresh) else []
        joined: dict[bytes, Prompt] = {}
        prompts = []
        for row in fresh:
            row.mark(self.version)
            row.keys_by, key = self.version, row.prompt.numpy().tobytes()
            if key in joined:
                joined[key].rows.append(row)
                continue
            prefix = None
            if self._keeps and row.session is not None:
                exact = row.request.version >= 0
                prefix = self._kept.find(row.prompt, row.session, running, version=self.version, exact=exact)
            prompts.append((Prompt(row.prompt, [row], 0 if prefix is None else prefix.length), prefix))
            if prefix is not None and prefix.version != self.version:
                row.keys_by = MIXED
            else:  # only keys of the loaded version may be given to rows of other conversations
                joined[key] = prompts[-1][0]
        return prompts

    def _running_prompts(self) -> list[Held]:
        """The prompts in the slots of rows that decode."""
        return [Held(row.prompt, row.keys_by, row.row) for row in self._decoding()]

    def _place(self, fresh: Sequence[Running], prompts: Sequence[tuple[Prompt, Prefix | None]]) -> None:
        """Give each new row a slot, with the beginning of its prompt if a slot has it. Kept prefixes make room."""
        first = len(self._running)
        slots = range(first, first + len(fresh))
        free = set(slots)
        for prompt, prefix in prompts:  # a conversation goes on in the slot that it has, where that is one of the new rows
            if prefix is not None and prefix.own and prefix.slot in free:
                free.remove(prefix.slot)
                prompt.rows[0].row = prefix.slot
        for row, slot in zip([r for r in fresh if r.row < 0], sorted(free), strict=True):
            row.row = slot
        pairs = [(prefix, prompt.rows[0].row) for prompt, prefix in prompts if prefix is not None]
        for session in {row.session for row in fresh if row.session is not None}:
            self._kept.take(session)
        moves = [Move(p.slot, slot, p.length) for p, slot in pairs if p.slot != slot]
        if self._kept.all:
            moves += self._kept.make_room(slots)
        self._copy_slots(moves)
        self.num_reused += sum(prefix.length for prefix, _ in pairs)

    def _copy_slots(self, moves: Sequence[Move]) -> None:
        """Copy slots to slots, all at once: the target of one may be the source of another."""
        if moves:
            longest = max(move.length for move in moves)
            self._runner.copy([move.source for move in moves], [move.target for move in moves], longest)
        self._rest()

    def _rest(self) -> None:
        """Tell the rows on the device which slots hold kept prefixes."""
        self._rows.rest([held.slot for held in self._kept.all], [len(held.tokens) for held in self._kept.all])

    def _fill(self) -> list[Reply]:
        """Put at most `prefill_tokens` prompt tokens into the cache; rows whose prompt is complete get their first token."""
        chunks: list[tuple[Prompt, PromptChunk]] = []
        budget = self._prefill_tokens
        for prompt in self._filling:
            size = min(prompt.room, budget)
            if self._fixed and size < min(prompt.room, self._prefill_tokens):
                break  # a cut must depend on this prompt alone, not on the budget that others left
            if size <= 0:
                break
            tokens = prompt.tokens[prompt.filled : prompt.filled + size]
            chunks.append((prompt, PromptChunk(prompt.rows[0].row, tokens, prompt.filled)))
            budget -= size
        if not chunks:
            return []
        hidden = self._prefill([chunk for _, chunk in chunks])
        for prompt, chunk in chunks:
            prompt.filled += len(chunk.tokens)
            prompt.rows[0].prefilled += len(chunk.tokens)
            self.num_prefilled += len(chunk.tokens)
        done = [(i, prompt) for i, (prompt, _) in enumerate(chunks) if not prompt.room]
        self._filling = [p for p in self._filling if p.room]
        return self._begin(hidden, done) if done else []

    def _prefill(self, chunks: Sequence[PromptChunk]) -> Tensor:
        if self._fixed:
            return torch.cat([self._runner.prefill([chunk]) for chunk in chunks])
        return self._runner.prefill(chunks)

    def _begin(self, hidden: Tensor, done: Sequence[tuple[int, Prompt]]) -> list[Reply]:
        """Start the rows of complete prompts and draw their first tokens; resumed rows have tokens already."""
        shared = [(prompt.rows[0].row, r.row) for _, prompt in done for r in prompt.rows[1:]]
        if shared:
            sources, targets = zip(*shared, strict=True)
            self._runner.copy(sources, targets, max(len(prompt.tokens) for _, prompt in done))
            self.num_reused += sum(len(prompt.tokens) * (len(prompt.rows) - 1) for _, prompt in done)
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
        """Read the results of `rows` from the device; return the replies of those that have ended and free them."""
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
        self._remove([row for row, _ in ended], replies)
        return replies

    def _all_go_on(self, rows: Sequence[Running]) -> bool:
        """Whether all running rows got one token and none ended. It is checked first because most steps on the CPU are so."""
        if any(row.sampling.stop for row in rows) or not self._rows.quiet(len(rows)):
            return False
        for row in rows:
            row.made += 1
        self.num_tokens += len(rows)
        return True

    def _stopped_by_text(self, row: Running, before: int) -> bool:
        """Cut a row behind the first token that completes one of its stop texts; whether there was one."""
        assert self.decode_text is not None
        tokens = self._rows.tokens[row.row, : row.made].tolist()
        for end in range(before + 1, row.made + 1):
            if completes(tokens[:end], row.sampling.stop, self.decode_text):
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
            prefilled = None if row.session is None else row.prefilled
            rows = reply_rows(*made, terminated=terminated, sampling_logprobs=sampled, num_prefilled=prefilled)
            replies.append(Reply(row.request.id, rows, int(versions[-1])))
        return replies

    def _remove(self, rows: Sequence[Running], replies: Sequence[Reply] = ()) -> None:
        """Remove rows. Running rows from the end move into the gaps, so that running rows are always `0 ... n - 1`.

        Rows with a reply may be kept: such a row changes places with the one that moves into its gap.
        """
        gone = {r.row for r in rows}
        left = len(self._running) - len(gone)
        holes = sorted(i for i in gone if i < left)
        movers = [r for r in self._running[left:] if r.row not in gone]
        self._leave(rows)
        slots = dict(zip(holes, [r.row for r in movers], strict=True))
        moves = [Move(r.row, hole, r.length) for r, hole in zip(movers, holes, strict=True)]
        for row, reply in zip(rows, replies, strict=False):
            if self._keeps and row.session is not None and "last" not in row.request.rows:
                held = self._held(row, reply, slots.get(row.row, row.row))
                self._kept.keep(held)
                moves += [Move(row.row, held.slot, len(held.tokens))] if row.row != held.slot else []
        if movers:
            self._rows.move([r.row for r in movers], holes)
            for row, hole in zip(movers, holes, strict=True):
                row.row = hole
                self._running[hole] = row
        del self._running[left:]
        if gone:
            self._rows.active[left:] = 0
        self._copy_slots(moves)

    def _held(self, row: Running, reply: Reply, slot: int) -> Held:
        """What the slot of a completed row holds: the newest token was drawn, but is not in the cache."""
        tokens = torch.cat((row.prompt, reply.rows["tokens"][:-1]))
        return Held(tokens, row.keys_by, slot, row.session, row.request.id)

    def _leave(self, rows: Sequence[Running]) -> None:
        """Take rows out of unfinished prompts. The slot of another row of the prompt then holds its tokens."""
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
        """Use `params` from the next `step` on. Requests for an exact version must have ended before."""
        self._check_version(params.version)
        plain, adapters = Adapters.split(params.params) if SCALE in params.params else (params.params, None)
        bind = fits_in_place(self.model, params)
        # a version without plain weights has only adapters: it uses the weights that the model was built with
        if plain and not isinstance(self._runner, DecoderRunner):
            self._runner.adapt(None, bind=False)  # adapters are merged into the weights there, so the old ones go first
        if plain:
            (self._bind if bind else self._copy)(plain)
        if self._runner.adapt(adapters, bind=bind):
            self._captured.forget()
        self.version = params.version
        for row in self._running:
            row.mark(self.version)
        if self._on_update == "recompute":
            self._recompute()
            self._kept.clear()
        empty = {id(row) for prompt in self._filling if not prompt.filled for row in prompt.rows}
        for row in self._running:
            row.keys_by = self.version if id(row) in empty or row.keys_by == self.version else MIXED

    def _copy(self, params: Mapping[str, Tensor]) -> None:
        """Copy the values into the engine's own memory."""
        if self._bound:
            pack(self.model)  # into new memory: the present one is the learner's
        load_model_params(self.model, params, bind=False)
        if self._bound:
            self._moved()
        self._bound = False

    def _bind(self, params: Mapping[str, Tensor]) -> None:
        """Use the learner's own tensors from now on."""
        own = dict(self.model.named_parameters())
        same = self._bound and own.keys() == params.keys()
        if same and all(own[name].data_ptr() == value.data_ptr() for name, value in params.items()):
            return
        load_model_params(self.model, params, bind=True)
        self._bound = self._moved()

    def _moved(self) -> bool:
        """Update what holds addresses of parameters. False if they had to be copied to the layout that the decoder needs."""
        kept = not isinstance(self._runner, DecoderRunner) or self._runner.decoder.is_packed()
        if not kept:
            pack(self.model)
        self._runner.refresh()
        self._captured.forget()
        return kept

    def _recompute(self) -> None:
        """Put the tokens of running rows into the cache again, under the current parameters."""
        for prompt in self._filling:
            prompt.filled = 0
        for row in self._decoding():
            made = self._rows.tokens[row.row, : row.made - 1].cpu()
            self._filling.append(Prompt(torch.cat((row.prompt, made)), [row], resumed=True))
        self._rows.active.zero_()

    # ---------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        """Requests, their tokens so far, and the keys and values in use. Parameters come with `load_params`."""
        used = [(r.row, r.length) for r in self._running] + [(h.slot, len(h.tokens)) for h in self._kept.all]
        num_slots, longest = max((slot for slot, _ in used), default=-1) + 1, max((length for _, length in used), default=0)
        where = {id(r): i for i, r in enumerate(self._running)}
        return super().snapshot() | {
            "running": [self._row_data(r) for r in self._running],
            "filling": [
                {"tokens": p.tokens, "rows": [where[id(r)] for r in p.rows], "filled": p.filled, "resumed": p.resumed}
                for p in self._filling
            ],
            "kept": self._kept.snapshot(),
            "cache": self._runner.snapshot(num_slots, longest),
        }

    def _row_data(self, row: Running) -> State:
        s, n = self._rows, row.made
        return {
            "request": request_data(row.request),
            "tokens": s.tokens[row.row, :n].cpu().clone(),
            "logprob": s.logprobs[row.row, :n].cpu().clone(),
            "drawn": s.drawn[row.row, :n].cpu().clone(),
            "spans": [list(span) for span in row.spans],
            "keys_by": row.keys_by,
            "prefilled": row.prefilled,
        }

    @torch.no_grad()
    def restore(self, state: State) -> None:
        super().restore(state)
        self._running = []
        for data in state["running"]:
            self._restore_row(data)
        self._filling = [
            Prompt(p["tokens"], [self._running[i] for i in p["rows"]], p["filled"], p["resumed"]) for p in state["filling"]
        ]
        self._rows.active.zero_()
        if going := self._decoding():
            self._rows.start(going)
        self._runner.restore(state["cache"])
        self._kept.restore(state.get("kept", []) if self._keeps else [])  # not in checkpoints of before there were any
        self._rest()

    def _restore_row(self, data: State) -> None:
        row = Running.of(request_of(data["request"]), end_ids=self.end_ids)
        row.row, row.made = len(self._running), len(data["tokens"])
        row.last = int(data["tokens"][-1]) if row.made else 0
        row.spans = [(int(a), int(b)) for a, b in data["spans"]]
        row.keys_by, row.prefilled = data.get("keys_by", MIXED), data.get("prefilled", 0)
        self._running.append(row)
        self._rows.put([row])
        self._rows.put_made(row, data["tokens"], data["logprob"], data["drawn"])
