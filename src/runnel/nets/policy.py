"""`EnvPolicy`: a trained network that takes raw observations and returns what `env.step` accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from runnel.core.action_codec import env_action, flat_mask
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.rng import make_rng
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.inferencer import Acts, GivesProbabilities, to_act

Obs = Any
"""An observation or an action of an environment, nested as its space is."""
Flatten = Callable[[Obs], Mapping[str, np.ndarray]]


class EnvPolicy:
    """Acts on observations as Gymnasium gives them: one, or a batch of them.

    `flatten` turns a raw observation into the leaves of `env_spec.obs`; `seed` is for the noise of stochastic acting. A network
    with recurrent state (`state_spec`, names `state/...`) keeps it from call to call: call `reset` before each episode. `acts`
    is used in place of the network's own `act`.
    """

    def __init__(self, net: Acts, env_spec: EnvSpec, *, flatten: Flatten, seed: int = 0, acts: Acts | None = None) -> None:
        self.net, self.env_spec, self._acts = net, env_spec, acts or net
        self._flatten, self._rng = flatten, make_rng(seed, "policy")
        self._to_env = env_action(env_spec.action)
        self._state_spec: Mapping[str, ArraySpec] = getattr(net, "state_spec", {})  # a user's own network may have none
        self._state = Batch()

    def act(self, obs: Obs, *, deterministic: bool = True, action_mask: Obs = None) -> Obs:
        """One action for one observation; for a batch, the actions of a vector environment (arrays with a leading dimension).

        `action_mask` is for environments that give it in `info`; a mask inside the observation is found without it.
        """
        rows, batched = self.asked(obs, action_mask)
        num_rows = len(next(iter(rows.values())))
        if not deterministic:
            rows["noise"] = torch.from_numpy(self._rng.random((num_rows, self.net.noise_size), dtype=np.float32))
        rows.update(self._recall(num_rows))
        to_act(self.net)
        with torch.inference_mode():
            reply = self._acts.act(rows, greedy=deterministic)
        self._state = Batch({key: reply[key] for key in self._state_spec})
        action = reply["action"].numpy()
        if batched:
            return self._to_env(action)
        one = self._to_env(action[0])
        # a plain int: environments index lists with it, and print it
        return int(one) if self.env_spec.action.kind == "discrete" else one

    def probabilities(self, obs: Obs, *, action_mask: Obs = None) -> np.ndarray:
        """How probable each action is where actions are drawn (`deterministic=False`), from the first one on: `[A]` for one
        observation, `[B, A]` for a batch. For discrete actions, and policies without a memory."""
        net, action = self.net, self.env_spec.action
        if action.kind != "discrete":
            raise DataError(f"its actions are {action.kind}, and probabilities are of discrete ones")
        if self._state_spec:
            raise DataError("what it does depends on what it remembers, so one observation gives no probabilities (net.core)")
        if not isinstance(net, GivesProbabilities):
            raise DataError(
                f"{type(net).__name__} has no method probabilities(rows), so it cannot say how probable actions are"
            )
        rows, batched = self.asked(obs, action_mask)
        to_act(net)
        with torch.inference_mode():
            found: np.ndarray = net.probabilities(rows).numpy()
        return found if batched else found[0]

    def with_net(self, net: Acts) -> EnvPolicy:
        """The same for another network that sees and does the same."""
        return EnvPolicy(net, self.env_spec, flatten=self._flatten)

    def asked(self, obs: Obs, action_mask: Obs) -> tuple[Batch, bool]:
        """The rows of a request, and whether they are a batch."""
        leaves = self._flatten(obs)
        rows, batched = self._rows(leaves)
        num_rows = len(next(iter(rows.values())))
        mask = leaves.get("action_mask", action_mask)
        if mask is not None:
            flags = flat_mask(mask, self.env_spec.action)
            rows["action_mask"] = torch.as_tensor(flags, dtype=torch.bool).reshape(num_rows, -1)
        elif self.env_spec.has_mask:
            raise DataError("this policy was trained with action masks; pass action_mask=info['action_mask']")
        return rows, batched

    def reset(self, ended: np.ndarray | None = None) -> None:
        """Forget recurrent state: all of it, or that of the rows of a batch where `ended` `[B]` is true."""
        if ended is None:
            self._state = Batch()
            return
        over = torch.as_tensor(np.asarray(ended, dtype=bool))
        self._state = self._state.map(lambda x: torch.where(over.view(-1, *[1] * (x.dim() - 1)), 0, x))

    def _recall(self, num_rows: int) -> Batch:
        """Recurrent state after the last call; zeros after a reset."""
        if not self._state:
            return Batch({k: torch.zeros(num_rows, *s.shape, dtype=s.dtype) for k, s in self._state_spec.items()})
        known = len(next(iter(self._state.values())))
        if known != num_rows:
            raise DataError(f"this policy remembers {known} rows and got {num_rows}; call reset() where the batch changes")
        return self._state

    def _rows(self, leaves: Mapping[str, np.ndarray]) -> tuple[Batch, bool]:
        rows, batched = Batch(), False
        for key, spec in self.env_spec.obs.items():
            x = torch.as_tensor(np.asarray(leaves[key]), dtype=spec.dtype)
            # the sum first: it is cheap, and finite unless an entry is not (or the sum overflows)
            if x.is_floating_point() and not math.isfinite(x.sum().item()) and not bool(x.isfinite().all()):
                raise DataError(f"observation {key!r} holds NaN or infinity; the policy was never trained on that")
            batched = x.dim() == len(spec.shape) + 1
            if tuple(x.shape[batched:]) != tuple(spec.shape):
                raise DataError(f"observation {key!r} has shape {tuple(x.shape)}; expected {spec.shape}, or a batch of that")
            rows[key] = x if batched else x.unsqueeze(0)
        return rows, batched
