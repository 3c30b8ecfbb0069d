"""Describes the preprocessing of an Atari game in one sentence. It differs between names of the same game.

docs/guides/environments.md has a table of all steps, beside those of Gymnasium and Stable-Baselines3.
"""

from __future__ import annotations

import importlib
import importlib.util

from runnel.core.state import Settings
from runnel.envs.atari import PREFIX as ATARI
from runnel.envs.atari import STANDARD, rom_name
from runnel.envs.fire import NO_FIRE
from runnel.envs.vector.envpool import PREFIX as POOL
from runnel.envs.vector.envpool import pool_config

OF_ALE = {
    **{"frameskip": 4, "noop_max": 30, "use_fire_reset": True, "full_action_space": False, "repeat_action_probability": 0.0},
    **{"img_height": 84, "img_width": 84, "grayscale": True},
}
"""Defaults of ale-py's vector."""
PAGE = "docs/guides/environments.md has the table of names and settings"


def describe_preparation(target: object, kwargs: Settings | None = None, *, frame_stack: int = 0) -> str:
    """The preprocessing of the Atari game `target` under `kwargs`; empty for other environments."""
    if not isinstance(target, str):
        return ""
    options = dict(kwargs or {})
    if target.startswith(ATARI):
        return _sentence(target, _of_preset(rom_name(target), options, frame_stack))
    if target.startswith(POOL):
        config = pool_config(target, {**options, **({"stack_num": frame_stack} if frame_stack else {})})
        return _sentence(target, config) if "episodic_life" in config else ""
    return _of_gymnasium(target, options) if target.startswith("ALE/") else ""


def _of_preset(game: str, options: Settings, frame_stack: int) -> Settings:
    """The preprocessing by ale-py's vector, under the names of EnvPool's config."""
    given = {**OF_ALE, **STANDARD, **options}
    renamed = {"gray_scale": given["grayscale"], "frame_skip": given["frameskip"]}
    return {**given, **renamed, "task": game, "stack_num": frame_stack or given["frame_stack"]}


def _sentence(target: str, c: Settings) -> str:
    fires = c["use_fire_reset"] and (c["full_action_space"] or c["task"] not in NO_FIRE)
    parts = [
        "a lost life ends the episode in training" if c["episodic_life"] else "a lost life does not end the episode",
        "rewards are clipped to their sign in training" if c["reward_clip"] else "rewards are not clipped",
        f"{c['stack_num']} frames of {c['img_height']} x {c['img_width']} {'gray' if c['gray_scale'] else 'in colour'}",
        f"an action for {c['frame_skip']} frames",
        f"sticky actions {c['repeat_action_probability']:g}",
        f"fewer than {c['noop_max']} no-ops at the start" if c["noop_max"] else "no no-ops",
        "FIRE at the start and after a lost life" if fires else "no FIRE",
    ]
    return f"{target}: {', '.join(parts)}; evaluation plays whole games for the score; {PAGE}"


def _of_gymnasium(target: str, options: Settings) -> str:
    import gymnasium as gym

    if importlib.util.find_spec("ale_py") is not None:
        importlib.import_module("ale_py")  # which registers its games
    if target not in gym.registry:
        return ""
    given = {**gym.spec(target).kwargs, **options}
    parts = [
        f"frames as they are ({given.get('obs_type', 'rgb')}, 210 x 160)",
        f"an action for {given.get('frameskip', 4)} frames",
        f"sticky actions {given.get('repeat_action_probability', 0.25):g}",
        "no no-ops, no FIRE, rewards and lives as they are",
    ]
    return f"{target}: {', '.join(parts)}; atari:NAME has the usual preparation; {PAGE}"
