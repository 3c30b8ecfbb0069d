"""PPO on CartPole-v1 against Stable-Baselines3, with the same hyperparameters on both sides.

python -m benchmarks.classic.ppo_cartpole.run
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.harness import Entry, Measure, Side, main
from benchmarks.venvs import ROOT

HERE = Path(__file__).parent
ENTRY = Entry(
    name="classic/ppo_cartpole",
    title="PPO on CartPole-v1: runnel and Stable-Baselines3",
    sides=(
        Side("runnel", HERE / "ours.py", ("torch", f"-e{ROOT}")),
        Side("sb3", HERE / "peer_sb3.py", ("torch", "stable-baselines3==2.9.2")),
    ),
    measures=(
        Measure(
            name="throughput",
            title="Environment steps per second while learning",
            value="steps_per_s",
            unit="steps/s",
            more_is_better=True,
            arguments=("throughput",),
            repeats=5,
            limit_s=180.0,
            columns=("steps_per_s", "seconds", "cores", "others"),
        ),
        Measure(
            name="solve",
            title="Time to solve",
            value="solve_s",
            unit="s",
            more_is_better=False,
            arguments=("solve",),
            repeats=3,
            limit_s=900.0,
            columns=("solved", "solve_s", "solve_steps", "steps", "mean_return", "others"),
        ),
    ),
    packages=("stable-baselines3",),
    notes=(
        "Both sides: 8 environments in one process, 128 steps, 4 epochs, 4 minibatches of 256, separate 2 x 64 tanh actor and "
        "critic with orthogonal weights (gains 1.41, 0.01 and 1), Adam (eps 1e-5) at a constant 2.5e-4, gamma 0.99, lambda "
        "0.95, clip 0.2, entropy 0.01, gradient norm 0.5, no value clipping, no KL limit, float32, one torch thread.",
        "The critic's weight is 0.5 on the squared error on both sides. runnel's loss is half the squared error, so its "
        "`value_coef` is 1 where SB3's `vf_coef` is 0.5.",
        "Advantages: SB3 normalises within each minibatch of 256, runnel over the batch of 1024.",
        "The value of the final observation of a truncated episode enters on both sides: SB3 adds it to the reward while it "
        "collects, runnel takes it in the return. SB3 runs its critic at every environment step, runnel once per batch.",
        "Wrappers around CartPole: TimeLimit alone in runnel, which leaves out those that only check the caller; Monitor, "
        "TimeLimit, OrderEnforcing and PassiveEnvChecker in SB3, as it makes environments by default. Part of the "
        "ratio comes from there.",
        "SB3 plays in its DummyVecEnv with its Monitor wrapper (as `make_vec_env` makes it), its logger quiet; runnel writes "
        "metrics.jsonl in both measures and saves no checkpoint before the end. Neither evaluates.",
        "Throughput: steps of the environment in a window of whole updates (collect and learn) after a warm-up, over its wall "
        "time. Both end the window at an update.",
        "Time to solve: wall time, from before the learner is built, until the mean of the last 100 training episodes is at "
        "least 475, looked at after each update. Not solved within the step limit counts as worse than any time. The seeds of "
        "the two libraries have nothing in common, so single pairs say little.",
    ),
)

if __name__ == "__main__":
    sys.exit(main(ENTRY))
