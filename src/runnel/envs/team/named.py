"""Environments of several agents that packages give, by name: `pettingzoo:mpe2.simple_spread_v3`, `openspiel:kuhn_poker`,
`lbforaging:Foraging-8x8-2p-2f-coop-v3`, `vmas:balance`. No name leads outside of these packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from runnel.envs.team.pettingzoo import PREFIX as PETTINGZOO
from runnel.envs.team.pettingzoo import pettingzoo_factory

OPENSPIEL, FORAGING, VMAS = "openspiel:", "lbforaging:", "vmas:"
PREFIXES = (PETTINGZOO, OPENSPIEL, FORAGING, VMAS)


def is_team_name(target: object) -> TypeGuard[str]:
    """Whether `target` names an environment of several agents in one of the packages."""
    return isinstance(target, str) and target.startswith(PREFIXES)


def is_vmas(target: object) -> TypeGuard[str]:
    """Whether `target` names a scenario of VMAS, which steps all its worlds at once."""
    return isinstance(target, str) and target.startswith(VMAS)


def team_factory(target: str) -> Callable[..., Any]:
    """What makes the environment that `target` names. Its package is imported here, not before."""
    if target.startswith(OPENSPIEL):
        from runnel.envs.team.openspiel import openspiel_factory

        return openspiel_factory(target)
    if target.startswith(FORAGING):
        from runnel.envs.team.foraging import foraging_factory

        return foraging_factory(target)
    if target.startswith(VMAS):
        from runnel.envs.team.vmas_world import vmas_factory

        return vmas_factory(target)
    return pettingzoo_factory(target)
