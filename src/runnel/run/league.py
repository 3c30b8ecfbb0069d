"""The members of a run of self-play as players, out of its newest good checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.core.lineups import role_and_version
from runnel.core.state import Settings
from runnel.nets.pool import FROZEN, NUMBERS, checksum_of, packed, unpacked
from runnel.nets.team import TeamPolicy
from runnel.run import registry
from runnel.run.players import Acting, PolicyPlayer
from runnel.run.saved import open_run, params_of
from runnel.track.folder import RunFolder
from runnel.track.league import Member, read_league


@dataclass(frozen=True)
class LeagueMembers:
    """Players by name, and what they were trained on."""

    players: Mapping[str, PolicyPlayer]
    env: Any
    env_kwargs: Settings
    version: int
    first: str
    """The first frozen member, which holds the scale of ratings; empty without one."""


def league_members(run: str | Path, *, greedy: bool = False, trust: bool = False) -> LeagueMembers:
    """The live policies of a run of self-play and the frozen members of its pool, as players for `rl.match`.

    The pool is that of the newest good checkpoint. A member that league.jsonl tells of and the checkpoint lacks, or whose
    parameters are not those that were frozen, is an error that names it.
    """
    folder, module, saved = open_run(run, trust=trust)
    config: Any = override(module.Config(), saved)
    params = params_of(folder, best=False)
    if NUMBERS not in params.params:
        raise ConfigError("run", str(run), "its checkpoint has no pool of members; leagues are of self-play")
    policy, _ = registry.build_saved(module.name, config).policy()
    assert isinstance(policy, TeamPolicy)
    like = Acting.of(next(iter(policy.policies.values())))
    found = _parameters(params.params, list(config.pool.roles), like.net.state_dict())
    players = {}
    for member in _there(folder, params.version, found):
        net = copy.deepcopy(like.net)
        net.load_state_dict(found[member.name])
        players[member.name] = PolicyPlayer(member.name, {}, anywhere=Acting(net, like.env_spec), greedy=greedy)
    first = next((name for name in players if "@" in name), "")
    return LeagueMembers(players, config.env, config.env_kwargs, params.version, first)


def _there(folder: RunFolder, version: int, found: Mapping[str, Mapping[str, Tensor]]) -> list[Member]:
    """Who was in the league at `version`, as league.jsonl says; each must be as it was frozen."""
    there = read_league(folder.league).at(version)
    for member in there:
        if member.name not in found:
            fix = f"member {member.name} of its league.jsonl is not in the checkpoint of version {version}; restore that folder"
            raise ConfigError("run", str(folder.path), fix)
        if member.checksum and (checksum := checksum_of(packed(found[member.name]))) != member.checksum:
            fix = f"member {member.name} is not what was frozen: its checksum is {checksum}, not {member.checksum}; restore it"
            raise ConfigError("run", str(folder.path), fix)
    return there


def _parameters(params: Mapping[str, Tensor], roles: list[str], like: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The parameters of each member."""
    found = {}
    for place, number in enumerate(params[NUMBERS].tolist()):
        if not number:
            continue
        role, version = role_and_version(number, len(roles))
        if version < 0:
            start = f"{roles[role]}/"
            own = {key.removeprefix(start): x for key, x in params.items() if key.startswith(start)}
            found[roles[role]] = own
        else:
            found[f"{roles[role]}@{version}"] = unpacked(_vectors(params, place - len(roles)), like)
    return found


def _vectors(params: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
    return {key.removeprefix(FROZEN): x[place] for key, x in params.items() if key.startswith(FROZEN)}
