"""Where the time of training on `tensor:HideAndSeek` goes: `python -m benchmarks.teams.hide_and_seek_costs --device cuda`.

For each number of worlds, agents and things: milliseconds and operations of one step of all worlds, by part. `physics`, `sight`
(who sees whom) and `rules` (locks, holds, ramps, numbers of episodes, pay) make a step; `views` and `lidar` are what agents
observe; `policy` answers all agents; `update` is the share of one step in PPO's update over `--steps` of them. On a GPU every
part is a CUDA graph of its own. Operations are those that start a kernel, in plain code. Writes a row of JSON for each, and a
figure. With `--compiled`, what a step does and what is observed go through `torch.compile`, and only their sums are known.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import machine
from benchmarks.harness import RESULTS
from benchmarks.learning.hide_and_seek_worlds import WORLDS
from runnel.agents import PPOConfig, PPOLearner
from runnel.core.records import Batch
from runnel.core.rng import make_rng
from runnel.envs.device import HideAndSeek
from runnel.envs.device.arrays import Constants
from runnel.envs.device.hide_and_seek import layouts, sight
from runnel.envs.device.hide_and_seek.layouts import SIZES, Size
from runnel.envs.device.hide_and_seek.world import ACT, things_of, walls_of, worlds_last
from runnel.kernels.graphs import CudaGraphed
from runnel.nets import ActorCritic, build_body
from runnel.nets.layers import NetConfig

OUT = RESULTS / "teams" / "hide-and-seek-costs"
WORDS = (5, 5, 5, 2, 3)
PARTS = ("physics", "sight", "rules", "views", "lidar", "policy", "update")
Row = dict[str, Any]


class Launches(TorchDispatchMode):
    """Counts operations that are no views of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 4, 8], help="half of them seekers; the quadrant has 4")
    parser.add_argument("--things", type=int, nargs="+", default=[3, 6, 12], help="one is a ramp; the quadrant has 3")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--steps", type=int, default=8, help="steps of all worlds in an update that is measured")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    quadrant, (most, *_) = SIZES["quadrant"], sorted(args.worlds, reverse=True)
    cases = [("worlds", quadrant, worlds) for worlds in args.worlds]
    cases += [("agents", _sized(agents=n), most) for n in args.agents] + [
        ("things", _sized(things=n), most) for n in args.things
    ]
    rows = []
    for by, size, worlds in cases:
        row = {"by": by, "worlds": worlds, "agents": size.agents, "things": size.things, "compiled": args.compiled}
        row |= measure(size, worlds, torch.device(args.device), steps=args.steps, seconds=args.seconds, compiled=args.compiled)
        rows.append(row)
        print(json.dumps(row), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"{args.device}{'-compiled' if args.compiled else ''}"
    text = json.dumps({"machine": machine.facts(), "steps": args.steps, "rows": rows}, indent=1)
    (args.out / f"{name}.json").write_text(text + "\n", "utf-8")
    if not args.compiled:
        draw(rows, args.out / f"{name}.svg")


def _sized(*, agents: int = 4, things: int = 3) -> Size:
    """A quadrant with other numbers of agents and things."""
    q = SIZES["quadrant"]
    half = agents // 2
    return Size(q.side, agents - half, half, things - 1, 1, q.walls, q.steps, lock_ramps=False, varies=False)


def _world(size: Size, *, compiled: bool) -> HideAndSeek:
    """A world of that size in which everything stands anywhere: what it costs does not depend on what happens."""
    name, num, rng = f"of {size.agents} and {size.things}", 64, make_rng(0, "costs")
    SIZES[name] = size
    world = HideAndSeek(name, compiled=compiled, num_layouts=num)
    walls = layouts.layout_table("quadrant", num)["walls"]
    half = [layouts.BOX] * size.boxes + [layouts.RAMP] * size.ramps

    def anywhere(count: int) -> Any:
        return rng.uniform(-size.side / 2, size.side / 2, (num, count, 2)).astype("float32")

    turn = rng.uniform(-3, 3, (num, size.things, 1))
    thing = torch.cat([torch.from_numpy(x).float() for x in (anywhere(size.things), turn)], 2)
    halves = torch.tensor(half).expand(num, -1, -1)
    here, there = torch.ones(num, size.agents, dtype=torch.bool), torch.ones(num, size.things, dtype=torch.bool)
    table = {"walls": walls, "thing": torch.cat([thing, halves], 2).numpy(), "agent": anywhere(size.agents)}
    world._table = Constants(**table, here=here.numpy(), there=there.numpy())
    return world


def measure(size: Size, worlds: int, device: torch.device, *, steps: int, seconds: float, compiled: bool) -> Row:
    """Milliseconds and operations of a step of all worlds, by part, and steps of worlds in a second."""
    world, generator = _world(size, compiled=compiled), torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        state = world.initial(worlds, generator)
        noise = torch.rand(worlds, size.agents, len(WORDS), generator=generator, device=device)
        act = (noise * torch.tensor(WORDS, device=device)).long()
        s = {key: x.contiguous() for key, x in worlds_last({**state, ACT: act}).items()}
        (seen,) = world.observe(state)
        found = _of_world(world, s, seconds) if not compiled else _of_compiled(world, s, seconds)
        net, rows = _network(world, device), {key: x.flatten(0, 1).contiguous() for key, x in seen.items()}
        asked = Batch({**rows, "noise": torch.rand(worlds * size.agents, net.noise_size, device=device)})
        found["policy"] = timed(lambda: net.act(asked), device, seconds)
        answer = net.act(asked)
    found["update"] = _of_update(net, rows, answer, steps, device, seconds)
    sums = {"simulated": ("physics", "sight", "rules", "step")}
    sums |= {"observed": (*sums["simulated"], "views", "lidar", "look")}
    sums |= {"trained": (*sums["observed"], "policy", "update")}
    rates = {f"{k}_per_s": round(1e3 * worlds / sum(found[p][0] for p in parts if p in found)) for k, parts in sums.items()}
    return {"ms": {k: round(ms, 4) for k, (ms, _) in found.items()}, "ops": {k: n for k, (_, n) in found.items()}, **rates}


def _of_world(world: HideAndSeek, s: dict[str, Any], seconds: float) -> dict[str, tuple[float, int]]:
    device, holds = s["pos"].device, s["holds"]
    push = torch.ones_like(s["pos"][:, :1]).expand(-1, 3, -1).contiguous()
    x, y = s["pos"].unbind(1)
    parts: dict[str, Callable[[], object]] = {
        "physics": lambda: world._moved(s, s["owner"], holds, s["offset"], push),
        "sight": lambda: world._sees(s),
        "step": lambda: world._stepped(s),
        "views": lambda: world._views(s),
        "lidar": lambda: sight.lidar(x, y, s["yaw"], s["high"], things_of(s), walls_of(s), 30),
    }
    found = {name: timed(part, device, seconds) for name, part in parts.items()}
    whole = found.pop("step")
    rest = [max(0.0, whole[0] - found["physics"][0] - found["sight"][0]), whole[1] - found["physics"][1] - found["sight"][1]]
    return found | {"rules": (float(rest[0]), int(rest[1]))}


def _of_compiled(world: HideAndSeek, s: dict[str, Any], seconds: float) -> dict[str, tuple[float, int]]:
    device = s["pos"].device
    return {"step": timed(lambda: world._step(s), device, seconds), "look": timed(lambda: world._look(s), device, seconds)}


def _network(world: HideAndSeek, device: torch.device) -> ActorCritic:
    spec = world.spec.agents["hider_0"]
    body = build_body(spec, NetConfig(**WORLDS["quadrant"]["net"]), seed=1)
    return ActorCritic(spec, body, normalise_obs=True).to(device)


def _of_update(
    net: ActorCritic, rows: dict[str, Any], answer: Batch, steps: int, device: torch.device, seconds: float
) -> tuple[float, int]:
    """The share of a step in one update over `steps` of them."""
    settings = WORLDS["quadrant"]["ppo"]
    learner = PPOLearner(PPOConfig(**settings), net, seed=1, device=str(device))
    one = {**rows, "action": answer["action"], "logprob": answer["logprob"]}
    batch = Batch({key: torch.cat([x] * steps) for key, x in one.items()})
    for name in ("value", "advantage", "return"):
        batch[name] = torch.randn(len(batch["logprob"]), device=device)
    net.train()
    with Launches() as launched:
        learner.learn(batch)
    return _clock(lambda: learner.learn(batch), device, seconds) / steps, round(launched.count / steps)


def timed(part: Callable[[], object], device: torch.device, seconds: float) -> tuple[float, int]:
    """Milliseconds of a call, and the operations in it; on a GPU recorded in a graph."""
    with Launches() as launched:
        part()
    graphed = CudaGraphed(part, name="a part") if device.type == "cuda" else part
    return _clock(graphed, device, seconds), launched.count


def _clock(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Milliseconds of a call, of its process on a CPU."""
    for _ in range(3):
        call()
    begin, calls = _now(device), 0
    while _now(device) - begin < seconds:
        call()
        calls += 1
    return 1e3 * (_now(device) - begin) / calls


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def draw(rows: Sequence[Row], path: Path) -> None:
    """Microseconds of one step of one world, stacked by part: against the number of worlds, of agents, of things."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    from runnel.report.paper import COLORS, STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.2), layout="constrained")
        for axes, by in zip(figure.subplots(1, 3), ("worlds", "agents", "things"), strict=True):
            mine = [row for row in rows if row["by"] == by]
            base = [0.0] * len(mine)
            for colour, part in zip((*COLORS, "#777777"), PARTS, strict=True):
                costs = [1e3 * row["ms"][part] / row["worlds"] for row in mine]
                axes.bar([str(row[by]) for row in mine], costs, bottom=base, color=colour, label=part)
                base = [a + b for a, b in zip(base, costs, strict=True)]
            axes.set_xlabel(by)
        figure.axes[0].set_ylabel("microseconds of a step of one world")
        figure.axes[0].legend(fontsize=6)
        FigureCanvasSVG(figure).print_svg(str(path), metadata={"Date": None})


if __name__ == "__main__":
    main()
