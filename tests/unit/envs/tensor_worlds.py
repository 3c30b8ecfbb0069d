"""A tensor world of two kinds of agents who leave early, wait, and are cut, and what tests do with worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.core.routes import Side, sides_of, team_routes
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device import ArrayEnv, TeamView, TeamWorld
from runnel.envs.spaces import MASK
from runnel.envs.team.global_state import with_global_state
from runnel.envs.team.parallel import ParallelEnv

CAT = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=3))
MOUSE = EnvSpec({"obs/a": ArraySpec((1,)), "obs/b": ArraySpec((2,))}, ActionSpec("discrete", num_actions=2), has_mask=True)


class Chase(TeamWorld, ArrayEnv):
    """Two cats and two mice, named so that kinds are mixed. A sum counts what everybody plays. A mouse that plays 1 when the
    sum is odd leaves; cats leave together once the sum is above 9; the second cat waits at every third step, and comes in at
    the second one. Everybody is paid what it plays, times its number. Arrays are of numpy or torch."""

    name = "chase"
    max_steps = 6

    def __init__(self, *, known: bool = False) -> None:
        self.spec = TeamSpec({"cat_0": CAT, "mouse_0": MOUSE, "cat_1": CAT, "mouse_1": MOUSE})
        self.state_spec = ArraySpec((2,)) if known else None

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return Batch(sum=torch.ones(num, device=generator.device), t=torch.zeros(num, device=generator.device))

    def transition(self, state: Any, actions: Any) -> Any:
        stack = torch.stack if isinstance(state["t"], torch.Tensor) else np.stack
        cats, mice = actions
        played = stack((cats[:, 0], mice[:, 0], cats[:, 1], mice[:, 1]), -1)
        # who waits may give anything; it must not count
        waits = ~Chase.active(self, state)
        played = played * ~waits
        total, t = state["sum"] + played.sum(1), state["t"] + 1
        odd, many = state["sum"] % 2 == 1, total > 9
        over = stack((many, odd & (played[:, 1] == 1), many, odd & (played[:, 3] == 1)), -1)
        reward = played * 1.0
        reward = stack([reward[:, i] * (i + 1) + 0.25 for i in range(4)], -1)
        reward = reward.float() if isinstance(reward, torch.Tensor) else reward.astype(np.float32)
        return {"sum": total.float() if isinstance(total, torch.Tensor) else total.astype(np.float32), "t": t}, reward, over

    def observe(self, state: Any) -> Any:
        stack = torch.stack if isinstance(state["t"], torch.Tensor) else np.stack
        total, t = state["sum"], state["t"]
        cats = stack([stack((total, t + i), -1) for i in range(2)], 1)
        a, b = (stack([stack(x, -1) for _ in range(2)], 1) for x in ((total + 0.5,), (t, -total)))
        mask = stack([stack((total >= 0, t >= i), -1) for i in range(2)], 1)
        return [{"obs": cats}, {"obs/a": a, "obs/b": b, MASK: mask}]

    def active(self, state: Any) -> Any:
        stack = torch.stack if isinstance(state["t"], torch.Tensor) else np.stack
        all_, some = state["t"] >= 0, state["t"] % 3 != 0
        return stack((all_, all_, some, all_), -1)

    def global_state(self, state: Any) -> Any:
        stack = torch.stack if isinstance(state["t"], torch.Tensor) else np.stack
        return stack((state["sum"], state["t"]), -1)


class InTensors:
    """The same world without its numpy form."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.name, self.spec, self.max_steps, self.state_spec = env.name, env.spec, env.max_steps, env.state_spec
        self.initial, self.transition, self.observe = env.initial, env.transition, env.observe
        self.active, self.global_state = env.active, env.global_state


def fixed(make: Callable[[], Any], seed: int = 0) -> Callable[[], Any]:
    """Makes worlds that always begin in the same state, so that other vectors can play the same episodes."""

    def again() -> Any:
        env = make()
        first = env.initial(1, torch.Generator().manual_seed(seed))
        env.initial = lambda num, generator: first.map(lambda x: x.repeat(num, *[1] * (x.dim() - 1)))
        return env

    return again


def sides(make: Callable[[], Any], teams: tuple[str, ...], *, shared: bool = False) -> dict[str, Side]:
    probe = ParallelEnv(TeamView(make()), "probe")
    found = sides_of(team_routes(teams), probe.spec())
    return {policy: with_global_state(side, probe, clock=True) for policy, side in found.items()} if shared else found


def legal_actions(vector: Any, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Random open moves of every row."""
    found = {}
    for policy, out in vector.outs.items():
        action = vector.sides[policy].spec.action
        num = action.num_actions
        if action.kind == "multi":  # of choices
            words = [rng.integers(part.num_actions, size=len(out.reward)) for part in action.parts]
            found[policy] = torch.from_numpy(np.stack(words, 1))
            continue
        if not num:  # continuous
            found[policy] = torch.from_numpy(rng.uniform(-1.0, 1.0, (len(out.reward), *action.shape)).astype(np.float32))
            continue
        scores = torch.from_numpy(rng.random((len(out.reward), num)))
        if out.action_mask is not None:
            scores = scores.masked_fill(~out.action_mask, -1.0)
        found[policy] = scores.argmax(1)
    return found


def shown(vector: Any) -> dict[str, Any]:
    """Everything that a vector shows now, as plain numbers."""
    found = {}
    for policy, out in vector.outs.items():
        n = len(out.final_rows)
        arrays = {**out.obs, **{f"final_{k}": x[:n] for k, x in out.final_obs.items()}}
        arrays |= {"reward": out.reward, "terminated": out.terminated, "truncated": out.truncated, "active": out.active}
        if out.action_mask is not None:
            arrays[MASK] = out.action_mask
        found[policy] = {k: x.tolist() for k, x in arrays.items()} | {"final_rows": list(out.final_rows)}
    return found
