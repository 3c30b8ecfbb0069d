"""Your own environment: a Gymnasium class in your own file. runnel needs no edit and no registration.

    runnel train ppo --env examples/own_environment.py:MyEnv --total-steps 8000
    python examples/own_environment.py

`env=` takes the class itself, too. It reaches other processes (`launcher="local"`) as `file.py:MyEnv`, never pickled.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import runnel as rl


class MyEnv(gym.Env):
    """A corridor: start in the middle, walk to the lit end. Each step costs 0.05; the lit end pays 1, the dark one -1."""

    def __init__(self, length: int = 7) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random, the only source of randomness that a run can replay
        self.place, self.steps = self.length // 2, 0
        self.lit = int(self.np_random.integers(2)) * (self.length - 1)
        return self.observe(), {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        self.steps += 1
        terminated = self.place in (0, self.length - 1)  # the task is over: no value beyond it
        truncated = self.steps >= 50  # the clock ran out: runnel bootstraps from the last observation
        reward = -0.05 if not terminated else (1.0 if self.place == self.lit else -1.0)
        return self.observe(), reward, terminated, truncated, {}

    def observe(self) -> np.ndarray:
        lit = 1.0 if self.lit else -1.0
        return np.array([2.0 * self.place / (self.length - 1) - 1.0, lit], np.float32)


def main(total_steps: int = 8_000, launcher: str = "inproc", out: str = "runs") -> rl.Run:
    problems = rl.check_env(MyEnv)
    assert not problems, problems
    run = rl.train(
        "ppo",
        env=MyEnv,
        env_kwargs={"length": 7},
        num_steps=32,
        total_steps=total_steps,
        launcher=launcher,
        out=out,
        eval={"episodes": 20},
    )
    print(f"{run.status}: mean return {run.eval['mean']:.2f} over {run.eval['num']} episodes; {run.path}")
    return run


if __name__ == "__main__":
    main()
