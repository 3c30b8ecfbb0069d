"""HAPPO (Kuba et al. 2022, "Trust region policy optimisation in multi-agent reinforcement learning", arXiv:2109.11251).

PPO for a team whose agents do not share parameters. Policies are updated one after the other, in an order that is drawn anew
for each update. Each is judged by what those before it have become:

    M_1     = 1
    L_m     = -mean min(r_m M_m A, clip(r_m, 1 - clip, 1 + clip) M_m A),   r_m = pi_m(a_m | o_m) / pi_m_old(a_m | o_m)
    M_{m+1} = M_m r_m,  by the policy of agent m after its update

(algorithm 4 of the paper). A is the advantage of the whole team, by one critic of the global state (`agents/central.py`), so
the sum of what the agents improve is what the team improves (lemma 1, proposition 3). An agent that does not decide at a step
has no part in it: its ratio there is 1.

Agents that share a policy all the same (`--teams PATTERN=POLICY`) are one group in that order, updated at once as in MAPPO;
the ratio of a group is the product of its agents' ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import Shuffle, read_metrics
from runnel.agents.central import CentralConfig, CentralCritic, Numbers, count_of, passes, refuse_non_finite
from runnel.agents.deciding import single_steps
from runnel.agents.joint import Joint, join
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, live, may_change
from runnel.core.rng import make_rng, make_seed
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE
from runnel.losses.base import masked_mean
from runnel.losses.on_policy import clipped_policy_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.central import StateCritic
from runnel.nets.optim import Adam
from runnel.ops.returns import standardise

PLACE = "place"
"""The moment t * E + e that a row is of, the same number in all streams."""
CRITIC = "_critic/"
"""How the names of the critic's rows begin; names of policies begin with a letter."""
SUMS = ("loss/value", "loss/policy", "entropy", "kl", "clip_fraction")
"""Metrics that were divided by the count of the whole batch."""


@dataclass(frozen=True)
class HAPPOConfig(CentralConfig):
    """Hyperparameters of HAPPO: those of its policies, and those of the critic of the team."""

    on_resume: ClassVar[OnResume] = live("lr", "clip_range", "entropy_coef") | may_change("normalise_advantage")

    lr: float | str = scheduled(7e-4)
    """Learning rate of the policies: a number, or a schedule such as "linear(1e-3, 0)"."""
    clip_range: float = bounded(0.2, above=0)
    """Half width of the interval around 1 in which the probability ratio of an agent earns gradient."""
    entropy_coef: float = bounded(0.01, finite=True)
    """Weight of the entropy bonus."""
    normalise_advantage: bool = True
    """Shift and scale the team's advantages to mean 0 and standard deviation 1 over the batch."""

    def unused(self, group: str, *, fresh: bool) -> dict[str, str]:
        """Settings of `group` that a run does not read, and why; `fresh`: the policy itself has sampled."""
        found = super().unused(group, fresh=fresh)
        if fresh and self.num_epochs * self.num_minibatches == 1:
            found[f"{group}.clip_range"] = f"one optimiser step a batch never gets there; set {group}.num_epochs"
        return found


class HAPPOLearner(LiveConfig):
    """Consumes one round of all streams, one batch a version; owns the policies, the critic and their optimisers.

    `nets` are the policies by name, which is also that of their stream. Published are they alone, as `name/...`.
    """

    config: HAPPOConfig

    def __init__(
        self,
        config: HAPPOConfig,
        nets: Mapping[str, ActorCritic],
        critic: StateCritic,
        *,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        check_bounds(config, "happo.")
        self.config, self.device = config, torch.empty(0, device=device).device
        self.collective: Collective = collective or SingleProcess()
        self.version, self._seed = 0, seed
        self.nets = {policy: net.to(device) for policy, net in nets.items()}
        rate = schedule.at(config.lr, 0.0)
        self.optimisers = {policy: Adam(net.parameters(), lr=rate, eps=1e-5) for policy, net in nets.items()}
        self.critic = CentralCritic(config, critic, seed=seed, collective=self.collective, device=device)
        self._reseed()
        self._params = {f"{policy}/{key}": x for policy, net in self.nets.items() for key, x in net.state_dict().items()}

    # ------------------------------------------------------------------------------------------------------------ batch
    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The team's advantages, and the decisions of each policy with the advantage of their moment: `policy/... [N, ...]`."""
        for optimiser in self.optimisers.values():
            optimiser.lr = schedule.at(self.config.lr, progress)
        self.critic.optimiser.lr = schedule.at(self.config.critic_lr, progress)
        joint = join({policy: segments[policy] for policy in self.nets}, device=self.device)
        credit = self.critic.credit(joint, self.config)
        advantages = credit.advantages
        if self.config.normalise_advantage:
            scaled = standardise(advantages[credit.counts], self.collective)
            advantages = torch.zeros_like(advantages).masked_scatter(credit.counts, scaled)
        batch = Batch({f"{CRITIC}{key}": x for key, x in self.critic.rows(joint, credit, self.config).items()})
        batch["places"] = joint.places.flatten()
        for policy in self.nets:
            rows = self._rows(joint, policy, advantages, credit.counts)
            batch |= {f"{policy}/{key}": x for key, x in rows.items()}
        return batch

    def _rows(self, joint: Joint, policy: str, advantages: Tensor, counts: Tensor) -> Batch:
        """The decisions of one policy that count."""
        data = joint.members[policy]
        keys = [*self.nets[policy].env_spec.obs, "action", "logprob", *(["action_mask"] if "action_mask" in data else [])]
        columns = {key: data[key][: len(advantages)] for key in keys}
        columns |= {"advantage": joint.for_rows(policy, advantages), PLACE: joint.for_rows(policy, joint.places)}
        mine = joint.for_rows(policy, counts) & data[ACTIVE][:-1]
        return single_steps(columns, mine, at_least=self.config.num_minibatches)

    # ----------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """One policy after the other, then the critic; one version."""
        log_factor = torch.zeros(len(batch["places"]), device=self.device)
        numbers: Numbers = {}
        for policy in self.order():
            rows = _under(f"{policy}/", batch)
            found, log_ratio = self.improve(policy, rows, log_factor)
            log_factor.index_add_(0, rows[PLACE], log_ratio)
            numbers |= {f"{policy}/{name}": x for name, x in found.items()}
        # what is normalised changes only now, so that ratios start at 1 and all passes see the same
        for policy, net in self.nets.items():
            rows = _under(f"{policy}/", batch)
            net.update_statistics({key: rows[key][rows[ACTIVE]] for key in net.env_spec.obs}, self.collective)
        numbers |= self.critic.learn(_under(CRITIC, batch), self.config, version=self.version)
        sums = [name for name in numbers if name.endswith(SUMS)]
        metrics = read_metrics(numbers, self.collective, sums=sums, version=self.version)
        self.version += 1
        return Update(metrics | {"lr": next(iter(self.optimisers.values())).lr})

    def order(self) -> list[str]:
        """The policies in the order of this update: the same on every rank, and after a resume."""
        names = list(self.nets)
        return [names[i] for i in make_rng(self._seed, "order", self.version).permutation(len(names))]

    def improve(self, policy: str, rows: Batch, log_factor: Tensor) -> tuple[Numbers, Tensor]:
        """All passes of one policy, with advantages times M (`log_factor` `[T * E]`). Metrics, and the logarithm of its new
        ratio at each of its rows, 0 where they do not count. `[N]`"""
        net, optimiser = self.nets[policy], self.optimisers[policy]
        net.train()
        weighed = Batch(rows | {"advantage": rows["advantage"] * log_factor[rows[PLACE]].exp()})
        history = []
        with net.drawing(self._seed, "network", policy, self.collective.rank, self.version):
            for part in passes(weighed, self.shuffles[policy], self.config):
                numbers = self.loss(net, part)
                refuse_non_finite(f"{policy}/loss/policy", numbers["loss/policy"], self.version)
                total = numbers["loss/policy"] - self.config.entropy_coef * numbers["entropy"]
                norm = optimiser.step(total, max_norm=self.config.max_grad_norm, collective=self.collective)
                history.append({name: x.detach() for name, x in numbers.items()} | {"grad_norm": norm})
        net.eval()
        with torch.no_grad():
            logprob, _ = net.evaluate(rows, rows["action"], rows.get("action_mask"))
        log_ratio = (logprob - rows["logprob"]).masked_fill(~rows[ACTIVE], 0.0)
        return {name: torch.stack([x[name] for x in history]).mean() for name in history[0]}, log_ratio

    def loss(self, net: ActorCritic, rows: Mapping[str, Tensor]) -> Numbers:
        """The clipped surrogate of one policy, and its entropy."""
        count, mask = count_of(rows, self.collective), rows[ACTIVE]
        logprob, entropy = net.evaluate(rows, rows["action"], rows.get("action_mask"))
        behaviour, clip = rows["logprob"], self.config.clip_range
        policy = clipped_policy_loss(logprob, behaviour, rows["advantage"], clip=clip, denominator=count, mask=mask)
        return {"loss/policy": policy.value, "entropy": masked_mean(entropy, mask, denominator=count), **policy.metrics}

    # ------------------------------------------------------------------------------------------------------------ state
    own_state: ClassVar[tuple[str, ...]] = ("shuffles",)

    def params(self) -> Mapping[str, Tensor]:
        """Weights and normaliser statistics of the policies: the same tensors at every call, updated in place."""
        return self._params

    def not_taken(self) -> Sequence[str]:
        """What a run that starts from this one's parameters does not get."""
        return ["the critic of the team"]

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` shuffles in orders of its own."""
        self._reseed(version)
        self.critic.reseed(version)

    def _reseed(self, *more: int) -> None:
        seeds = {policy: make_seed(self._seed, "happo", policy, self.collective.rank, *more) for policy in self.nets}
        self.shuffles = {policy: Shuffle(seed, device=str(self.device)) for policy, seed in seeds.items()}

    def state_dict(self) -> State:
        shuffles = {policy: shuffle.state_dict() for policy, shuffle in self.shuffles.items()}
        return {
            "nets": {policy: {k: v.clone() for k, v in net.state_dict().items()} for policy, net in self.nets.items()},
            "optimisers": {policy: optimiser.state_dict() for policy, optimiser in self.optimisers.items()},
            "critic": self.critic.state_dict(),
            "shuffles": {**shuffles, CRITIC: self.critic.shuffle.state_dict()},
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        for policy, net in self.nets.items():
            net.load_state_dict(state["nets"][policy])
            self.optimisers[policy].load_state_dict(state["optimisers"][policy])
            self.shuffles[policy].load_state_dict(state["shuffles"][policy])
        self.critic.load_state_dict(state["critic"])
        self.critic.shuffle.load_state_dict(state["shuffles"][CRITIC])
        self.version = state["version"]


def _under(start: str, batch: Mapping[str, Tensor]) -> Batch:
    return Batch({key.removeprefix(start): x for key, x in batch.items() if key.startswith(start)})
