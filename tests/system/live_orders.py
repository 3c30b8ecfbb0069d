"""Runs whose live settings are changed at given versions, in this process or, as a program, in one of its own:
`python live_orders.py '{"slice": "ppo", "out": ..., "set": {"5": {"ppo.lr": 1e-3}}}'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tiny_slices import settings

import runnel as rl
from runnel.run import session
from runnel.track.folder import RunFolder


class Killed(Exception):
    """Ends a run at once, as a kill would: nothing is saved."""


def command(order: dict[str, Any]) -> list[str]:
    return [sys.executable, __file__, json.dumps(order)]


def play(order: dict[str, Any]) -> rl.Run | None:
    """Train or resume. After each version in `set` the order to change these settings is given; after `kill` the run is cut
    off, after `stop` it ends with a checkpoint. What is given has its effect between the same two updates in every run."""
    session.ORDERS_S = 0.0
    path = Path(order.get("resume") or Path(order["out"]) / "run")

    def on_update(row: dict[str, Any]) -> bool | None:
        version = row["version"]
        if changes := order.get("set", {}).get(str(version)):
            RunFolder(path).add_order({"op": "set", "settings": changes})
        if version == order.get("kill"):
            raise Killed
        return False if version == order.get("stop") else None

    try:
        if "resume" in order:
            return rl.resume(path, on_update=on_update, **order.get("settings", {}))
        recipe, tiny = settings(order["slice"], **order.get("settings", {}))
        return rl.train(recipe, out=order["out"], on_update=on_update, **tiny)
    except Killed:
        return None


if __name__ == "__main__":
    play(json.loads(sys.argv[1]))
