"""PPO on rows that do not decide at every step: only decisions are trained on, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_segments import make_net, make_segment

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.agents.appo import APPOConfig, APPOLearner
from runnel.agents.deciding import rows_that_count
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.team import TeamLearner
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, FieldSpec, Segment
from runnel.core.trajectories import ACTIVE
from runnel.kernels.select import Accelerator
from runnel.kernels.small.numba.ppo import has_numba

PLAIN = PPOConfig(num_epochs=1, num_minibatches=1)


def with_active(segment: Segment, active: torch.Tensor) -> Segment:
    """The segment with a field that says who decides. `active` `[T + 1, B]`"""
    spec = replace(segment.spec, fields={**segment.spec.fields, ACTIVE: FieldSpec(("T1", "B"), torch.bool)})
    arrays = type(segment.arrays)({**segment.arrays, ACTIVE: active})
    return Segment(0, spec, segment.header, arrays)


def some_idle(segment: Segment, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(segment.arrays["obs"].shape[:2]) < 0.6)


def learner(config: PPOConfig = PLAIN, **net: object) -> PPOLearner:
    return PPOLearner(config, make_net(**net), seed=1)


def test_with_every_row_active_it_is_the_plain_update() -> None:
    config = PPOConfig(num_epochs=2, num_minibatches=2, normalise_obs=True, normalise_reward=True, target_kl=None)
    segment = make_segment()
    every = with_active(segment, torch.ones(segment.arrays["obs"].shape[:2], dtype=torch.bool))
    updates, params = [], []
    for one in (segment, every):
        ppo = learner(config, normalise_obs=True)
        updates.append(ppo.update(ppo.prepare({"a": [one]}, progress=0.0)).metrics)
        params.append({k: v.clone() for k, v in ppo.params().items()})
    for key, value in updates[0].items():
        assert updates[1][key] == pytest.approx(value, abs=2e-6), key
    for key, value in params[0].items():
        torch.testing.assert_close(params[1][key], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("config", [PLAIN, PPOConfig(num_epochs=2, num_minibatches=3, normalise_reward=True)])
def test_what_stands_at_idle_steps_changes_nothing(config: PPOConfig) -> None:
    segment = make_segment(num_steps=12, num_envs=6)
    active = some_idle(segment)
    idle = ~active[:-1]
    other = type(segment.arrays)(segment.arrays)
    other["obs"] = torch.where(active.unsqueeze(-1), segment.arrays["obs"], 7.0)
    other["action"] = torch.where(idle, 1 - segment.arrays["action"], segment.arrays["action"])
    other["logprob"] = torch.where(idle, -9.0, segment.arrays["logprob"])
    results = []
    for arrays in (segment.arrays, other):
        ppo = learner(config, normalise_obs=True)
        one = with_active(Segment(0, segment.spec, segment.header, arrays), active)
        metrics = ppo.update(ppo.prepare({"a": [one]}, progress=0.0)).metrics
        results.append((metrics, {k: v.clone() for k, v in ppo.params().items()}))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(x, results[1][1][k]) for k, x in results[0][1].items())


def test_a_batch_has_a_row_for_each_decision_and_advantages_are_scaled_over_those_alone() -> None:
    segment = make_segment(num_steps=12, num_envs=6)
    active = some_idle(segment)
    batch = learner().prepare({"a": [with_active(segment, active)]}, progress=0.0)
    assert batch[ACTIVE].all()
    assert 0 < len(batch["advantage"]) <= int(active[:-1].sum())
    assert batch["advantage"].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert batch["advantage"].std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_every_minibatch_has_a_row_also_where_nobody_decides() -> None:
    counts = torch.tensor([False, True, False, False, True])
    assert rows_that_count(counts, at_least=1).tolist() == [1, 4]
    assert rows_that_count(counts, at_least=4).tolist() == [1, 4, 0, 2]
    segment = make_segment()
    nobody = with_active(segment, torch.zeros(segment.arrays["obs"].shape[:2], dtype=torch.bool))
    ppo = learner(PPOConfig(num_epochs=1, num_minibatches=4, normalise_reward=True), normalise_obs=True)
    before = {k: v.clone() for k, v in ppo.params().items()}
    metrics = ppo.update(ppo.prepare({"a": [nobody]}, progress=0.0)).metrics
    assert metrics["loss/total"] == 0.0
    assert all(torch.equal(x, before[k]) for k, x in ppo.params().items())


def test_credit_is_still_a_method_that_a_subclass_may_override() -> None:
    class Flat(PPOLearner):
        def credit(self, data: Batch, rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            values, _, returns = super().credit(data, rewards)
            return values, torch.full_like(values, 3.0), returns

    segment = make_segment()
    own = Flat(PPOConfig(num_epochs=1, num_minibatches=1, normalise_advantage=False), make_net(), seed=1)
    batch = own.prepare({"a": [with_active(segment, some_idle(segment))]}, progress=0.0)
    assert (batch["advantage"] == 3.0).all()


def test_others_refuse_rows_in_which_nobody_decides() -> None:
    segment = make_segment()
    one = with_active(segment, some_idle(segment))
    appo = APPOLearner(APPOConfig(num_minibatches=1), make_net(), seed=1)
    a2c = A2CLearner(A2CConfig(), make_net(), seed=1)
    for other in (appo, a2c):
        with pytest.raises(ConfigError, match="rows in which nobody decides; PPOLearner knows"):
            other.prepare({"a": [one]}, progress=0.0)


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
@pytest.mark.parametrize("waits", [False, True])
def test_kernels_train_on_decisions_as_the_plain_update_does(waits: bool) -> None:
    """Each member of a team by kernels, which are told nothing of rows: a batch holds decisions alone. 7 of 96 rows are left
    of each order where agents wait."""
    config = PPOConfig(num_epochs=2, num_minibatches=4, normalise_obs=True, normalise_reward=True)
    segment = make_segment(num_steps=16, num_envs=6)
    active = torch.ones(segment.arrays["obs"].shape[:2], dtype=torch.bool)
    if waits:
        active = some_idle(segment)
    results, net = [], {"hidden": (16, 16), "normalise_obs": True}
    for mode in ("off", "on"):
        team = TeamLearner({"a": learner(config, **net), "b": learner(config, **net)})
        made = Accelerator(mode).learner(team, idle_rows=True)  # type: ignore[arg-type]
        assert made.on == (mode == "on")
        assert made.text.startswith("compiled: numba, PPO of two layers" if made.on else "compiled: off, as you said")
        for progress in (0.0, 0.5):
            given = {name: [with_active(segment, active)] for name in "ab"}
            metrics = team.update(team.prepare(given, progress=progress)).metrics
        results.append((metrics, {key: x.clone() for key, x in team.params().items()}))
    for key, value in results[0][0].items():
        assert results[1][0][key] == pytest.approx(value, abs=1e-4), key
    for key, x in results[0][1].items():
        torch.testing.assert_close(results[1][1][key], x, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
def test_kernels_leave_a_batch_with_rows_that_do_not_count_to_the_plain_update() -> None:
    segment = make_segment()
    nobody = with_active(segment, torch.zeros(segment.arrays["obs"].shape[:2], dtype=torch.bool))
    made = (
        Accelerator("on").learner(learner(PPOConfig(num_epochs=1, num_minibatches=4), hidden=(16, 16)), idle_rows=True).learner
    )
    assert isinstance(made, PPOLearner)
    assert "epochs" in vars(made)
    before = {k: v.clone() for k, v in made.params().items()}
    assert made.update(made.prepare({"a": [nobody]}, progress=0.0)).metrics["loss/total"] == 0.0
    assert all(torch.equal(x, before[k]) for k, x in made.params().items())


def test_kernels_that_train_on_every_row_step_aside() -> None:
    found = Accelerator("on", 1_000_000).learner(APPOLearner(APPOConfig(), make_net(), seed=1), idle_rows=True)
    assert not found.on
    assert found.text == (
        "compiled: off, because kernels train on every row, and in these streams not every row decides at every step"
    )
