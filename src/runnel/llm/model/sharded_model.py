"""A causal language model that is sharded over ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`), block by block.

Each rank has some rows of every parameter, of its gradient and of its moments. The weights of a block are gathered only while
the block is computed, forwards or backwards. Every rank must therefore make the same passes: a rank without data makes an empty
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runnel.core.contracts.learning import Collective
from runnel.core.errors import NonFiniteError, RunnelError
from runnel.core.sharding.param_shards import ParamShard, ShardRows, rows_of_rank, whole
from runnel.core.state import State
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.model.adamw import AdamW
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import ScalarModel, copy_modules, hidden_states, output_head
from runnel.llm.model.decoder import Recompute
from runnel.llm.model.logprobs import head_logprobs
from runnel.llm.model.token_model import DTYPES, Precision, TokenModel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel

Mesh = Callable[[], "DeviceMesh"]
"""Returns the ranks as a device mesh; the first call waits until all ranks have met."""


class ShardedModel:
    """`model`, sharded over the ranks of `mesh`; it has the methods of a `TokenModel`.

    The model is sharded at the first pass, when ranks meet. Until then this rank has all of it, and a state that is loaded is
    kept aside. Passes go through the model's own modules, padded to the longest row. `recompute` (other than none) stores only
    the input of each block. `offload` keeps moments on the host; of a frozen model, its rows. A frozen model that `moves` is
    kept in float32, because half precision would round its small steps away.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        mesh: Mesh,
        device: str = "cpu",
        precision: Precision = "float32",
        weight_decay: float = 0.0,
        recompute: Recompute = "none",
        frozen: bool = False,
        offload: bool = False,
        moves: bool = False,
    ) -> None:
        self.device, self.precision, self.frozen = torch.device(device), precision, frozen
        self._mesh, self._recompute, self._decay, self._offload, self._moves = mesh, recompute, weight_decay, offload, moves
        self._whole: _Whole | None = _Whole(model)
        self._root: Any = None  # an FSDPModule, whose attributes are those of the module that it wraps
        self._optimiser: AdamW | None = None
        self._state_to_load: State | None = None
        self._source: ShardedModel | None = None
        self._bare = copy_without_values(model)
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}

    # ----------------------------------------------------------------------------------------------------------- sharding
    @property
    def root(self) -> Any:
        """The sharded model behind one call (`_Whole.forward`); the first access shards it."""
        if self._root is None:
            assert self._whole is not None
            self._root, self._whole = self._shard(self._whole), None
            (state, other), self._state_to_load, self._source = (self._state_to_load, self._source), None, None
            if state is not None:
                self.load_state_dict(state)
            elif other is not None:
                self.copy_from(other)
        return self._root

    def _shard(self, model: _Whole) -> nn.Module:
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        kind = DTYPES[self.precision]
        kept = torch.float32 if self.precision == "bfloat16" and (self._moves or not self.frozen) else kind
        for parameter in model.parameters():
            parameter.data = parameter.data.to(kept)
            parameter.requires_grad_(not self.frozen)
        casts = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32) if kind != kept else MixedPrecisionPolicy()
        to_host = CPUOffloadPolicy() if self.frozen and self._offload and self.device.type == "cuda" else OffloadPolicy()
        # without reshard_after_forward, a pass without a backward pass would leave old weights gathered for the next pass
        shard = partial(fully_shard, mesh=self._mesh(), reshard_after_forward=True, mp_policy=casts, offload_policy=to_host)
        for block in blocks_of(model.model):
            if self._recompute != "none":
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            shard(block)
        root = shard(model)
        assert isinstance(root, nn.Module)  # FSDP2 changes the class of `model` itself
        for module in root.modules():
            if isinstance(module, FSDPModule):  # sum gradients, do not average: denominators count the whole batch already
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return root

    # ------------------------------------------------------------------------------------------------------------ passes
    def logprobs(self, part: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and entropy of the distribution it was drawn from. `-> [M], [M]`"""
        found: tuple[Tensor, Tensor] = self.root(part.tokens, part.lengths, part.position, part.target, temperature)
        return found

    def scores(self, part: MicroBatch) -> Tensor:
        """The score of a `ScalarModel` at each trained token. `-> [M]`"""
        scores: Tensor = self.root(part.tokens, part.lengths, part.position, None, 1.0)
        return scores

    def scalar_model(self) -> ScalarModel:
        """A `ScalarModel` whose body has no values yet (`copy_from` gives each rank its rows)."""
        return ScalarModel(self.empty_copy())

    def row_logprobs(self, row: Tensor, first: int) -> Tensor:
        """Log-probabilities at temperature 1 of the tokens of one row from `first` on. `[n] -> [n - first]`"""
        position = torch.arange(first - 1, len(row) - 1, device=self.device)
        logprobs: Tensor = self.root(row[:-1], [len(row) - 1], position, row[first:], 1.0)[0]
        return logprobs

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Does nothing: FSDP2 moves weights to the device in each pass."""
        yield

    # --------------------------------------------------------------------------------------------------------- optimiser
    def zero_grad(self) -> None:
        """Start a new sum of gradients."""
        for parameter in self._named().values():
            parameter.grad = None

    def gather(self) -> None:
        """Does nothing: after a backward pass, gradients are in float32 and on their ranks already."""

    @torch.no_grad()
    def step(self, lr: float, *, max_grad_norm: float, collective: Collective, name: str, version: int) -> float:
        """Clip gradients by their norm over all ranks and step; return the norm before the clip. Raise if it is not finite."""
        own = self._named()
        grads = [torch.zeros_like(_local(p)) if p.grad is None else _local(p.grad) for p in own.values()]
        square = sum((g.double().square().sum() for g in grads), torch.zeros((), dtype=torch.float64, device=self.device))
        norm = math.sqrt(float(collective.all_reduce(square)))
        if not math.isfinite(norm):
            raise NonFiniteError(name, version)
        torch._foreach_mul_(grads, min(1.0, max_grad_norm / (norm + 1e-6)))
        self._moments().step(grads, lr)
        return norm

    def _moments(self) -> AdamW:
        if self._optimiser is None:
            own = [_local(p) for p in self._named().values()]
            self._optimiser = AdamW(own, weight_decay=self._decay, device=self.device, offload=self._offload)
        return self._optimiser

    # ----------------------------------------------------------------------------------------------------------- weights
    def param_shards(self) -> dict[str, ParamShard]:
        """This rank's rows of every parameter, with the precision in which to publish them; all rows before the first pass."""
        if self._whole is None:
            return self._shards_of(list(map(_local, self._named().values())))
        own = {name: p.data for name, p in self._whole.model.named_parameters()}
        found = own if self._state_to_load is None else self._state_to_load["model"]
        kind = DTYPES[self.precision]
        return {name: ParamShard(_parts(found[name]), shape, kind) for name, shape in self._shapes.items()}

    def params(self) -> Mapping[str, Tensor]:
        """Raise: no rank has whole parameters."""
        raise RunnelError("each rank of this learner keeps a part of the parameters (learner.shard): use pieces()")

    masters = base_params = params

    def frozen_copy(self, *, offload: bool = False, moves: bool = False) -> Self:
        """The same model, fixed as it is now, in the same precision and over the same ranks."""
        twin = type(self)(
            self.empty_copy(),
            mesh=self._mesh,
            device=str(self.device),
            precision=self.precision,
            frozen=True,
            offload=offload,
            moves=moves,
        )
        twin.copy_from(self)
        return twin

    def empty_copy(self) -> PreTrainedModel:
        """A model of this kind whose parameters have memory but no values yet. Pages that are never written take no memory, so
        a whole copy costs little before it is sharded."""
        return copy_without_values(self._bare, device="cpu")

    @torch.no_grad()
    def copy_from(self, other: ShardedModel) -> None:
        """Copy the rows of every parameter that `other` has too. Before the first pass, this is put off until it comes."""
        if self._whole is not None:
            self._source = other
            return
        theirs = other._named()
        for name, parameter in self._named().items():
            if name in theirs:
                _local(parameter).copy_(_local(theirs[name]))

    @torch.no_grad()
    def move_towards(self, other: Any, fraction: float) -> None:
        """Move the weights towards those of `other` (of this class) by `fraction` of the difference; 1 copies them."""
        theirs = other._named()
        for name, parameter in self._named().items():
            own = _local(parameter)
            own.lerp_(_local(theirs[name]).to(own.device, own.dtype), fraction)

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Copy this rank's rows of plain weights, as the start of training."""
        for name, shard in self.param_shards().items():
            shard.value.copy_(params[name][shard.start : shard.start + len(shard.value)])

    def state_dict(self) -> State:
        """This rank's rows of the weights and, unless frozen, of the moments; on the host."""
        if self._whole is not None:
            return self._whole_state()
        state: State = {"model": {name: shard.state() for name, shard in self.param_shards().items()}}
        if self.frozen:
            return state
        moments = self._moments()
        for key, values in (("mean", moments.mean), ("square", moments.square)):
            state[key] = {name: shard.state() for name, shard in self._shards_of(values).items()}
        return state | {"steps": float(moments.steps), "rest": {}}

    def _whole_state(self) -> State:
        """The state before the first pass, with whole tensors."""
        if self._state_to_load is not None:
            kinds = {key: values for key, values in self._state_to_load.items() if isinstance(values, Mapping)}
            return self._state_to_load | {key: {n: whole(v) for n, v in values.items()} for key, values in kinds.items()}
        state: State = {"model": {name: shard.value.detach().clone() for name, shard in self.param_shards().items()}}
        if self.frozen:
            return state
        empty = {key: {name: torch.zeros(shape) for name, shape in self._shapes.items()} for key in ("mean", "square")}
        return state | empty | {"steps": 0.0, "rest": {}}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Copy this rank's rows of a state, which may come from any number of ranks (`core/sharding/param_shards.py`)."""
        if self._whole is not None:
            self._state_to_load = state
            return
        kinds = {"model": list(map(_local, self._named().values()))}
        if not self.frozen:
            kinds |= {"mean": self._moments().mean, "square": self._moments().square}
            self._moments().steps.fill_(state["steps"])
        for key, values in kinds.items():
            for name, shard in self._shards_of(values).items():
                shard.value.copy_(_rows(state[key][name], shard.start, shard.start + len(shard.value)))

    def _named(self) -> dict[str, nn.Parameter]:
        """Parameters by their names in the plain model; each is a distributed tensor (`DTensor`)."""
        return dict(self.root.model.named_parameters())

    def _shards_of(self, values: list[Tensor]) -> dict[str, ParamShard]:
        """Local tensors as named shards; `values` are in the order of the parameters."""
        mesh, out = self._mesh(), {}
        for (name, shape), value in zip(self._shapes.items(), values, strict=True):
            start, _ = rows_of_rank(shape[0], mesh.get_local_rank(), mesh.size())
            out[name] = ParamShard(((start, value),), shape, DTYPES[self.precision])
        return out


TrainedModel = TokenModel | ShardedModel
"""A model as the token learner uses it: whole on every rank, or sharded over the ranks."""


class _Whole(nn.Module):
    """A model behind one call, from tokens to log-probabilities or scores: FSDP2 gathers weights only inside a call."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, lengths: list[int], position: Tensor, target: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor] | Tensor:
        rows = PackedRows(lengths, device=tokens.device)
        hidden = hidden_states(self.model, tokens[rows.padded])[rows.rows, rows.positions][position]
        if target is None:
            scores: Tensor = self.model.score(hidden).squeeze(-1).float().clone()
            return scores
        logprobs, entropy = head_logprobs(hidden, target, output_head(self.model), temperature=temperature)
        return logprobs.clone(), entropy.clone()  # FSDP2 registers backward hooks on outputs, which must not be views


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks that are gathered one at a time: modules that a Hugging Face model says must not be split."""
    kinds = set(getattr(model.base_model, "_no_split_modules", None) or ())
    return [m for m in model.modules() if type(m).__name__ in kinds]


def copy_without_values(model: PreTrainedModel, *, device: str = "meta") -> PreTrainedModel:
    """A deep copy with uninitialised parameters; on the default device, meta, they have shapes only."""
    return copy_modules(model, lambda x: torch.empty_like(x, device=device, memory_format=torch.contiguous_format))


def _local(x: Tensor) -> Tensor:
    """This rank's rows of a distributed tensor."""
    from torch.distributed.tensor import DTensor

    found = x.detach()
    assert isinstance(found, DTensor)
    rows: Tensor = found.to_local()
    return rows


def _rows(value: Tensor | ShardRows | State, start: int, stop: int) -> Tensor:
    """Rows of a whole tensor, of the shards of all ranks, or of one shard as `ParamShard.state` returns it."""
    if isinstance(value, Mapping):
        value = ShardRows(((value["start"], value["piece"]),), value["of"])
    rows: Tensor = value[start:stop]
    return rows


def _parts(value: Tensor | ShardRows) -> tuple[tuple[int, Tensor], ...]:
    return value.parts if isinstance(value, ShardRows) else ((0, value),)
