"""Whether the worlds of a team play whole segments on the device of their policies, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping

from runnel.core.routes import Side
from runnel.envs.registry import Target, is_tensor_env
from runnel.graphs.team_config import TeamConfig

AS_ONE_AGENT = "this recipe plays a team as one agent, whose ends of episodes are read at every step; use mappo, ippo or happo"
"""Why a recipe that reads a team as one agent does not."""


def why_by_step(c: TeamConfig, target: Target, sides: Mapping[str, Side]) -> str:
    """Why policies cannot play whole segments at once on this environment, whatever the device; empty if they can."""
    routes = [side.route for side in sides.values()]
    samples = [sample for route in routes for sample in route.samples]
    if not is_tensor_env(target):
        return "the environment is not one of tensors"
    if c.num_env_groups > 1:
        return "groups of environments take turns step by step; use num_env_groups 1"
    if any(len(route.samples) > 1 for route in routes):
        return "a policy writes several streams"
    if any(sample.num_steps != c.num_steps or sample.burn_in for sample in samples):
        return "segments of policies differ in length or have burn-in; leave these options of teams out"
    return ""


def why_on_cpu(c: TeamConfig) -> str:
    """Why worlds are on the CPU where they could play whole segments; empty where they are on a device."""
    if c.device == "cpu":
        return "device is cpu"
    if c.launcher != "inproc":
        return f"actors are processes of their own (launcher {c.launcher}), and segments on a GPU stay in one; use inproc"
    if c.most_policy_workers:
        return "policies answer from workers of their own; use placement.policy_workers 0"
    return ""


def about_worlds(c: TeamConfig, target: Target, reason: str) -> list[str]:
    """What to tell of tensor worlds that stay on the CPU beside policies on a GPU."""
    if c.device == "cpu" or not reason or not is_tensor_env(target):
        return []
    return [f"{c.env}: its worlds step on the CPU, and policies on {c.device} are asked at every step, because {reason}"]
