"""World steps per second of tensor worlds with random actions, what agents observe included.

    python -m benchmarks.teams.worlds --env Kitchen 'Battle {"units": "2s3z"}' Spread --worlds 128 2048
    python -m benchmarks.teams.worlds --device cuda --worlds 10000

On the CPU a world steps in numpy where it can, and seconds are those of one core. On a GPU a few steps of all worlds are one
CUDA graph, and before that a step on the device is compared with the same step on the CPU. Worlds go on where an episode ends.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.envs.device import TENSOR_TEAMS, TensorTeamEnv
from runnel.envs.device.numpy_engine import columnwise
from runnel.envs.device.team import in_numpy
from runnel.kernels.graphs import CudaGraphed

ENVS = ("Kitchen", 'Battle {"units": "2s3z"}', 'Battle {"units": "8m"}', "Spread")
STEPS, NUM_DRAWS = 4, 8
"""Steps of all worlds in one call, and how many sets of actions are drawn."""
MOST_APART = 0.01
"""The share of worlds in which rounding may bring something about, or not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=ENVS, help="a name behind tensor:, and its arguments as JSON")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2048])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for text in args.env:
        name, _, kwargs = text.partition(" ")
        env = TENSOR_TEAMS[name](**json.loads(kwargs or "{}"))
        for worlds in args.worlds:
            if args.device == "cpu":
                rate = in_arrays(env, worlds, args.seconds)
            else:
                compare(env, torch.device(args.device))
                rate = in_graphs(env, worlds, args.seconds, torch.device(args.device))
            print(json.dumps({"env": text, "worlds": worlds, "device": args.device, "steps_per_s": round(rate)}), flush=True)


def draws(env: TensorTeamEnv, worlds: int, num: int = NUM_DRAWS) -> list[list[torch.Tensor]]:
    """Random actions for all kinds of agents, whose actions are discrete."""
    generator, specs = torch.Generator().manual_seed(1), list(env.spec.agents.values())
    shapes = [(specs[kind[0]].action.num_actions, (worlds, len(kind))) for kind in env.spec.kinds]
    return [[torch.randint(high, shape, generator=generator) for high, shape in shapes] for _ in range(num)]


def in_arrays(env: TensorTeamEnv, worlds: int, seconds: float) -> float:
    """Steps in a second of one core."""
    world, state = in_numpy(env), columnwise(env.initial(worlds, torch.Generator().manual_seed(2)))
    actions = [[x.numpy() for x in drawn] for drawn in draws(env, worlds)]
    steps, begin = 0, 0.0
    while begin == 0.0 or time.process_time() - begin < seconds:
        if steps == NUM_DRAWS:  # the first ones touch all memory
            begin = time.process_time()
        for drawn in actions:
            state = world.transition(state, drawn)[0]
            world.observe(state)
        steps += NUM_DRAWS
    return (steps - NUM_DRAWS) * worlds / (time.process_time() - begin)


def in_graphs(env: TensorTeamEnv, worlds: int, seconds: float, device: torch.device) -> float:
    """Steps in a second of a device."""
    state = Batch(env.initial(worlds, torch.Generator(device).manual_seed(2))).map(torch.clone)
    seen = [{key: x.clone() for key, x in leaves.items()} for leaves in env.observe(state)]
    actions = [[x.to(device) for x in drawn] for drawn in draws(env, worlds, STEPS)]

    def play(state: Batch) -> None:
        for drawn in actions:
            copy(state, env.transition(state, drawn)[0])
            for mine, leaves in zip(seen, env.observe(state), strict=True):
                copy(mine, leaves)

    graphed = CudaGraphed(play, name="worlds")
    for _ in range(3):
        graphed(state)
    _wait(device)
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        graphed(state)
        _wait(device)
        calls += 1
    return calls * STEPS * worlds / (time.perf_counter() - begin)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy(to: Any, leaves: Any) -> None:
    for key, x in leaves.items():
        to[key].copy_(x)


def compare(env: TensorTeamEnv, device: torch.device, worlds: int = 1024) -> None:
    """Steps from the same states on both devices; ends with a message where they are not the same."""
    state = Batch(env.initial(worlds, torch.Generator().manual_seed(3)))
    for drawn in draws(env, worlds, 20):
        there, paid, _ = env.transition(state.to(device), [x.to(device) for x in drawn])
        state, reward, _ = env.transition(state, drawn)
        state = Batch(state)
        far = [_far(x, there[key].cpu()) for key, x in state.items()] + [_far(reward, paid.cpu())]
        share = float(np.stack(far).any(0).mean())
        if share > MOST_APART:
            raise SystemExit(f"{env.name} on {device} is not as on the CPU: {share:.1%} of the worlds differ")


def _far(x: torch.Tensor, y: torch.Tensor) -> Any:
    return ((x.double() - y.double()).abs().reshape(len(x), -1).amax(1) > 1e-3).numpy()


if __name__ == "__main__":
    main()
