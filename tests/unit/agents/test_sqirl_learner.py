"""SQIRLLearner: which rows are learned from, returns, regressions and plans against numbers computed by hand; exact resume."""

import numpy as np
import pytest
import torch
from made_segments import BOX, DISCRETE, MASKED

import runnel as rl
from runnel.agents.sqirl import SQIRLConfig, SQIRLLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Header, Segment, trim
from runnel.core.trajectories import trajectory_stream
from runnel.nets.layers import NetConfig
from runnel.nets.step_q import StepQNet

NET = NetConfig(hidden=())
LINEAR = {"num_epochs": 600, "batch_size": 64, "lr": 0.3}


def make(seed=0, horizon=3, **settings):
    return SQIRLLearner(SQIRLConfig(horizon=horizon, **settings), StepQNet(DISCRETE, NET, horizon=horizon), seed=seed)


def walk(ends, rewards, *, first=0.0, cut=(), obs=None, action=None):
    """One environment: `ends` are the steps at which an episode ends, `cut` those that are truncated instead."""
    num = len(rewards)
    stream = trajectory_stream(DISCRETE, num_steps=num, num_envs=1, state=StepQNet(DISCRETE, NET, horizon=1).state_spec)
    arrays = stream.allocate()
    arrays["obs"].copy_(torch.arange(3.0 * (num + 1)).view(num + 1, 1, 3) / 10 if obs is None else obs)
    arrays["action"].copy_(torch.arange(num).view(num, 1) % 2 if action is None else action)
    arrays["rewards/env"].copy_(torch.tensor(rewards).view(num, 1))
    arrays["state/step"].fill_(first)
    for t in (*ends, *cut):
        arrays["truncated" if t in cut else "terminated"][t] = True
    index = torch.tensor(sorted((*ends, *cut)), dtype=torch.int64)
    arrays["final_index"][: len(index)] = index
    arrays["final_obs"][: len(index)] = -1.0
    used = {"F": len(index)}
    return Segment(0, stream, Header(used=used), trim(stream, arrays, used))


def prepare(learner, data):
    return learner.prepare({"trajectories": [data]}, progress=0.0)


def test_rows_are_random_steps_with_a_known_return():
    """Episodes of steps 1 to 2 (begun before), 0 to 2, and one that is not over: their returns by hand."""
    learner = make(gamma=0.5)
    data = walk([1], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], first=1.0, cut=[4])
    batch = prepare(learner, data)
    assert batch["return"].tolist() == [2.0, 2.0, 12.0, 16.0, 16.0]
    assert batch["next_obs"][:, 0].tolist() == pytest.approx([0.3, -1.0, 0.9, 1.2, -1.0])
    learner.version = 1
    assert prepare(learner, data)["return"].tolist() == [2.0, 2.0, 16.0, 16.0], "step 0 was planned"
    learner.version = 2
    assert prepare(learner, data)["return"].tolist() == [2.0, 16.0]


def data_of_one_state():
    """Action 0 pays 1 or 3, action 1 pays 5, at once; the second step of an episode pays 10 times that."""
    pays = torch.tensor([[1.0, 30.0], [5.0, 50.0], [3.0, 10.0], [5.0, 10.0]])
    actions = torch.tensor([[0, 0], [1, 1], [0, 0], [1, 0]])
    obs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).repeat(4, 1)
    obs = torch.cat([obs, obs[:1]]).unsqueeze(1)
    return walk([1, 3, 5, 7], pays.flatten().tolist(), obs=obs, action=actions.view(-1, 1))


def test_regressions_are_means_and_look_ahead_as_often_as_they_are_told():
    """Q1 at the second step is 50 / 3 or 50, and at the first the mean of returns. Q2 at the first step is the mean of the
    first reward plus 50, the best that can follow."""
    for depth, first in [(1, [22.0, 35.0]), (2, [52.0, 55.0])]:
        learner = make(depth=depth, **LINEAR)
        learner.update(prepare(learner, data_of_one_state()))
        q = learner.net.q({"obs": torch.eye(3)[:2]}, torch.zeros(2))
        np.testing.assert_allclose(q.numpy(), [first, [50.0 / 3.0, 50.0]], atol=0.5)
    assert isinstance(learner, Learner)


def test_planned_steps_are_greedy_and_later_ones_are_random():
    learner = make(**LINEAR)
    rows = rl.Batch(obs=torch.eye(3)[:1].repeat(400, 1), noise=torch.rand(400, 1))
    for planned in range(3):
        for step in range(4):
            reply = learner.net.act(rows | {"state/step": torch.full((400,), float(step))})
            greedy = step < planned
            assert reply["state/step"].eq(step + 1).all()
            assert (reply["action"].float().mean() == 1.0) == greedy
            assert reply["logprob"][0].item() == pytest.approx(0.0 if greedy else np.log(0.5))
        learner.update(prepare(learner, data_of_one_state() if planned < 2 else walk([3], [0.0] * 3 + [1.0])))
    reply = learner.net.act(rows | {"state/step": torch.full((400,), 9.0)})
    assert reply["logprob"].eq(0.0).all(), "once every step is planned, later ones follow the last plan"


def test_masked_actions_are_never_played():
    net = StepQNet(MASKED, NET, horizon=2)
    mask = torch.tensor([[False, True]]).repeat(50, 1)
    rows = rl.Batch({"obs": torch.randn(50, 3), "noise": torch.rand(50, 1), "action_mask": mask, "state/step": torch.zeros(50)})
    assert net.act(rows)["action"].eq(1).all()
    assert net.act(rows, greedy=True)["action"].eq(1).all()


def test_where_no_episode_gets_so_far_nothing_is_planned():
    learner = make(**LINEAR)
    learner.version = 2
    metrics = learner.update(prepare(learner, data_of_one_state())).metrics
    assert metrics["rows"] == 0.0
    assert learner.net.planned.item() == 0


def test_resume_is_bit_identical():
    first, second = make(), make(seed=0)
    first.update(prepare(first, data_of_one_state()))
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        learner.update(prepare(learner, data_of_one_state()))
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_bad_numbers_and_settings_are_refused():
    with pytest.raises(ConfigError, match="no episode ended"):
        prepare(make(), walk([], [1.0, 1.0]))
    learner = make()
    batch = prepare(learner, walk([1], [1.0, float("nan")]))
    with pytest.raises(NonFiniteError):
        learner.update(batch)
    for config in (SQIRLConfig(depth=0), SQIRLConfig(horizon=0), SQIRLConfig(lr=0.0), SQIRLConfig(gamma=1.5)):
        with pytest.raises(ConfigError, match=r"sqirl\."):
            config.check()
    with pytest.raises(ConfigError, match="discrete"):
        StepQNet(BOX, NET, horizon=1)
    with pytest.raises(ConfigError, match="sync"):
        rl.train("sqirl", staleness={"mode": "one_step"}, total_updates=1)
