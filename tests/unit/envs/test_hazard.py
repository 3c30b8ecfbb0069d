"""A goal beyond a hazard: what the straight way and the way round earn and cost, in numpy and in tensors, and its segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.records import Batch
from runnel.core.trajectories import trajectory_stream
from runnel.envs.device import GoalBeyondHazard, TensorVector
from runnel.envs.device.sampler import DeviceSampler
from runnel.envs.sampler import VecEnvSampler

GOAL, HAZARD = np.array([1.0, 0.0]), np.array([0.0, 0.2])


class InTensors:
    """The same environment without its numpy form: its vector works as on a device."""

    def __init__(self, env: GoalBeyondHazard) -> None:
        self.name, self.spec, self.max_steps = env.name, env.spec, env.max_steps
        self.initial, self.transition, self.observe = env.initial, env.transition, env.observe


def straight(at: np.ndarray) -> np.ndarray:
    """Towards the goal."""
    return GOAL - at


def around(at: np.ndarray) -> np.ndarray:
    """Along the tangent that passes the hazard on the lower side, a little away from it; then towards the goal."""
    to_goal, to_hazard = GOAL - at, HAZARD - at
    far = np.linalg.norm(to_hazard)
    bend = np.arcsin(min(1.0, 0.73 / far))
    angles = [np.arctan2(v[1], v[0]) for v in (to_goal, to_hazard)]
    if angles[0] <= angles[1] - bend or at[0] > 0.3:
        return to_goal
    return np.array([np.cos(angles[1] - bend), np.sin(angles[1] - bend)])


def play(way: Any, in_tensors: bool = False) -> list[Any]:
    """A thousand episodes."""
    vector = TensorVector(InTensors(GoalBeyondHazard()) if in_tensors else GoalBeyondHazard(), 1000, seed=3)
    out = vector.reset()
    for _ in range(40):
        actions = np.array([way(at) for at in out.obs["obs"].numpy().astype(np.float64)])
        actions /= np.linalg.norm(actions, axis=1, keepdims=True)
        vector.step(torch.from_numpy(actions).float())
    return vector.episodes()


@pytest.mark.parametrize("in_tensors", [False, True])
def test_the_short_way_earns_more_and_costs_more(in_tensors: bool) -> None:
    for way, earns, costs in ((straight, 7.6, 13.0), (around, 7.14, 0.0)):
        found = play(way, in_tensors)
        assert len(found) >= 250
        assert np.mean([e.total for e in found]) == pytest.approx(earns, abs=0.02)
        assert np.mean([e.channels["costs/hazard"] for e in found]) == pytest.approx(costs, abs=0.1)


def test_a_step_is_what_the_docstring_says() -> None:
    env = GoalBeyondHazard(radius=0.5)
    x, y = np.array([-1.0, 0.2, 0.75], np.float32), np.array([0.1, -0.2, 0.0], np.float32)
    action = np.array([[0.5, 0.0], [-3.0, 4.0], [1.0, 0.0]], np.float32)
    following, reward, ended = env.transition({"x": x, "y": y}, action)
    to = np.array([[-0.95, 0.1], [0.14, -0.12], [0.85, 0.0]])
    np.testing.assert_allclose(np.stack([following["x"], following["y"]], axis=1), to, atol=1e-6)
    gained = np.hypot(1.0 - x, y) - np.hypot(1.0 - to[:, 0], to[:, 1])
    np.testing.assert_allclose(reward, 5.0 * gained - 0.1, atol=1e-5)
    assert following["costs/hazard"].tolist() == [0.0, 1.0, 0.0]
    assert ended.tolist() == [False, False, True]
    with pytest.raises(ConfigError, match="between 0 and"):
        GoalBeyondHazard(radius=0.9)


def wander(rows: Batch) -> Batch:
    """To the right, more or less."""
    return Batch(action=2.0 * rows["noise"] - torch.tensor([0.8, 1.0]), logprob=rows["noise"][:, 0])


def committed(sampler: Any, num: int = 14) -> tuple[list[Any], list[Any]]:
    """Segments of 9 steps, and the episodes that they tell of."""
    spec = GoalBeyondHazard().spec
    writer = FakeWriter(trajectory_stream(spec, num_steps=9, num_envs=5, carried=("costs/hazard",)))
    client = FakeClient(wander, direct=isinstance(sampler, DeviceSampler))
    while len(writer.committed) < num:
        sampler.step({"policy": client}, {"trajectories": writer})
        client.poll()
    return [x for _, x in writer.committed], sampler.events()


HOW: dict[str, Any] = {"routes": [AgentRoute()], "noise_size": 2, "seed": 0, "name": "a", "carried": {"costs/hazard": 1.0}}


@pytest.mark.parametrize("kind", ["numpy", "tensors", "by step"])
def test_segments_hold_costs_and_what_their_episodes_cost_before(kind: str) -> None:
    vector = TensorVector(InTensors(GoalBeyondHazard()) if kind == "tensors" else GoalBeyondHazard(), 5, seed=1)
    sampler = VecEnvSampler([vector], **HOW) if kind == "by step" else DeviceSampler(vector, **HOW)
    found, events = committed(sampler)
    assert len(found) == 14
    costs, ended = (torch.cat([x[k] for x in found]) for k in ("costs/hazard", "truncated"))
    ended |= torch.cat([x["terminated"] for x in found])
    so_far, episodes = np.zeros(5), []
    for t in range(len(costs)):
        if t % 9 == 0:
            np.testing.assert_array_equal(found[t // 9]["carried_costs/hazard"].numpy(), so_far)
        so_far += costs[t].numpy()
        episodes += [(row, so_far[row]) for row in ended[t].nonzero().flatten().tolist()]
        so_far[ended[t].numpy()] = 0.0
    assert [(e["env"], e["channels"]["costs/hazard"]) for e in events] == episodes
    assert len(episodes) >= 10
    assert max(cost for _, cost in episodes) > 3


class Leaky(GoalBeyondHazard):
    """Its cost is NaN at the 20th step."""

    def transition(self, state: Any, action: Any) -> Any:
        self.clock = getattr(self, "clock", 0) + 1
        following, reward, ended = super().transition(state, action)
        return following | {"costs/hazard": following["costs/hazard"] * (np.nan if self.clock == 20 else 1.0)}, reward, ended


@pytest.mark.parametrize("kind", ["segments", "by step"])
def test_a_cost_that_is_no_number_stops_the_run(kind: str) -> None:
    vector = TensorVector(Leaky(), 5, seed=1)
    sampler = VecEnvSampler([vector], **HOW) if kind == "by step" else DeviceSampler(vector, **HOW)
    with pytest.raises(NonFiniteError, match="costs/hazard"):
        committed(sampler)


class Free(GoalBeyondHazard):
    """Declares a cost that its states do not have."""

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return Batch({k: x for k, x in super().initial(num, generator).items() if k in ("x", "y")})


def test_a_declared_cost_that_a_state_lacks_is_refused() -> None:
    with pytest.raises(DataError, match="the state's leaf 'costs/hazard' is None"):
        TensorVector(Free(), 2, seed=0)
