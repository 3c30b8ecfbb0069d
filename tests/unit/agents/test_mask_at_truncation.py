"""A truncation trap for learners that bootstrap: what is forbidden at the cut may not be counted on.

A reward of 1 a step for ever is worth 1 / (1 - 0.99) = 100. The other action is forbidden at the last observation, and the
critics think that it is worth 1,000. At the value 100 the error of every transition is 0, through vector, sampler, memory and
learner; with an open mask at the cut it would be 891.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from fake_streams import FakeClient, FakeWriter

from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.records import Batch, Header, Segment, Slot, trim
from runnel.core.rng import make_rng
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream
from runnel.data.sequences import SequenceStore, sequence_stream
from runnel.envs.registry import make_vector
from runnel.envs.sampler import VecEnvSampler
from runnel.nets.continuous import CategoricalActor, QEnsemble
from runnel.nets.layers import NetConfig

LINEAR = NetConfig(hidden=())
ENVS, STEPS, BATCH = 2, 6, 16


class Salary(gym.Env):  # type: ignore[misc]
    """Pays 1 a step, and is cut after three. The second action is always forbidden."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(2)
        self.t = 0

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        return np.ones(1, np.float32), {"action_mask": np.array([1, 0], np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, info = self._seen()
        return obs, 1.0, False, self.t == 3, info


def batch(recurrent: dict[str, Any]) -> Segment:
    """What replay draws of two environments that were cut after three steps, and again."""
    vector = make_vector(Salary, ENVS, seed=0)
    source = trajectory_stream(vector.spec, num_steps=STEPS, num_envs=ENVS, state=recurrent, logprob=False)
    writer = FakeWriter(source)

    def first_action(rows: Batch) -> Batch:
        return Batch(action=torch.zeros(ENVS, dtype=torch.int64), **{k: rows[k] for k in recurrent})

    sampler = VecEnvSampler([vector], routes=[AgentRoute()], noise_size=1, seed=0, name="actor-0", state=recurrent)
    while not writer.committed:
        sampler.step({"policy": FakeClient(first_action)}, {"trajectories": writer})
    header, arrays = writer.committed[0]
    kind, stream = (SequenceStore, sequence_stream(source, batch_size=BATCH)) if recurrent else (ReplayStore, None)
    stream = replay_stream(vector.spec, batch_size=BATCH) if stream is None else stream
    memory = kind(ReplayConfig(capacity=100), vector.spec, source=source, gamma=0.99)
    memory.insert(Segment(0, source, header, arrays))
    slot = Slot(0, stream, Header(), stream.allocate())
    memory.sample(slot, make_rng(0))
    return Segment(0, stream, slot.header, trim(stream, slot.arrays, slot.header.used))


def believe(head: Any, values: list[float]) -> None:
    """Let a linear network say the same of every observation."""
    with torch.no_grad():
        for weight in head.weight:
            weight.zero_()
        for bias in head.bias:
            bias.copy_(torch.tensor(values).expand_as(bias))


def td_error(learner: Any, segment: Segment) -> float:
    found: float = learner.update(learner.prepare({"replay": [segment]}, progress=0.0)).metrics["td_error"]
    return found


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_dqn_counts_on_what_is_open_at_the_cut(core: Any, double: bool) -> None:
    vector = make_vector(Salary, 1, seed=0)
    config = DQNConfig(double=double)
    net = config.network(vector.spec, NetConfig(hidden=(), core=core, core_size=4), seed=0)
    believe(net.head, [100.0, 1000.0])
    assert td_error(DQNLearner(config, net), batch(dict(net.state_spec))) == pytest.approx(0.0, abs=1e-3)


def test_sac_counts_on_what_is_open_at_the_cut() -> None:
    spec = make_vector(Salary, 1, seed=0).spec
    actor, critic = CategoricalActor(spec, LINEAR, seed=0), QEnsemble(spec, LINEAR, seed=0)
    believe(critic.head, [100.0, 1000.0])
    learner = SACLearner(SACConfig(), actor, critic, seed=0)
    assert td_error(learner, batch({})) == pytest.approx(0.0, abs=1e-3)
