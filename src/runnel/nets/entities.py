"""Observations that are sets of entities: any number of others, in no order, some of them out of sight.

A leaf `obs/NAME` of shape [N, F] beside a leaf `obs/NAME_mask` of shape [N] is a set of at most N entities with F numbers each;
where the mask is 0 there is none. Every entity goes through the same layer, and a set becomes one vector of a fixed width, so
no parameter depends on N, on an order, or on what stands where nobody is: what was learned among three acts among five.

    e_i = act(W f_i + b)
    mean:       z = mean of e_i over those that are there
    attention:  z = sum_i softmax_i(q . K e_i / sqrt(H)) V e_i over those that are there, q = Q(all else that is seen)

The mean is a mean field: a neighbourhood of many stands for the average of what they are (Cui et al. 2024, arXiv:2307.06175,
embed it by kernels in place of histograms). Attention (Vaswani et al. 2017, arXiv:1706.03762) looks at some of them, for games
of varying populations (Zhang et al. 2021, arXiv:2108.12988). Where nobody is there, z is 0.

With a third leaf `obs/NAME_exists` of shape [N], the mask says what a policy sees, and this one what there is, seen or not. It
is for critics alone, which take it in place of the mask: with critics that saw what policies see, hide-and-seek did not come
to the use of ramps (Baker et al. 2020, arXiv:1909.07528). A network in which policy and critic share layers refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec
from runnel.nets.entity_masks import MASK, critic_masks
from runnel.nets.layers import ACTIVATIONS, DEFAULT_HIDDEN, MLP, NetConfig, Torso


def entity_sets(obs: Mapping[str, ArraySpec]) -> dict[str, str]:
    """The leaves of `obs` that are sets of entities, each with the leaf of its mask.

    >>> leaves = {"obs/self": ArraySpec((2,)), "obs/others": ArraySpec((5, 3)), "obs/others_mask": ArraySpec((5,))}
    >>> entity_sets(leaves)
    {'obs/others': 'obs/others_mask'}
    """
    masks = {key: key + MASK for key, leaf in obs.items() if len(leaf.shape) == 2 and leaf.dtype == torch.float32}
    return {key: mask for key, mask in masks.items() if mask in obs and obs[mask].shape == obs[key].shape[:1]}


def make_torso(obs: Mapping[str, ArraySpec], config: NetConfig, *, seed: int, critic: bool = False) -> Torso:
    """What turns an observation into one vector: with `net.entities`, its sets of entities by attention or as a mean. A
    `critic` that shares nothing with a policy may read what is not seen."""
    if not critic and critic_masks(obs):
        fix = "use a recipe whose critic has layers of its own (ippo, mappo), with net.core none and without net.shared"
        raise ConfigError("net", "...", f"{', '.join(critic_masks(obs).values())} is for critics alone; {fix}")
    if config.entities == "none":
        return Torso(obs, config, seed=seed)
    if not entity_sets(obs):
        why = "no part of the observation is a set of entities: an array [N, F] called NAME beside a mask [N] called NAME_mask"
        raise UnusedSettingError("net.entities", config.entities, f"{why}; leave it at 'none'")
    return EntityTorso(obs, config, seed=seed)


class EntityTorso(Torso):
    """`Torso` whose sets of entities become vectors of a fixed width."""

    def __init__(self, obs: Mapping[str, ArraySpec], config: NetConfig, *, seed: int) -> None:
        seen = entity_sets(obs)
        self._pairs = seen | critic_masks(obs)
        taken = {*seen, *seen.values(), *self._pairs.values()}
        super().__init__({k: x for k, x in obs.items() if k not in taken}, replace(config, entities="none"), seed=seed)
        self.sets = tuple(taken)
        self._own = self.width
        width = (config.hidden or DEFAULT_HIDDEN)[0]
        pools = {
            key: EntityPool(obs[key].shape[1], self._own, width, config, seed=make_seed(seed, "set", key))
            for key in self._pairs
        }
        self.pools = nn.ModuleDict(pools)
        self._pools: list[tuple[str, str, EntityPool]] = [(key, self._pairs[key], pool) for key, pool in pools.items()]
        self.width += width * len(pools)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        some, _, _ = self._pools[0]
        own = super().forward(obs) if self._own else obs[some].new_zeros(*obs[some].shape[:-2], 0)
        found = [pool(obs[key], obs[mask] > 0.5, own) for key, mask, pool in self._pools]
        return torch.cat([own, *found], dim=-1)


class EntityPool(nn.Module):
    """One vector of a set of entities."""

    def __init__(self, num_features: int, num_own: int, width: int, config: NetConfig, *, seed: int) -> None:
        super().__init__()
        self._activation, self._scale = ACTIVATIONS[config.activation], width**-0.5

        def layer(num_in: int, name: str) -> MLP:
            return MLP(num_in, width, config=replace(config, hidden=()), head_gain=2.0**0.5, seed=make_seed(seed, name))

        self.embed = layer(num_features, "embed")
        self.attends = config.entities == "attention"
        if self.attends:
            # with nothing else to see, the query is the bias of the layer: it begins at 0, so attention begins as a mean
            self.query, self.key, self.value = layer(max(num_own, 1), "query"), layer(width, "key"), layer(width, "value")

    def forward(self, entities: Tensor, there: Tensor, own: Tensor) -> Tensor:
        """`[..., N, F]`, `[..., N]` bool and the rest of what is seen `[..., D]`, to `[..., H]`."""
        # no product: what stands where nobody is may be anything, also NaN
        e = self._activation(self.embed(entities.masked_fill(~there.unsqueeze(-1), 0.0)))
        weights = self._weights(e, there, own) if self.attends else there / there.sum(-1, keepdim=True).clamp(min=1)
        pooled: Tensor = (weights.to(e.dtype).unsqueeze(-1) * e).sum(-2)
        if not self.attends:
            return pooled
        # weights sum to 1, so V of the sum is the sum of V: one product for each set, and not one for each entity
        value: Tensor = self.value(pooled)
        return value.masked_fill(~there.any(-1, keepdim=True), 0.0)

    def _weights(self, e: Tensor, there: Tensor, own: Tensor) -> Tensor:
        own = own if own.shape[-1] else own.new_zeros(*own.shape[:-1], 1)
        query, (weight,), (bias,) = self.query(own), self.key.weight, self.key.bias
        # q . (K e + b) = (K^T q) . e + q . b: K meets each set once, too
        scores = (e * (query @ weight.T).unsqueeze(-2)).sum(-1) + (query @ bias).unsqueeze(-1)
        scores = (scores * self._scale).masked_fill(~there, torch.finfo(scores.dtype).min)
        weights: Tensor = scores.softmax(-1).masked_fill(~there, 0.0)
        return weights
