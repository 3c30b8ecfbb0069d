"""Neural fictitious self-play (Heinrich and Silver 2016, arXiv:1603.01121): its configuration and its update.

Fictitious play needs two things of each player: a best response to what the others do on average, and the average of its own
best responses so far. Here both are networks (algorithm 1 of the paper):

    Q        learns a best response from all that the player did, by Q-learning from the newest decisions
    average  learns what the best response did, by supervised learning from a uniform sample of its decisions ever

For an episode each player plays the best response (which explores) with probability `anticipation`, else the average policy. So
others meet nearly the average, and both memories go on being filled. In two-player zero-sum games the average policy comes near
a Nash equilibrium, while the best responses go on going in circles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import merge_segments
from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.core.rng import make_rng, make_seed, rng_state, set_rng_state
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE
from runnel.data.reservoir import DecisionReservoir, RecentDecisions
from runnel.losses.base import masked_mean
from runnel.nets.layers import NetConfig
from runnel.nets.nfsp import BY_BEST, AveragePolicy, NFSPNet
from runnel.nets.optim import Adam
from runnel.nets.q_nets import QNet
from runnel.ops.decisions import decisions, step_of_outcome

MASK = "action_mask"


@dataclass(frozen=True)
class NFSPConfig:
    """Hyperparameters of NFSP: of the best response, of the average policy, and of both memories."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "epsilon", "target_every", "max_grad_norm", "policy_lr", "anticipation")
        | may_change("num_updates", "min_fill", "batch_size", "policy_batch_size")
        | stays("gamma", why=DISCOUNTED)
        | stays("replay_size", "reservoir_size", why="the memories in the checkpoint have that size")
    )

    lr: float | str = scheduled(2e-3)
    """Learning rate of the best response (Adam): a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = bounded(1.0, at_least=0, at_most=1)
    """Discount from one decision of an agent to its next one."""
    batch_size: int = bounded(128, at_least=1)
    """Decisions in one optimiser step of the best response."""
    epsilon: float | str = scheduled("linear(0.06, 0.001)")
    """Share of random actions of the best response: a number, or a schedule over the run."""
    target_every: int = bounded(300, at_least=1)
    """Copy the best response to its target network each this many optimiser steps."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm, those of each network alone."""
    anticipation: float = bounded(0.1, at_least=0, at_most=1)
    """Probability that an agent plays an episode by its best response (the paper's eta)."""
    policy_lr: float | str = scheduled(2e-3)
    """Learning rate of the average policy (Adam): a number, or a schedule."""
    policy_batch_size: int = bounded(128, at_least=1)
    """Decisions in one optimiser step of the average policy."""
    num_updates: int = bounded(32, at_least=1)
    """Optimiser steps of each network for one round of segments."""
    replay_size: int = bounded(30_000, at_least=1)
    """Decisions from which the best response learns; the oldest go first. Of a short run it must be a small part, or it answers
    what the others did long ago."""
    reservoir_size: int = bounded(2_000_000, at_least=1)
    """Decisions of best responses from which the average policy learns: a uniform sample of all there ever were."""
    min_fill: int = bounded(1_000, at_least=1)
    """Neither network learns before its memory has so many decisions."""

    def nets(self, env_spec: EnvSpec, net: NetConfig, *, seed: int, average_alone: bool = False) -> NFSPNet:
        """Both networks."""
        q = QNet(env_spec, net, seed=make_seed(seed, "best response"))
        average = AveragePolicy(env_spec, net, seed=make_seed(seed, "average"))
        return NFSPNet(q, average, average_alone=average_alone)

    @property
    def best_response(self) -> DQNConfig:
        """The best response is double Q-learning."""
        names = ("lr", "gamma", "batch_size", "epsilon", "target_every", "max_grad_norm")
        return DQNConfig(**{name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "nfsp.")
        for name in ("replay_size", "reservoir_size"):
            if getattr(self, name) < self.min_fill:
                raise ConfigError(f"nfsp.{name}", getattr(self, name), f"must hold nfsp.min_fill ({self.min_fill}) decisions")


class NFSPLearner(LiveConfig):
    """Consumes `[T, B]` segments that say which rows decide and whether the best response did; one batch a version.

    Each rank has memories of its own part. A decision without an outcome in its segment does not reach `Q`.
    """

    own_state: tuple[str, ...] = ("recent", "reservoir", "rng")
    config: NFSPConfig

    def __init__(
        self, config: NFSPConfig, net: NFSPNet, *, seed: int, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        config.check()
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or SingleProcess()
        for name in ("batch_size", "policy_batch_size"):
            if getattr(config, name) % self.collective.world_size:
                fix = f"must be shared evenly by {self.collective.world_size} trainers"
                raise ConfigError(f"nfsp.{name}", getattr(config, name), fix)
        self.version, self._seed = 0, seed
        self.best = DQNLearner(config.best_response, net.q, collective=self.collective, device=device)
        self.optimiser = Adam(net.average.parameters(), lr=schedule.at(config.policy_lr, 0.0))
        seen = dict(net.q.env_spec.obs)
        if net.q.env_spec.has_mask:
            seen[MASK] = ArraySpec((net.q.env_spec.action.mask_size,), torch.bool)
        acted = {**seen, "action": ArraySpec((), torch.int64)}
        number = ArraySpec(())
        outcome = {"next_" + key: leaf for key, leaf in seen.items()} | {"rewards/env": number, "discount": number}
        self._seen = tuple(seen)
        self.recent = RecentDecisions(config.replay_size, acted | outcome, field="nfsp.replay_size")
        self.reservoir = DecisionReservoir(config.reservoir_size, acted, field="nfsp.reservoir_size")
        self._rng = make_rng(seed, "nfsp", self.collective.rank)
        net.anticipation.fill_(config.anticipation)
        self._params = dict(net.state_dict())

    # ------------------------------------------------------------------------------------------------------------ batch
    @torch.no_grad()
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """Put all decisions into the memories, and draw this rank's part of `num_updates` minibatches from each that is full
        enough. `{"best/...": [n * batch_size, ...], "average/...": [n * policy_batch_size, ...]}`"""
        c = self.config
        data = merge_segments([s for group in segments.values() for s in group]).to("cpu")
        if ACTIVE not in data or BY_BEST not in data:
            fix = "give it segments of a team graph whose policy is rl.nets.NFSPNet (rl.graphs.team_graph with replies)"
            raise ConfigError("learner", "NFSPLearner", f"its segments do not say who decided; {fix}")
        for x in (*(data[k] for k in self._seen), data["rewards/env"]):
            if x.is_floating_point() and not math.isfinite(x.sum().item()):
                raise NonFiniteError("observations or rewards", self.version)
        best, average = self.of_decisions(data)
        self.recent.insert(best, self._rng)
        self.reservoir.insert(average, self._rng)
        self.best.optimiser.lr, self.optimiser.lr = schedule.at(c.lr, progress), schedule.at(c.policy_lr, progress)
        self.net.q.epsilon.fill_(schedule.at(c.epsilon, progress))
        self.net.anticipation.fill_(c.anticipation)
        # all ranks learn, or none: their gradients are summed
        memories = {"best": self.recent, "average": self.reservoir}
        full = torch.tensor([float(memory.num_rows >= c.min_fill) for memory in memories.values()], device=self.device)
        ready = (self.collective.all_reduce(full) == self.collective.world_size).tolist()
        batch = Batch()
        for (name, memory), learns in zip(memories.items(), ready, strict=True):
            if learns:
                batch |= {f"{name}/{k}": x for k, x in memory.draw(c.num_updates * self._share(name), self._rng).items()}
        batch["recent"] = torch.tensor(self.recent.num_rows)
        batch["reservoir"] = torch.tensor(self.reservoir.num_rows)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def _share(self, name: str) -> int:
        """This rank's rows of a minibatch."""
        return (self.config.batch_size if name == "best" else self.config.policy_batch_size) // self.collective.world_size

    def of_decisions(self, data: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What `Q` learns from `[n, ...]`: decisions with what came of them until the row decided again; and what the average
        policy learns from `[m, ...]`: the decisions of the best response."""
        num_steps, num_rows = data["action"].shape
        decides, over = data[ACTIVE][:-1], data["terminated"] | data["truncated"]
        found = decisions(
            data["rewards/env"], torch.zeros_like(data["rewards/env"]), data["terminated"], data["truncated"], data[ACTIVE]
        )
        acted = {key: data[key][:num_steps] for key in self._seen} | {"action": data["action"]}
        average = {key: x[decides & data[BY_BEST]] for key, x in acted.items()}
        best = {key: x[found.counts] for key, x in acted.items()}
        best["rewards/env"] = found.rewards[found.counts]
        best["discount"] = self.config.gamma * (~found.terminated[found.counts]).float()
        known = step_of_outcome(over, data[ACTIVE])
        place = (known * num_rows + torch.arange(num_rows))[found.counts]
        # what followed is what the row sees when it decides again; where its episode ended, the final observation
        final_of = torch.full((num_steps * num_rows,), -1).index_copy(
            0, data["final_index"], torch.arange(len(data["final_index"]))
        )
        final = final_of[place]
        for key in self._seen:
            following = data[key].flatten(0, 1)[place + num_rows]
            following[final >= 0] = data["final_" + key][final[final >= 0]]
            best["next_" + key] = following
        if MASK in self._seen:  # nothing follows an end, and a target needs an action
            best["next_" + MASK] |= found.terminated[found.counts].unsqueeze(1)
        return best, average

    # ----------------------------------------------------------------------------------------------------------- update
    def update(self, batch: Batch) -> Update:
        """`num_updates` optimiser steps of each network that has a batch; one version."""
        metrics = {"recent": float(batch["recent"]), "reservoir": float(batch["reservoir"])}
        best = {key: x for key, x in batch.items() if key.startswith("best/")}
        average = {key: x for key, x in batch.items() if key.startswith("average/")}
        for rows in _minibatches(best, self._share("best")):
            nothing = torch.zeros_like(rows["action"])  # no replay waits for the errors
            found = self.best.update(Batch(rows, index=nothing, weight=torch.ones_like(rows["rewards/env"])))
            metrics |= {f"best/{key}": found.metrics[key] for key in ("loss/td", "td_error", "q", "grad_norm")}
        for rows in _minibatches(average, self._share("average")):
            metrics |= self._imitate(rows)
        rates = {"epsilon": self.net.q.epsilon.item(), "lr": self.best.optimiser.lr, "policy_lr": self.optimiser.lr}
        self.version += 1
        return Update(metrics | rates)

    def _imitate(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """One step towards what the best response did: the mean of `-log pi(a | s)`."""
        logits = self.net.average.logits(rows)
        logprob, entropy = self.net.average.head.evaluate(logits, rows["action"], rows.get(MASK))
        count = len(logprob) * self.collective.world_size
        loss = masked_mean(-logprob, None, denominator=count)
        if not math.isfinite(loss.item()):
            raise NonFiniteError("loss/average", self.version)
        norm = self.optimiser.step(loss, max_norm=self.config.max_grad_norm, collective=self.collective)
        whole = loss.item() * self.collective.world_size
        return {"average/loss/policy": whole, "average/entropy": entropy.mean().item(), "average/grad_norm": norm.item()}

    # ------------------------------------------------------------------------------------------------------------ state
    def set(self, name: str, value: object) -> None:
        """Use another value of a live field from the next `prepare` on."""
        super().set(name, value)
        self.best.config = self.config.best_response

    def params(self) -> Mapping[str, Tensor]:
        """Weights of both networks, and how they explore: the same tensors at every call, updated in place."""
        return self._params

    def base_params(self) -> Mapping[str, Tensor]:
        """What another run may start from: the weights."""
        return {name: x for name, x in self._params.items() if name not in ("q.epsilon", "anticipation")}

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start both networks from the weights of another run."""
        for name, x in self.base_params().items():
            x.copy_(params[name])
        self.best.start_from(dict(self.best.params()))  # the target network, too

    def not_taken(self) -> Sequence[str]:
        return ("the optimisers' moments", "both memories", "the schedules of exploration")

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` draws for itself."""
        self._rng = make_rng(self._seed, "nfsp", self.collective.rank, version)

    def state_dict(self) -> State:
        return {
            "best": self.best.state_dict(),
            "average": {k: v.clone() for k, v in self.net.average.state_dict().items()},
            "optimiser": self.optimiser.state_dict(),
            "recent": self.recent.state_dict(),
            "reservoir": self.reservoir.state_dict(),
            "rng": rng_state(self._rng),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.best.load_state_dict(state["best"])
        self.net.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.recent.load_state_dict(state["recent"])
        self.reservoir.load_state_dict(state["reservoir"])
        set_rng_state(self._rng, state["rng"])
        self.version = state["version"]


def _minibatches(columns: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    """Columns `best/x` `[n * size, ...]` as n minibatches of `x`."""
    if not columns:
        return []
    parts = {name.partition("/")[2]: torch.split(x, size) for name, x in columns.items()}
    return [{name: part[i] for name, part in parts.items()} for i in range(len(next(iter(parts.values()))))]
