"""Action-value networks: epsilon-greedy acting from the noise in the request."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.core.spaces import EnvSpec
from runnel.nets.mlp import MLP, MLPConfig, flatten_leaves, leaves_width
from runnel.ops.distributions import UNIFORM_MARGIN, mask_logits


class QNet(nn.Module):
    """Q(s, a) for every discrete action. `epsilon` is a buffer: the exploration rate is published with the weights."""

    epsilon: Tensor
    noise_size = 2
    """Per row: one uniform number decides whether to explore, the other picks the action."""

    def __init__(self, env_spec: EnvSpec, config: MLPConfig, *, seed: int) -> None:
        super().__init__()
        if env_spec.action.kind != "discrete":
            raise ConfigError(
                "env", env_spec.action.kind, "Q-learning needs a discrete action space; use ppo for a continuous one"
            )
        self.env_spec = env_spec
        self._leaves = sorted(env_spec.obs.items())
        width, num_actions = leaves_width(env_spec.obs), env_spec.action.num_actions
        self.head = MLP(width, num_actions, config=config, head_gain=1.0, seed=make_seed(seed, "q"))
        self.register_buffer("epsilon", torch.ones(()))

    def q(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Obs leaves `[..., *shape]` -> `[..., A]`."""
        return self.head(flatten_leaves(obs, self._leaves))  # type: ignore[no-any-return]

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B]`: the best one, or, with probability epsilon unless greedy, a uniform one among those allowed."""
        scores = mask_logits(self.q(rows), rows.get("action_mask"))
        best = scores.argmax(-1)
        if greedy:
            return Batch(action=best)
        explore, pick = rows["noise"].clamp(max=1.0 - UNIFORM_MARGIN).unbind(-1)
        allowed = torch.ones_like(scores) if "action_mask" not in rows else rows["action_mask"].to(scores.dtype)
        rank = allowed.cumsum(-1)
        random = torch.searchsorted(rank, (pick.unsqueeze(-1) * rank[..., -1:]).floor(), right=True).squeeze(-1)
        return Batch(action=torch.where(explore < self.epsilon, random, best))
