import gymnasium as gym
import numpy as np
import pytest
import torch

from runnel.core.contracts.inference import Reply
from runnel.core.errors import ConfigError, DataError, EvaluationInterrupted
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.envs.registry import make_vector
from runnel.envs.toy import Counter, MaskedBandit, PointMass
from runnel.envs.vector import VectorConfig, episode_seed
from runnel.eval.population import PopulationEvaluation
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
    result = evaluation.run({"policy": Greedy()}, round_index=2, progress=lambda done, total: seen.append((done, total)))
    seed = make_seed(9, "eval", 2)
    expected = [replay(seed, 3 + row, k) for row, quota in enumerate((3, 3, 2)) for k in range(quota)]
    assert result.returns == expected
    assert result.extra["length"] == expected
    assert seen[-1] == (8, 8)
    evaluation.close()


def test_rounds_are_repeatable_and_differ():
    evaluation = EnvEvaluation(lambda: make_vector("CartPole-v1", 2, seed=0), episodes=6, seed=9)
    first, second = (evaluation.run({"policy": Greedy()}, round_index=i).returns for i in (0, 1))
    assert first != second
    assert evaluation.run({"policy": Greedy()}, round_index=0).returns == first


def test_short_episodes_are_not_favoured():
    lengths = iter([2, 50])
    evaluation = EnvEvaluation(lambda: make_vector(lambda: Counter(next(lengths)), 2, seed=0), episodes=4, seed=0)
    client = Greedy(lambda rows: torch.ones(2, dtype=torch.int64))
    assert evaluation.run({"policy": client}, round_index=0).extra["length"] == [2, 2, 50, 50]


def test_masks_and_noise_reach_the_policy():
    evaluation = EnvEvaluation(lambda: make_vector(MaskedBandit, 2, seed=0), episodes=4, seed=0, noise_size=3)
    client = Greedy(lambda rows: (rows["action_mask"] * torch.arange(1, 5)).argmax(1))
    assert min(evaluation.run({"policy": client}, round_index=0).returns) >= 1 / 3
    assert client.rows[0] == {"obs": (2, 1), "noise": (2, 3), "action_mask": (2, 4)}


def test_tensor_environments_are_evaluated_too():
    evaluation = EnvEvaluation(lambda: make_vector("tensor:CartPole-v1", 4, seed=0), episodes=10, seed=0)
    assert len(evaluation.run({"policy": Greedy()}, round_index=0).returns) == 10


def test_a_client_that_never_answers_is_named(monkeypatch):
    monkeypatch.setattr("runnel.eval.runner._MAX_POLLS", 5)
    monkeypatch.setattr(Greedy, "ready", lambda self, ticket: None)
    evaluation = EnvEvaluation(lambda: make_vector("CartPole-v1", 1, seed=0), episodes=1, seed=0)
    with pytest.raises(DataError, match="inline client"):
        evaluation.run({"policy": Greedy()}, round_index=0)


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
    with pytest.raises(ConfigError, match="seed = -1: use a whole number, at least 0"):
        evaluate(policy, PointMass, episodes=1, seed=-1)


def test_evaluate_hands_masks_over():
    class Best(Still):
        def act(self, obs, *, deterministic=True, action_mask):
            return int(action_mask.nonzero()[0][-1])

    assert min(evaluate(Best(), MaskedBandit, episodes=10).returns) >= 1 / 3


# --------------------------------------------------------------------------------------- episodes that do not come to an end
def always(action):
    return Greedy(lambda rows: torch.full((len(rows["obs"]),), action, dtype=torch.int64))


def test_an_environment_without_a_limit_of_its_own_is_cut():
    """CliffWalking ends only at the goal; who always goes up pays 1 a step for ever."""
    evaluation = EnvEvaluation(lambda: make_vector("CliffWalking-v1", 2, seed=0), episodes=5, seed=0, max_steps=50)
    result = evaluation.run({"policy": always(0)}, round_index=0)
    assert result.returns == [-50.0] * 5
    assert result.extra == {"length": [50.0] * 5, "cut": [1.0] * 5}


def test_an_episode_that_ends_at_the_limit_by_itself_is_not_cut():
    for length, cut in ((20, False), (21, True)):
        evaluation = EnvEvaluation(
            lambda n=length: make_vector(lambda: Counter(n), 1, seed=0), episodes=2, seed=0, max_steps=20
        )
        result = evaluation.run({"policy": always(1)}, round_index=0)
        assert result.extra["length"] == [20.0, 20.0]
        assert ("cut" in result.extra) == cut


def test_an_episode_that_was_cut_counts_once_and_its_environment_goes_on():
    """Row 0 is cut at 20 of 30 steps, and ends by itself while row 1 plays; then only a reset helps."""
    lengths = iter([30, 7])
    vector = make_vector(lambda: Counter(next(lengths)), 2, seed=0)
    result = EnvEvaluation(lambda: vector, episodes=10, seed=0, max_steps=20).run({"policy": always(1)}, round_index=0)
    assert result.extra["length"] == [20.0] * 5 + [7.0] * 5
    assert result.extra["cut"] == [1.0] * 5 + [0.0] * 5


def test_returns_are_those_until_the_cut():
    """Against plain Gymnasium, episode by episode."""
    evaluation = EnvEvaluation(lambda: make_vector("Pendulum-v1", 2, seed=0), episodes=2, seed=4, max_steps=13)
    result = evaluation.run({"policy": Greedy(lambda rows: torch.zeros(len(rows["obs"]), 1))}, round_index=0)
    expected = []
    for row in range(2):
        env = gym.make("Pendulum-v1")
        env.reset(seed=episode_seed(make_seed(4, "eval", 0), row, 0))
        expected.append(sum(float(np.float32(env.step(np.zeros(1, np.float32))[1])) for _ in range(13)))
    assert result.returns == pytest.approx(expected, rel=1e-6)
    assert result.extra["cut"] == [1.0, 1.0]


class Flaky(gym.Env):
    """Its seed says how it goes: every third breaks at step 2, the others end after 3 steps with `seed % 100`."""

    def __init__(self):
        self.observation_space, self.action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.seed, self.t = seed or 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 2 and breaks(self.seed):
            raise RuntimeError("the simulator broke")
        return np.zeros(1, np.float32), float(self.seed % 100 if self.t == 3 else 0), self.t == 3, False, {}


def breaks(seed):
    return seed % 3 == 0


RESTART = VectorConfig(backend="serial", on_error="restart")


def test_episodes_that_crashed_keep_their_place_and_are_told():
    evaluation = EnvEvaluation(lambda: make_vector(Flaky, 4, seed=0, config=RESTART), episodes=26, seed=9)
    result = evaluation.run({"policy": always(1)}, round_index=0)
    quotas = (7, 7, 6, 6)
    seeds = [episode_seed(make_seed(9, "eval", 0), row, k) for row, quota in enumerate(quotas) for k in range(quota)]
    assert 3 <= sum(map(breaks, seeds)) <= 20
    assert result.extra["crashed"] == [float(breaks(s)) for s in seeds]
    assert result.returns == [float(s % 100) for s in seeds if not breaks(s)]
    assert len(result.extra["length"]) == len(result.returns)
    assert len(result.faults) >= sum(map(breaks, seeds))
    assert {f["kind"] for f in result.faults} == {"env_failed"}
    assert "the simulator broke" in result.faults[0]["error"]


def test_members_of_a_population_keep_their_own_episodes_when_some_crash():
    def make(num):
        return make_vector(Flaky, num, seed=0, config=RESTART)

    evaluation = PopulationEvaluation(make, members=2, episodes=6, most_envs=2, seed=9)
    result = evaluation.run({"policy": always(1)}, round_index=0)
    seed = make_seed(9, "eval", 0)
    for member in range(2):
        seeds = [episode_seed(seed, 2 * member + row, k) for row in range(2) for k in range(3)]
        assert result.extra[f"member/{member}"] == [float(s % 100) for s in seeds if not breaks(s)]
    assert result.faults


def test_an_evaluation_of_which_nothing_is_left_is_refused(monkeypatch):
    monkeypatch.setitem(globals(), "breaks", lambda seed: True)
    evaluation = EnvEvaluation(lambda: make_vector(Flaky, 2, seed=0, config=RESTART), episodes=2, seed=9)
    with pytest.raises(
        DataError, match=r"all 2 episodes of an evaluation crashed; the first: RuntimeError: the simulator broke"
    ):
        evaluation.run({"policy": always(1)}, round_index=0)


def test_an_interrupted_evaluation_ends_at_once_and_begins_again():
    evaluation = EnvEvaluation(lambda: make_vector("CartPole-v1", 2, seed=0), episodes=6, seed=9)
    whole = evaluation.run({"policy": Greedy()}, round_index=3)
    calls = []

    def stop(done, total):
        calls.append(done)
        if len(calls) == 5:
            raise EvaluationInterrupted

    client = Greedy()
    with pytest.raises(EvaluationInterrupted):
        evaluation.run({"policy": client}, round_index=3, progress=stop)
    assert len(client.rows) == 5, "progress is told after each step"
    assert evaluation.run({"policy": Greedy()}, round_index=3) == whole


def test_evaluate_cuts_and_warns():
    class Up:
        def act(self, obs, *, deterministic=True):
            return 0

        def reset(self):
            pass

    with pytest.warns(UserWarning, match=r"2 of 2 evaluated episodes were cut after 30 steps \(eval.max_steps\)"):
        result = evaluate(Up(), "CliffWalking-v1", episodes=2, max_steps=30)
    assert result.returns == [-30.0, -30.0]
    assert result.extra["cut"] == [1.0, 1.0]
    with pytest.raises(ConfigError, match="max_steps"):
        evaluate(Up(), "CliffWalking-v1", max_steps=0)
