import gymnasium as gym
import pytest
import torch

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError
from runnel.core.protocols import Reply
from runnel.core.rng import make_seed
from runnel.envs.registry import make_vector
from runnel.envs.toy import Counter, MaskedBandit, PointMass
from runnel.envs.vector import episode_seed
from runnel.eval.runner import EnvEvaluation, evaluate


def lean(obs):
    return (obs[:, 2] > 0).long()


class Greedy:
    """An inline client of a fixed rule."""

    def __init__(self, rule=lambda rows: lean(rows["obs"])):
        self.rule, self.version, self.rows = rule, 0, []

    def submit(self, rows, *, version=-1):
        self.rows.append({k: x.shape for k, x in rows.items()})
        self._reply = Reply(0, Batch(action=self.rule(rows)), 0)
        return 0

    def ready(self, ticket):
        return self._reply

    def poll(self):
        return 0


def replay(seed, row, episode):
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=episode_seed(seed, row, episode))
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(int(obs[2] > 0))
        total, over = total + reward, terminated or truncated
    return total


def test_exactly_the_first_episodes_of_each_environment_count():
    evaluation = EnvEvaluation(lambda: make_vector("CartPole-v1", 3, seed=0, index0=3), episodes=8, seed=9)
    seen = []
    result = evaluation.run(Greedy(), round_index=2, progress=lambda done, total: seen.append((done, total)))
    seed = make_seed(9, "eval", 2)
    expected = [replay(seed, 3 + row, k) for row, quota in enumerate((3, 3, 2)) for k in range(quota)]
    assert result.returns == expected
    assert result.extra["length"] == expected
    assert seen[-1] == (8, 8)
    evaluation.close()


def test_rounds_are_repeatable_and_differ():
    evaluation = EnvEvaluation(lambda: make_vector("CartPole-v1", 2, seed=0), episodes=6, seed=9)
    first, second = (evaluation.run(Greedy(), round_index=i).returns for i in (0, 1))
    assert first != second
    assert evaluation.run(Greedy(), round_index=0).returns == first


def test_short_episodes_are_not_favoured():
    lengths = iter([2, 50])
    evaluation = EnvEvaluation(lambda: make_vector(lambda: Counter(next(lengths)), 2, seed=0), episodes=4, seed=0)
    client = Greedy(lambda rows: torch.ones(2, dtype=torch.int64))
    assert evaluation.run(client, round_index=0).extra["length"] == [2, 2, 50, 50]


def test_masks_and_noise_reach_the_policy():
    evaluation = EnvEvaluation(lambda: make_vector(MaskedBandit, 2, seed=0), episodes=4, seed=0, noise_size=3)
    client = Greedy(lambda rows: (rows["action_mask"] * torch.arange(1, 5)).argmax(1))
    assert min(evaluation.run(client, round_index=0).returns) >= 1 / 3
    assert client.rows[0] == {"obs": (2, 1), "noise": (2, 3), "action_mask": (2, 4)}


def test_tensor_environments_are_evaluated_too():
    evaluation = EnvEvaluation(lambda: make_vector("tensor:CartPole-v1", 4, seed=0), episodes=10, seed=0)
    assert len(evaluation.run(Greedy(), round_index=0).returns) == 10


def test_a_client_that_never_answers_is_named(monkeypatch):
    monkeypatch.setattr("runnel.eval.runner._MAX_POLLS", 5)
    monkeypatch.setattr(Greedy, "ready", lambda self, ticket: None)
    evaluation = EnvEvaluation(lambda: make_vector("CartPole-v1", 1, seed=0), episodes=1, seed=0)
    with pytest.raises(DataError, match="inline client"):
        evaluation.run(Greedy(), round_index=0)


class Still:
    resets = 0

    def act(self, obs, *, deterministic=True):
        assert deterministic
        return -5.0 * obs

    def reset(self):
        self.resets += 1


def test_evaluate_plays_a_policy_on_a_target():
    policy = Still()
    result = evaluate(policy, PointMass, episodes=5, seed=3)
    assert len(result.returns) == policy.resets == 5
    assert result.extra["length"] == [20.0] * 5
    assert result.returns == evaluate(policy, PointMass, episodes=5, seed=3).returns
    assert len(set(result.returns)) == 5
    with pytest.raises(ConfigError, match="episodes"):
        evaluate(policy, PointMass, episodes=0)


def test_evaluate_hands_masks_over():
    class Best(Still):
        def act(self, obs, *, deterministic=True, action_mask):
            return int(action_mask.nonzero()[0][-1])

    assert min(evaluate(Best(), MaskedBandit, episodes=10).returns) >= 1 / 3
