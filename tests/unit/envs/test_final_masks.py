"""The mask at the observation that ended an episode, from every back end and in every segment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.registry import make_vector, probe_env
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.vector import VectorConfig

LENGTH = 3


def mask_at(t: int) -> Any:
    """After t steps, action t % 4 alone is open."""
    return np.arange(4) == t % 4


class Clock(gym.Env):  # type: ignore[misc]
    """Shows its time; cut after three steps. `how` says where its mask comes, and what it is at the end."""

    def __init__(self, how: str = "info") -> None:
        self.how, self.t = how, 0
        box = spaces.Box(0.0, 9.0, (1,), np.float32)
        self.observation_space = box if how != "obs" else spaces.Dict({"x": box, "action_mask": spaces.MultiBinary(4)})
        self.action_space = spaces.Discrete(4)

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        obs, mask = np.array([self.t], np.float32), mask_at(self.t)
        if self.how == "obs":
            return {"x": obs, "action_mask": mask.astype(np.int8)}, {}
        over = self.t == LENGTH
        return obs, {} if self.how in ("ends", "missing") and over else {"action_mask": mask & (self.how != "shut" or not over)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        assert mask_at(self.t)[int(action)]
        self.t += 1
        obs, info = self._seen()
        return obs, 1.0, self.how == "ends" and self.t == LENGTH, self.t == LENGTH, info


class ClockSameStep(SyncVectorEnv):
    def __init__(self, num_envs: int, how: str = "info") -> None:
        super().__init__([lambda: Clock(how)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class ClockDisabled(SyncVectorEnv):
    def __init__(self, num_envs: int, how: str = "info", autoreset_mode: Any = AutoresetMode.NEXT_STEP) -> None:
        super().__init__([lambda: Clock(how)] * num_envs, autoreset_mode=autoreset_mode)


SERIAL, TWO = VectorConfig(backend="serial"), VectorConfig(backend="processes", num_workers=2)
OWN = VectorConfig(backend="gymnasium")


@pytest.mark.parametrize("how", ["info", "obs"])
@pytest.mark.parametrize(
    ("target", "config"),
    [(Clock, SERIAL), (Clock, TWO), (ClockSameStep, OWN), (ClockDisabled, OWN)],
    ids=["serial", "processes", "same-step", "disabled"],
)
def test_a_truncated_episode_ends_with_the_mask_of_its_last_observation(target: Any, config: Any, how: str) -> None:
    vector = make_vector(target, 3, seed=0, config=config, kwargs={"how": how})
    out = vector.reset()
    for t in range(1, 2 * LENGTH + 1):
        vector.step(torch.full((3,), (t - 1) % LENGTH))
        if t % LENGTH:
            assert out.final_rows == []
            continue
        assert out.final_rows == [0, 1, 2]
        assert out.final_obs["action_mask"].tolist() == [mask_at(LENGTH).tolist()] * 3
        assert out.action_mask is not None
        assert out.action_mask.tolist() == [mask_at(0).tolist()] * 3
    vector.close()


def test_segments_carry_the_mask_at_the_cut() -> None:
    vector = make_vector(Clock, 2, seed=0)
    stream = trajectory_stream(vector.spec, num_steps=4, num_envs=2)
    writer, client = FakeWriter(stream), FakeClient(only_open)
    sampler = VecEnvSampler([vector], routes=[AgentRoute()], noise_size=1, seed=0, name="actor-0")
    while not writer.committed:
        sampler.step({"policy": client}, {"trajectories": writer})
    x = writer.committed[0][1]
    assert x["final_index"].tolist() == [4, 5]
    assert x["final_obs"].tolist() == [[3.0]] * 2
    assert x["final_action_mask"].tolist() == [mask_at(3).tolist()] * 2


def only_open(rows: Batch) -> Batch:
    return Batch(action=rows["action_mask"].float().argmax(1), logprob=torch.zeros(len(rows["obs"])))


def test_what_terminated_needs_no_mask() -> None:
    vector = make_vector(Clock, 1, seed=0, kwargs={"how": "ends"})
    vector.reset()
    for t in range(LENGTH):
        out = vector.step(torch.tensor([t]))
    assert out.terminated.tolist() == [True]
    assert out.final_obs["action_mask"].all()


@pytest.mark.parametrize(("how", "says"), [("missing", "truncated an episode without an action_mask"), ("shut", "open action")])
@pytest.mark.parametrize(("target", "config"), [(Clock, SERIAL), (ClockSameStep, OWN), (ClockDisabled, OWN)])
def test_a_cut_without_an_open_action_is_refused(target: Any, config: Any, how: str, says: str) -> None:
    vector = make_vector(target, 1, seed=0, config=config, kwargs={"how": how})
    vector.reset()
    for t in range(LENGTH - 1):
        vector.step(torch.tensor([t]))
    with pytest.raises(DataError, match=says):
        vector.step(torch.tensor([LENGTH - 1]))


class BreaksAtTwo(Clock):
    """Raises in its first episode, before its third step."""

    broke = False

    def step(self, action: Any) -> Any:
        if self.t == 2 and not type(self).broke:
            type(self).broke = True
            raise RuntimeError("broke")
        return super().step(action)


def test_an_episode_that_is_cut_by_a_fault_keeps_the_mask_of_its_last_observation() -> None:
    vector = make_vector(BreaksAtTwo, 1, seed=0, config=VectorConfig(backend="serial", on_error="restart"))
    vector.reset()
    for t in range(3):
        out = vector.step(torch.tensor([t]))
    assert out.truncated.tolist() == [True]
    assert out.final_obs["obs"].tolist() == [[2.0]]
    assert out.final_obs["action_mask"].tolist() == [mask_at(2).tolist()]


class MaskedTensors:
    """A tensor environment whose spec promises masks, which nothing would write."""

    name, max_steps = "masked", 3
    spec = EnvSpec({"obs": ArraySpec((1,))}, ActionSpec("discrete", num_actions=2), has_mask=True)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return Batch(obs=torch.zeros(num, 1))

    def transition(self, state: Any, action: Any) -> Any:
        return state, state["obs"][:, 0], state["obs"][:, 0] > 1

    def observe(self, state: Any) -> Any:
        return state


def test_a_tensor_environment_with_masks_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot give action masks"):
        probe_env(f"tensor:{__file__}:MaskedTensors")
