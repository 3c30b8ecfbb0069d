"""World steps per second of `tensor:HideAndSeek` with random actions: `python -m benchmarks.teams.hide_and_seek`.

On a GPU a few steps of all worlds are one CUDA graph. Before that, a step on the device is compared with the same step on the
CPU. A row for each number of worlds is printed as JSON: steps per second with and without what agents observe.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.envs.device import HideAndSeek
from runnel.kernels.graphs import CudaGraphed

STEPS = 4
"""Steps of all worlds in one call."""
WORDS = (5, 5, 5, 2, 3)
NEAR, MOST_APART = 1e-3, 0.05
"""How near positions on both devices are, but for a share of the worlds, in which a touch is just there or just not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="quadrant")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1024])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--lidar", type=int, default=30)
    parser.add_argument("--compile", action="store_true", help="through torch.compile, which fuses what is between two sums")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    env, device = HideAndSeek(args.size, lidar=args.lidar), torch.device(args.device)
    if device.type != "cpu":
        _compare(env, device)
    for worlds in args.worlds:
        row = {"size": args.size, "worlds": worlds, "device": args.device, "lidar": args.lidar, "compile": args.compile}
        for name, sees in (("simulated", False), ("observed", True)):
            row |= _measure(env, worlds, device, name, sees=sees, seconds=args.seconds, compiled=args.compile)
        print(json.dumps(row), flush=True)


def _drawn(env: HideAndSeek, num: int, generator: torch.Generator) -> Tensor:
    words = torch.tensor(WORDS, device=generator.device)
    return (torch.rand(num, env.size.agents, len(WORDS), generator=generator, device=generator.device) * words).long()


def _compare(env: HideAndSeek, device: torch.device) -> None:
    """One step from the same states on both devices."""
    generator = torch.Generator().manual_seed(1)
    state = env.initial(2048, generator)
    for _ in range(20):
        act = _drawn(env, 2048, generator)
        there, reward, _ = env.transition(Batch(state).to(device), [act.to(device)])
        state, wanted, _ = env.transition(state, [act])
        far = (there["pos"].cpu() - state["pos"]).abs().flatten(1).amax(1) > NEAR
        other = (reward.cpu() != wanted).any(1)
        if float((far | other).float().mean()) > MOST_APART:
            told = f"{float(far.float().mean()):.1%} of all worlds moved, {float(other.float().mean()):.1%} paid otherwise"
            raise SystemExit(f"{device} is not as the CPU: {told}")


def _measure(
    env: HideAndSeek, worlds: int, device: torch.device, name: str, *, sees: bool, seconds: float, compiled: bool
) -> dict[str, float]:
    generator = torch.Generator(device).manual_seed(2)
    state = env.initial(worlds, generator).map(torch.clone)
    seen = {key: x.clone() for key, x in env.observe(state)[0].items()} if sees else {}
    transition: Callable[..., object] = torch.compile(env.transition, dynamic=False) if compiled else env.transition
    words = torch.tensor(WORDS, device=device)

    def play(state: Batch) -> None:
        for _ in range(STEPS):
            noise = torch.rand(worlds, env.size.agents, len(WORDS), generator=generator, device=device)
            after, _, _ = transition(state, [(noise * words).long()])  # type: ignore[misc]
            for key, x in state.items():
                x.copy_(after[key])
            # worlds stay in the middle of their episodes
            state["t"].clamp_(max=env.max_steps - 2)
            if sees:
                for key, x in env.observe(state)[0].items():
                    seen[key].copy_(x)

    graphed = CudaGraphed(play, generators=[generator], name="hide and seek")
    for _ in range(3):
        graphed(state)
    begin, calls = _now(device), 0
    while _now(device) - begin < seconds:
        graphed(state)
        calls += 1
    took = _now(device) - begin
    found = {f"{name}_per_s": round(calls * STEPS * worlds / took), f"{name}_ms": round(1e3 * took / calls / STEPS, 3)}
    if device.type == "cuda":
        found[f"{name}_gb"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
        torch.cuda.reset_peak_memory_stats(device)
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


if __name__ == "__main__":
    main()
