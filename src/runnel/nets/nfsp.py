"""The two policies of neural fictitious self-play as one network: a best response, which explores, and the average of all best
responses so far. Which of them plays an episode of an agent is part of the agent's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.layers import MLP, NetConfig, Torso
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import DiscreteHead

MODE = "state/mode"
"""Which policy plays the episode of a row: 0 not drawn yet, `BEST` or `AVERAGE`. `[B]` int64"""
BEST, AVERAGE = 1, 2
BY_BEST = "by_best"
"""In replies and segments: whether the best response decided. `[B]` bool"""
GAIN = 0.01
"""Scale of the last layer of the average policy, which so begins almost uniform."""


class AveragePolicy(nn.Module):
    """Probabilities of discrete actions, for what an agent sees."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__()
        self.head = DiscreteHead(env_spec.action)
        self.torso = Torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
        config, width = self.torso.settle(config), self.torso.width
        self.layers = MLP(width, self.head.num_scores, config=config, head_gain=GAIN, seed=make_seed(seed, "average"))

    def logits(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Obs leaves `[..., *shape]` -> `[..., A]`."""
        found: Tensor = self.layers(self.torso(obs))
        return found


class NFSPNet(nn.Module):
    """`q` and `average` play by turns: each agent draws, when an episode begins for it, which of them plays its part to the
    end: the best response with probability `anticipation` (a buffer, published with the weights).

    With `average_alone` only the average policy plays: it is what is learned, and what an evaluation or `rl.load` asks.
    """

    anticipation: Tensor
    replies: ClassVar[Mapping[str, torch.dtype]] = {BY_BEST: torch.bool}
    """What segments keep of its replies beside the action."""

    def __init__(self, q: QNet, average: AveragePolicy, *, average_alone: bool = False) -> None:
        super().__init__()
        self.q, self.average, self.average_alone = q, average, average_alone
        self.state_spec: Mapping[str, ArraySpec] = {} if average_alone else {MODE: ArraySpec((), torch.int64)}
        self.noise_size = 1 if average_alone else 2 + q.noise_size
        self.register_buffer("anticipation", torch.zeros(()))

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B]`; while both play, also whether the best response decided (`BY_BEST`), and the mode of the episode.
        With `greedy` the most probable action of the average policy."""
        logits, mask = self.average.logits(rows), rows.get("action_mask")
        if greedy:
            return self._told(rows, self.average.head.mode(logits, mask)[0])
        noise = rows["noise"]
        drawn, _ = self.average.head.sample(logits, noise[:, :1], mask)
        return self._told(rows, drawn) if self.average_alone else self._by_mode(rows, drawn)

    def _told(self, rows: Batch, action: Tensor) -> Batch:
        if self.average_alone:
            return Batch(action=action)
        return Batch({"action": action, BY_BEST: torch.zeros_like(action, dtype=torch.bool), MODE: rows[MODE]})

    def _by_mode(self, rows: Batch, average: Tensor) -> Batch:
        noise = rows["noise"]
        new = torch.where(noise[:, 1] < self.anticipation, BEST, AVERAGE)
        mode = torch.where(rows[MODE] == 0, new, rows[MODE])
        inner = Batch({key: x for key, x in rows.items() if key not in ("noise", MODE)} | {"noise": noise[:, 2:]})
        best = self.q.act(inner)["action"]
        return Batch({"action": torch.where(mode == BEST, best, average), BY_BEST: mode == BEST, MODE: mode})

    def probabilities(self, rows: Batch) -> Tensor:
        """Those of the average policy. `[B, A]`"""
        return self.average.head.probabilities(self.average.logits(rows), rows.get("action_mask"))
