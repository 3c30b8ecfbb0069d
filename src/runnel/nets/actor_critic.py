"""`ActorCritic`: makes a policy that acts and can be evaluated from a body that scores observations.

The body is the network. `ActorCritic` adds what is the same for every body: normalisation of observations, the action
distribution, sampling from the noise in the request, recurrent state, and the value of the state after each step of a segment.

A factory `make(env_spec, seed) -> nn.Module` makes the body that PPO and its relatives train, also a user's own. It has

    policy(obs: Batch) -> Tensor[..., num_scores]    logits of a discrete action, mean of a continuous one
    value(obs: Batch) -> Tensor[...]                 the critic

`obs` holds the leaves of `env_spec.obs` under their keys, each `[..., *leaf.shape]`, already normalised where that is on.
`policy` and `value` must treat rows independently. Bodies of this file also give both in one pass (`both`), or carry a
recurrent state (`RecurrentBody`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, Self, cast

import torch
from torch import Tensor, nn

from runnel.core.checks import check_body, check_output
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.trajectories import ACTIVE
from runnel.nets.entities import make_torso
from runnel.nets.entity_masks import critic_masks
from runnel.nets.layers import ACTIVATIONS, MLP, NetConfig, RunningMeanStd, Torso
from runnel.nets.rnn import Core
from runnel.nets.stream import StreamBody
from runnel.nets.trees import TreeBody
from runnel.ops.distributions import DiscreteHead, make_head

Obs = Mapping[str, Tensor]
GAINS = (0.01, 1.0)
"""Scale of the last layer's weights, of actor and critic. A small one makes the first policy almost uniform, so that the first
data explore; Andrychowicz et al. 2021 (arXiv:2006.05990, sec. 3.2) found that it matters much."""


class ActorCritic(nn.Module):
    """A policy and a critic over `body`, for the observations and the action of `env_spec`.

    A user's own body is checked against the contract when it is made and at every call (`core/checks.py`). It acts and gives
    values in eval mode; learners put it into train mode for their gradients.
    """

    log_std: Tensor | None
    normalisers: Mapping[str, RunningMeanStd]
    state_spec: Mapping[str, ArraySpec]
    """Recurrent state of one row, by name; empty for a feedforward body."""
    policy_obs: Mapping[str, ArraySpec]
    """The leaves that `act` reads."""

    def __init__(self, env_spec: EnvSpec, body: nn.Module, *, normalise_obs: bool = False) -> None:
        super().__init__()
        self.env_spec, self.head = env_spec, make_head(env_spec.action)
        self.noise_size = self.head.noise_size
        self.body = body
        self.own_body = self._is_own(body)
        if self.own_body:
            check_body(body, env_spec, self.head.num_scores)
        self.state_spec = body.state_spec if isinstance(body, RecurrentBody) else {}
        self.policy_obs = body.policy_obs if isinstance(body, PrivilegedBody) else env_spec.obs
        self.log_std = nn.Parameter(torch.zeros(self.head.num_log_std)) if self.head.num_log_std else None
        sets = {key for part in body.modules() if isinstance(part, Torso) for key in part.sets}
        floats = {k: leaf for k, leaf in env_spec.obs.items() if leaf.dtype.is_floating_point and k not in sets}
        leaves = floats if normalise_obs else {}
        statistics = nn.ModuleDict({k: RunningMeanStd(leaf.shape) for k, leaf in leaves.items()})
        self.normalisers = cast(Mapping[str, RunningMeanStd], statistics)
        self._normalises = bool(leaves)

    @staticmethod
    def _is_own(body: nn.Module) -> bool:
        """Whether `body` is a user's own."""
        ours = type(body) in (SeparateBody, SharedBody, ActorBody, StreamBody, TreeBody)
        return not (ours or isinstance(body, RecurrentBody | PrivilegedBody))

    def train(self, mode: bool = True) -> Self:
        """Change the mode, as for every module."""
        if self.own_body:
            return super().train(mode)
        # our own bodies are the same in both modes, and a walk over all modules at every update would be slow
        self.training = mode
        return self

    @contextmanager
    def drawing(self, seed: int, *key: int | str) -> Iterator[None]:
        """Make the random draws of a user's own body (dropout) depend on `seed` and `key` alone.

        Runs of one seed are then equal, also after a resume. Other bodies draw nothing.
        """
        if not self.own_body:
            yield
            return
        devices = {p.device for p in self.parameters() if p.is_cuda}
        with torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(make_seed(seed, *key))
            yield

    # ----------------------------------------------------------------------------------------------------------- acting
    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """Choose actions for `rows`: obs leaves `[B, ...]`, `noise` `[B, noise_size]` (unless greedy), `action_mask` `[B, A]`,
        and `state/...` where the body is recurrent.

        The mask may be absent. Gives `action` `[B, *action.shape]` (continuous ones unclipped), `logprob` `[B]` and the state
        after the step. The critic runs only in a recurrent body, where it costs one row of a matrix.
        """
        obs = self.observe(rows)
        after: Mapping[str, Tensor] = {}
        if isinstance(self.body, RecurrentBody):
            out, _, after = self.body.step(obs, {k: rows[k] for k in self.state_spec})
        else:
            out = self._scores(obs)
        mask = rows.get("action_mask")
        action, logprob = (
            self.head.mode(out, mask, self.log_std) if greedy else self.head.sample(out, rows["noise"], mask, self.log_std)
        )
        return Batch({"action": action, "logprob": logprob, **after})

    def probabilities(self, rows: Batch) -> Tensor:
        """How probable each discrete action is at `rows`; feedforward. `[B, A]`"""
        assert isinstance(self.head, DiscreteHead)
        return self.head.probabilities(self._scores(self.observe(rows)), rows.get("action_mask"))

    # --------------------------------------------------------------------------------------------------------- learning
    def both(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Scores `[..., S]` and value `[...]` of obs leaves `[..., *shape]`, in one pass if the body can; feedforward."""
        seen = self.observe(obs)
        if isinstance(self.body, SeparateBody | SharedBody) and not self.own_body:
            return self.body.both(seen)
        return self._scores(seen), self._values(seen)

    def _scores(self, seen: Obs) -> Tensor:
        """The body's scores of normalised leaves. `[..., S]`"""
        scores = cast(Body, self.body).policy(seen)
        if self.own_body and not torch.compiler.is_exporting():  # an exported graph cannot branch on values
            check_output(self.body, "policy(obs)", scores, (*self._lead(seen), self.head.num_scores))
        return scores

    def _values(self, seen: Obs) -> Tensor:
        """The body's values of normalised leaves. `[...]`"""
        values = cast(Body, self.body).value(seen)
        if self.own_body and not torch.compiler.is_exporting():
            check_output(self.body, "value(obs)", values, self._lead(seen))
        return values

    def _lead(self, obs: Obs) -> torch.Size:
        """The dimensions of `obs` before those of an observation."""
        key, leaf = next(iter(self.env_spec.obs.items()))
        return obs[key].shape[: obs[key].dim() - len(leaf.shape)]

    def evaluate_scores(self, scores: Tensor, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probability of `action` `[..., *action.shape]` under `scores` `[..., S]`, and the entropy: `[...]` each."""
        return self.head.evaluate(scores, action, mask, self.log_std)

    def scores(self, obs: Obs) -> Tensor:
        """Scores `[..., S]` of obs leaves `[..., *shape]`; feedforward."""
        return self._scores(self.observe(obs))

    def evaluate(self, obs: Obs, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`evaluate_scores` at obs leaves `[..., *shape]`; feedforward."""
        return self.evaluate_scores(self._scores(self.observe(obs)), action, mask)

    def value(self, obs: Obs) -> Tensor:
        """The critic's value. Obs leaves `[..., *shape]` -> `[...]`; feedforward."""
        return self._values(self.observe(obs))

    def sequence(self, data: Obs, resets: Tensor, *, active: Tensor | None = None, burn_in: int = 0) -> tuple[Tensor, Tensor]:
        """Scores `[T, B, S]` and values `[T, B]` of a recurrent body from `state/...` `[B, ...]`; see `Core.unroll`.

        The first `burn_in` steps of `data` only bring the state up to date, without gradient, and have no scores and values.
        """
        assert isinstance(self.body, RecurrentBody)
        seen = self.observe(data)
        obs, state = {k: seen[k] for k in self.env_spec.obs}, {k: data[k] for k in self.state_spec}
        if burn_in:
            state = self.warm_up({k: x[:burn_in] for k, x in data.items()} | state, resets[: burn_in + 1], active)
            obs, resets = {k: x[burn_in:] for k, x in obs.items()}, resets[burn_in:]
            active = None if active is None else active[burn_in:]
        scores, values, _ = self.body.unroll(obs, state, resets, active)
        return scores, values

    @torch.no_grad()
    def warm_up(self, data: Obs, resets: Tensor, active: Tensor | None = None) -> dict[str, Tensor]:
        """The state of a recurrent body after the steps of `data` `[T, B, ...]`, from the `state/...` in it. `resets`
        `[T + 1, B]` also says where the state is zero behind the last step."""
        assert isinstance(self.body, RecurrentBody)
        seen, last = self.observe(data), len(resets) - 1
        first = None if active is None else active[:last]
        state = {k: data[k] for k in self.state_spec}
        _, _, after = self.body.unroll({k: seen[k] for k in self.env_spec.obs}, state, resets[:last], first)
        return {k: x[-1].masked_fill(resets[last].unsqueeze(-1), 0.0) for k, x in after.items()}

    def unroll(self, data: Obs) -> tuple[Tensor, Tensor, Tensor]:
        """Scores `[T, B, S]`, values `[T, B]`, and the values of the state after each step `[T, B]` (without gradient).

        `data` are the arrays of a segment (`core/trajectories.py`) without burn-in. The state after step t is obs[t + 1] or,
        where the episode ended, its final observation with the recurrent state of that episode.
        """
        num_steps = data["action"].shape[0]
        if isinstance(self.body, RecurrentBody):
            return self._unroll_recurrent(self.body, data, num_steps)
        scores, values = self.both({k: data[k][:num_steps] for k in self.env_spec.obs})
        with torch.no_grad():
            rest = {k: torch.cat([data[k][num_steps], data["final_" + k]]) for k in self.env_spec.obs}
            training = self.training
            self.eval()  # no batch norm may learn from observations that are not trained on
            last, at_ends = torch.split(self.value(rest), [values.shape[1], len(data["final_index"])])
            self.train(training)
        return scores, values, self._following(values.detach(), last, at_ends, data["final_index"])

    def _unroll_recurrent(self, body: RecurrentBody, data: Obs, num_steps: int) -> tuple[Tensor, Tensor, Tensor]:
        over = data["terminated"] | data["truncated"]
        resets = torch.cat([torch.zeros_like(over[:1]), over])  # the stored state of the first step is already reset
        seen = self.observe(data)
        state = {k: data[k] for k in self.state_spec}
        scores, values, after = body.unroll({k: seen[k] for k in self.env_spec.obs}, state, resets, data.get(ACTIVE))
        with torch.no_grad():
            index = data["final_index"]
            final = self.observe({k: data["final_" + k] for k in self.env_spec.obs})
            state = {k: x[:num_steps].flatten(0, 1).index_select(0, index) for k, x in after.items()}
            _, at_ends, _ = body.step(final, state)
        following = self._following(values[:num_steps].detach(), values[num_steps].detach(), at_ends, index)
        return scores[:num_steps], values[:num_steps], following

    @staticmethod
    def _following(values: Tensor, last: Tensor, at_ends: Tensor, final_index: Tensor) -> Tensor:
        following = torch.cat([values[1:], last.unsqueeze(0)])
        return following.flatten().index_copy(0, final_index, at_ends).view_as(following)

    # ------------------------------------------------------------------------------------------------------- statistics
    def update_statistics(self, obs: Obs, collective: Collective) -> None:
        """Add the rows of `obs` (`[N, *shape]`) to the running statistics, where normalisation is on."""
        for key, normaliser in self.normalisers.items():
            normaliser.update(obs[key], collective)

    def observe(self, obs: Obs) -> Obs:
        """Leaves for the body: normalised where that is on."""
        if not self._normalises:
            return obs
        keys = [k for k in self.env_spec.obs if k in obs]  # a policy may act without what only its critic reads
        return {k: self.normalisers[k](obs[k]) if k in self.normalisers else obs[k] for k in keys}


class Body(Protocol):
    """The two methods that a network for PPO has, beside being an `nn.Module`."""

    def policy(self, obs: Obs) -> Tensor: ...

    def value(self, obs: Obs) -> Tensor: ...


def build_body(env_spec: EnvSpec, config: NetConfig, *, seed: int) -> nn.Module:
    """The body that `config` describes for `env_spec`, with weights drawn from `seed` alone."""
    config.check()
    if config.core != "none":
        return RecurrentBody(env_spec, config, seed=seed)
    if config.critic_only or critic_masks(env_spec.obs):
        if config.shared:
            raise ConfigError("net.shared", True, "the critic reads what the policy must not; leave net.shared alone")
        return PrivilegedBody(env_spec, config, seed=seed)
    torso = make_torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
    if config.shared or (config.shared is None and torso.convolves):
        return SharedBody(env_spec, config, torso, seed=seed)
    return SeparateBody(env_spec, config, torso, seed=seed)


class SeparateBody(nn.Module):
    """An actor and a critic that share nothing but convolutions, run as one stack."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, torso: Torso, *, seed: int) -> None:
        super().__init__()
        self.torso = torso
        num_scores = make_head(env_spec.action).num_scores
        self.nets = MLP(
            torso.width,
            (num_scores, 1),
            config=torso.settle(config),
            head_gain=GAINS,
            seed=(make_seed(seed, "actor"), make_seed(seed, "critic")),
            copies=2,
        )

    def both(self, obs: Obs) -> tuple[Tensor, Tensor]:
        scores, value = self.nets(self.torso(obs))
        return scores, value.squeeze(-1)

    def policy(self, obs: Obs) -> Tensor:
        return self.nets.one(self.torso(obs), 0)

    def value(self, obs: Obs) -> Tensor:
        return self.nets.one(self.torso(obs), 1).squeeze(-1)


class PrivilegedBody(nn.Module):
    """An actor that does not read what only the critic may know (`NetConfig.critic_only`, or the global state of a team), and a
    critic that reads all, or the leaves in `critic_obs`: the asymmetric actor-critic (Pinto et al. 2018, arXiv:1710.06542, sec.
    III-B). They share nothing.

    The policy gradient stays what it is: a baseline may depend on anything but the action.
    """

    def __init__(
        self, env_spec: EnvSpec, config: NetConfig, *, seed: int, critic_obs: Mapping[str, ArraySpec] | None = None
    ) -> None:
        super().__init__()
        self.policy_obs = config.policy_obs(env_spec.obs)
        critic_obs = env_spec.obs if critic_obs is None else critic_obs
        sizes = make_head(env_spec.action).num_scores, 1
        torsos, nets = [], []
        for name, obs, size, gain in zip(("actor", "critic"), (self.policy_obs, critic_obs), sizes, GAINS, strict=True):
            torso = make_torso(obs, config, seed=make_seed(seed, name, "torso"), critic=name == "critic")
            net = MLP(torso.width, size, config=torso.settle(config), head_gain=gain, seed=make_seed(seed, name))
            torsos.append(torso)
            nets.append(net)
        (self.actor_torso, self.critic_torso), (self.actor, self.critic) = torsos, nets

    def policy(self, obs: Obs) -> Tensor:
        scores: Tensor = self.actor(self.actor_torso(obs))
        return scores

    def value(self, obs: Obs) -> Tensor:
        value: Tensor = self.critic(self.critic_torso(obs)).squeeze(-1)
        return value


class ActorBody(nn.Module):
    """A policy without a critic, for learners that have another one, or none: its own values are 0."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__()
        config.check()
        self.torso = make_torso(env_spec.obs, config, seed=make_seed(seed, "actor", "torso"))
        num_scores, settled = make_head(env_spec.action).num_scores, self.torso.settle(config)
        self.actor = MLP(self.torso.width, num_scores, config=settled, head_gain=GAINS[0], seed=make_seed(seed, "actor"))

    def policy(self, obs: Obs) -> Tensor:
        scores: Tensor = self.actor(self.torso(obs))
        return scores

    def value(self, obs: Obs) -> Tensor:
        return self.policy(obs).detach()[..., 0] * 0.0


class SharedBody(nn.Module):
    """Actor and critic are two linear heads over the same layers."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, torso: Torso, *, seed: int) -> None:
        super().__init__()
        self.torso = torso
        self.trunk, width = _trunk(torso, config, seed=make_seed(seed, "trunk"))
        self._activation = ACTIVATIONS[config.activation]
        self.heads = _heads(width, env_spec, config, seed=seed)

    def features(self, obs: Obs) -> Tensor:
        return self._activation(self.trunk(self.torso(obs)))

    def both(self, obs: Obs) -> tuple[Tensor, Tensor]:
        scores, value = self.heads(self.features(obs))
        return scores, value.squeeze(-1)

    def policy(self, obs: Obs) -> Tensor:
        return self.heads.one(self.features(obs), 0)

    def value(self, obs: Obs) -> Tensor:
        return self.heads.one(self.features(obs), 1).squeeze(-1)


class RecurrentBody(nn.Module):
    """Layers, a recurrent core and two linear heads. Its state is zero at the start of an episode."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__()
        assert config.core != "none"
        self.torso = make_torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
        self.trunk, width = _trunk(self.torso, config, seed=make_seed(seed, "trunk"))
        self._activation = ACTIVATIONS[config.activation]
        self.core = Core(config.core, width, config.core_size, seed=make_seed(seed, "core"))
        self.heads = _heads(config.core_size, env_spec, config, seed=seed)
        self.state_spec: Mapping[str, ArraySpec] = self.core.state_spec

    def step(self, obs: Obs, state: Obs) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """One step of `[B, ...]` leaves: scores `[B, ...]`, value `[B]`, and the state after it."""
        y, after = self.core.step(self._activation(self.trunk(self.torso(obs))), state)
        scores, value = self.heads(y)
        return scores, value.squeeze(-1), after

    def unroll(
        self, obs: Obs, state: Obs, resets: Tensor, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """`[T, B, ...]` leaves from `state`: scores, values `[T, B]`, and the states after each step `[T, B, ...]`."""
        y, after = self.core.unroll(self._activation(self.trunk(self.torso(obs))), state, resets, active)
        scores, value = self.heads(y)
        return scores, value.squeeze(-1), after


def _trunk(torso: Torso, config: NetConfig, *, seed: int) -> tuple[MLP, int]:
    """The hidden layers, and their width. The caller applies the nonlinearity of the last one."""
    hidden = torso.settle(config).hidden or (torso.width,)
    inner = replace(config, hidden=hidden[:-1])
    return MLP(torso.width, hidden[-1], config=inner, head_gain=2.0**0.5, seed=seed), hidden[-1]


def _heads(width: int, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> MLP:
    return MLP(
        width,
        (make_head(env_spec.action).num_scores, 1),
        config=replace(config, hidden=()),
        head_gain=GAINS,
        seed=(make_seed(seed, "actor"), make_seed(seed, "critic")),
        copies=2,
    )
