"""How far the sampled tokens are from the policy that trains on them: mismatch of engine and learner, importance ratios,
versions, and the tokens about which every engine must agree with the learner on every version (`Canary`).

Tokens with a `policy_version` of 0 or more were sampled by an engine; their `logprob` is what it recorded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runnel.core.errors import RunnelError
from runnel.core.records import Batch
from runnel.core.state import Metrics, State
from runnel.core.weight_check import MAX_TOKENS, ONCE, WeightCheck
from runnel.llm.learning.batches import MicroBatch, token_owner
from runnel.llm.model.sharded_model import TrainedModel
from runnel.ops.credit import row_index, row_sum


class Drift:
    """Sums over the micro-batches of one optimiser step. Engine and learner are compared on rows that the very version
    `version` made whole: on others they differ for good reasons (newer weights, keys and values of older ones)."""

    def __init__(self, batch: Batch, version: int, device: str) -> None:
        self._version = version
        self._measured = "logprob" in batch
        names = ("ratio/num", "ratio/sum", "ratio/squares", "mismatch/num", "mismatch/kl", "mismatch/abs")
        self.sums = {name: torch.zeros((), device=device) for name in names}
        self.worst = torch.zeros((), device=device)

    def add(self, part: MicroBatch, logprob: Tensor, share: float = 1.0) -> None:
        """Add the learner's log-probabilities `[M]` of a micro-batch, each token of which stands for `share` tokens."""
        if not self._measured:
            return
        made = part.fields["policy_version"]
        sampled = made >= 0
        other = torch.zeros(part.num_rows, device=logprob.device).index_add(0, part.row, (made != self._version).float())
        same = (sampled & (other[part.row] == 0)).float()
        gap = torch.where(sampled, logprob - part.fields["logprob"], torch.zeros_like(logprob))
        ratio = torch.exp(gap.clamp(max=30.0))  # its square must stay finite
        found = {
            "ratio/num": sampled.float().sum(),
            "ratio/sum": (ratio * sampled).sum(),
            "ratio/squares": (ratio * ratio * sampled).sum(),
            "mismatch/num": same.sum(),
            "mismatch/kl": ((ratio - gap - 1.0) * same).sum(),
            "mismatch/abs": (gap.abs() * same).sum(),
        }
        self.sums = {name: total + share * found[name] for name, total in self.sums.items()}
        self.worst = torch.maximum(self.worst, (gap.abs() * same).max())

    def join(self, other: Drift) -> Drift:
        """Both as one: those of two parts of a batch."""
        self.sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        self.worst = torch.maximum(self.worst, other.worst)
        return self

    @staticmethod
    def effective_sample_size(totals: Metrics) -> Metrics:
        """`(sum w)^2 / (n sum w^2)` of the ratios policy / behaviour: 1 on fresh tokens, towards 0 as a few of them decide
        all."""
        if not totals["ratio/num"] or not totals["ratio/squares"]:
            return {}
        return {"ess": totals["ratio/sum"] ** 2 / (totals["ratio/num"] * totals["ratio/squares"])}


class Mismatch:
    """Engine against learner over the last `UPDATES` updates: one batch is a small sample of a heavy-tailed number."""

    UPDATES = 8

    def __init__(self) -> None:
        self.recent: deque[tuple[float, float]] = deque(maxlen=self.UPDATES)
        """Sum of the KL, and tokens, of each update that had any."""

    def check(self, totals: Metrics, worst: Tensor, version: int, bound: float) -> Metrics:
        """The mismatch of this update as metrics. It stops the run if the mean of the last updates is past `bound`, or this
        update alone is `ONCE` times past it."""
        num = totals["mismatch/num"]
        kl, max_ratio = totals["mismatch/kl"] / num, math.exp(min(float(worst), 80.0))
        self.recent.append((totals["mismatch/kl"], num))
        mean = sum(k for k, _ in self.recent) / sum(n for _, n in self.recent)
        if not (mean <= bound and kl <= ONCE * bound):
            raise RunnelError(
                f"engine and learner disagree at version {version}: mismatch/kl = {kl:.3g} (largest ratio {max_ratio:.3g}), "
                f"{mean:.3g} over the last {len(self.recent)} updates, is above learner.max_mismatch = {bound:g}. Check that "
                "both use one temperature and that the engine has this version's weights; raise the bound only if its "
                "arithmetic is meant to differ."
            )
        return {"mismatch/kl": kl, "mismatch/max_ratio": max_ratio, "mismatch/mean_abs": totals["mismatch/abs"] / num}


def version_stats(batch: Batch, version: int) -> Metrics:
    """How old the sampled tokens are for the learner at `version`: a token's age is `version` minus the version that made it.

    `version_span` is the most versions inside one trajectory, 1 where a single one made it. `staleness/mean` and
    `staleness/max` are ages over tokens, and the sum of two parts. `staleness/in_flight`: versions that came while the
    trajectory was generated, up to the one of its last token. `staleness/in_queue`: those since, while it waited for its group,
    its reward and the learner.
    """
    if "logprob" not in batch:
        return {}
    made = batch["policy_version"]
    owner, sampled = token_owner(batch)[made >= 0], made[made >= 0]
    if not len(sampled):
        return {}
    size = int(owner.max()) + 1
    last = torch.full((size,), -1).scatter_reduce(0, owner, sampled, "amax")
    first = torch.full((size,), 1 << 60).scatter_reduce(0, owner, sampled, "amin")
    ages = {"in_flight": last[owner] - sampled, "in_queue": version - last[owner]}
    age = ages["in_flight"] + ages["in_queue"]
    out = {"version_span": float((last - first + 1).max())}
    out |= {"staleness/mean": float(age.double().mean()), "staleness/max": float(age.max())}
    for name, part in ages.items():
        out |= {f"staleness/{name}": float(part.double().mean()), f"staleness/{name}_max": float(part.max())}
    return out


class Unchanged:
    """Weights before an update, to count those that it left exactly as they were: the sparsity of Mukherjee et al. 2025
    (arXiv:2505.11711), of one update, and without a tolerance."""

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self._before = {name: value.clone() for name, value in params.items()}

    def share(self, params: Mapping[str, Tensor]) -> float:
        """The share of weights that are as before."""
        same = torch.stack([(params[name] == value).sum() for name, value in self._before.items()]).sum()
        total: int = sum(value.numel() for value in self._before.values())
        return float(same) / total


ENOUGH = MAX_TOKENS // 2
"""A row with this many sampled tokens is chosen at once."""


class Canary:
    """Tokens of one row of the last batch that an engine made: the end of its prompt, and what was sampled behind it.

    The last batch, because a policy gives low probabilities to old tokens that it has unlearnt, and there rounding is largest.
    """

    def __init__(self) -> None:
        self._prompt: Tensor | None = None
        self._tokens: Tensor | None = None

    @property
    def ready(self) -> bool:
        """Whether a row has been chosen."""
        return self._prompt is not None and self._tokens is not None

    def take(self, batch: Batch) -> None:
        """Choose a row of an annotated batch: the first with enough sampled tokens, else the one with most."""
        if "logprob" not in batch:
            return
        sampled, length = batch["policy_version"] >= 0, batch["row_length"]
        row = int(row_sum(sampled.float(), row_index(length), len(length)).clamp(max=ENOUGH).argmax())
        where = slice(start := int(batch["row_start"][row]), start + int(length[row]))
        tokens, made = batch["tokens"][where], sampled[where].long()
        first = max(int(made.argmax()), 1)  # the first token of a row has no log-probability
        count = int(made[first:].cumprod(dim=0).sum())  # up to the next token that was not sampled
        if count:
            begin = max(0, first - MAX_TOKENS // 2)
            self._prompt = tokens[begin:first].clone()
            self._tokens = tokens[first : first + min(count, MAX_TOKENS - len(self._prompt))].clone()

    @torch.no_grad()
    def weight_check(self, model: TrainedModel, bound: float) -> WeightCheck | None:
        """Log-probabilities of the tokens under `model`; None before the first batch with sampled tokens."""
        if self._prompt is None or self._tokens is None:
            return None
        n, row = len(self._prompt), torch.cat((self._prompt, self._tokens)).to(model.device)
        return WeightCheck(self._prompt, self._tokens, model.row_logprobs(row, n).float().cpu(), bound)

    def state_dict(self) -> State:
        return {"prompt": self._prompt, "tokens": self._tokens}

    def load_state_dict(self, state: State) -> None:
        self._prompt, self._tokens = state.get("prompt"), state.get("tokens")


def mean_of(steps: Sequence[Metrics]) -> Metrics:
    """The mean of each number over the optimiser steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    found = {name: [step[name] for step in steps if name in step] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
