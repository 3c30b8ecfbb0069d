"""Networks of a user's own: eval mode where they act, train mode where they learn, and a check of what they give."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.records import Batch, Header, Segment, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.policy import EnvPolicy

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("continuous", shape=(2,), low=(-9.0,) * 2, high=(9.0,) * 2))
CHOICES = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=4))
HERE = re.escape(f"{__file__}:") + r"|test_own_networks:"


class Noisy(nn.Module):
    """Dropout and batch statistics; remembers in which mode each method was asked."""

    def __init__(self, spec: EnvSpec = SPEC) -> None:
        super().__init__()
        self.asked: list[tuple[str, bool]] = []
        self.trunk = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.actor, self.critic = nn.Linear(8, spec.action.size), nn.Linear(8, 1)

    def policy(self, obs: Any) -> Tensor:
        self.asked.append(("policy", self.training))
        return self.actor(self._features(obs["obs"]))

    def value(self, obs: Any) -> Tensor:
        self.asked.append(("value", self.training))
        return self.critic(self._features(obs["obs"])).squeeze(-1)

    def _features(self, x: Tensor) -> Tensor:
        return self.trunk(x.reshape(-1, 3)).reshape(*x.shape[:-1], 8)


def make(seed: int = 0, body: type[nn.Module] = Noisy, spec: EnvSpec = SPEC) -> ActorCritic:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(spec, body())


def rows(num: int = 6) -> Batch:
    rng = make_rng(0, "rows")
    return Batch(obs=torch.from_numpy(rng.normal(size=(num, 3))).float(), noise=torch.full((num, 2), 0.5))


def segment(seed: int = 0) -> Segment:
    rng, stream = make_rng(seed, "segment"), trajectory_stream(SPEC, num_steps=8, num_envs=4)
    arrays = stream.allocate()
    for name in ("obs", "action", "rewards/env", "final_obs"):
        arrays[name].copy_(torch.from_numpy(rng.normal(size=arrays[name].shape)))
    arrays["truncated"][3, 2] = True
    arrays["final_index"][0] = 3 * 4 + 2
    return Segment(0, stream, Header(used={"F": 1}), trim(stream, arrays, {"F": 1}))


LEARNERS: dict[str, Any] = {
    "ppo": lambda net: PPOLearner(PPOConfig(num_epochs=1, num_minibatches=2), net, seed=3),
    "a2c": lambda net: A2CLearner(A2CConfig(), net, seed=3),
}


def learn(learner: Any, *seeds: int) -> None:
    for seed in seeds:
        learner.update(learner.prepare({"trajectories": [segment(seed)]}, progress=0.0))


# --------------------------------------------------------------------------------------------------------------- modes
def test_acting_is_the_module_in_eval_mode() -> None:
    net = make()
    net.body.trunk[1].running_mean.fill_(0.3)
    found = TorchInferencer(net).answer(rows())
    twin = make().eval()
    twin.load_state_dict(net.state_dict())
    assert torch.equal(found["action"], twin.body.policy(rows()))  # noise 0.5 is the mean
    again = TorchInferencer(net).answer(rows())
    assert torch.equal(found["action"], again["action"])


def test_a_loaded_policy_acts_in_eval_mode_whatever_happened_to_its_module() -> None:
    net = make()
    policy = EnvPolicy(net, SPEC, flatten=lambda obs: {"obs": obs})
    one = policy.act(np.ones(3, np.float32))
    net.train()
    assert np.array_equal(one, policy.act(np.ones(3, np.float32)))
    assert not net.training


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_learner_judges_in_eval_mode_and_learns_in_train_mode(kind: str) -> None:
    net = make()
    learner, asked = LEARNERS[kind](net), net.body.asked
    batch = learner.prepare({"trajectories": [segment()]}, progress=0.0)
    assert all(not training for _, training in asked)  # also the trial when it was made
    asked.clear()
    learner.update(batch)
    assert {training for method, training in asked if method == "policy"} == {True}
    assert ("value", True) in asked
    judged = [training for method, training in asked if method == "value" and not training]
    assert len(judged) == (1 if kind == "a2c" else 0)  # what only follows is no batch to take statistics of


@pytest.mark.parametrize("kind", LEARNERS)
def test_one_module_for_both_is_in_the_right_mode_for_each(kind: str) -> None:
    net = make()
    learner, inferencer = LEARNERS[kind](net), TorchInferencer(net)
    learn(learner, 0)
    net.body.asked.clear()
    inferencer.answer(rows())
    assert net.body.asked == [("policy", False)]
    learn(learner, 1)
    assert ("policy", True) in net.body.asked


def test_batch_statistics_of_training_reach_who_acts() -> None:
    learner, acting = LEARNERS["ppo"](make()), make(seed=1)
    inferencer = TorchInferencer(acting)
    inferencer.load_params(ParamSet(0, learner.params(), shared=True))
    before = acting.body.trunk[1].running_mean.clone()
    learn(learner, 0)
    assert torch.equal(acting.body.trunk[1].running_mean, learner.net.body.trunk[1].running_mean)
    assert not torch.equal(acting.body.trunk[1].running_mean, before)
    inferencer.answer(rows())
    assert int(acting.body.trunk[1].num_batches_tracked) == 4  # two methods on two minibatches; acting adds none


@pytest.mark.parametrize("kind", LEARNERS)
def test_dropout_is_drawn_from_the_seed_and_leaves_other_generators_alone(kind: str) -> None:
    first, second, third = (LEARNERS[kind](make()) for _ in range(3))
    torch.manual_seed(1)
    learn(first, 0, 1)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    learn(second, 0)
    third.load_state_dict(second.state_dict())
    learn(third, 1)
    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in first.params().items():
        assert torch.equal(weight, third.params()[name]), name


# -------------------------------------------------------------------------------------------------------------- checks
class Plain(nn.Module):
    """A linear network of four logits."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 4), nn.Linear(3, 1)

    def policy(self, obs: Any) -> Tensor:
        return self.actor(obs["obs"])

    def value(self, obs: Any) -> Tensor:
        return self.critic(obs["obs"]).squeeze(-1)


class ColumnValue(Plain):
    def value(self, obs: Any) -> Tensor:
        return self.critic(obs["obs"])


class TwoLogits(Plain):
    def policy(self, obs: Any) -> Tensor:
        return self.actor(obs["obs"])[..., :2]


class NoTensor(Plain):
    def policy(self, obs: Any) -> Any:
        return self.actor(obs["obs"]).tolist()


class NoValue(nn.Module):
    def policy(self, obs: Any) -> Tensor:
        return obs["obs"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ColumnValue, r":ColumnValue: value\(obs\) gave \[3, 1\], expected \[3\]; end it with .squeeze\(-1\)"),
        (TwoLogits, r":TwoLogits: policy\(obs\) gave \[3, 2\], expected \[3, 4\]; one score for each action"),
        (NoTensor, r":NoTensor: policy\(obs\) gave list, expected \[3, 4\]"),
        (NoValue, r":NoValue': has no value\(obs\)"),
        (dict, "must be a torch.nn.Module"),
    ],
)
def test_a_network_is_tried_when_it_is_made(body: Any, message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message) as error:
        make(body=body, spec=CHOICES)
    assert body is dict or re.search(HERE, str(error.value)), "it names the file"


class GoesBad(Plain):
    """Right until `bad`."""

    bad = ""

    def policy(self, obs: Any) -> Tensor:
        logits = self.actor(obs["obs"])
        return logits * torch.nan if self.bad == "policy" else logits[:, :3] if self.bad == "shape" else logits

    def value(self, obs: Any) -> Tensor:
        return super().value(obs) * (torch.inf if self.bad == "value" else 1.0)


@pytest.mark.parametrize("greedy", [True, False])
def test_logits_that_are_not_finite_name_the_network_and_not_the_environment(greedy: bool) -> None:
    net = make(body=GoesBad, spec=CHOICES)
    inferencer, asked = TorchInferencer(net, greedy=greedy), Batch(obs=torch.ones(5, 3), noise=torch.full((5, 1), 0.5))
    inferencer.answer(asked)
    net.body.bad = "policy"
    with pytest.raises(NonFiniteError, match=r"^policy\(obs\) of network .*:GoesBad is not finite\. "):
        inferencer.answer(asked)
    net.body.bad = "shape"
    with pytest.raises(DataError, match=r"gave \[5, 3\], expected \[5, 4\]"):
        inferencer.answer(asked)


def test_values_that_are_not_finite_name_the_network() -> None:
    net = make(body=GoesBad, spec=CHOICES)
    net.body.bad = "value"
    with pytest.raises(NonFiniteError, match=r"value\(obs\) of network .*:GoesBad"):
        net.value({"obs": torch.ones(5, 3)})


def test_a_trial_moves_no_generator_and_no_statistics() -> None:
    state = torch.get_rng_state()
    body = Noisy()
    after = torch.get_rng_state()
    assert not torch.equal(state, after)  # making weights does
    net = ActorCritic(SPEC, body)
    assert torch.equal(torch.get_rng_state(), after)
    assert int(net.body.trunk[1].num_batches_tracked) == 0
    assert net.body.training
