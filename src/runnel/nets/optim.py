"""Adam over one flat vector: the optimiser that learners share.

All weights of a learner are views of one vector. So the sum over ranks, the norm and the update are a few operations, however
many layers there are. For small networks the usual loop over tensors costs more than the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.core.worker import progressed


class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980, alg. 1) on all trainable `parameters` at once, with clipping by global norm.

        g = sum of the ranks' gradients, scaled to a norm of at most max_norm
        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Losses divide by global denominators, so the sum of the ranks' gradients is the gradient of the global batch. The
    parameters become views of one vector and keep that address; load into them in place.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.betas, self.eps, self.num_steps, self._rate = betas, eps, 0, lr
        self._weights = [p for p in parameters if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._weights}
        if len(kinds) != 1:
            raise ConfigError("net", sorted(map(str, kinds)), "trainable weights must be of one dtype on one device")
        self._vector = torch.cat([p.detach().reshape(-1) for p in self._weights])
        self._mean, self._square = torch.zeros_like(self._vector), torch.zeros_like(self._vector)
        for weight, part in zip(self._weights, torch.split(self._vector, [p.numel() for p in self._weights]), strict=True):
            weight.data = part.view_as(weight)  # the parameter object stays: modules hold it
        self._count = torch.zeros(())
        # on an accelerator, rate and step count are device memory: a replayed CUDA graph reads their present values
        self._on_device = self._vector.new_tensor([lr, 0.0]) if self._vector.is_cuda else None

    @property
    def lr(self) -> float:
        """Learning rate of the next steps."""
        return self._rate

    @lr.setter
    def lr(self, rate: float) -> None:
        self._rate = rate
        if self._on_device is not None:
            self._on_device[0].fill_(rate)

    def step(self, loss: Tensor, *, max_norm: float | None, collective: Collective) -> Tensor:
        """Differentiate `loss`, step, and return the gradient's norm before clipping (None: no clipping). `[] -> []`"""
        return self.apply(torch.autograd.grad(loss, self._weights, materialize_grads=True), max_norm, collective=collective)

    @torch.no_grad()
    def apply(self, grads: Sequence[Tensor], max_norm: float | None, *, collective: Collective) -> Tensor:
        """Step along given gradients, one for each parameter; returns their norm before clipping."""
        grad = _join(grads, collective)
        norm: Tensor = torch.linalg.vector_norm(grad)
        if max_norm is not None:
            grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        self._step(grad)
        return norm

    def _step(self, grad: Tensor) -> None:
        progressed()
        if self._on_device is None:
            self._step_on_host(grad)
        else:
            self._step_on_device(grad, self._on_device)

    def _step_on_host(self, grad: Tensor) -> None:
        """One step on the CPU."""
        self.num_steps += 1
        # the kernel of `torch.optim.Adam(fused=True)`: one pass over memory instead of seven
        self._count.fill_(self.num_steps)
        b1, b2 = self.betas
        torch._fused_adam_(
            [self._vector],
            [grad],
            [self._mean],
            [self._square],
            [],
            [self._count],
            lr=self._rate,
            beta1=b1,
            beta2=b2,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def _step_on_device(self, grad: Tensor, numbers: Tensor) -> None:
        numbers[1].add_(1.0)
        rate, count = numbers.unbind(0)
        b1, b2 = self.betas
        self._mean.lerp_(grad, 1.0 - b1)
        self._square.mul_(b2).addcmul_(grad, grad, value=1.0 - b2)
        scale = self._square.sqrt().mul_((1.0 - b2**count).rsqrt()).add_(self.eps)
        self._vector.sub_(self._mean * (rate / (1.0 - b1**count)) / scale)

    def on_host(self, num_steps: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """For code that takes `num_steps` steps itself: weights, mean, square `[P]` each, and the number of the first step."""
        first = self.num_steps + 1
        self.num_steps += num_steps
        return self._vector, self._mean, self._square, first

    def on_device(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For kernels that take the step themselves: weights, mean, square `[P]` each, and rate and step count `[2]`."""
        assert self._on_device is not None, "on an accelerator only"
        return self._vector, self._mean, self._square, self._on_device

    def state_dict(self) -> State:
        if self._on_device is not None:
            self.num_steps = int(self._on_device[1])
        return {"num_steps": self.num_steps, "mean": self._mean.clone(), "square": self._square.clone()}

    def load_state_dict(self, state: State) -> None:
        self.num_steps = int(state["num_steps"])
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        if self._on_device is not None:
            self._on_device[1].fill_(self.num_steps)


class Target:
    """A target network that follows an online one: `w' = w' + tau (w - w')`, for all parameters in one operation.

    Make it after the online network's optimiser, whose flat vector it then uses. Parameters only: buffers are not followed.
    """

    def __init__(self, online: nn.Module, target: nn.Module) -> None:
        self.net = target.requires_grad_(False)
        ours, theirs = list(target.parameters()), list(online.parameters())
        source = flat_view(theirs)
        if source is None:
            self._pairs: list[tuple[Tensor, Tensor]] = list(zip(ours, theirs, strict=True))
            return
        vector = torch.cat([p.detach().reshape(-1) for p in ours])
        for weight, part in zip(ours, torch.split(vector, [p.numel() for p in ours]), strict=True):
            weight.data = part.view_as(weight)
        self._pairs = [(vector, source)]

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move by the fraction `tau` of the way; 1 copies."""
        for old, new in self._pairs:
            old.lerp_(new, tau)


def _join(grads: Sequence[Tensor], collective: Collective) -> Tensor:
    """The sum over ranks of gradients, as one vector."""
    return collective.all_reduce(grads[0].reshape(-1) if len(grads) == 1 else torch.cat([g.reshape(-1) for g in grads]))


def flat_view(parameters: Sequence[Tensor]) -> Tensor | None:
    """One vector over parameters that lie one after the other in memory; None if they do not."""
    start = at = parameters[0].storage_offset()
    home = parameters[0].untyped_storage().data_ptr()
    for p in parameters:
        if p.untyped_storage().data_ptr() != home or p.storage_offset() != at or not p.is_contiguous():
            return None
        at += p.numel()
    return parameters[0].detach().as_strided((at - start,), (1,), start)
