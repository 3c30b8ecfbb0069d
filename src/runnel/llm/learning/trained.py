"""A language model as the token learner holds it (`llm/model/token_model.py`), asked about micro-batches; models that score."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import Collective
from runnel.core.state import State
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import body_name, body_of
from runnel.llm.model.prefixes import fold
from runnel.llm.model.sharded_model import ShardedModel
from runnel.llm.model.token_model import TokenModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ScalarModel(nn.Module):
    """The body of a causal language model under a head that gives one number a token: a critic, or a reward model.

    Its weights have the names of transformers' sequence classification models (`score.weight`). It starts from the body of
    `model`, which is taken over, not copied, and from scores of 0.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.base_model_prefix = body_name(model)
        self.config = model.config
        setattr(self, self.base_model_prefix, body_of(model))
        weight = model.get_input_embeddings().weight
        self.score = nn.Linear(weight.shape[1], 1, bias=False, dtype=weight.dtype, device=weight.device)
        nn.init.zeros_(self.score.weight)

    @property
    def base_model(self) -> Any:
        return body_of(self)


class Trained(Protocol):
    """A model as the token learner uses it: whole on every rank, or sharded."""

    device: torch.device

    def logprobs(self, part: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and entropy of the distribution it was drawn from. `-> [M], [M]`"""
        ...

    def scores(self, part: MicroBatch) -> Tensor:
        """The score of a `ScalarModel` at each trained token. `-> [M]`"""
        ...

    def row_logprobs(self, row: Tensor, first: int) -> Tensor: ...

    def resident(self) -> AbstractContextManager[None]:
        """Inside this context the weights are on the device."""
        ...

    def zero_grad(self) -> None: ...

    def gather(self) -> None: ...

    def step(self, lr: float, *, max_grad_norm: float, collective: Collective, name: str, version: int) -> float: ...

    def params(self) -> Mapping[str, Tensor]: ...

    def masters(self) -> Mapping[str, Tensor]:
        """Live master weights of what is trained."""
        ...

    def base_params(self) -> Mapping[str, Tensor]:
        """Live weights as `start_from` takes them."""
        ...

    def frozen_copy(self, *, offload: bool = False, moves: bool = False) -> Trained:
        """A frozen copy of the model as it is now; one that `moves` keeps its average in float32."""
        ...

    def scalar_model(self) -> ScalarModel:
        """A `ScalarModel` on a copy of this body, to be trained."""
        ...

    def move_towards(self, other: Any, fraction: float) -> None: ...

    def start_from(self, params: Mapping[str, Tensor]) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class TrainedModel(TokenModel):
    """A `TokenModel` that computes on micro-batches."""

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


class ShardedTrainedModel(ShardedModel):
    """A `ShardedModel` that computes on micro-batches."""

    def logprobs(self, part: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and entropy of the distribution it was drawn from. `-> [M], [M]`"""
        return self.logprobs_at(part.tokens, part.lengths, part.position, part.target, temperature=temperature)

    def scores(self, part: MicroBatch) -> Tensor:
        """The score of a `ScalarModel` at each trained token. `-> [M]`"""
        return self.scores_at(part.tokens, part.lengths, part.position)

    def scalar_model(self) -> ScalarModel:
        """A `ScalarModel` whose body has no values yet (`take` brings them, to each rank its own)."""
        return ScalarModel(self.empty_copy())
