"""The token learner on ranks that meet through gloo: whole groups to each, and pairs and demonstrations cut between rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_ranks import together
from made_tokens import demos, pairs, rated
from test_token_algorithms import learner_of, segments_of, wake_critic

from runnel.core.contracts.learning import SingleProcess
from runnel.core.sharding.batch_split import share_of


def made(name):
    """Four groups, or one segment of rows that ranks have to cut."""
    rng = np.random.default_rng(5)
    if name == "dpo":
        return {"pairs": [pairs(rng, 4)]}
    if name == "kto":
        return {"rated": [rated(rng, 4)]}
    return {"demos": [demos(rng, 6)]} if name == "sft" else segments_of(name, rng, 4)


@pytest.mark.parametrize("name", ["grpo", "grpo_roc", "ppo", "turn_ppo", "spa", "sft", "dpo", "kto"])
def test_ranks_take_the_step_of_one(name):
    ((reader, segments),) = made(name).items()

    start = torch.cat([p.flatten() for p in learner_of(name, {reader: segments}).params().values()])
    learners = [learner_of(name, {reader: segments}, warmup_updates=1) for _ in range(3)]  # a model is made by a global seed

    def work(ranks):
        learner = learners.pop()
        learner._collective = ranks
        wake_critic(learner, name)
        mine = share_of(segments, ranks.rank, ranks.world_size)
        metrics = learner.update(learner.prepare({reader: mine}, progress=0.0)).metrics
        return torch.cat([p.detach().flatten() for p in learner.params().values()]), metrics

    torch.set_num_threads(1)
    weights, metrics = work(SingleProcess())
    found = together(2, work)
    assert torch.equal(found[0][0], found[1][0]), "the same bits on every rank"
    torch.testing.assert_close(found[0][0], weights, rtol=1e-5, atol=1e-6)
    assert (weights - start).abs().max() > 1e-5, "the step is larger than what it may differ by"
    assert ("value/explained_variance" in metrics) == name.endswith("ppo")
    for key in ("grad_norm", *(k for k in metrics if k.startswith("loss/") or k.endswith("explained_variance"))):
        assert found[1][1][key] == pytest.approx(metrics[key], rel=1e-4, abs=1e-7), key
