"""Recurrent cores: one step for acting, a whole segment for learning. The state is set to zero where an episode begins.

GRU (Cho et al. 2014, arXiv:1406.1078) and LSTM (Hochreiter & Schmidhuber 1997). The input half of every gate is computed for
all steps at once; only the half that needs the state runs step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from runnel.core.spaces import ArraySpec

State = Mapping[str, Tensor]


class Core(nn.Module):
    """`kind` gru or lstm, `[..., I] -> [..., size]`; its state is `state/h` `[B, size]`, and `state/c` for an LSTM."""

    def __init__(self, kind: Literal["gru", "lstm"], num_inputs: int, size: int, *, seed: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        gates = 3 if kind == "gru" else 4
        generator = torch.Generator().manual_seed(seed)
        self.weight_in = nn.Parameter(_orthogonal_gates(num_inputs, size, gates, generator))
        self.weight_state = nn.Parameter(_orthogonal_gates(size, size, gates, generator))
        self.bias = nn.Parameter(torch.zeros(gates * size))
        names = ("state/h",) if kind == "gru" else ("state/h", "state/c")
        self.state_spec: dict[str, ArraySpec] = {name: ArraySpec((size,)) for name in names}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """One step. `[B, I]` and the state before it -> `[B, size]` and the state after it."""
        return self._step(torch.addmm(self.bias, x, self.weight_in), state)

    def unroll(self, x: Tensor, state: State, resets: Tensor, active: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Run over `x` `[T, B, I]` from the state before step 0. The state before step t is zero where `resets[t]` is true, and
        step t leaves it as it is where `active[t]` is false.

        Gives the outputs `[T, B, size]` and, by name, the state after each step `[T, B, size]` (before any reset).
        """
        gates_in = torch.matmul(x, self.weight_in) + self.bias
        keep = (~resets).to(x.dtype).unsqueeze(-1)
        outputs, now = [], dict(state)
        after: dict[str, list[Tensor]] = {name: [] for name in self.state_spec}
        for t in range(x.shape[0]):
            before = {name: value * keep[t] for name, value in now.items()}
            y, now = self._step(gates_in[t], before)
            if active is not None:
                now = {name: torch.where(active[t].unsqueeze(-1), value, before[name]) for name, value in now.items()}
            outputs.append(y)
            for name, value in now.items():
                after[name].append(value)
        return torch.stack(outputs), {name: torch.stack(values) for name, values in after.items()}

    def _step(self, gates_in: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        return self._gru(gates_in, state) if self.kind == "gru" else self._lstm(gates_in, state)

    def _gru(self, gates_in: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """z, r = sigmoid(x W + h U);  n = tanh(x W_n + r (h U_n));  h' = n + z (h - n)"""
        h, n = state["state/h"], self.size
        gates_state = torch.mm(h, self.weight_state)
        update, reset = torch.split(torch.sigmoid(gates_in[:, : 2 * n] + gates_state[:, : 2 * n]), n, -1)
        new = torch.tanh(gates_in[:, 2 * n :] + reset * gates_state[:, 2 * n :])
        after = torch.lerp(new, h, update)
        return after, {"state/h": after}

    def _lstm(self, gates_in: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """i, f, o = sigmoid(x W + h U) (f with 1 added);  c' = f c + i tanh(x W_g + h U_g);  h' = o tanh(c')"""
        n = self.size
        gates = torch.addmm(gates_in, state["state/h"], self.weight_state)
        new = torch.tanh(gates[:, 3 * n :])
        write, keep, show = torch.split(gates[:, : 3 * n], n, -1)
        # 1 is added so that an untrained cell remembers (Jozefowicz et al. 2015)
        c = torch.sigmoid(keep + 1.0) * state["state/c"] + torch.sigmoid(write) * new
        h = torch.sigmoid(show) * torch.tanh(c)
        return h, {"state/h": h, "state/c": c}


def _orthogonal_gates(num_in: int, size: int, gates: int, generator: torch.Generator) -> Tensor:
    parts = [nn.init.orthogonal_(torch.empty(num_in, size), generator=generator) for _ in range(gates)]
    return torch.cat(parts, dim=1)
