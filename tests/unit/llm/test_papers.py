"""Every policy algorithm, from rewards to the gradient by token, against its paper's equation in numpy.

The parts have tests of their own; here annotations and loss are joined as the learner joins them, because a factor that is
right in each may be there twice. Rows are written out one by one, and gradients are finite differences of the equation.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_tokens import group

from runnel.core.contracts.learning import SingleProcess
from runnel.core.records import Batch
from runnel.llm.algorithms.aipo import AIPO, AIPOConfig
from runnel.llm.algorithms.base import POLICY, Part
from runnel.llm.algorithms.dapo import DAPO, DAPOConfig
from runnel.llm.algorithms.decoupled import DecoupledConfig, DecoupledPPO
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.gspo import GSPO, GSPOConfig
from runnel.llm.algorithms.reinforce import RLOO, Reinforce, ReinforceConfig, ReMax
from runnel.llm.learning.batches import MicroBatch, join_rows, merge

LOW, HIGH, LONGEST = 0.1, 0.3, 6
BOTH = {"channels": {"exact": 1.0}, "max_tokens": LONGEST}
CLIP = {"clip_low": LOW, "clip_high": HIGH}
ALGORITHMS = {
    "grpo": GRPO(GRPOConfig(**CLIP), **BOTH),
    "dr_grpo": GRPO(GRPOConfig(**CLIP, normalise="none", aggregation="constant"), **BOTH),
    "dapo": DAPO(DAPOConfig(**CLIP, overlong_buffer=3), **BOTH),
    "gspo": GSPO(GSPOConfig(**CLIP), **BOTH),
    "reinforce": Reinforce(ReinforceConfig(), **BOTH),
    "rloo": RLOO(ReinforceConfig(), **BOTH),
    "remax": ReMax(ReinforceConfig(), **BOTH),
    "aipo": AIPO(AIPOConfig(max_ratio=1.5), **BOTH),
    "decoupled": DecoupledPPO(DecoupledConfig(**CLIP, proximal="forward", behaviour_high=1.5), **BOTH),
}


def joined(algorithm, rows, budget):
    """The loss that the learner sums over micro-batches of `budget` rows, and its gradient by token."""
    batch = merge([algorithm.annotate(rows, SingleProcess())])
    component = algorithm.components["policy"]
    count, denominator = float(rows["loss_mask"].sum()), float(batch["denominator/policy"].sum())
    logprob = rows["now"].clone().requires_grad_(True)
    at = torch.arange(len(rows["tokens"]))
    total = torch.zeros((), dtype=torch.float64)
    for some in torch.arange(len(rows["row_length"])).split(budget):
        part = MicroBatch.of(Batch(batch | {"at": at}), some, device="cpu")
        if POLICY not in part.kinds:
            continue
        outputs = Batch(logprob=logprob[part.fields["at"]])
        tokens = Part.of(part, POLICY, outputs, count=count, version=3)
        total = total + component.loss(tokens, denominator).value
    total.backward()
    return total.item(), logprob.grad[rows["loss_mask"]].numpy()


def clipped(ratio, advantage):
    return np.minimum(ratio * advantage, np.clip(ratio, 1 - LOW, 1 + HIGH) * advantage)


def credit(name, rewards, answers):
    """The advantage of each row of `[G, n]` rewards, as the papers have it."""
    if name == "reinforce":
        return rewards - rewards.mean()
    if name in ("rloo", "aipo"):
        n = rewards.shape[1]
        return rewards - (rewards.sum(1, keepdims=True) - rewards) / (n - 1)
    if name == "remax":
        return rewards - rewards[:, :1]
    if name == "dapo":  # eq. 13, over a buffer of 3 tokens before the longest
        length = np.array([len(a["now"]) for a in answers]).reshape(rewards.shape)
        rewards = rewards - np.clip((length - (LONGEST - 3)) / 3, 0, 1)
    centred = rewards - rewards.mean(1, keepdims=True)
    return centred if name == "dr_grpo" else centred / rewards.std(1, ddof=1, keepdims=True)


def paper(name, answers, advantages, frozen):
    """The objective of the paper, as a loss. `answers`: arrays of each trained row, by token; what carries no gradient is
    taken from `frozen`."""
    terms, tokens = [], sum(len(a["now"]) for a in answers)
    for a, A, still in zip(answers, advantages, frozen, strict=True):
        ratio = np.exp(a["now"] - a["old"])
        if name == "grpo":
            terms.append(clipped(ratio, A).mean() / len(answers))
        elif name == "dr_grpo":
            terms.append(clipped(ratio, A).sum() / (len(answers) * LONGEST))
        elif name == "dapo":
            terms.append(clipped(ratio, A).sum() / tokens)
        elif name == "gspo":
            terms.append(clipped(np.exp((a["now"] - a["old"]).mean()), A) / len(answers))
        elif name == "aipo":
            held = np.minimum(np.exp(still["now"] - still["old"]), 1.5)
            terms.append((held * A * a["now"]).sum() / tokens)
        elif name == "decoupled":
            held = np.clip(np.exp(a["proximal"] - a["old"]), 0.0, 1.5)
            terms.append((held * clipped(np.exp(a["now"] - a["proximal"]), A)).sum() / tokens)
        else:
            terms.append(A * a["now"].sum() / len(answers))
    return -sum(terms)


def slopes(name, answers, advantages, step=1e-6):
    """Central differences of the equation, token by token."""
    out = []
    for i, a in enumerate(answers):
        for t in range(len(a["now"])):
            sides = []
            for sign in (1, -1):
                moved = [dict(b) for b in answers]
                moved[i]["now"] = a["now"] + sign * step * (np.arange(len(a["now"])) == t)
                sides.append(paper(name, moved, advantages, answers))
            out.append((sides[0] - sides[1]) / (2 * step))
    return np.array(out)


def made(name, seed=0):
    rng = np.random.default_rng(seed)
    rewards = np.array([[1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.0, 1.0]])
    rows = join_rows([group(rng, r, greedy_first=name == "remax") for r in rewards])
    old = rows["logprob"].double()
    moved = {k: torch.tensor(rng.normal(0.0, 0.3, size=len(old))) * rows["loss_mask"] for k in ("now", "proximal_logprob")}
    rows |= {"logprob": old, **{k: old + v for k, v in moved.items()}}
    return rewards, rows


@pytest.mark.parametrize("budget", [100, 3])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_loss_and_gradient_are_those_of_the_paper(name, budget):
    rewards, rows = made(name)
    fields = {"now": rows["now"], "old": rows["logprob"], "proximal": rows["proximal_logprob"]}
    cut = {k: v.split(rows["row_length"].tolist()) for k, v in fields.items()}
    masks = rows["loss_mask"].split(rows["row_length"].tolist())
    every = [{k: v[i][m].numpy() for k, v in cut.items()} for i, m in enumerate(masks)]
    advantages = credit(name, rewards, every).flatten()
    answers, advantages = zip(*[(a, A) for a, A in zip(every, advantages, strict=True) if len(a["now"])], strict=True)
    value, gradient = joined(ALGORITHMS[name], rows, budget)
    assert value == pytest.approx(paper(name, answers, advantages, answers), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(name, answers, advantages), rtol=1e-4, atol=1e-6)


def test_gspo_counts_a_sequence_once_whatever_its_length():
    """Rows of 2 and 4 tokens with ratio and advantage 1: the objective is the mean of two ones."""
    rows = Batch(tokens=torch.ones(8, dtype=torch.int64), row_length=torch.tensor([3, 5]), group=torch.tensor([0, 1]))
    rows["row_owner"] = torch.arange(2)
    rows["loss_mask"] = torch.tensor([False, True, True, False, True, True, True, True])
    rows |= {"logprob": torch.zeros(8), "now": torch.zeros(8), "rewards/exact": torch.zeros(2), "terminated": torch.ones(2)}

    class Ones(GSPO):
        def credit(self, rewards, rows, collective):
            return torch.ones_like(rewards)

    value, gradient = joined(Ones(GSPOConfig(), **BOTH), rows, 2)
    assert value == pytest.approx(-1.0)
    assert gradient == pytest.approx([-1 / 4, -1 / 4, -1 / 8, -1 / 8, -1 / 8, -1 / 8])
