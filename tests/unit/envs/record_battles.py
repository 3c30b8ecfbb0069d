"""Writes `battles.json`: single steps of SMAX from random states, which `tensor:Battle` is held against.

    python tests/unit/envs/record_battles.py FOLDER_WITH_jax_AND_jaxmarl

The package is jaxmarl 0.2.0 of PyPI (Apache 2.0). Only its file of SMAX is loaded. Its random part of the time to reload, which
`tensor:Battle` does not have, is set to zero.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from battle_states import MIXED, State, in_the_middle, legal

from runnel.envs.device import Battle
from runnel.envs.device.battle.units import UNITS
from runnel.envs.device.battle.world import army_of

OUT = Path(__file__).with_name("battles.json")
NUM = 10
NUMBERS = {"x": "unit_positions", "y": "unit_positions", "health": "unit_health", "wait": "unit_weapon_cooldowns"}


def package(folder: str) -> Any:
    """SMAX, without the rest of the package and without chance."""
    sys.path.append(folder)
    import jax
    import jax.numpy as jnp

    for name in ("jaxmarl", "jaxmarl.environments", "jaxmarl.environments.smax"):
        whole = types.ModuleType(name)
        whole.__path__ = [str(Path(folder, *name.split(".")))]
        sys.modules[name] = whole
    jax.random.uniform = lambda key, shape=(), **_: jnp.zeros(shape)
    from jaxmarl.environments.smax import smax_env

    return smax_env


def theirs(smax: Any, env: Battle, state: State, orders: Any) -> dict[str, Any]:
    """What SMAX makes of states and of the orders of all units."""
    import jax
    import jax.numpy as jnp

    allies, num = len(env.sides.allies), len(env.sides.units)
    kinds = jnp.array([list(UNITS).index(name) for name in env.sides.units], jnp.uint8)
    game = smax.SMAX(scenario=smax.Scenario(kinds, allies, num - allies, False, False))
    # SMAX counts the targets of enemies from the last ally on
    target = np.where(np.arange(num) < allies, orders.target.T - allies, allies - 1 - orders.target.T)
    strikes = np.where(orders.strikes.T, target + 5, 0)

    def step(x: Any, y: Any, health: Any, wait: Any, way: Any, strike: Any) -> Any:
        before = smax.State(
            done=jnp.array(False), step=jnp.array(0), unit_positions=jnp.stack((x, y), -1), unit_alive=health > 0,
            unit_teams=jnp.arange(num) >= allies, unit_health=health, unit_types=kinds, unit_weapon_cooldowns=wait,
            prev_movement_actions=jnp.zeros((num, 2)), prev_attack_actions=jnp.zeros(num, jnp.int32),
        )  # fmt: skip
        _, after, reward, over, _ = game.step_env_no_decode(jax.random.PRNGKey(0), before, (way, strike))
        masks = game.get_avail_actions(after)
        mask = jnp.stack([masks[f"ally_{i}"] for i in range(allies)])
        place, rest = after.unit_positions, (after.unit_health, after.unit_weapon_cooldowns)
        return place[:, 0], place[:, 1], *rest, reward["ally_0"], over["__all__"], mask

    ways = np.stack((orders.dx.T, orders.dy.T), -1)
    before = [jnp.array(state[key]) for key in NUMBERS]
    found = jax.vmap(step)(*before, jnp.array(ways), jnp.array(strikes, jnp.int32))
    return dict(zip((*NUMBERS, "reward", "over", "mask"), map(np.array, found), strict=True))


def record(smax: Any, units: Any, rng: np.random.Generator, seed: int) -> dict[str, Any]:
    env = Battle(units)
    state = in_the_middle(env, NUM, seed=seed)
    actions = legal(env, state, rng)
    orders, _ = env.orders(army_of(state), state, actions.T)
    found = theirs(smax, env, state, orders)
    plain = {key: x.tolist() for key, x in state.items()}
    return {"units": units, "before": plain, "actions": actions.tolist(), "after": {key: _short(x) for key, x in found.items()}}


def _short(x: np.ndarray) -> list[Any]:
    return (np.round(x.astype(np.float64), 6) if x.dtype == np.float32 else x.astype(int)).tolist()


if __name__ == "__main__":
    smax, rng = package(sys.argv[1]), np.random.default_rng(0)
    found = [record(smax, units, rng, seed) for seed, units in enumerate(["3m", "8m", "2s3z", "6h_vs_8z", MIXED])]
    OUT.write_text("\n".join(["[", ",\n".join(json.dumps(case, separators=(",", ":")) for case in found), "]", ""]))
