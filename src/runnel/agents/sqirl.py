"""SQIRL: shallow Q-iteration on random exploration (Laidlaw et al. 2024, arXiv:2312.08369, alg. 1).

It plans an episode step by step. Version i plays what it has learned at steps 0 to i - 1 of an episode, and explores uniformly
at random from step i on. From that data it fits, by plain regression,

    Q_1(s, a) = mean of the discounted return that followed,  of the random policy
    Q_j(s, a) = mean of r + gamma max_a' Q_{j-1}(s', a')        for j = 2 ... depth

and from then on plays argmax Q_depth at step i. So exploration and learning are apart, and no estimate is bootstrapped more
than depth - 1 times. Where a depth of 1 or 2 is enough, the task has a short effective horizon: the paper finds that these are
the tasks which PPO and DQN solve. The regression is a network for each of the Q, fitted anew at every version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import Shuffle, merge_segments
from runnel.agents.deciding import refuse_idle_rows
from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import SingleProcess, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.nets.layers import MLP
from runnel.nets.optim import Adam
from runnel.nets.step_q import StepQNet
from runnel.ops.distributions import mask_logits
from runnel.ops.returns import discounted_suffix_sum

ALONE = SingleProcess()


@dataclass(frozen=True)
class SQIRLConfig:
    """Hyperparameters of SQIRL."""

    on_resume: ClassVar[OnResume] = (
        may_change("depth", "num_epochs", "batch_size", "lr")
        | stays("horizon", why="it is the number of networks")
        | stays("gamma", why="steps planned so far are of that discount")
    )

    horizon: int = bounded(20, at_least=1)
    """Steps of an episode that are planned; later ones are played by the last plan."""
    depth: int = bounded(1, at_least=1)
    """Q-functions that are fitted on each other (k): 1 acts greedily on the random policy's Q."""
    gamma: float = bounded(1.0, at_least=0, at_most=1)
    """Discount of future rewards."""
    num_epochs: int = bounded(20, at_least=1)
    """Passes over the data in a regression."""
    batch_size: int = bounded(128, at_least=1)
    """Rows of one step of a regression."""
    lr: float = bounded(1e-3, above=0, finite=True)
    """Learning rate of Adam in a regression."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "sqirl.")


class SQIRLLearner:
    """Consumes `[T, B]` segments, one batch and one more planned step a version; owns a network for each step."""

    own_state: tuple[str, ...] = ("shuffle",)

    def __init__(self, config: SQIRLConfig, net: StepQNet, *, seed: int) -> None:
        config.check()
        self.config, self.net, self._seed, self.version = config, net, seed, 0
        self.shuffle = Shuffle(make_seed(seed, "sqirl"))
        self._params = dict(net.state_dict())

    def reseed(self, version: int) -> None:
        """Orders of its own for a rank that joins at `version`."""
        self.shuffle = Shuffle(make_seed(self._seed, "sqirl", version))

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The rows of random steps, with the return to the end of their episode: `{...: [N, ...]}`."""
        data = merge_segments([s for group in segments.values() for s in group])
        refuse_idle_rows(data, self)
        over = data["terminated"] | data["truncated"]
        returns = discounted_suffix_sum(data["rewards/env"], self.config.gamma * (~over).to(torch.float32))
        # of an episode that goes on beyond the segment the return is not known
        known = discounted_suffix_sum(over.to(torch.float32), (~over).to(torch.float32)) > 0.0
        if not known.any():
            raise ConfigError("num_steps", len(over), "no episode ended within the segments, so no return is known; use more")
        explored = (self._steps(data, over) >= self.version) & known
        rows = explored.flatten().nonzero().squeeze(-1)
        flat = {k: data[k].flatten(0, 1)[rows] for k in ("action", "rewards/env", "terminated")}
        keys = [*self.net.env_spec.obs, *(["action_mask"] if "action_mask" in data else [])]
        for key in keys:
            after = data[key][1:].flatten(0, 1).index_copy(0, data["final_index"], data["final_" + key])
            flat |= {key: data[key][:-1].flatten(0, 1)[rows], "next_" + key: after[rows]}
        return Batch({**flat, "return": returns.flatten()[rows]})

    def _steps(self, data: Batch, over: Tensor) -> Tensor:
        """The number of each step in its episode, counted from 0. `[T, B]`"""
        step, found = data["state/step"], []
        for ended in over:
            found.append(step)
            step = torch.where(ended, 0.0, step + 1.0)
        return torch.stack(found)

    def update(self, batch: Batch) -> Update:
        """Fit `depth` Q-functions and plan one more step by the last of them; nothing where no step is left to plan."""
        metrics = {"rows": float(len(batch["return"]))}
        if self.version < self.config.horizon and len(batch["return"]):  # else no episode gets as far as this step
            metrics |= self.plan(batch)
        metrics["planned"] = self.net.planned.item()
        self.version += 1
        return Update(metrics)

    def plan(self, batch: Batch) -> dict[str, float]:
        """The regressions; the last one becomes the policy of the step that this version plans."""
        x, after = self.net.features(batch), self.net.features({k: batch["next_" + k] for k in self.net.env_spec.obs})
        alive, target, metrics = (~batch["terminated"]).to(torch.float32), batch["return"], {}
        for depth in range(1, self.config.depth + 1):
            q = self.net.fresh(make_seed(self._seed, "regression", self.version, depth))
            metrics[f"loss/q_{depth}"] = self.regress(q, x, batch["action"], target)
            with torch.no_grad():
                best = mask_logits(q(after), batch.get("next_action_mask")).amax(-1)
                target = batch["rewards/env"] + self.config.gamma * alive * best
        self.net.settle(self.version, q)
        return {**metrics, "return_known": batch["return"].mean().item()}

    def regress(self, q: MLP, x: Tensor, action: Tensor, target: Tensor) -> float:
        """Fit `q` so that `Q(s, a)` is near `target`: the paper's REGRESS, by Adam on the squared error. `[N, I], [N], [N]`"""
        adam, num_rows, size = Adam(q.parameters(), lr=self.config.lr), len(target), self.config.batch_size
        total = 0.0
        for _ in range(self.config.num_epochs):
            total = 0.0
            for rows in torch.split(self.shuffle.order(num_rows), size):
                out = q(x[rows]).gather(-1, action[rows].unsqueeze(-1)).squeeze(-1)
                loss = (out - target[rows]).square().mean()
                if not math.isfinite(loss.item()):
                    raise NonFiniteError("loss/q", self.version)
                adam.step(loss, max_norm=None, collective=ALONE)
                total += loss.item() * len(rows)
        return total / num_rows

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """The networks of all steps, and how many are planned: the same tensors at every call, updated in place."""
        return self._params

    def state_dict(self) -> State:
        net = {k: v.clone() for k, v in self._params.items()}
        return {"net": net, "shuffle": self.shuffle.state_dict(), "version": self.version}

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.shuffle.load_state_dict(state["shuffle"])
        self.version = state["version"]
