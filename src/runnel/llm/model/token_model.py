"""A causal language model in training: packed rows in, log-probabilities out, and an AdamW step over one vector.

Compute may be in bfloat16; master weights, gradients over micro-batches and moments are float32. The compute weights are the
model's own parameters (packed, `pack.py`), so an engine beside the learner reads each new version where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.sharding.param_shards import whole
from runnel.core.state import State
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.model.adamw import AdamW, on_host
from runnel.llm.model.attention import PackedRows, fold, packed_attention
from runnel.llm.model.causal_lm import (
    ScalarModel,
    copy_model,
    hidden_states,
    load_model_params,
    model_params,
    output_head,
    shared_copy,
)
from runnel.llm.model.decoder import Decoder, Recompute, supported
from runnel.llm.model.graphed import GraphedDecoder
from runnel.llm.model.logprobs import head_logprobs, token_logprobs
from runnel.llm.model.lora import Adapters, LoraConfig, MergedModel, make_adapters, plain_names, unwrapped, wrap_modules
from runnel.llm.model.pack import pack, pack_tensors, packed, packed_order, split_like

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
Precision = Literal["float64", "float32", "bfloat16"]


class TokenModel:
    """`model` with its forward pass over packed rows, and unless `frozen` its optimiser.

    Families that `Decoder` knows run through it, without padding; others through their own modules, padded to the longest
    row. With `recompute`, inner states of a block are not kept for the backward pass (decoder only). With `lora`, adapters are
    trained and published, alone; the weights that they stand beside are read where they lie, if they lie in this precision on
    this device, so that others can share them. With `offload`, the host keeps what is not needed all the time: moments and
    float32 masters, or all of a frozen model, which is on the device only inside `resident()`. A frozen model that `moves`
    keeps its average in float32: small steps would be rounded away in half precision. `foreign`: what adapters stand beside is
    not what everyone builds from the config, so it travels and is saved with them.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: str = "cpu",
        precision: Precision = "float32",
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        recompute: Recompute = "none",
        frozen: bool = False,
        lora: LoraConfig | None = None,
        adapters: Adapters | None = None,
        offload: bool = False,
        moves: bool = False,
        foreign: bool = False,
    ) -> None:
        self.model, self.device, self.precision = model, torch.device(device), precision
        self.frozen, self._recompute, self._decay, self._betas = frozen, recompute, weight_decay, betas
        self._foreign = foreign
        self.adapters = adapters
        if lora is not None:
            self.adapters = make_adapters(model, lora) if supported(model) else wrap_modules(model, lora)
        self._offload = offload and not (frozen and self.adapters is not None)  # adapters are too small to be worth the way
        kind = DTYPES[precision]
        self._base = self._pack_base(kind)
        self._trained = self._own_parameters() if self.adapters is None else self.adapters.tensors
        place = next(iter(self._trained.values())).device
        start = None if frozen or precision != "bfloat16" else pack_tensors(self._trained, dtype=torch.float32, device=place)
        if frozen and self.adapters is None and not self._offload:
            self._vector = packed(model, dtype=kind, device=self.device)
        else:
            self._vector = pack_tensors(self._trained, dtype=kind, device=self.device)
        model.to(self.device)  # buffers; the parameters are there
        self._decoder = Decoder.of(model)
        if self._decoder is not None and self.adapters is not None:
            self._decoder.adapt(self.adapters.tensors, self.adapters.scale)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        if not frozen:
            kept = None if start is None else on_host(start, fast=self.device.type == "cuda") if offload else start.to(device)
            self._master = self._vector if kept is None else kept
            self._allocate()
        self._record()
        place = torch.device("cpu") if self._goes else self.device
        self._average = self._vector.to(place, torch.float32) if moves and precision == "bfloat16" else None
        self._merged = MergedModel(model)
        self._loaded: Adapters | None = None
        if self._goes:
            self._kept = on_host(self._vector, fast=self.device.type == "cuda")
            self._vector.untyped_storage().resize_(0)

    @property
    def _goes(self) -> bool:
        """Whether the weights leave the device between passes."""
        return self.frozen and self._offload

    def _record(self) -> None:
        """Passes from graphs, where that is possible: recorded work knows addresses."""
        self._recorded: GraphedDecoder | None = None
        half = self.device.type == "cuda" and self.precision == "bfloat16"
        if self._decoder is not None and half and not self._goes:
            self._recorded = GraphedDecoder(self._decoder, recompute=self._recompute)

    def _pack_base(self, kind: torch.dtype) -> Tensor | None:
        """What adapters stand beside, in one vector where the decoder reads it; None without adapters."""
        if self.adapters is None:
            return None
        own = {id(t) for t in self.adapters.tensors.values()}
        rest = [name for name, p in self.model.named_parameters() if id(p) not in own]
        if len(rest) == len(list(self.model.parameters())):
            return packed(self.model, dtype=kind, device=self.device)
        return pack(self.model, dtype=kind, device=self.device, names=rest)

    def _own_parameters(self) -> dict[str, Tensor]:
        """All parameters of the model, in the order in which they lie."""
        own = dict(self.model.named_parameters())
        return {name: own[name] for name in packed_order(self.model)}

    def _allocate(self) -> None:
        self._grad = torch.zeros_like(self._master, device=self.device)
        settings: Any = {"betas": self._betas, "weight_decay": self._decay, "device": self.device, "offload": self._offload}
        self._optimiser = AdamW([self._master], **settings)
        direct = self._vector is self._master or self._decoder is not None
        self._part = self._grad if direct else torch.zeros_like(self._vector)
        if self._decoder is not None:
            self._decoder.require_grad(self._vector, self._part)
        for tensor in self._trained.values():
            tensor.requires_grad_(True)
        if self._part.dtype == self._vector.dtype:
            for tensor, view in zip(self._trained.values(), self._named(self._part).values(), strict=True):
                tensor.grad = view

    @contextmanager
    def resident(self, *, changes: bool = False) -> Iterator[None]:
        """Inside it the weights are on the device, also those of a frozen model that the host keeps (anew, if it `changes`)."""
        if not self._goes:
            yield
            return
        memory = self._vector.untyped_storage()
        memory.resize_(self._kept.untyped_storage().nbytes())
        self._vector.copy_(self._kept, non_blocking=True)
        try:
            yield
        finally:
            if changes:
                self._kept.copy_(self._vector)
            memory.resize_(0)

    # -------------------------------------------------------------------------------------------------------- forward
    @property
    def folds(self) -> bool:
        """Whether rows may come in families (`PackedRows`): through the decoder, on the host."""
        return self._decoder is not None and self.device.type == "cpu"

    def packed_hidden(self, tokens: Tensor, rows: PackedRows) -> Tensor:
        """Last hidden states of packed rows. `[N] -> [N, width]`"""
        decoder = self._decoder
        if self._recorded is not None:
            return self._recorded(tokens, rows.lengths)
        if decoder is None:
            return hidden_states(self.model, tokens[rows.padded])[rows.rows, rows.positions]

        def attend(layer: int, turned: Tensor, value: Tensor) -> Tensor:
            return packed_attention(turned, value, rows, scale=decoder.scale)

        return decoder(tokens, rows.positions, attend, recompute=self._recompute)

    def hidden(self, part: MicroBatch) -> Tensor:
        """Hidden states that stand for the trained tokens. `-> [M, width]`"""
        if self.folds and len(part.position):
            folded = fold(part.tokens, part.lengths, part.row, part.position)
            return self.packed_hidden(part.tokens[folded.kept], folded.rows).index_select(0, folded.position)
        return self.packed_hidden(part.tokens, PackedRows(part.lengths, device=part.tokens.device))[part.position]

    def logprobs(self, part: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and entropy of the distribution it was drawn from. `-> [M], [M]`"""
        return self.target_logprobs(self.hidden(part), part.target, temperature=temperature)

    def scores(self, part: MicroBatch) -> Tensor:
        """The number that a `ScalarModel` gives each trained token. `-> [M]`"""
        scores: Tensor = self.model.score(self.hidden(part)).squeeze(-1).float()
        return scores

    def scalar_model(self) -> ScalarModel:
        """A `ScalarModel` that starts from a copy of this model's body."""
        return ScalarModel(self.merged_copy())

    def row_logprobs(self, row: Tensor, first: int) -> Tensor:
        """Log-probabilities at temperature 1 of the tokens of one row from `first` on. `[n] -> [n - first]`"""
        hidden = self.packed_hidden(row[:-1], PackedRows([len(row) - 1], device=self.device))
        return self.target_logprobs(hidden[first - 1 :], row[first:], temperature=1.0)[0]

    def target_logprobs(self, hidden: Tensor, targets: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each target and entropy of its distribution. `[M, width], [M] -> [M], [M]`"""
        if self._decoder is not None:
            return token_logprobs(hidden, targets, self._decoder.head, temperature=temperature)
        return head_logprobs(hidden, targets, output_head(self.model), temperature=temperature)

    # ------------------------------------------------------------------------------------------------------- optimiser
    def zero_grad(self) -> None:
        """Start a new sum of gradients."""
        self._grad.zero_()
        self._part.zero_()

    def gather(self) -> None:
        """After the backward pass of a micro-batch: add what is in half precision to the sum in float32."""
        if self._part is not self._grad:
            self._grad.add_(self._part)
            self._part.zero_()

    @torch.no_grad()
    def step(self, lr: float, *, max_grad_norm: float, collective: Collective, name: str, version: int) -> float:
        """Sum gradients over ranks, clip and step, unless they are not finite; returns their norm before the clip."""
        grad = self._grad.copy_(collective.all_reduce(self._grad))
        norm = float(torch.linalg.vector_norm(grad))
        if not math.isfinite(norm):
            raise NonFiniteError(name, version)
        grad.mul_(min(1.0, max_grad_norm / (norm + 1e-6)))
        self._optimiser.step([grad], lr)
        self._publish()
        return norm

    def _publish(self) -> None:
        if self._master is not self._vector:
            self._vector.copy_(self._master)

    # --------------------------------------------------------------------------------------------------------- weights
    def params(self) -> Mapping[str, Tensor]:
        """Live compute weights, tied ones once; of a model with adapters those alone, unless what they stand beside is not
        what everyone builds from the config."""
        if self.adapters is None:
            return model_params(self.model)
        return {**(plain_names(self.model) if self._foreign else {}), **self.adapters.params()}

    def masters(self) -> Mapping[str, Tensor]:
        """What is trained, as precise as it is kept."""
        return self._named(self._master)

    def base_params(self) -> dict[str, Tensor]:
        """Live weights as `start_from` takes them: those of the plain model, without what adapters add."""
        return model_params(self.model) if self.adapters is None else plain_names(self.model)

    def merged_copy(self) -> Any:
        """A plain model of its own, with adapters merged in."""
        if self.adapters is None:
            return copy_model(self.model)
        if self._decoder is None:
            return unwrapped(self.model)
        twin = copy_model(self.model)
        MergedModel(twin).load(self.adapters)
        return twin

    def frozen_copy(self, *, offload: bool = False, moves: bool = False) -> Self:
        """The same model, fixed as it is now, in the same precision; adapters are copied, what they stand beside is shared."""
        settings: Any = {"device": str(self.device), "precision": self.precision, "offload": offload, "moves": moves}
        if self.adapters is None or self._decoder is None:
            return type(self)(self.merged_copy(), frozen=True, **settings)
        own = self.adapters.own(dtype=self._vector.dtype, device=self.device)
        return type(self)(shared_copy(self.model), frozen=True, adapters=own, **settings)

    @torch.no_grad()
    def move_towards(self, other: TokenModel, share: float) -> None:
        """Go `share` of the way to the weights of `other`; 1 copies them."""
        with self.resident(changes=True):
            if share == 1.0:
                self._vector.copy_(other._vector)
            elif self._average is None:
                self._vector.lerp_(other._vector, share)
            if self._average is not None:
                self._average.lerp_(other._master.to(self._average), share)
                self._vector.copy_(self._average)

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Take plain weights (as `base_params` gives them) as the start; adapters stay as they are."""
        if self.adapters is not None:
            for name, value in plain_names(self.model).items():
                value.copy_(params[name])
            self._foreign = True
            return
        for name, view in self._named(self._master).items():
            view.copy_(params[name])
        self._publish()

    @torch.no_grad()
    def load_params(self, params: Mapping[str, Tensor]) -> None:
        """Copy a published version into this model, which is frozen and has no adapters of its own."""
        plain, adapters = Adapters.split(params)
        if adapters is None:
            load_model_params(self.model, plain, bind=False)
            return
        if self._decoder is None:
            self._merged.reset()
        for name, value in plain.items():
            self.model.get_parameter(name).copy_(value)
        if self._decoder is None:
            self._merged.load(adapters)
        elif self._loaded is not None and self._loaded.has_names_of(adapters):
            self._loaded.take(adapters)
        else:
            self._loaded = adapters.own(dtype=self._vector.dtype, device=self.device)
            self._decoder.adapt(self._loaded.tensors, self._loaded.scale)
            self._record()

    def state_dict(self) -> State:
        """Weights, and where there is an optimiser its moments, in float32 by the names of the parameters; on the host, so that
        a learner that ran out of memory on its device can still be saved. What adapters stand beside is in it only if the
        config does not say it; else a mark of it."""
        state: State = {}
        if self._base is not None:
            own = {n: p.detach().to("cpu", copy=True) for n, p in plain_names(self.model).items()} if self._foreign else {}
            state |= {"rest": own, "base": {"mark": bit_sum(self._base), "precision": self.precision}}
        if self.frozen:
            with self.resident():
                state["model"] = {k: v.detach().to("cpu", copy=True) for k, v in self._named(self._vector).items()}
            if self._average is not None:
                state["average"] = self._named(self._average.to("cpu", copy=True))
            return state
        parts = {"model": self._master, "mean": self._optimiser.mean[0], "square": self._optimiser.square[0]}
        state |= {k: self._named(x.to("cpu", copy=True)) for k, x in parts.items()}
        return {"rest": {}} | state | {"steps": float(self._optimiser.steps)}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        if self._base is not None:
            self._load_base(state, self._base)
        if self.frozen:
            with self.resident(changes=True):
                self._load(self._vector, state["model"])
            if self._average is not None:
                self._load(self._average, state["average" if "average" in state else "model"])  # a run may have kept none
            return
        own = {"model": self._master, "mean": self._optimiser.mean[0], "square": self._optimiser.square[0]}
        for key, vector in own.items():
            self._load(vector, state[key])
        self._optimiser.steps.fill_(state["steps"])
        self._publish()

    def _load(self, vector: Tensor, values: Mapping[str, Any]) -> None:
        for name, view in self._named(vector).items():
            view.copy_(whole(values[name]))

    def _load_base(self, state: State, own: Tensor) -> None:
        """What adapters stand beside must be what they were trained beside."""
        if state.get("rest"):
            for name, value in plain_names(self.model).items():
                value.copy_(torch.as_tensor(state["rest"][name]))
            self._foreign = True
        base = state.get("base", {"precision": ""})  # a reference that was asked elsewhere says nothing of it
        if base["precision"] == self.precision and base["mark"] != bit_sum(own):
            fix = "its weights are not those that the adapters of this checkpoint were trained beside; give the same model"
            raise ConfigError("model", str(getattr(self.model.config, "name_or_path", "")), fix)

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        """Parts of a vector that is laid out like what is trained, by name."""
        return split_like(vector, self._trained)


def bit_sum(vector: Tensor) -> int:
    """A mark of some memory: the sum of its words, the same on every device."""
    words = vector.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[vector.element_size()])
    return sum(int(part.sum(dtype=torch.int64)) for part in torch.split(words, 1 << 26))
