"""EnvPolicy: a trained network as a user holds it, from a raw observation to what `env.step` accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from runnel.core.batch import Batch
from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.core.spaces import EnvSpec
from runnel.nets.inferencer import ActingNet

Flatten = Callable[[Any], Mapping[str, np.ndarray]]


class EnvPolicy:
    """Acts on observations as Gymnasium gives them: one, or a batch of them.

    `flatten` turns a raw observation into the leaves of `env_spec.obs`; `seed` feeds the noise of stochastic acting.
    """

    def __init__(self, net: ActingNet, env_spec: EnvSpec, *, flatten: Flatten, seed: int = 0) -> None:
        self.net, self.env_spec = net, env_spec
        self._flatten, self._rng = flatten, make_rng(seed, "policy")

    def act(self, obs: Any, *, deterministic: bool = True, action_mask: np.ndarray | None = None) -> Any:
        """An int or array for one observation; an array with a leading dimension for a batch.

        `action_mask` is for environments that give it in `info`; one inside the observation is found by itself.
        """
        leaves = self._flatten(obs)
        rows, batched = self._rows(leaves)
        num_rows = len(next(iter(rows.values())))
        mask = leaves.get("action_mask", action_mask)
        if mask is not None:
            rows["action_mask"] = torch.as_tensor(mask, dtype=torch.bool).reshape(num_rows, -1)
        elif self.env_spec.has_mask:
            raise DataError("this policy was trained with action masks; pass action_mask=info['action_mask']")
        if not deterministic:
            rows["noise"] = torch.from_numpy(self._rng.random((num_rows, self.net.noise_size), dtype=np.float32))
        with torch.inference_mode():
            action = self.net.act(rows, greedy=deterministic)["action"].numpy()
        return self._to_env(action if batched else action[0])

    def reset(self) -> None:
        """Nothing to forget: the network has no recurrent state."""

    def _rows(self, leaves: Mapping[str, np.ndarray]) -> tuple[Batch, bool]:
        rows, batched = Batch(), False
        for key, spec in self.env_spec.obs.items():
            x = torch.as_tensor(np.asarray(leaves[key]), dtype=spec.dtype)
            batched = x.dim() == len(spec.shape) + 1
            if tuple(x.shape[batched:]) != tuple(spec.shape):
                raise DataError(f"observation {key!r} has shape {tuple(x.shape)}; expected {spec.shape}, or a batch of that")
            rows[key] = x if batched else x.unsqueeze(0)
        return rows, batched

    def _to_env(self, action: np.ndarray) -> Any:
        spec = self.env_spec.action
        if spec.kind == "discrete":
            return int(action) + spec.start if action.ndim == 0 else action + spec.start
        low, high = (np.asarray(bound, dtype=np.float32).reshape(spec.shape) for bound in (spec.low, spec.high))
        dtype = np.dtype(spec.env_dtype)
        return np.clip(np.rint(action) if dtype.kind in "iu" else action, low, high).astype(dtype)
