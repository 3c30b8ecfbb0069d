"""The members of a run of self-play as players, out of its newest good checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from runnel.core.config import override
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.core.lineups import role_and_version
from runnel.core.state import Settings
from runnel.nets.policy import EnvPolicy
from runnel.nets.pool import DRAW, FROZEN, NUMBERS, checksum_of, packed, unpacked
from runnel.nets.team import TeamPolicy
from runnel.run import registry
from runnel.run.players import Acting, PolicyPlayer
from runnel.run.saved import open_run, params_of
from runnel.track.folder import RunFolder
from runnel.track.league import LeagueMember, read_league


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
    members = _load(run, trust=trust)
    players = {
        name: PolicyPlayer(name, {}, anywhere=Acting(net, members.like.env_spec), greedy=greedy)
        for name, net in members.nets.items()
    }
    first = next((name for name in players if "@" in name), "")
    return LeagueMembers(players, members.config.env, members.config.env_kwargs, members.params.version, first)


def frozen_policies(run: str | Path, *, trust: bool = False) -> tuple[dict[str, EnvPolicy], dict[str, float]]:
    """The frozen members of the pool of a run of self-play, each as a policy for any seat; and how often the main policy meets
    each of them when it meets one (1 in sum)."""
    members = _load(run, trust=trust)
    names = [_name(number, members.roles) for number in members.params.params[NUMBERS].tolist()]
    shares = members.params.params[DRAW][0].tolist()
    drawn = {name: share for name, share in zip(names, shares, strict=True) if "@" in name and name in members.nets}
    total = sum(drawn.values())
    policies = {name: members.like.with_net(members.nets[name]) for name in drawn}
    return policies, {name: share / total if total else 1.0 / len(drawn) for name, share in drawn.items()}


@dataclass(frozen=True)
class _Loaded:
    """What the newest good checkpoint of a run of self-play has: all members by name, and a policy of their kind."""

    config: Any
    params: ParamSet
    like: EnvPolicy
    nets: Mapping[str, Any]

    @property
    def roles(self) -> list[str]:
        return list(self.config.pool.roles)


def _load(run: str | Path, *, trust: bool) -> _Loaded:
    folder, module, saved = open_run(run, trust=trust)
    config: Any = override(module.Config(), saved)
    params = params_of(folder, best=False)
    if NUMBERS not in params.params:
        raise ConfigError("run", str(run), "its checkpoint has no pool of members; leagues are of self-play")
    policy, _ = registry.build_saved(module.name, config).policy()
    assert isinstance(policy, TeamPolicy)
    like = next(iter(policy.policies.values()))
    own = Acting.of(like).net
    found, nets = _parameters(params.params, list(config.pool.roles), own.state_dict()), {}
    for member in _there(folder, params.version, found):
        nets[member.name] = copy.deepcopy(own)
        nets[member.name].load_state_dict(found[member.name])
    return _Loaded(config, params, like, nets)


def _there(folder: RunFolder, version: int, found: Mapping[str, Mapping[str, Tensor]]) -> list[LeagueMember]:
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
        name = _name(number, roles)
        if "@" in name:
            found[name] = unpacked(_vectors(params, place - len(roles)), like)
        else:
            found[name] = {key.removeprefix(f"{name}/"): x for key, x in params.items() if key.startswith(f"{name}/")}
    return found


def _name(number: int, roles: Sequence[str]) -> str:
    """`main` for the live policy of a role, `main@40` for its copy of version 40; empty for nobody."""
    if not number:
        return ""
    role, version = role_and_version(number, len(roles))
    return roles[role] if version < 0 else f"{roles[role]}@{version}"


def _vectors(params: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
    return {key.removeprefix(FROZEN): x[place] for key, x in params.items() if key.startswith(FROZEN)}
