"""Segments of random episodes, and a slow, plain account of what a replay should give back for each of their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runnel.core.records import Header, Segment, StreamSpec, trim
from runnel.core.spaces import EnvSpec


class Player:
    """Plays B environments whose observations count up, ends episodes at random, and stacks frames of noise."""

    def __init__(
        self, spec: EnvSpec, source: StreamSpec, seed: int, *, end_chance: float = 0.3, fresh_stack: bool = False
    ) -> None:
        self.spec, self.source, self.rng = spec, source, np.random.default_rng(seed)
        self.end_chance, self.fresh_stack, self.count = end_chance, fresh_stack, 0
        self.steps, self.rows = source.sizes["T"], source.sizes["B"]
        self.now = [self._reset() for _ in range(self.rows)]

    def _reset(self) -> dict[str, Any]:
        obs = {}
        for key, leaf in self.spec.obs.items():
            obs[key] = self._draw(leaf)
            if leaf.stack and not self.fresh_stack:
                obs[key].reshape(leaf.stack, -1)[:] = obs[key].reshape(leaf.stack, -1)[-1]
        return self._with_mask(obs)

    def _next(self, obs: dict[str, Any]) -> dict[str, Any]:
        after = {}
        for key, leaf in self.spec.obs.items():
            after[key] = self._draw(leaf)
            if leaf.stack:
                channels = leaf.shape[0] // leaf.stack
                after[key][:-channels] = obs[key][channels:]
        return self._with_mask(after)

    def _draw(self, leaf: Any) -> np.ndarray:
        self.count += 1
        if leaf.dtype == torch.uint8:
            return self.rng.integers(0, 255, leaf.shape, dtype=np.uint8)
        return np.full(leaf.shape, self.count, dtype=np.float32)

    def _with_mask(self, obs: dict[str, Any]) -> dict[str, Any]:
        if self.spec.has_mask:
            obs["action_mask"] = self.rng.random(self.spec.action.num_actions) < 0.5
        return obs

    def segment(self) -> tuple[Segment, list[list[dict[str, Any]]]]:
        """A segment, and by row its steps: `obs`, `action`, `reward`, `next`, `terminated`, `truncated`."""
        arrays = self.source.allocate()
        rows: list[list[dict[str, Any]]] = [[] for _ in range(self.rows)]
        final = 0
        for key, x in arrays.items():
            if key.startswith("state/"):
                x.copy_(torch.from_numpy(self.rng.normal(size=x.shape)))
        for t in range(self.steps):
            for b in range(self.rows):
                step = self._step(arrays, t, b)
                rows[b].append(step)
                if step["terminated"] or step["truncated"]:
                    arrays["final_index"][final] = t * self.rows + b
                    for key in step["next"]:
                        arrays["final_" + key][final] = torch.as_tensor(step["next"][key])
                    final += 1
                    self.now[b] = self._reset()
                else:
                    self.now[b] = step["next"]
        for b in range(self.rows):
            self._write(arrays, self.steps, b)
        used = {"F": final}
        return Segment(0, self.source, Header(used=used), trim(self.source, arrays, used)), rows

    def _write(self, arrays: Any, t: int, b: int) -> None:
        for key, x in self.now[b].items():
            arrays[key][t, b] = torch.as_tensor(x)

    def _step(self, arrays: Any, t: int, b: int) -> dict[str, Any]:
        self._write(arrays, t, b)
        terminated, truncated = (bool(x) for x in self.rng.random(2) < self.end_chance / 2)
        action, reward = int(self.rng.integers(0, self.spec.action.num_actions)), float(np.float32(self.rng.normal()))
        arrays["action"][t, b], arrays["rewards/env"][t, b] = action, reward
        arrays["terminated"][t, b], arrays["truncated"][t, b] = terminated, truncated
        after = self._next(self.now[b])
        outcome = {"terminated": terminated, "truncated": truncated}
        return {"obs": self.now[b], "action": action, "reward": reward, "next": after, **outcome}


def expected(row: list[dict[str, Any]], t: int, *, gamma: float, n: int) -> dict[str, Any]:
    """The n-step transition of step t: walk on until n rewards, the end of the episode, or the end of the row."""
    total, factor, last = 0.0, 1.0, t
    for k in range(n):
        last = t + k
        total += factor * row[last]["reward"]
        factor *= gamma
        if row[last]["terminated"] or row[last]["truncated"] or last == len(row) - 1:
            break
    discount = 0.0 if row[last]["terminated"] else factor
    return {**row[t], "reward": total, "discount": discount, "next": row[last]["next"], "last": last}
