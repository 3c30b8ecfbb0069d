"""GBRL: trees against a walk in plain Python and a search of all questions, gradients against finite differences, resume."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_segments import BOX, DISCRETE, make_segment

import runnel as rl
from runnel.agents.gbrl import GBRLConfig, GBRLLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.trees import TreeBody, fit_questions


def make(seed=0, spec=DISCRETE, **changes):
    config = GBRLConfig(**{"depth": 2, "max_trees": 64, "num_bins": 8} | changes)
    net = ActorCritic(spec, TreeBody(spec, depth=config.depth, max_trees=config.max_trees))
    return GBRLLearner(config, net, seed=seed)


def prepare(learner, data):
    return learner.prepare({"trajectories": [data]}, progress=0.0)


def grown(num=5, depth=3):
    body, generator = TreeBody(DISCRETE, depth=depth, max_trees=8), torch.Generator().manual_seed(0)
    x, target = torch.randn(60, 3, generator=generator), torch.randn(60, 3, generator=generator)
    for i in range(num):
        body.grow(x, target.roll(i, 0), rates=torch.tensor([0.5, 0.5, 0.1]), num_bins=8)
    return body


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-3.0, 3.0, width=32), min_size=3, max_size=3))
def test_outputs_are_those_of_a_walk_down_each_tree(numbers):
    body = TREES
    expected = body.bias.detach().numpy().astype(np.float64)
    for t in range(int(body.num_trees)):
        place = 0
        for feature, threshold in zip(body.feature[t].tolist(), body.threshold[t].tolist(), strict=True):
            place = 2 * place + (numbers[feature] > threshold)
        expected = expected + body.leaf[t, place].numpy()
    found = body({"obs": torch.tensor([numbers])})[0]
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)


TREES = grown()


def squared_error(x, target, questions):
    place = np.zeros(len(x), dtype=int)
    for feature, threshold in questions:
        place = 2 * place + (x[:, feature] > threshold)
    return sum(((target[place == k] - target[place == k].mean(0)) ** 2).sum() for k in np.unique(place))


def test_questions_leave_the_least_error_of_all_candidates_level_by_level():
    rng = np.random.default_rng(1)
    x, target = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    feature, threshold = fit_questions(torch.from_numpy(x), torch.from_numpy(target), depth=2, num_bins=5)
    candidates = [(i, np.quantile(x[:, i], k / 5, method="lower")) for i, k in itertools.product(range(3), range(1, 5))]
    chosen = []
    for level in range(2):
        errors = [squared_error(x, target, [*chosen, c]) for c in candidates]
        found = int(feature[level]), float(threshold[level])
        assert squared_error(x, target, [*chosen, found]) == pytest.approx(min(errors), rel=1e-4)
        chosen.append(found)


def test_leaves_are_means_times_their_rates():
    body = TreeBody(DISCRETE, depth=1, max_trees=2)
    x = torch.tensor([[0.0, 5.0, 1.0], [1.0, 5.0, 0.0], [10.0, 5.0, 1.0], [11.0, 5.0, 0.0]])
    target = torch.tensor([[1.0, 0.0, 4.0], [3.0, 0.0, 8.0], [-5.0, 0.0, 0.0], [-7.0, 0.0, -2.0]])
    body.grow(x, target, rates=torch.tensor([0.5, 0.5, 0.1]), num_bins=4)
    assert body.feature[0].item() == 0
    torch.testing.assert_close(body.leaf[0], torch.tensor([[1.0, 0.0, 0.6], [-3.0, 0.0, -0.1]]))


def test_a_tree_fits_the_negative_gradient_of_the_loss_by_finite_differences():
    learner = make(spec=DISCRETE, num_minibatches=1, value_coef=0.7, entropy_coef=0.1, depth=1)
    batch = prepare(learner, make_segment(1))
    twin = make(spec=DISCRETE, num_minibatches=1, value_coef=0.7, entropy_coef=0.1, depth=1)
    seen = {}
    learner.body.grow = lambda x, target, **rest: seen.update(target=target)
    learner.step(batch)
    outputs = twin.body(batch).detach()
    for row, column in [(0, 0), (3, 1), (7, 2), (20, 2)]:
        slopes = []
        for step in (1e-2, -1e-2):
            twin._outputs = outputs.clone()
            twin._outputs[row, column] += step
            slopes.append(twin.loss(batch)["loss/total"].item())
        slope = (slopes[0] - slopes[1]) / 2e-2
        assert seen["target"][row, column].item() == pytest.approx(-slope * 32, abs=2e-3)


@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
def test_an_update_grows_a_tree_for_each_step_and_moves_the_rest_by_adam(spec):
    learner = make(spec=spec, num_epochs=3, num_minibatches=2)
    metrics = learner.update(prepare(learner, make_segment(spec=spec))).metrics
    assert metrics["trees"] == 6
    assert learner.body.bias.any()
    assert spec is DISCRETE or learner.net.log_std.any()
    assert isinstance(learner, Learner)


def test_resume_is_bit_identical():
    first, second = make(), make(seed=4)
    for i in range(2):
        first.update(prepare(first, make_segment(i)))
    second.load_state_dict(first.state_dict())
    for i in range(2, 5):
        assert first.update(prepare(first, make_segment(i))).metrics == second.update(prepare(second, make_segment(i))).metrics
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_a_trained_ensemble_is_loaded(tmp_path: Path):
    run = rl.train("gbrl", total_updates=2, num_steps=16, eval={"episodes": 0}, track=(), out=str(tmp_path))
    assert rl.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_too_little_room_and_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="use at least that"):
        rl.train("gbrl", total_steps=10_000, num_envs=1, num_steps=1)
    learner = make(max_trees=1, num_minibatches=1)
    with pytest.raises(ConfigError, match="all trees are grown"):
        learner.update(prepare(learner, make_segment()))
    for changes in ({"depth": 0}, {"num_bins": 1}, {"policy_rate": 0.0}, {"num_epochs": 0}):
        with pytest.raises(ConfigError, match=r"gbrl\."):
            GBRLConfig(**changes).check(8)
