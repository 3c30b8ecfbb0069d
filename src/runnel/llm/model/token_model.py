"""A causal language model in training: packed rows in, log-probabilities out, and an AdamW step over one vector.

Passes may run in bfloat16; master weights, sums of gradients and moments are float32. The weights of the passes are the model's
own parameters (packed, `pack.py`), so an engine in the same process reads each new version in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.sharding.param_shards import whole
from runnel.core.state import State
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.model.adamw import AdamW, on_host
from runnel.llm.model.attention import PackedRows, fold, packed_attention
from runnel.llm.model.causal_lm import ScalarModel, copy_model, hidden_states, load_model_params, output_head, shared_copy
from runnel.llm.model.decoder import Decoder, Recompute, supported
from runnel.llm.model.graphed import GraphedDecoder
from runnel.llm.model.logprobs import head_logprobs, token_logprobs
from runnel.llm.model.lora import Adapters, LoraConfig, MergedModel, make_adapters, plain_names, unwrapped, wrap_modules
from runnel.llm.model.pack import pack, pack_tensors, packed, packed_parameters, split_like

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
Precision = Literal["float64", "float32", "bfloat16"]


class TokenModel:
    """`model` with its forward pass over packed rows and, unless it is `frozen`, its optimiser.

    Families that `Decoder` knows run through it, without padding. Others run through their own modules, padded to the longest
    row. The options:

    - `recompute`: inner states of a block are not stored for the backward pass (decoder only).
    - `lora`: only adapters are trained and published. Base weights that have this precision and device already are used in
      place, so that others can share their memory.
    - `offload`: the host keeps moments and float32 masters, or all weights of a frozen model, which are on the device only
      inside `resident()`.
    - `moves`: a frozen model keeps its average in float32, because half precision would round its small steps away.
    - `foreign`: the base weights of the adapters are not those that every worker builds from the config, so they are published
      and saved with the adapters.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        device: str = "cpu",
        precision: Precision = "float32",
        weight_decay: float = 0.0,
        recompute: Recompute = "none",
        frozen: bool = False,
        lora: LoraConfig | None = None,
        adapters: Adapters | None = None,
        offload: bool = False,
        moves: bool = False,
        foreign: bool = False,
    ) -> None:
        self.model, self.device, self.precision = model, torch.device(device), precision
        self.frozen, self._recompute, self._decay, self._foreign = frozen, recompute, weight_decay, foreign
        self.adapters = adapters
        if lora is not None:
            self.adapters = make_adapters(model, lora) if supported(model) else wrap_modules(model, lora)
        self._offload = offload and not (frozen and self.adapters is not None)  # frozen adapters are too small to be worth it
        kind = DTYPES[precision]
        self._base = self._pack_base(kind)
        self._trained: Mapping[str, Tensor] = packed_parameters(model) if self.adapters is None else self.adapters.tensors
        place = next(iter(self._trained.values())).device
        # the float32 masters start from the weights as given, before these are rounded to the precision of the passes
        start = None if frozen or precision != "bfloat16" else pack_tensors(self._trained, dtype=torch.float32, device=place)
        if frozen and self.adapters is None and not self._offload:
            self._vector = packed(model, dtype=kind, device=self.device)
        else:
            self._vector = pack_tensors(self._trained, dtype=kind, device=self.device)
        model.to(self.device)  # for the buffers: the parameters are there already
        self._decoder = Decoder.of(model)
        if self._decoder is not None and self.adapters is not None:
            self._decoder.adapt(self.adapters.tensors, self.adapters.scale)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        if not frozen:
            kept = None if start is None else on_host(start, fast=self.device.type == "cuda") if offload else start.to(device)
            self._master = self._vector if kept is None else kept
            self._allocate()
        self._make_graphs()
        place = torch.device("cpu") if self._leaves_device else self.device
        self._average = self._vector.to(place, torch.float32) if moves and precision == "bfloat16" else None
        # the modules are walked over once: `params` is called at every publication, and only `data` of a parameter ever changes
        self._parameters = dict(model.named_parameters())
        self._merged = MergedModel(model)
        self._loaded: Adapters | None = None
        if self._leaves_device:
            self._kept = on_host(self._vector, fast=self.device.type == "cuda")
            self._vector.untyped_storage().resize_(0)

    @property
    def _leaves_device(self) -> bool:
        """Whether the weights are on the device only inside `resident()`."""
        return self.frozen and self._offload

    def _make_graphs(self) -> None:
        """Start with new CUDA graphs where they can be used: captured work holds the addresses of weights."""
        self._graphed: GraphedDecoder | None = None
        half = self.device.type == "cuda" and self.precision == "bfloat16"
        if self._decoder is not None and half and not self._leaves_device:
            self._graphed = GraphedDecoder(self._decoder, recompute=self._recompute)

    def _pack_base(self, kind: torch.dtype) -> Tensor | None:
        """The base weights of adapters in one vector, as the decoder reads them; None without adapters."""
        if self.adapters is None:
            return None
        own = {id(t) for t in self.adapters.tensors.values()}
        rest = [name for name, p in self.model.named_parameters() if id(p) not in own]
        if len(rest) == len(list(self.model.parameters())):
            return packed(self.model, dtype=kind, device=self.device)
        return pack(self.model, dtype=kind, device=self.device, names=rest)

    def _allocate(self) -> None:
        self._grad = torch.zeros_like(self._master, device=self.device)
        self._optimiser = AdamW([self._master], weight_decay=self._decay, device=self.device, offload=self._offload)
        # the decoder adds gradients in float32; autograd gives those of other modules in the dtype of their weights
        direct = self._vector is self._master or self._decoder is not None
        self._micro_grad = self._grad if direct else torch.zeros_like(self._vector)
        if self._decoder is not None:
            self._decoder.require_grad(self._vector, self._micro_grad)
        for tensor in self._trained.values():
            tensor.requires_grad_(True)
        if self._micro_grad.dtype == self._vector.dtype:  # autograd adds to `grad` in place, so views fill the one vector
            for tensor, view in zip(self._trained.values(), self._named(self._micro_grad).values(), strict=True):
                tensor.grad = view

    @contextmanager
    def resident(self, *, changes: bool = False) -> Iterator[None]:
        """Inside this context the weights are on the device. With `changes` the host's copy is updated at its end."""
        if not self._leaves_device:
            yield
            return
        memory = self._vector.untyped_storage()  # freed and allocated in place: the parameters are views of it
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
        """Whether rows may share prefixes (families of `PackedRows`): only in the decoder, on the CPU."""
        return self._decoder is not None and self.device.type == "cpu"

    def packed_hidden(self, tokens: Tensor, rows: PackedRows) -> Tensor:
        """Last hidden states of packed rows. `[N] -> [N, width]`"""
        decoder = self._decoder
        if self._graphed is not None:
            return self._graphed(tokens, rows.lengths)
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
        """The score of a `ScalarModel` at each trained token. `-> [M]`"""
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
        self._micro_grad.zero_()

    def gather(self) -> None:
        """After the backward pass of a micro-batch: add gradients in half precision to the sum in float32."""
        if self._micro_grad is not self._grad:
            self._grad.add_(self._micro_grad)
            self._micro_grad.zero_()

    def divide_grad(self, number: float) -> None:
        """Divide the sum of gradients, of which the divisor was not known while it was added up."""
        self._grad.div_(number)

    @torch.no_grad()
    def step(self, lr: float, *, max_grad_norm: float, collective: Collective, name: str, version: int) -> float:
        """Sum gradients over ranks, clip and step; returns their norm before the clip. Raises if it is not finite."""
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
        """Live weights of the passes, tied ones once. With adapters: those only, unless the base weights are `foreign`."""
        if self.adapters is None:
            return {name: parameter.data for name, parameter in self._parameters.items()}
        return {**(plain_names(self.model) if self._foreign else {}), **self.adapters.params()}

    def masters(self) -> Mapping[str, Tensor]:
        """Live master weights of what is trained."""
        return self._named(self._master)

    def base_params(self) -> dict[str, Tensor]:
        """Live weights of the plain model, without adapters, as `start_from` reads them."""
        return plain_names(self.model)

    def merged_copy(self) -> PreTrainedModel:
        """A plain copy of the model, with adapters merged into its weights."""
        if self.adapters is None:
            return copy_model(self.model)
        if self._decoder is None:
            return unwrapped(self.model)
        twin = copy_model(self.model)
        MergedModel(twin).load(self.adapters)
        return twin

    def frozen_copy(self, *, offload: bool = False, moves: bool = False) -> Self:
        """A frozen copy of the model as it is now, in the same precision. Adapters are copied, their base weights shared."""
        if self.adapters is None or self._decoder is None:
            model, own = self.merged_copy(), None
        else:
            model, own = shared_copy(self.model), self.adapters.own(dtype=self._vector.dtype, device=self.device)
        return type(self)(
            model,
            device=str(self.device),
            precision=self.precision,
            frozen=True,
            adapters=own,
            offload=offload,
            moves=moves,
        )

    @torch.no_grad()
    def move_towards(self, other: Any, fraction: float) -> None:
        """Move the weights towards those of `other` (of this class) by `fraction` of the difference; 1 copies them."""
        with self.resident(changes=True):
            if fraction == 1.0:
                self._vector.copy_(other._vector)
            elif self._average is None:
                self._vector.lerp_(other._vector, fraction)
            if self._average is not None:
                self._average.lerp_(other._master.to(self._average), fraction)
                self._vector.copy_(self._average)

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Copy plain weights (as `base_params` returns them), as the start of training; adapters do not change."""
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
        elif self._loaded is None or not self._loaded.copy_from(adapters):
            self._loaded = adapters.own(dtype=self._vector.dtype, device=self.device)
            self._decoder.adapt(self._loaded.tensors, self._loaded.scale)
            self._make_graphs()

    def state_dict(self) -> State:
        """Weights and, unless frozen, moments in float32, by the names of the parameters.

        They are on the host, so that a learner that ran out of device memory can still be saved. Base weights of adapters are
        included only if they are `foreign`; otherwise a checksum of them is.
        """
        state: State = {}
        if self._base is not None:
            own = {n: p.detach().to("cpu", copy=True) for n, p in plain_names(self.model).items()} if self._foreign else {}
            state |= {"rest": own, "base": {"mark": bit_sum(self._base), "precision": self.precision}}
        if self.frozen:
            with self.resident():
                state["model"] = self._named(self._vector.to("cpu", copy=True))
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
                self._load(self._average, state["average" if "average" in state else "model"])  # older states have no average
            return
        own = {"model": self._master, "mean": self._optimiser.mean[0], "square": self._optimiser.square[0]}
        for key, vector in own.items():
            self._load(vector, state[key])
        self._optimiser.steps.fill_(state["steps"])
        self._publish()

    def _load(self, vector: Tensor, values: State) -> None:
        for name, view in self._named(vector).items():
            view.copy_(whole(values[name]))

    def _load_base(self, state: State, own: Tensor) -> None:
        """Raise unless the base weights are those that the adapters of `state` were trained with; foreign ones are loaded."""
        if state.get("rest"):
            for name, value in plain_names(self.model).items():
                value.copy_(torch.as_tensor(state["rest"][name]))
            self._foreign = True
        base = state.get("base", {"precision": ""})  # the state of a remote reference has no checksum
        if base["precision"] == self.precision and base["mark"] != bit_sum(own):
            fix = "its weights are not those that the adapters of this checkpoint were trained beside; give the same model"
            raise ConfigError("model", str(getattr(self.model.config, "name_or_path", "")), fix)

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views by name of a vector that has the layout of the trained parameters."""
        return split_like(vector, self._trained)


def bit_sum(vector: Tensor) -> int:
    """A checksum of a vector: the sum of its bits as integers, which is the same on every device and in every order."""
    words = vector.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[vector.element_size()])
    return sum(int(part.sum(dtype=torch.int64)) for part in torch.split(words, 1 << 26))
