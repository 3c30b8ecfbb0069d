"""Action-value networks: epsilon-greedy acting from the noise in the request.

The output is one number for each action, or the logits of a distribution over `num_atoms` values between `v_min` and `v_max`
(C51, Bellemare et al. 2017, arXiv:1707.06887; HL-Gauss, Farebrother et al. 2024, arXiv:2403.03950), of which Q is the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.layers import ACTIVATIONS, MLP, NetConfig, Torso
from runnel.nets.rnn import Core
from runnel.ops.distributions import UNIFORM_MARGIN, mask_logits

Obs = Mapping[str, Tensor]


class QNet(nn.Module):
    """Q(s, a) for every discrete action. `epsilon` is a buffer: the exploration rate is published with the weights.

    `dueling`: a network for V and one for A, joined as Q = V + A - mean A (Wang et al. 2016, arXiv:1511.06581, eq. 9), for
    each atom where there are several. With a core in `config`, the state of a row is `state/...` (`state_spec`).
    """

    epsilon: Tensor
    support: Tensor
    noise_size = 2
    """Per row: one uniform number decides whether to explore, the other picks the action."""

    def __init__(
        self,
        env_spec: EnvSpec,
        config: NetConfig,
        *,
        seed: int,
        dueling: bool = False,
        num_atoms: int = 1,
        v_min: float = 0.0,
        v_max: float = 0.0,
    ) -> None:
        super().__init__()
        if env_spec.action.kind != "discrete":
            raise ConfigError(
                "env", env_spec.action.kind, "Q-learning needs a discrete action space; use ppo for a continuous one"
            )
        config.check()
        self.env_spec, self.num_actions = env_spec, env_spec.action.num_actions
        self.dueling, self.num_atoms = dueling, num_atoms
        self.torso = Torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
        config = self.torso.settle(config)
        self.trunk: MLP | None = None
        self.core: Core | None = None
        width = self.torso.width
        if config.core != "none":
            hidden = config.hidden or (width,)
            inner = replace(config, hidden=hidden[:-1])
            self.trunk = MLP(width, hidden[-1], config=inner, head_gain=2.0**0.5, seed=make_seed(seed, "trunk"))
            self.core = Core(config.core, hidden[-1], config.core_size, seed=make_seed(seed, "core"))
            width, config = config.core_size, replace(config, hidden=())
        self._activation = ACTIVATIONS[config.activation]
        self.state_spec: Mapping[str, ArraySpec] = self.core.state_spec if self.core is not None else {}
        outputs = (num_atoms, self.num_actions * num_atoms) if dueling else self.num_actions * num_atoms
        self.head = MLP(width, outputs, config=config, head_gain=1.0, seed=make_seed(seed, "q"), copies=2 if dueling else 0)
        self.register_buffer("epsilon", torch.ones(()))
        self.register_buffer("support", torch.linspace(v_min, v_max, num_atoms), persistent=False)

    # --------------------------------------------------------------------------------------------------------- learning
    def scores(self, obs: Obs) -> Tensor:
        """Obs leaves `[..., *shape]` -> `[..., A, num_atoms]`; feedforward."""
        return self._join(self.head(self.torso(obs)))

    def q(self, obs: Obs) -> Tensor:
        """Obs leaves `[..., *shape]` -> `[..., A]`; feedforward."""
        return self.expected(self.scores(obs))

    def expected(self, scores: Tensor) -> Tensor:
        """Q of the network's output. `[..., num_atoms] -> [...]`"""
        return scores.squeeze(-1) if self.num_atoms == 1 else scores.softmax(-1) @ self.support

    def step(self, obs: Obs, state: Obs) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of `[B, ...]` leaves with a core: `[B, A, num_atoms]`, and the state after it."""
        assert self.core is not None
        y, after = self.core.step(self._features(obs), state)
        return self._join(self.head(y)), after

    def unroll(self, obs: Obs, state: Obs, resets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`[T, B, ...]` leaves from `state`: `[T, B, A, num_atoms]`, and the states after each step `[T, B, ...]`."""
        assert self.core is not None
        y, after = self.core.unroll(self._features(obs), state, resets)
        return self._join(self.head(y)), after

    def unroll_batch(self, batch: Obs, *, burn_in: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs at the steps of sequences (`data/sequences.py`) from `burn_in` on, and outputs and mask after each return.

        `[T - burn_in, B, A, num_atoms]` twice (the second without gradient), and `[T - burn_in, B, A]`. The first `burn_in`
        steps only bring the stored state up to date, without gradient.
        """
        obs, state = {k: batch[k] for k in self.env_spec.obs}, {k: batch[k] for k in self.state_spec}
        resets = torch.cat([torch.zeros_like(batch["ended"][:1]), batch["ended"]])
        parts: list[tuple[Tensor, dict[str, Tensor]]] = []
        if burn_in:
            with torch.no_grad():
                parts.append(self.unroll({k: x[:burn_in] for k, x in obs.items()}, state, resets[:burn_in]))
            state = {k: x[-1] for k, x in parts[0][1].items()}
        parts.append(self.unroll({k: x[burn_in:] for k, x in obs.items()}, state, resets[burn_in:]))
        with torch.no_grad():
            scores = torch.cat([out.detach() for out, _ in parts])
            after = {k: torch.cat([states[k] for _, states in parts])[:-1].flatten(0, 1) for k in state}
            index = batch["final_index"]
            final = {k: batch["final_" + k] for k in self.env_spec.obs}
            at_ends, _ = self.step(final, {k: x.index_select(0, index) for k, x in after.items()})
            following = followed(scores[1:], at_ends, batch)[burn_in:]
        mask = batch.get("action_mask")
        if mask is not None:
            mask = followed(mask[1:], batch["final_action_mask"], batch)[burn_in:]
        return parts[-1][0][:-1], following, mask

    def _features(self, obs: Obs) -> Tensor:
        assert self.trunk is not None
        return self._activation(self.trunk(self.torso(obs)))

    def _join(self, out: Any) -> Tensor:
        joined: Tensor
        if not self.dueling:
            joined = out.unflatten(-1, (self.num_actions, self.num_atoms))
            return joined
        value, advantage = out
        advantage = advantage.unflatten(-1, (self.num_actions, self.num_atoms))
        # less its mean: only the sum of V and A is trained, so without it any number could move from one to the other
        joined = value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)
        return joined

    # ----------------------------------------------------------------------------------------------------------- acting
    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B]`, and the state after the step if there is a core.

        The action is the best one or, with probability epsilon unless `greedy`, a uniform one of those that are allowed.
        """
        after: Mapping[str, Tensor] = {}
        if self.core is not None:
            out, after = self.step(rows, {k: rows[k] for k in self.state_spec})
            q = self.expected(out)
        else:
            q = self.q(rows)
        mask = rows.get("action_mask")
        action = mask_logits(q, mask).argmax(-1)
        if not greedy:
            explore, pick = rows["noise"].clamp(max=1.0 - UNIFORM_MARGIN).unbind(-1)
            # the allowed actions counted from 1: a search for a uniform rank finds one of them
            rank = (torch.ones_like(q) if mask is None else mask.to(q.dtype)).cumsum(-1)
            random = torch.searchsorted(rank, (pick.unsqueeze(-1) * rank[..., -1:]).floor(), right=True).squeeze(-1)
            action = torch.where(explore < self.epsilon, random, action)
        return Batch({"action": action, **after})

    def probabilities(self, rows: Batch) -> Tensor:
        """1 for the best action at `rows` and 0 for the others: what it does without exploration; feedforward. `[B, A]`"""
        best = mask_logits(self.q(rows), rows.get("action_mask")).argmax(-1)
        return nn.functional.one_hot(best, self.num_actions).to(torch.float32)


def followed(behind: Tensor, final: Tensor, batch: Obs) -> Tensor:
    """The entry after the last step of each step's return: the next one, or the final one. `[T, B, ...], [F, ...]`"""
    flat, last = behind.flatten(0, 1), batch["last"]
    flat = flat.index_copy(0, batch["final_index"], final)
    columns = torch.arange(last.shape[1], device=last.device)
    return flat.index_select(0, (last * last.shape[1] + columns).flatten()).view_as(behind)
