"""Policies of stored runs, as opponents that never change: `run:FOLDER[@WHICH][[QUERY]][#MEMBER]`.

WHICH is `newest` (the default), `best`, or the number of a version that is kept; MEMBER is needed where that run trained
several policies. QUERY (`queries.py`) says what the newest or the best must have, and FOLDER may stand for several runs. What
is chosen when a run is made is written into its settings as `run:FOLDER@VERSION+CHECKSUM#MEMBER`, so that a resumed run uses
the same parameters or none. Only parameters, tags and measurements are read: no code of that run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import CheckpointError, ConfigError
from runnel.core.routes import OPTIONS, STORED
from runnel.core.stored_policy import StoredPolicy, parse_stored
from runnel.core.weight_check import PREFIX
from runnel.graphs.prompts import PromptConfig
from runnel.graphs.run_config import RunConfig
from runnel.llm.chat.partners import AGENTS, FROZEN
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints, read_params, verify
from runnel.run.queries import answer, known_versions, runs_in
from runnel.track.folder import RunFolder

_DIGITS = 12
"""Digits of a checksum that are kept."""


def pin_teams(teams: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """`teams` in which every stored policy is one version of one run, and what to tell of each choice."""
    pinned, told = [], []
    for entry in teams:
        pattern, equals, rest = entry.partition("=")
        policy, colon, options = rest.partition(OPTIONS)
        if not policy.startswith(STORED):
            pinned.append(entry)
            continue
        asked = parse_stored(policy)
        chosen = choose(asked)
        pinned.append(f"{pattern}{equals}{chosen}{colon}{options}")
        why = f", the {asked.which} with {asked.query}" if asked.query else ""
        told.append(f"agents {pattern!r} follow version {chosen.which} of {chosen.folder}{why}, which never changes")
    return tuple(pinned), told


def pin_agents(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """A config whose conversations name stored policies (`agents`), with one version of one run for each, and what to tell.
    With `init_from`, the model as it is when the run begins (`frozen`) is the policy of that run."""
    if not isinstance(config, PromptConfig):
        return config, []
    pinned, told = [], []
    for entry in config.agents:
        pattern, _, who = entry.partition("=")
        if who == FROZEN and config.init_from:
            who = f"{STORED}{config.init_from}"
        if not who.startswith(STORED):
            pinned.append(entry)
            continue
        try:
            chosen = choose(parse_stored(who))
        except ConfigError as error:
            raise ConfigError(AGENTS, entry, error.fix) from error
        pinned.append(f"{pattern}={chosen}")
        told.append(f"version {chosen.which} of {chosen.folder} speaks for agent {pattern!r}, and never changes")
    return replace(config, agents=tuple(pinned)), told


def choose(policy: StoredPolicy) -> StoredPolicy:
    """The same with the version, checksum and member that it comes to now."""
    policy = _answered(policy)
    path, version, digest = _find(policy)
    member = _member_of(policy, read_params(path))
    return replace(policy, folder=str(Path(policy.folder).resolve()), which=str(version), checksum=digest, member=member)


@lru_cache(maxsize=8)
def stored_params(text: str) -> Mapping[str, Tensor]:
    """The parameters of a stored policy, verified; read once in a process."""
    policy = _answered(parse_stored(text))
    path, _, digest = _find(policy)
    if policy.checksum not in ("", digest):
        fix = f"version {policy.which} there is not what it was when this run began (checksum {digest}); restore it"
        raise ConfigError("teams", text, fix)
    params = {name: x for name, x in read_params(path).items() if not name.startswith(PREFIX)}
    start = f"{member}/" if (member := _member_of(policy, params)) else ""
    return {name.removeprefix(start): x for name, x in params.items() if name.startswith(start)}


def partner_params(text: str) -> Mapping[str, Tensor]:
    """`stored_params` of a policy that speaks for agents of a conversation."""
    try:
        return stored_params(text)
    except ConfigError as error:
        raise ConfigError(AGENTS, error.value, error.fix) from error


def stored_version(policy: StoredPolicy) -> tuple[RunFolder, ParamSet]:
    """The run of a stored policy, and the version that it comes to now, verified: parameters of all policies of the run."""
    policy = _answered(policy)
    path, version, _ = _find(policy)
    return RunFolder(policy.folder), ParamSet(version, read_params(path))


def _answered(policy: StoredPolicy) -> StoredPolicy:
    """The same with the run and the version that its query comes to now; as it is without a query."""
    if not policy.query and not any(sign in policy.folder for sign in "*?"):
        return policy
    versions = []
    for run in runs_in(policy.folder):
        member = policy.member or _only_member(policy, run)
        versions += known_versions(run, member)
    if policy.which.isdigit():
        versions = [v for v in versions if v.version == int(policy.which)]
    found = answer(str(policy), policy.query, versions, best=policy.which == "best")
    return replace(policy, folder=str(found.run.path), which=str(found.version), query="")


def _only_member(policy: StoredPolicy, run: RunFolder) -> str:
    """The policy of a run that has one."""
    kept = [*Checkpoints(run.checkpoints).finished(), *(one.path for one in BestParams(run.best).kept())]
    return _member_of(replace(policy, folder=str(run.path)), read_params(kept[-1])) if kept else ""


def _find(policy: StoredPolicy) -> tuple[Path, int, str]:
    """The checkpoint of a stored policy, its version, and the checksum of its parameters."""
    folder = RunFolder.open(policy.folder, field="teams")
    checkpoints, best = Checkpoints(folder.checkpoints), BestParams(folder.best)
    try:
        if policy.which == "newest":
            path = checkpoints.newest(("params",))[0]
        elif policy.which == "best":
            path = best.load()[1].path
        else:
            path = _of_version(policy, [*checkpoints.finished(), *(one.path for one in best.kept())])
        manifest = verify(path, ("params",))
    except CheckpointError as error:
        raise ConfigError("teams", str(policy), str(error)) from error
    return path, int(manifest["version"]), str(manifest["files"]["params.safetensors"])[:_DIGITS]


def _of_version(policy: StoredPolicy, paths: Sequence[Path]) -> Path:
    kept = {int(path.name.partition("-")[0]): path for path in paths}
    found = kept.get(int(policy.which))
    if found is None:
        there = ", ".join(map(str, sorted(kept))) or "none"
        raise ConfigError("teams", str(policy), f"that run keeps no version {policy.which}; it has {there}")
    return found


def _member_of(policy: StoredPolicy, params: Mapping[str, Tensor]) -> str:
    """The policy that is meant, of a run that trained several; empty for a run of one policy without a name."""
    members = sorted({name.partition("/")[0] for name in params if "/" in name and not name.startswith(PREFIX)})
    if policy.member and policy.member not in members:
        there = ", ".join(members) or "only one, without a name"
        raise ConfigError("teams", str(policy), f"that run has no policy {policy.member!r}; it has {there}")
    if not policy.member and len(members) > 1:
        fix = f"that run has several policies ({', '.join(members)}); say which: {policy}#{members[0]}"
        raise ConfigError("teams", str(policy), fix)
    return policy.member or (members[0] if members else "")
