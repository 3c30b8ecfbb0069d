"""EnvPolicy with composite actions and with a network that remembers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.spaces import env_spec
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig
from runnel.nets.policy import EnvPolicy
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import make_head

ACTIONS = spaces.Dict(
    {"buttons": spaces.MultiBinary(2), "move": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-0.5, 0.5, (2,))))}
)
MASKED = env_spec(spaces.Box(-1, 1, (3,)), ACTIONS, has_mask=True)
PLAIN = env_spec(spaces.Box(-1, 1, (3,)), ACTIONS)


def flatten(obs: Any) -> dict[str, np.ndarray]:
    return {"obs": np.asarray(obs, dtype=np.float32)}


class Scores:
    """A network that gives the same scores to every row."""

    def __init__(self, spec: EnvSpec) -> None:
        self.head = make_head(spec.action)
        self.noise_size = self.head.noise_size

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        scores = torch.linspace(-1, 1, self.head.num_scores).expand(len(rows["obs"]), -1)
        mask, log_std = rows.get("action_mask"), torch.zeros(self.head.num_log_std)
        action, logprob = (
            self.head.mode(scores, mask, log_std) if greedy else self.head.sample(scores, rows["noise"], mask, log_std)
        )
        return Batch(action=action, logprob=logprob)


def test_one_observation_gets_one_nested_action() -> None:
    policy: Any = EnvPolicy(Scores(PLAIN), PLAIN, flatten=flatten)
    action = policy.act(np.zeros(3))
    assert ACTIONS.contains(action)
    assert action["buttons"].tolist() == [1, 1]
    assert action["move"][0] == 3
    assert action["move"][1].tolist() == [0.5, 0.5]
    for _ in range(20):
        assert ACTIONS.contains(policy.act(np.zeros(3), deterministic=False))


def test_a_batch_gets_what_a_vector_environment_takes() -> None:
    policy: Any = EnvPolicy(Scores(PLAIN), PLAIN, flatten=flatten)
    assert batch_space(ACTIONS, 5).contains(policy.act(np.zeros((5, 3)), deterministic=False))


@pytest.mark.parametrize(
    "mask", [np.array([1, 0, 1, 1, 0, 1, 0]), ([1, 0], [1, 1], [0, 1, 0]), {"buttons": [1, 0, 1, 1], "move": ([0, 1, 0], None)}]
)
def test_masks_of_parts_in_every_form(mask: Any) -> None:
    policy: Any = EnvPolicy(Scores(MASKED), MASKED, flatten=flatten)
    action = policy.act(np.zeros(3), action_mask=mask)
    assert action["buttons"].tolist() == [0, 1]
    assert action["move"][0] == 2
    with pytest.raises(DataError, match="pass action_mask"):
        policy.act(np.zeros(3))


class Remembers:
    """A network that adds up what it sees; the action says whether the sum is above 2."""

    noise_size = 1

    def __init__(self) -> None:
        self.state_spec = {"state/sum": ArraySpec((1,)), "state/count": ArraySpec((), torch.int64)}

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        total, count = rows["state/sum"] + rows["obs"], rows["state/count"] + 1
        return Batch({"action": (total[:, 0] > 2).long(), "state/sum": total, "state/count": count})


COUNTED = EnvSpec({"obs": ArraySpec((1,))}, ActionSpec("discrete", num_actions=2))


def test_recurrent_state_goes_from_call_to_call_until_reset() -> None:
    policy: Any = EnvPolicy(Remembers(), COUNTED, flatten=flatten)
    assert [policy.act(np.ones(1)) for _ in range(4)] == [0, 0, 1, 1]
    policy.reset()
    assert [policy.act(np.ones(1)) for _ in range(4)] == [0, 0, 1, 1]


def test_rows_of_a_batch_are_forgotten_one_by_one() -> None:
    policy: Any = EnvPolicy(Remembers(), COUNTED, flatten=flatten)
    ones = np.ones((3, 1))
    policy.act(ones)
    policy.act(ones)
    policy.reset(np.array([False, True, False]))
    assert policy.act(ones).tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="remembers 3 rows and got 2"):
        policy.act(ones[:2])
    policy.reset()
    assert policy.act(ones[:2]).tolist() == [0, 0]


# ------------------------------------------------------------------------------------------------------------- probabilities
CHOICE = env_spec(spaces.Box(-1, 1, (3,)), spaces.Discrete(4), has_mask=True)


def test_probabilities_are_those_that_actions_are_drawn_by() -> None:
    net = ActorCritic(CHOICE, build_body(CHOICE, NetConfig(hidden=(8,)), seed=1))
    with torch.no_grad():
        net.body.nets.weight[1].mul_(200.0)  # far from uniform
    policy = EnvPolicy(net, CHOICE, flatten=flatten, seed=3)
    obs, mask = np.array([0.5, -1.0, 0.2]), np.array([1, 0, 1, 1])
    found = policy.probabilities(obs, action_mask=mask)
    assert found.shape == (4,)
    assert found[1] == 0.0
    assert abs(found[0] - found[2]) > 0.05
    drawn = policy.act(np.tile(obs, (4000, 1)), deterministic=False, action_mask=np.tile(mask, (4000, 1)))
    assert np.bincount(drawn, minlength=4) / 4000 == pytest.approx(found, abs=0.04)  # five standard deviations
    both = policy.probabilities(np.stack([obs, -obs]), action_mask=np.stack([mask, mask]))
    assert both[0] == pytest.approx(found)


def test_a_greedy_policy_has_one_sure_action() -> None:
    net = QNet(CHOICE, NetConfig(hidden=(8,)), seed=1)
    policy = EnvPolicy(net, CHOICE, flatten=flatten)
    obs, mask = np.random.default_rng(0).normal(size=(20, 3)), np.tile([1, 1, 0, 1], (20, 1))
    found = policy.probabilities(obs, action_mask=mask)
    assert found.argmax(axis=1).tolist() == np.asarray(policy.act(obs, action_mask=mask)).tolist()
    assert found.sum(axis=1).tolist() == found.max(axis=1).tolist() == [1.0] * 20


def test_who_has_no_probabilities_says_why() -> None:
    memory = ActorCritic(CHOICE, build_body(CHOICE, NetConfig(hidden=(8,), core="gru", core_size=4), seed=1))
    for net, spec, words in (
        (Scores(PLAIN), PLAIN, "multi"),
        (memory, CHOICE, "remembers"),
        (Scores(CHOICE), CHOICE, "has no"),
    ):
        with pytest.raises(DataError, match=words):
            EnvPolicy(net, spec, flatten=flatten).probabilities(np.zeros(3))
