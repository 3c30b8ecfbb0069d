"""The rows of the comparison: what is measured, against whom, each at its own best setting, and what is asked of runnel.

A peer's setting is the best that was found for it on two cores; figures of peers that do not install here (PufferLib builds
from the network, CleanRL is not on PyPI in a current form) are recorded ones, scaled by Stable-Baselines3 in the same run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import Entry, Measure, Recorded, Side
from benchmarks.venvs import ROOT

HERE = Path(__file__).parent
MUJOCO, ATARI, ENVPOOL = "gymnasium[mujoco]", "ale-py==0.12.1", "envpool==1.2.5"
OURS = ("torch", f"-e{ROOT}[compiled]", MUJOCO, ATARI, ENVPOOL)
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "sb3": ("torch", "stable-baselines3==2.9.2", MUJOCO, ATARI, ENVPOOL),
    "sbx": ("torch", "sbx-rl==0.28.0", MUJOCO),
    "rejax": ("rejax==0.1.3", "gymnax==0.0.9", "jax==0.10.2"),
    "tianshou": ("torch", "tianshou==2.0.1"),
    "torchrl": ("torch", "torchrl==0.14.1", "tensordict==0.14.3", "gymnasium"),
    "samplefactory": ("torch", "sample-factory==2.1.1", "gymnasium==0.29.1", "numpy==1.26.4"),
    "rllib": ("torch", "ray[rllib]==2.60.0", "gymnasium==1.2.2"),
}
PACKAGES = ("stable-baselines3", "sbx-rl", "rejax", "gymnax", "jax", "tianshou", "torchrl", "sample-factory", "ray", "envpool")
COLUMNS = ("steps_per_s", "seconds", "cores", "others")
SOLVE_COLUMNS = ("solved", "solve_s", "solve_steps", "learn_s", "compile_s", "with_compile_s", "mean_return", "others")


def runnel(*arguments: str, **settings: Any) -> Side:
    more = ("--set", json.dumps(settings)) if settings else ()
    return Side("runnel", HERE / "ours.py", OURS, (*arguments, *more))


def peer(library: str, *arguments: str) -> Side:
    return Side(library, HERE / f"peer_{library}.py", REQUIREMENTS[library], arguments)


def throughput(name: str, title: str, *arguments: str, **more: Any) -> Measure:
    """Steps a second while learning."""
    values: dict[str, Any] = {"repeats": 5, "limit_s": 240.0, "columns": COLUMNS, **more}
    return Measure(name, title, "steps_per_s", "steps/s", True, ("throughput", *arguments), **values)


PPO_NOTE = (
    "All sides: 128 steps, 4 epochs, 4 minibatches, separate 2 x 64 tanh actor and critic (Sample Factory shares them), Adam "
    "at a constant 2.5e-4, gamma 0.99, lambda 0.95, clip 0.2, entropy 0.01, gradient norm 0.5, float32. runnel's critic loss "
    "is half the squared error, so its `value_coef` is 1 where SB3's `vf_coef` is 0.5."
)
WINDOW_NOTE = "Steps in a window of whole updates (collect and learn) after a warm-up, over its wall time; no side evaluates."
CLEANRL_CHEETAH = Recorded("CleanRL fe8d8a0", 23_014, "sb3", 22_712, "HalfCheetah-v4 by EnvPool, without its wrappers.")
ROWS: dict[str, Entry] = {}


def row(name: str, title: str, sides: tuple[Side, ...], measures: tuple[Measure, ...], *notes: str) -> None:
    ROWS[name] = Entry(f"classic/{name}", title, sides, measures, notes, PACKAGES)


row(
    "ppo-cartpole",
    "PPO on CartPole-v1, 8 environments of Gymnasium",
    (
        runnel("--vec", "serial"),
        peer("sb3"),
        peer("tianshou"),
        peer("torchrl"),
        peer("samplefactory", "--vec", "serial"),
        peer("rllib"),
    ),
    (
        throughput(
            "throughput",
            "Environment steps per second while learning",
            must=2.0,
            aim=4.0,
            recorded=(
                Recorded("PufferLib 3.0", 11_325, "sb3", 11_092, "On Gymnasium's CartPole, its Serial vector."),
                Recorded("PufferLib 3.0, C CartPole", 14_451, "sb3", 11_092, "Its own environment, episodes of 200 steps."),
                Recorded("CleanRL fe8d8a0", 9_182, "sb3", 11_092),
            ),
        ),
    ),
    PPO_NOTE,
    WINDOW_NOTE,
    "Wrappers around CartPole: TimeLimit alone in runnel, which leaves out those that only check the caller; Monitor, "
    "TimeLimit, OrderEnforcing and PassiveEnvChecker in SB3, as it makes environments by default. Part of the ratio comes "
    "from there.",
    "One torch thread on every side; more make all of them slower at this size.",
)
row(
    "ppo-cartpole-own",
    "PPO on CartPole-v1, the library's own tensor or compiled environment",
    (runnel("--env", "tensor:CartPole-v1"), peer("rejax", "--env", "CartPole-v1")),
    tuple(
        throughput(
            f"envs-{n}",
            f"{n:,} environments: steps per second while learning",
            "--num-envs",
            str(n),
            *(("--threads", "2") if n > 8 else ()),
            must=1.0,
            aim=2.0,
            columns=(*COLUMNS, "compile_s"),
        )
        for n in (8, 64, 1024)
    ),
    PPO_NOTE,
    WINDOW_NOTE,
    "rejax is compiled whole by JAX, gymnax's CartPole included; `compile_s` is not in its figure.",
    "rejax cuts each gradient element at 0.5 and treats a time limit as an end; runnel cuts the norm and bootstraps.",
)
row(
    "ppo-cartpole-best",
    "PPO on CartPole-v1, best setting of each, same work a sample",
    (
        runnel("--num-envs", "1024", "--vec", "gymnasium", "--threads", "2"),
        peer("sb3", "--num-envs", "1024", "--vec", "makevec", "--threads", "2"),
    ),
    (
        throughput(
            "same-work",
            "1,024 environments of Gymnasium's own vector, 4 epochs",
            must=1.5,
            aim=3.0,
            recorded=(
                Recorded("CleanRL fe8d8a0", 180_905, "sb3", 171_741, "1,024 environments by make_vec, 2 threads."),
                Recorded("PufferLib 3.0", 171_354, "sb3", 171_741, "1,024 of its C CartPole, 2 threads."),
                Recorded("Sample Factory 2.1.1", 22_938, "sb3", 171_741, "2 workers x 128, asynchronous."),
                Recorded("RLlib 2.60", 18_115, "sb3", 171_741, "2 runners x 32."),
                Recorded("Tianshou 2.0.1", 16_140, "sb3", 171_741, "64 environments."),
                Recorded("TorchRL 0.14.1", 5_177, "sb3", 171_741, "64 environments."),
            ),
        ),
        throughput(
            "own-env",
            "1,024 of the library's own environments, 4 epochs",
            *("--env", "tensor:CartPole-v1", "--vec", ""),
            sides=("runnel",),
            recorded=(Recorded("PufferLib 3.0", 171_354, note="1,024 of its C CartPole, 2 threads; not scaled."),),
        ),
        throughput(
            "wide",
            "4,096 environments, one epoch, one shared layer of 128: not the same work",
            *("--env", "tensor:CartPole-v1", "--vec", "", "--num-envs", "4096", "--preset", "wide"),
            sides=("runnel",),
            recorded=(
                Recorded(
                    "PufferLib 3.0",
                    657_759,
                    note="4,096 of its C CartPole, horizon 64, minibatches of 32,768, 2 threads; not scaled.",
                ),
            ),
        ),
    ),
    PPO_NOTE,
    WINDOW_NOTE,
    "SB3 steps Gymnasium's vector CartPole (`make_vec`) through an adapter of 30 lines.",
)
row(
    "ppo-cartpole-solve",
    "PPO on CartPole-v1: seconds to a mean of 475",
    (
        runnel("--env", "tensor:CartPole-v1", "--preset", "tuned", "--num-envs", "32"),
        peer("sb3", "--preset", "tuned"),
        peer("rejax", "--env", "CartPole-v1", "--preset", "tuned", "--threads", "2"),
    ),
    (
        Measure(
            name="solve",
            title="Seconds to solve (asked for: 5 s, aim 2 s)",
            value="solve_s",
            unit="s",
            more_is_better=False,
            arguments=("solve",),
            repeats=5,
            limit_s=900.0,
            columns=SOLVE_COLUMNS,
            recorded=(
                Recorded("PufferLib 3.0", 31.8, "sb3", 15.1, "Untuned; median of 21.8, 31.8 and 36.1 s."),
                Recorded("CleanRL fe8d8a0", 47.9, "sb3", 15.1, "Untuned; median of 43.2, 47.9 and 51.0 s."),
            ),
        ),
    ),
    "runnel and SB3: wall time from before the learner is built (imports left out) until the last 100 training episodes "
    "average 475, looked at after each update. Not solved within 500,000 steps counts as worse than any time.",
    "rejax keeps no training episodes: until its evaluation of 128 episodes, after every 10,240 steps, averages 475; the time "
    "of the evaluations counts (`learn_s` is without), that of compiling does not (`with_compile_s` is with).",
    "Each side has values tuned for this task: rl-zoo3's for SB3, the same ones for rejax, runnel's own "
    "(32 environments, 4 epochs, 4 minibatches, rate 2e-3).",
)
row(
    "ppo-halfcheetah",
    "PPO on HalfCheetah-v5, 64 environments of EnvPool",
    (
        runnel("--env", "envpool:HalfCheetah-v5", "--num-envs", "64"),
        peer("sb3", "--env", "HalfCheetah-v5", "--num-envs", "64", "--vec", "envpool"),
    ),
    (
        throughput(
            "sync",
            "Synchronous, as the peers",
            must=1.3,
            aim=1.6,
            recorded=(CLEANRL_CHEETAH,),
        ),
        throughput(
            "overlap",
            "Collecting and learning side by side, one version behind (runnel: launcher local)",
            "--set",
            json.dumps({"launcher": "local", "staleness.mode": "one_step"}),
            must=1.3,
            aim=1.6,
            recorded=(CLEANRL_CHEETAH,),
        ),
    ),
    PPO_NOTE,
    WINDOW_NOTE,
    "No side normalises observations or rewards. SB3 steps EnvPool through an adapter of 30 lines.",
)
row(
    "ppo-breakout",
    "PPO on Breakout, 84 x 84 x 4, Nature CNN, 8 environments",
    (
        runnel("--env", "atari:Breakout", "--threads", "2"),
        peer("sb3", "--env", "Breakout-v5", "--vec", "envpool", "--threads", "2"),
    ),
    (
        throughput(
            "throughput",
            "Agent steps (4 frames each) per second while learning",
            must=1.3,
            aim=2.0,
            repeats=3,
            recorded=(
                Recorded("CleanRL fe8d8a0", 383, "sb3", 386, "ppo_atari_envpool.py."),
                Recorded("Sample Factory 2.1.1", 273, "sb3", 386),
            ),
        ),
    ),
    PPO_NOTE.replace(
        "separate 2 x 64 tanh actor and critic (Sample Factory shares them)", "one Nature CNN for actor and critic"
    ),
    WINDOW_NOTE,
)
row(
    "dqn-cartpole",
    "DQN on CartPole-v1, 1 environment, 1 update in 10 steps, batch 128",
    (
        runnel("--algo", "dqn", "--num-envs", "1", "--vec", "serial"),
        peer("sb3", "--algo", "dqn", "--num-envs", "1"),
        peer("sbx", "--algo", "dqn", "--num-envs", "1"),
    ),
    (
        throughput(
            "throughput",
            "Environment steps per second while learning",
            "--warmup-steps",
            "2000",
            must=2.0,
            aim=4.0,
            recorded=(
                Recorded("CleanRL fe8d8a0", 5_165, "sb3", 4_709),
                Recorded("Tianshou 2.0.1", 1_302, "sb3", 4_709),
            ),
        ),
    ),
    "All sides: network 120-84 relu, replay of 10,000, target copied every 500 steps, epsilon 0.05 all the time (a random "
    "action costs SB3 no forward pass, so a schedule would change the work), Adam at 2.5e-4, one thread; no double targets, "
    "uniform replay.",
    WINDOW_NOTE,
)
row(
    "sac-halfcheetah",
    "SAC on HalfCheetah-v5, 1 update a step, 256 x 256, batch 256",
    (
        runnel("--algo", "sac", "--env", "HalfCheetah-v5", "--num-envs", "1", "--vec", "serial", "--threads", "2"),
        peer("sbx", "--algo", "sac", "--env", "HalfCheetah-v5", "--num-envs", "1", "--threads", "2"),
        peer("sb3", "--algo", "sac", "--env", "HalfCheetah-v5", "--num-envs", "1", "--threads", "2"),
    ),
    (
        throughput(
            "throughput",
            "Environment steps (and updates) per second",
            "--warmup-steps",
            "1000",
            must=1.2,
            aim=2.0,
            recorded=(
                Recorded("CleanRL fe8d8a0", 110, "sb3", 115, "2 threads."),
                Recorded("Tianshou 2.0.1", 67, "sb3", 115),
            ),
        ),
    ),
    "All sides: actor and twin critics of 2 x 256 relu, batch 256, one update a step after 500 steps, automatic temperature, "
    "float32.",
    WINDOW_NOTE,
)
