"""EnvPolicy with composite actions and with a network that remembers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from runnel.core.batch import Batch
from runnel.core.errors import DataError
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.spaces import env_spec
from runnel.nets.heads import make_head
from runnel.nets.policy import EnvPolicy

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
