"""A policy as one graph of tensors, from observations to the action of `env.step`, for `torch.export` and ONNX."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec


class PolicyGraph(nn.Module):
    """The greedy policy of a network: normalisation, network, best action, bounds of the environment.

    Inputs in order: the leaves of the observation, `action_mask` where the policy was trained with one, the recurrent state.
    Outputs in order: the parts of the action, then the state after the step. The first dimension of all is the batch.
    """

    def __init__(self, net: nn.Module, env_spec: EnvSpec) -> None:
        super().__init__()
        self.net, self.env_spec = net, env_spec
        self.state_spec: dict[str, ArraySpec] = dict(getattr(net, "state_spec", {}))  # a user's own network may have none
        self.inputs: dict[str, ArraySpec] = dict(env_spec.obs)
        if env_spec.has_mask:
            self.inputs["action_mask"] = ArraySpec((env_spec.action.mask_size,), torch.bool)
        self.inputs |= self.state_spec
        self.actions = [name for name, _ in _parts(env_spec.action)]
        self.outputs = [*self.actions, *(f"next_{name}" for name in self.state_spec)]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = Batch(zip(self.inputs, inputs, strict=True))
        reply: Batch = self.net.act(rows, greedy=True)  # type: ignore[operator]
        return (*env_actions(self.env_spec.action, reply["action"]), *(reply[name] for name in self.state_spec))

    def example(self, num: int = 3, *, seed: int = 0) -> tuple[Tensor, ...]:
        """Random inputs of the right shapes; the mask allows every action."""
        generator = torch.Generator().manual_seed(seed)

        def make(name: str, spec: ArraySpec) -> Tensor:
            if name in self.state_spec:
                return torch.zeros(num, *spec.shape, dtype=spec.dtype)
            if spec.dtype == torch.bool:
                return torch.ones(num, *spec.shape, dtype=torch.bool)
            if spec.dtype.is_floating_point:
                return torch.randn(num, *spec.shape, generator=generator).to(spec.dtype)
            return torch.randint(0, 2 if spec.dtype == torch.int8 else 128, (num, *spec.shape), generator=generator).to(
                spec.dtype
            )

        return tuple(make(name, spec) for name, spec in self.inputs.items())


def env_actions(spec: ActionSpec, action: Tensor) -> list[Tensor]:
    """Network actions `[B, *spec.shape]` as the arrays of the environment's action, in order (`core/action_codec.py`)."""
    if spec.kind != "multi":
        return [_part(spec, action, spec.shape)]
    arrays, part, column = [], 0, 0
    for leaf in spec.leaves:
        parts = spec.parts[part : part + leaf.num_parts]
        width = sum(p.noise_size for p in parts)
        columns = action[:, column : column + width]
        part, column = part + leaf.num_parts, column + width
        if parts[0].kind == "continuous":
            arrays.append(_part(parts[0], columns.reshape(-1, *leaf.shape), leaf.shape))
            continue
        start = torch.tensor([p.start for p in parts])
        arrays.append((columns.to(torch.int64) + start).reshape(-1, *leaf.shape).to(getattr(torch, leaf.dtype)))
    return arrays


def _part(spec: ActionSpec, action: Tensor, shape: tuple[int, ...]) -> Tensor:
    if spec.kind == "discrete":
        return action + spec.start
    dtype: torch.dtype = getattr(torch, spec.env_dtype)
    exact = dtype
    if not dtype.is_floating_point:
        action, exact = action.round(), torch.float64  # float32 does not hold every integer
    low, high = (torch.tensor(bound, dtype=exact).reshape(shape) for bound in (spec.low, spec.high))
    return torch.minimum(torch.maximum(action.to(exact), low), high).to(dtype)


def _parts(spec: ActionSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each array of the environment's action: `action`, or `action/KEY` inside a dict or a tuple."""
    if spec.kind != "multi":
        return [("action", spec.shape)]
    return [("/".join(["action", *map(str, leaf.path)]), leaf.shape) for leaf in spec.leaves]
