"""rejax with gymnax: the whole loop of PPO compiled by JAX, CartPole included.

One call runs a few whole iterations (collect and learn), so that the watch can look between two. Compiling happens before
the watch starts and is told apart (`compile_s`). rejax keeps no returns of training episodes: for time to solve, each call
ends with its own evaluation of 128 episodes, as in its `train`; `learn_s` leaves the evaluations out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "--threads" in sys.argv and sys.argv[sys.argv.index("--threads") + 1] == "1":
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
from rejax import PPO

sys.path.insert(0, str(Path(__file__).parent))
from clock import SOLVED, arguments, cpu_seconds, make_watch, refuse, tell

SAME = {"num_steps": 128, "num_epochs": 4, "num_minibatches": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01, "gae_lambda": 0.95}
TUNED = {"num_steps": 32, "num_epochs": 20, "num_minibatches": 1, "learning_rate": 1e-3, "ent_coef": 0.0, "gae_lambda": 0.8}
CALL_S = 0.25
"""A call should last about so long: short beside the window, long beside the price of a call."""


def make(args: argparse.Namespace) -> PPO:
    work = {"same": SAME, "tuned": {**TUNED, "gamma": 0.98}}[args.preset]
    net = {"activation": "tanh", "hidden_layer_sizes": (64, 64)}
    return PPO.create(env=args.env, num_envs=args.num_envs, max_grad_norm=0.5, agent_kwargs=net, **work)


def compiled(algo: PPO, iterations: int, state: Any) -> Callable[[Any], Any]:
    """`iterations` iterations as one program."""

    def call(ts: Any) -> Any:
        return jax.lax.fori_loop(0, iterations, lambda _, t: algo.train_iteration(t), ts)

    return jax.jit(call).lower(state).compile()


def throughput(args: argparse.Namespace, algo: PPO) -> None:
    state, began = algo.init_state(jax.random.PRNGKey(args.seed)), time.perf_counter()
    one = compiled(algo, 1, state)
    compile_s = time.perf_counter() - began
    jax.block_until_ready(one(state))
    began = time.perf_counter()
    jax.block_until_ready(one(state))
    iterations = max(1, round(CALL_S / (time.perf_counter() - began)))
    call = compiled(algo, iterations, state)
    watch, steps = make_watch(args, start=time.perf_counter()), 0
    while True:
        state = jax.block_until_ready(call(state))
        steps += iterations * algo.num_envs * algo.num_steps
        if not watch.update(steps):
            break
    tell(watch.answer(), compile_s=compile_s)


def solve(args: argparse.Namespace, algo: PPO) -> None:
    state, began = algo.init_state(jax.random.PRNGKey(args.seed)), time.perf_counter()
    per_iteration = algo.num_envs * algo.num_steps
    iterations = max(1, 10_240 // per_iteration)
    learn = compiled(algo, iterations, state)
    judge = jax.jit(lambda ts: algo.eval_callback(algo, ts, ts.rng)[1].mean()).lower(state).compile()
    compile_s = time.perf_counter() - began
    start, cpu, steps, learn_s, mean = time.perf_counter(), cpu_seconds(), 0, 0.0, 0.0
    while steps < args.max_steps and mean < SOLVED:
        began = time.perf_counter()
        state = jax.block_until_ready(learn(state))
        learn_s, steps = learn_s + time.perf_counter() - began, steps + iterations * per_iteration
        mean = float(judge(state))
    seconds, solved = time.perf_counter() - start, mean >= SOLVED
    answer = {
        "solved": solved,
        "solve_s": seconds if solved else None,
        "solve_steps": steps if solved else None,
        "steps": steps,
        "seconds": seconds,
        "cores": (cpu_seconds() - cpu) / seconds,
        "mean_return": mean,
        "learn_s": learn_s if solved else None,
        "compile_s": compile_s,
        "with_compile_s": seconds + compile_s if solved else None,
    }
    tell(answer)


def main() -> None:
    args = arguments()
    refuse(args, algos=("ppo",), presets=("same", "tuned"))
    algo = make(args)
    (solve if args.measure == "solve" else throughput)(args, algo)


if __name__ == "__main__":
    main()
