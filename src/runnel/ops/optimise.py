"""Adam over one flat vector: the optimiser step that learners share.

All weights of a learner are views of one vector, so that the sum over ranks, the norm and the update are a handful of
operations whatever the number of layers. For small networks the usual loop over tensors costs more than the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.protocols import Collective, State


class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980, alg. 1) on all trainable `parameters` at once, with clipping by global norm.

        g = sum of the ranks' gradients, scaled to a norm of at most max_norm
        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Losses divide by global denominators, so the sum of the ranks' gradients is the gradient of the global batch. The
    parameters become views of one vector and keep that address for good; load into them in place.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.lr, self.betas, self.eps, self.num_steps = lr, betas, eps, 0
        self._weights = [p for p in parameters if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._weights}
        if len(kinds) != 1:
            raise ConfigError("net", sorted(map(str, kinds)), "trainable weights must be of one dtype on one device")
        self._vector = torch.cat([p.detach().reshape(-1) for p in self._weights])
        self._mean, self._square = torch.zeros_like(self._vector), torch.zeros_like(self._vector)
        for weight, part in zip(self._weights, torch.split(self._vector, [p.numel() for p in self._weights]), strict=True):
            weight.data = part.view_as(weight)

    def step(self, loss: Tensor, *, max_norm: float, collective: Collective) -> Tensor:
        """Differentiate `loss`, step, and return the gradient's norm before clipping. `[] -> []`"""
        grads = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        with torch.no_grad():
            grad = collective.all_reduce(torch.cat([g.reshape(-1) for g in grads]))
            norm: Tensor = torch.linalg.vector_norm(grad)
            self._apply(grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0)))
        return norm

    def _apply(self, grad: Tensor) -> None:
        self.num_steps += 1
        b1, b2 = self.betas
        self._mean.lerp_(grad, 1.0 - b1)
        self._square.mul_(b2).addcmul_(grad, grad, value=1.0 - b2)
        scale = self._square.sqrt().mul_((1.0 - b2**self.num_steps) ** -0.5).add_(self.eps)
        self._vector.addcdiv_(self._mean, scale, value=-self.lr / (1.0 - b1**self.num_steps))

    def state_dict(self) -> State:
        return {"num_steps": self.num_steps, "mean": self._mean.clone(), "square": self._square.clone()}

    def load_state_dict(self, state: State) -> None:
        self.num_steps = int(state["num_steps"])
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
