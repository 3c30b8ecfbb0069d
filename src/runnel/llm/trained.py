"""A language model as the token learner holds it: its forward pass, its optimiser, its weights. Nothing else of the learner
touches a model, so another forward pass or optimiser is written here alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runnel.core.errors import NonFiniteError
from runnel.core.protocols import Collective, State
from runnel.llm.batches import MicroBatch
from runnel.nets.causal_lm import hidden_states, load_model_params, model_params
from runnel.ops.logprobs import token_logprobs


class ScalarModel(nn.Module):
    """The body of a causal language model under a head that gives one number a token: a critic, or a reward model.

    Its weights have the names of transformers' sequence classification models (`score.weight`). It starts from the body of
    `model`, which is taken over, not copied, and from scores of 0.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._prefix: str = model.base_model_prefix
        self.config = model.config
        setattr(self, self._prefix, model.base_model)
        weight = model.get_input_embeddings().weight
        self.score = nn.Linear(weight.shape[1], 1, bias=False, dtype=weight.dtype, device=weight.device)
        nn.init.zeros_(self.score.weight)

    @property
    def base_model(self) -> Any:
        return getattr(self, self._prefix)

    @staticmethod
    def copy_of(model: Any) -> ScalarModel:
        """A scalar model that starts from a copy of `model`'s body."""
        return ScalarModel(copy.deepcopy(model))


class TrainedModel:
    """One model, with AdamW of its own unless it is `frozen`."""

    def __init__(self, model: Any, *, device: str, weight_decay: float = 0.0, frozen: bool = False) -> None:
        self.model = model.to(device)
        self._parameters = [p.requires_grad_(not frozen) for p in model.parameters()]
        self._optimiser = None
        if not frozen:
            self._optimiser = torch.optim.AdamW(
                self._parameters, lr=1.0, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True
            )

    # --------------------------------------------------------------------------------------------------------- forward
    def hidden(self, part: MicroBatch) -> Tensor:
        """Hidden states that stand for the trained tokens. `-> [M, width]`

        Rows are padded at the end. Attention is causal, so what stands behind a row's end changes nothing in it.
        """
        steps = torch.arange(part.max_length, device=part.tokens.device)
        index = part.row_start[:, None] + torch.minimum(steps, part.row_length[:, None] - 1)
        states = hidden_states(self.model, part.tokens[index])
        return states[part.row, part.position - part.row_start[part.row]]

    def logprobs(self, part: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and entropy of the distribution it was drawn from. `-> [M], [M]`"""
        head = self.model.get_output_embeddings()
        return token_logprobs(self.hidden(part), part.target, head=head, temperature=temperature)

    def scores(self, part: MicroBatch) -> Tensor:
        """The number that a `ScalarModel` gives each trained token. `-> [M]`"""
        scores: Tensor = self.model.score(self.hidden(part)).squeeze(-1).float()
        return scores

    # -------------------------------------------------------------------------------------------------------- optimiser
    def zero_grad(self) -> None:
        assert self._optimiser is not None, "a frozen model has no gradient"
        self._optimiser.zero_grad(set_to_none=True)

    def step(self, lr: float, *, max_grad_norm: float, collective: Collective, name: str, version: int) -> float:
        """Sum gradients over ranks, clip and step, unless they are not finite; returns their norm before the clip."""
        assert self._optimiser is not None, "a frozen model has no gradient"
        for parameter in self._parameters:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = collective.all_reduce(grad)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, max_grad_norm))
        if not math.isfinite(norm):
            raise NonFiniteError(name, version)
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        self._optimiser.step()
        return norm

    # ----------------------------------------------------------------------------------------------------------- weights
    def params(self) -> Mapping[str, Tensor]:
        """Live weights, tied ones once."""
        return model_params(self.model)

    def frozen_copy(self, device: str) -> TrainedModel:
        return TrainedModel(copy.deepcopy(self.model), device=device, frozen=True)

    @torch.no_grad()
    def move_towards(self, other: TrainedModel, share: float) -> None:
        """Go `share` of the way to the weights of `other`; 1 copies them."""
        for own, new in zip(self._parameters, other._parameters, strict=True):
            own.copy_(new) if share == 1.0 else own.lerp_(new, share)

    def state_dict(self) -> State:
        return {"model": {k: v.clone() for k, v in self.params().items()}, "moments": self._moments()}

    def load_state_dict(self, state: State) -> None:
        load_model_params(self.model, state["model"], bind=False)
        self._load_moments(state["moments"])

    def _moments(self) -> list[dict[str, Tensor]]:
        """AdamW's state by parameter; empty before the first step."""
        if self._optimiser is None:
            return []
        states = [self._optimiser.state[p] for p in self._parameters if p in self._optimiser.state]
        return [{name: value.clone() for name, value in state.items()} for state in states]

    def _load_moments(self, moments: Sequence[Mapping[str, Tensor]]) -> None:
        if self._optimiser is None:
            return
        self._optimiser.state.clear()
        for parameter, state in zip(self._parameters, moments, strict=False):
            self._optimiser.state[parameter] = {name: torch.as_tensor(value).clone() for name, value in state.items()}
