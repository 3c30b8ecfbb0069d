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

from runnel.core.errors import NonFiniteError
from runnel.core.pieces import whole
from runnel.core.protocols import Collective, State
from runnel.nets.adamw import AdamW, on_host
from runnel.nets.causal_lm import copy_model, hidden_states, load_model_params, model_params, output_head
from runnel.nets.decoder import Decoder, Recompute
from runnel.nets.lora import Adapters
from runnel.nets.pack import pack, packed_order
from runnel.nets.recorded import RecordedDecoder
from runnel.ops.attention import PackedRows, packed_attention
from runnel.ops.logprobs import head_logprobs, token_logprobs

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
Precision = Literal["float64", "float32", "bfloat16"]


class TokenModel:
    """`model` with its forward pass over packed rows, and unless `frozen` its optimiser.

    Families that `Decoder` knows run through it, without padding; others through their own modules, padded to the longest
    row. With `recompute`, inner states of a block are not kept for the backward pass (decoder only). With `adapters`, only
    those are trained, through the model's modules, and what is published is the plain model with them merged in. With
    `offload`, the host keeps what is not needed all the time: moments and float32 masters, or all of a frozen model, which is
    on the device only inside `resident()`.
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
        adapters: Adapters | None = None,
        offload: bool = False,
    ) -> None:
        self.model, self.device, self.precision = model, torch.device(device), precision
        self.frozen, self._recompute, self._adapters, self._offload = frozen, recompute, adapters, offload
        self._decay, self._betas = weight_decay, betas
        own, kind = dict(model.named_parameters()), DTYPES[precision]
        self._names = [n for n in packed_order(model) if adapters is None or n in adapters.names]
        start = None if frozen or precision != "bfloat16" else pack(model, dtype=torch.float32, names=self._names)
        if rest := own.keys() - set(self._names):
            pack(model, dtype=kind, device=device, names=rest)
        self._vector = pack(model, dtype=kind, device=device, names=self._names)
        self._decoder = Decoder.of(model) if adapters is None else None
        for name, parameter in own.items():
            parameter.requires_grad_(not frozen and (adapters is None or name in adapters.names))
        if adapters is not None:
            adapters.settle(dtype=kind, device=self.device)
        if not frozen:
            kept = None if start is None else on_host(start, fast=self.device.type == "cuda") if offload else start.to(device)
            self._master = self._vector if kept is None else kept
            self._allocate()
        self._recorded: RecordedDecoder | None = None
        moves = frozen and offload  # recorded work knows addresses
        if self._decoder is not None and self.device.type == "cuda" and precision == "bfloat16" and not moves:
            self._recorded = RecordedDecoder(self._decoder, recompute=recompute)
        if moves:
            self._kept = on_host(self._vector, fast=self.device.type == "cuda")
            self._vector.untyped_storage().resize_(0)

    def _allocate(self) -> None:
        self._grad = torch.zeros_like(self._master, device=self.device)
        settings: Any = {"betas": self._betas, "weight_decay": self._decay, "device": self.device, "offload": self._offload}
        self._optimiser = AdamW([self._master], **settings)
        direct = self._vector is self._master or self._decoder is not None
        self._part = self._grad if direct else torch.zeros_like(self._vector)
        if self._decoder is not None:
            self._decoder.require_grad(self._part)
        if self._part.dtype == self._vector.dtype:
            for name, view in self._named(self._part).items():
                self.model.get_parameter(name).grad = view

    @contextmanager
    def resident(self, *, changes: bool = False) -> Iterator[None]:
        """Inside it the weights are on the device, also those of a frozen model that the host keeps (anew, if it `changes`)."""
        if not self.frozen or not self._offload:
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
        if self._adapters is not None:
            self._adapters.merge()

    # --------------------------------------------------------------------------------------------------------- weights
    def params(self) -> Mapping[str, Tensor]:
        """Live compute weights, tied ones once; adapters are merged in."""
        return model_params(self.plain)

    @property
    def plain(self) -> Any:
        """The model as transformers knows it, without adapters of its own."""
        return self.model if self._adapters is None else self._adapters.plain

    def frozen_copy(self, *, offload: bool = False) -> Self:
        """The same model, fixed as it is now, in the same precision."""
        settings: Any = {"device": str(self.device), "precision": self.precision, "offload": offload}
        return type(self)(copy_model(self.plain), frozen=True, **settings)

    @torch.no_grad()
    def move_towards(self, other: TokenModel, share: float) -> None:
        """Go `share` of the way to the weights of `other`; 1 copies them."""
        with self.resident(changes=True):
            self._vector.lerp_(other._vector, share) if share < 1.0 else self._vector.copy_(other._vector)

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Take plain weights (as `params` gives them) as the start; adapters stay as they are."""
        if self._adapters is not None:
            self._adapters.start_from(params)
            return
        for name, view in self._named(self._master).items():
            view.copy_(params[name])
        self._publish()

    def state_dict(self) -> State:
        """Weights, and where there is an optimiser its moments, in float32 by the names of the parameters; on the host, so that
        a learner that ran out of memory on its device can still be saved."""
        if self.frozen:
            with self.resident():
                return {"model": {k: v.detach().to("cpu", copy=True) for k, v in self.params().items()}}
        parts = {"model": self._master, "mean": self._optimiser.mean[0], "square": self._optimiser.square[0]}
        state: State = {k: self._named(x.to("cpu", copy=True)) for k, x in parts.items()}
        rest = {n: p.detach().to("cpu", copy=True) for n, p in self.model.named_parameters() if n not in state["model"]}
        return state | {"steps": float(self._optimiser.steps), "rest": rest}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        if self.frozen:
            with self.resident(changes=True):
                load_model_params(self.model, {name: whole(value) for name, value in state["model"].items()}, bind=False)
            return
        own = {"model": self._master, "mean": self._optimiser.mean[0], "square": self._optimiser.square[0]}
        for key, vector in own.items():
            for name, view in self._named(vector).items():
                view.copy_(whole(state[key][name]))
        for name, value in state["rest"].items():
            self.model.get_parameter(name).copy_(torch.as_tensor(value))
        self._optimiser.steps.fill_(state["steps"])
        if self._adapters is not None:
            self._adapters.renew()
        self._publish()

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        """Parts of a vector that is laid out like the packed parameters, by the parameters' names."""
        own = dict(self.model.named_parameters())
        out, start = {}, 0
        for name in self._names:
            out[name] = vector[start : start + own[name].numel()].view(own[name].shape)
            start += own[name].numel()
        return out
