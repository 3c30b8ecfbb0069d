"""A Q-function for each step of an episode."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.layers import MLP, NetConfig, Torso
from runnel.ops.distributions import categorical_sample, mask_logits


class StepQNet(nn.Module):
    """Acts by Q of the step that an episode is at: greedily where that step is `planned`, else uniformly at random.

    The number of the step is recurrent state (`state/step`). Steps beyond the last one are played as the last one.
    """

    planned: Tensor
    noise_size = 1

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, horizon: int) -> None:
        super().__init__()
        if env_spec.action.kind != "discrete":
            raise ConfigError("env", env_spec.action.kind, "one Q for each action needs discrete actions; use ppo or sac")
        self.env_spec, self.horizon = env_spec, horizon
        self.torso = Torso(env_spec.obs, config, seed=0)
        if self.torso.convolves:
            raise ConfigError("env", "images", "the regressions read vectors; flatten the image, or use ppo or dqn")
        self._config = self.torso.settle(config)
        self.state_spec: Mapping[str, ArraySpec] = {"state/step": ArraySpec(())}
        self.head = self._mlp(copies=horizon, seed=0).requires_grad_(False)
        self.register_buffer("planned", torch.zeros((), dtype=torch.int64))

    def _mlp(self, *, copies: int, seed: int) -> MLP:
        outputs = self.env_spec.action.num_actions
        return MLP(self.torso.width, outputs, config=self._config, head_gain=1.0, seed=seed, copies=copies)

    def fresh(self, seed: int) -> MLP:
        """One Q with weights drawn from `seed`. `[N, I] -> [N, A]`"""
        return self._mlp(copies=0, seed=seed)

    def features(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Obs leaves `[N, *shape]` as one vector. `[N, I]`"""
        x: Tensor = self.torso(obs)
        return x

    @torch.no_grad()
    def settle(self, step: int, q: MLP) -> None:
        """Plan `step` by `q`."""
        for home, new in zip(self.head.parameters(), q.parameters(), strict=True):
            home[step].copy_(new.view_as(home[step]))
        self.planned.fill_(step + 1)

    def q(self, obs: Mapping[str, Tensor], step: Tensor) -> Tensor:
        """Q of each row's step. Obs leaves `[N, *shape]`, `[N] -> [N, A]`"""
        every: Tensor = self.head(self.features(obs))
        last = (self.planned - 1).clamp(min=0)
        index = torch.minimum(step.to(torch.int64), last).view(1, -1, 1).expand(1, -1, every.shape[-1])
        return every.gather(0, index).squeeze(0)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B]` with its log-probability, and the number of the next step.

        In evaluation (`greedy`) the last plan goes on where no step is planned.
        """
        step, mask = rows["state/step"], rows.get("action_mask")
        scores = mask_logits(self.q(rows, step), mask)
        best = scores.argmax(-1)
        if greedy:
            return Batch({"action": best, "state/step": step + 1.0})
        drawn, logprob = categorical_sample(mask_logits(torch.zeros_like(scores), mask), rows["noise"])
        planned = (step < self.planned) | (self.planned >= self.horizon)
        action, logprob = torch.where(planned, best, drawn), torch.where(planned, 0.0, logprob)
        return Batch({"action": action, "logprob": logprob, "state/step": step + 1.0})
