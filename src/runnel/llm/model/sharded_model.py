"""A causal language model of which every rank keeps a part: FSDP2 (`torch.distributed.fsdp.fully_shard`) over its blocks.

Each rank has some rows of every parameter, of its gradient and of its moments. A block's weights are together only while it is
computed, forwards and backwards. So every rank must make the same passes: who has nothing to compute makes an empty one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

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
from runnel.llm.model.causal_lm import ScalarModel, hidden_states, output_head
from runnel.llm.model.decoder import Recompute
from runnel.llm.model.logprobs import head_logprobs
from runnel.llm.model.token_model import DTYPES, Precision

Mesh = Callable[[], Any]
"""The ranks as a device mesh, once they meet."""


class ShardedModel:
    """`model` over the ranks of `mesh`, in the place of a `TokenModel`.

    It is taken apart at the first pass, when ranks meet; up to then this rank has all of it, and a state that it is given
    waits. Passes go through the model's own modules, padded to the longest row. `recompute` (other than none) keeps of a block
    its input alone. `offload` keeps moments on the host, or of a frozen model its rows. A frozen model that `moves` is kept in
    float32: small steps would be rounded away in half precision.
    """

    def __init__(
        self,
        model: Any,
        *,
        mesh: Mesh,
        device: str = "cpu",
        precision: Precision = "float32",
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        recompute: Recompute = "none",
        frozen: bool = False,
        offload: bool = False,
        moves: bool = False,
    ) -> None:
        self._moves = moves
        self.device, self.precision, self.frozen = torch.device(device), precision, frozen
        self._mesh, self._recompute, self._offload = mesh, recompute, offload
        self._settings: Any = {"betas": betas, "weight_decay": weight_decay, "device": self.device, "offload": offload}
        self._whole: _Whole | None = _Whole(model)
        self._root: Any = None
        self._optimiser: AdamW | None = None
        self._waiting: State | None = None
        self._like: ShardedModel | None = None
        self._bare = copy_without_values(model)
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}

    # ------------------------------------------------------------------------------------------------------- taking apart
    @property
    def is_apart(self) -> bool:
        """Whether this rank has its rows only."""
        return self._root is not None

    @property
    def root(self) -> Any:
        """The model behind one call, taken apart over the ranks."""
        if self._root is None:
            assert self._whole is not None
            self._root, self._whole = self._shard(self._whole), None
            (state, other), self._waiting, self._like = (self._waiting, self._like), None, None
            if state is not None:
                self.load_state_dict(state)
            elif other is not None:
                self.take(other)
        return self._root

    def _shard(self, model: _Whole) -> Any:
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

        kind = DTYPES[self.precision]
        kept = torch.float32 if self.precision == "bfloat16" and (self._moves or not self.frozen) else kind
        for parameter in model.parameters():
            parameter.data = parameter.data.to(kept)
            parameter.requires_grad_(not self.frozen)
        settings: dict[str, Any] = {"mesh": self._mesh(), "reshard_after_forward": True}  # else a pass without a backward pass
        if kind != kept:  # would leave old weights behind for the next
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32)
        if self.frozen and self._offload and self.device.type == "cuda":
            settings["offload_policy"] = CPUOffloadPolicy()
        for block in blocks_of(model.model):
            if self._recompute != "none":
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            fully_shard(block, **settings)
        root: Any = fully_shard(model, **settings)
        for module in root.modules():
            if isinstance(module, FSDPModule):  # gradients are summed: denominators are of the whole batch already
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return root

    # ------------------------------------------------------------------------------------------------------------ passes
    def logprobs_at(
        self, tokens: Tensor, lengths: list[int], position: Tensor, target: Tensor, *, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Of packed rows, log-probability of each `target` given what is up to `position`, and entropy there.
        `[N], [M], [M] -> [M], [M]`"""
        found: tuple[Tensor, Tensor] = self.root(tokens, lengths, position, target, temperature)
        return found

    def scores_at(self, tokens: Tensor, lengths: list[int], position: Tensor) -> Tensor:
        """The number that a model with a scalar head gives each `position`. `[N], [M] -> [M]`"""
        scores: Tensor = self.root(tokens, lengths, position, None, 1.0)
        return scores

    def logprobs(self, part: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and entropy of the distribution it was drawn from. `-> [M], [M]`"""
        return self.logprobs_at(part.tokens, part.lengths, part.position, part.target, temperature=temperature)

    def scores(self, part: MicroBatch) -> Tensor:
        """The number that a `ScalarModel` gives each trained token. `-> [M]`"""
        return self.scores_at(part.tokens, part.lengths, part.position)

    def scalar_model(self) -> ScalarModel:
        """A `ScalarModel` whose body has no values yet (`take` brings them, to each rank its own)."""
        return ScalarModel(self.empty_copy())

    def row_logprobs(self, row: Tensor, first: int) -> Tensor:
        """Log-probabilities at temperature 1 of the tokens of one row from `first` on. `[n] -> [n - first]`"""
        position = torch.arange(first - 1, len(row) - 1, device=self.device)
        return self.logprobs_at(row[:-1], [len(row) - 1], position, row[first:], temperature=1.0)[0]

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Weights come to the device with each pass."""
        yield

    # --------------------------------------------------------------------------------------------------------- optimiser
    def zero_grad(self) -> None:
        """Start a new sum of gradients."""
        for parameter in self._named().values():
            parameter.grad = None

    def gather(self) -> None:
        """After the backward pass of a micro-batch: gradients are in float32 and on their ranks already."""

    @torch.no_grad()
    def step(self, lr: float, *, max_grad_norm: float, collective: Collective, name: str, version: int) -> float:
        """Clip by the norm over all ranks and step, unless it is not finite; returns the norm before the clip."""
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
            self._optimiser = AdamW([_local(p) for p in self._named().values()], **self._settings)
        return self._optimiser

    # ----------------------------------------------------------------------------------------------------------- weights
    def pieces(self) -> dict[str, ParamShard]:
        """This rank's rows of every parameter, to be published in the precision of the passes; all rows before the first
        pass."""
        if self._whole is None:
            return self._pieces(list(map(_local, self._named().values())))
        own = {name: p.data for name, p in self._whole.model.named_parameters()}
        found = own if self._waiting is None else self._waiting["model"]
        kind = DTYPES[self.precision]
        return {name: ParamShard(_parts(found[name]), shape, kind) for name, shape in self._shapes.items()}

    def params(self) -> Mapping[str, Tensor]:
        raise RunnelError("each rank of this learner keeps a part of the parameters (learner.shard): use pieces()")

    def masters(self) -> Mapping[str, Tensor]:
        raise RunnelError("each rank of this learner keeps a part of the parameters (learner.shard): use pieces()")

    def base_params(self) -> Mapping[str, Tensor]:
        raise RunnelError("each rank of this learner keeps a part of the parameters (learner.shard): use pieces()")

    def frozen_copy(self, *, offload: bool = False, moves: bool = False) -> Self:
        """The same model, fixed as it is now, in the same precision and over the same ranks."""
        settings: Any = {"mesh": self._mesh, "device": str(self.device), "precision": self.precision, "offload": offload}
        twin = type(self)(self.empty_copy(), frozen=True, moves=moves, **settings)
        twin.take(self)
        return twin

    def empty_copy(self) -> Any:
        """A model of this kind whose parameters have memory but no values yet: nothing of it is touched before it is cut."""
        return copy_without_values(self._bare, device="cpu")

    @torch.no_grad()
    def take(self, other: ShardedModel) -> None:
        """Copy the rows of every parameter that `other` has too; before the first pass, when it comes."""
        if self._whole is not None:
            self._like = other
            return
        theirs = other._named()
        for name, parameter in self._named().items():
            if name in theirs:
                _local(parameter).copy_(_local(theirs[name]))

    @torch.no_grad()
    def move_towards(self, other: ShardedModel, share: float) -> None:
        """Go `share` of the way to the weights of `other`; 1 copies them."""
        theirs = other._named()
        for name, parameter in self._named().items():
            own = _local(parameter)
            own.lerp_(_local(theirs[name]).to(own.device, own.dtype), share)

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Take this rank's rows of plain weights as the start."""
        for name, piece in self.pieces().items():
            piece.value.copy_(params[name][piece.start : piece.start + len(piece.value)])

    def state_dict(self) -> State:
        """This rank's rows of the weights, and where there is an optimiser of its moments; on the host."""
        if self._whole is not None:
            return self._whole_state()
        state: State = {"model": {name: piece.state() for name, piece in self.pieces().items()}}
        if self.frozen:
            return state
        moments = self._moments()
        for key, values in (("mean", moments.mean), ("square", moments.square)):
            state[key] = {name: piece.state() for name, piece in self._pieces(values).items()}
        return state | {"steps": float(moments.steps), "rest": {}}

    def _whole_state(self) -> State:
        """Before the first pass: as of a model in one piece."""
        if self._waiting is not None:
            kinds = {key: values for key, values in self._waiting.items() if isinstance(values, Mapping)}
            return self._waiting | {key: {n: whole(v) for n, v in values.items()} for key, values in kinds.items()}
        state: State = {"model": {name: piece.value.detach().clone() for name, piece in self.pieces().items()}}
        if self.frozen:
            return state
        empty = {key: {name: torch.zeros(shape) for name, shape in self._shapes.items()} for key in ("mean", "square")}
        return state | empty | {"steps": 0.0, "rest": {}}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Take this rank's rows of a state that may be of any number of ranks (`core.pieces.join_pieces`)."""
        if self._whole is not None:
            self._waiting = state
            return
        kinds = {"model": list(map(_local, self._named().values()))}
        if not self.frozen:
            kinds |= {"mean": self._moments().mean, "square": self._moments().square}
            self._moments().steps.fill_(state["steps"])
        for key, values in kinds.items():
            for name, piece in self._pieces(values).items():
                piece.value.copy_(_rows(state[key][name], piece.start, piece.start + len(piece.value)))

    def _named(self) -> dict[str, Any]:
        """Parameters by the names that the plain model has for them; each is a distributed tensor."""
        return dict(self.root.model.named_parameters())

    def _pieces(self, values: list[Tensor]) -> dict[str, ParamShard]:
        mesh, out = self._mesh(), {}
        for (name, shape), value in zip(self._shapes.items(), values, strict=True):
            start, _ = rows_of_rank(shape[0], mesh.get_local_rank(), mesh.size())
            out[name] = ParamShard(((start, value),), shape, DTYPES[self.precision])
        return out


class _Whole(nn.Module):
    """A model behind one call, from tokens to what is asked of them: inside it, FSDP2 has the weights together."""

    def __init__(self, model: Any) -> None:
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
        return logprobs.clone(), entropy.clone()  # FSDP2 hangs the backward pass on outputs, which must not be views


def blocks_of(model: Any) -> list[nn.Module]:
    """The blocks that are gathered one at a time: those that a Hugging Face model says must not be split."""
    kinds = set(getattr(model.base_model, "_no_split_modules", None) or ())
    return [m for m in model.modules() if type(m).__name__ in kinds]


def copy_without_values(model: Any, *, device: str = "meta") -> Any:
    """A deep copy whose parameters have shapes, and on a `device` other than meta memory, but not the values."""
    empty = {
        id(p): nn.Parameter(torch.empty_like(p, device=device, memory_format=torch.contiguous_format), requires_grad=False)
        for p in model.parameters()
    }
    return copy.deepcopy(model, dict(empty))


def _local(x: Any) -> Tensor:
    rows: Tensor = x.detach().to_local()
    return rows


def _rows(value: Any, start: int, stop: int) -> Tensor:
    """Rows of a whole tensor, of pieces of all ranks, or of one piece as `ParamShard.state` gives it."""
    if isinstance(value, Mapping):
        value = ShardRows(((value["start"], value["piece"]),), value["of"])
    rows: Tensor = value[start:stop]
    return rows


def _parts(value: Tensor | ShardRows) -> tuple[tuple[int, Tensor], ...]:
    return value.parts if isinstance(value, ShardRows) else ((0, value),)
