"""Who plays matches: policies of runs, versions of them, random moves, and a user's own programs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from runnel.core.action_codec import env_action
from runnel.core.config import override
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.resolve import is_reference, load_object
from runnel.core.rng import make_rng, make_seed
from runnel.core.routes import STORED, Side
from runnel.core.spaces import ActionSpec, EnvSpec
from runnel.core.state import Array, Settings
from runnel.core.stored_policy import StoredPolicy, parse_stored
from runnel.envs.team.contract import TeamVector
from runnel.eval.players import RANDOM, MatchPlayer, RandomPlayer, Sitting, rows_of
from runnel.nets.inferencer import AgentNet, TorchInferencer, to_act
from runnel.nets.policy import EnvPolicy
from runnel.nets.team import TeamNet, TeamPolicy
from runnel.run import api, registry
from runnel.run.saved import open_run, params_of
from runnel.run.stored import stored_version
from runnel.track.folder import RunFolder

KINDS = "a run's folder, run:FOLDER@WHICH#POLICY, random, or your own module:function"


@dataclass(frozen=True)
class Acting:
    """A network, and what it sees and does."""

    net: Any
    env_spec: EnvSpec

    @classmethod
    def of(cls, policy: EnvPolicy) -> Acting:
        return cls(policy.net, policy.env_spec)


class PolicyPlayer:
    """Policies of a run, by agent; `anywhere` plays for every agent whose spaces it knows.

    Actions are drawn, as in training: a mixed strategy is worth less if only its most probable action is played. `greedy` takes
    that one. A network that only explores at random (with `epsilon`) always takes its best action.
    """

    def __init__(
        self, name: str, policies: Mapping[str, Acting], *, anywhere: Acting | None = None, greedy: bool = False
    ) -> None:
        self.name, self._policies, self._anywhere, self._greedy = name, dict(policies), anywhere, greedy

    def sit(self, vector: TeamVector, policies: Collection[str], *, seed: int) -> Sitting:
        nets = {policy: self._policy(vector.sides[policy]).net for policy in policies}
        groups: dict[int, list[str]] = {}
        for policy, net in nets.items():
            groups.setdefault(id(net), []).append(policy)

        def reply(rows: Batch) -> Batch:
            found = Batch()
            for group in groups.values():
                found |= self._asked(nets[group[0]], [rows_of(rows, policy) for policy in group], group)
            return found

        states = {policy: getattr(net, "state_spec", {}) for policy, net in nets.items()}
        return Sitting(reply, {policy: net.noise_size for policy, net in nets.items()}, states)

    def _asked(self, net: Any, parts: Sequence[Batch], names: Sequence[str]) -> Batch:
        """One pass of a network for all agents that it serves."""
        to_act(net)
        with torch.inference_mode():
            reply = net.act(Batch.cat(list(parts)), greedy=self._greedy or hasattr(net, "epsilon"))
        sizes = [len(part["noise"]) for part in parts]
        cut = {key: torch.split(x, sizes) for key, x in reply.items()}
        return Batch({f"{name}/{key}": pieces[i] for i, name in enumerate(names) for key, pieces in cut.items()})

    def _policy(self, side: Side) -> Acting:
        agent = side.agents[0]
        found = self._anywhere or self._policies.get(agent)
        if found is None:
            known = ", ".join(self._policies)
            raise ConfigError("players", self.name, f"has no policy for agent {agent!r}, whose seat it takes; it knows {known}")
        if why := _misfit(found.env_spec, side.spec):
            raise ConfigError("players", self.name, f"cannot play agent {agent!r}: {why}")
        return found


def _misfit(known: EnvSpec, given: EnvSpec) -> str:
    """Why a policy for `known` cannot play what `given` describes; empty if it can."""
    if known.obs != given.obs:
        shapes = [{key: tuple(leaf.shape) for key, leaf in spec.obs.items()} for spec in (known, given)]
        return f"its policy sees {shapes[0]}, and this agent sees {shapes[1]}"
    if known.action != given.action:
        return "its policy has other actions than this agent"
    return "its policy was trained with action masks, and here are none" if known.has_mask and not given.has_mask else ""


class OwnPlayer:
    """A user's function `play(agent, obs, mask, rng) -> action`, or a class of which each agent gets a new one in each episode.

    `obs` is the agent's observation: an array, or of a Dict a dict of arrays; `mask` says which choices are allowed (None:
    all); `rng` is a numpy generator. The action is what the environment's `step` takes for a choice or a box.
    """

    def __init__(self, name: str, play: Callable[..., Any]) -> None:
        _check_takes(play, name)
        self.name, self._play = name, play

    def sit(self, vector: TeamVector, policies: Collection[str], *, seed: int) -> Sitting:
        rngs = {policy: make_rng(make_seed(seed, "own", policy)) for policy in policies}
        memory: dict[tuple[str, int], Callable[..., Any]] = {}

        def reply(rows: Batch) -> Batch:
            return Batch({f"{policy}/action": self._acts(vector, policy, rngs[policy], memory) for policy in policies})

        return Sitting(reply, dict.fromkeys(policies, 0))

    def _acts(
        self, vector: TeamVector, policy: str, rng: np.random.Generator, memory: dict[tuple[str, int], Callable[..., Any]]
    ) -> Tensor:
        side, out = vector.sides[policy], vector.outs[policy]
        spec, agent = side.spec.action, side.agents[0]
        assert out.active is not None
        actions = torch.zeros(len(out.reward), *spec.shape, dtype=spec.dtype)
        over = (out.terminated | out.truncated).tolist()
        for env, active in enumerate(out.active.tolist()):
            if over[env]:
                memory.pop((policy, env), None)
            if active:
                obs = {key.removeprefix("obs/"): x[env].cpu().numpy() for key, x in out.obs.items()}
                mask = None if out.action_mask is None else out.action_mask[env].cpu().numpy()
                play = self._of(policy, env, memory)
                chosen = play(agent, obs["obs"] if [*obs] == ["obs"] else obs, mask, rng)
                actions[env] = self._read(chosen, spec, mask, agent)
        return actions

    def _of(self, policy: str, env: int, memory: dict[tuple[str, int], Callable[..., Any]]) -> Callable[..., Any]:
        if not isinstance(self._play, type):
            return self._play
        if (policy, env) not in memory:
            memory[policy, env] = self._play()
        return memory[policy, env]

    def _read(self, chosen: Any, spec: ActionSpec, mask: Array | None, agent: str) -> Tensor:
        """The action as a network would give it."""
        if spec.kind == "multi":
            fix = "its actions have several parts, and a program's can be single choices or boxes; play it with a policy"
            raise ConfigError("players", self.name, fix)
        try:
            found = np.asarray(chosen, np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"player {self.name!r} gave agent {agent!r} {chosen!r}, which is no action ({error})") from error
        if spec.kind == "continuous":
            if found.shape != spec.shape or not np.isfinite(found).all():
                raise DataError(f"player {self.name!r} gave agent {agent!r} an action of shape {found.shape}, not {spec.shape}")
            return torch.from_numpy(np.asarray(env_action(spec)(found), np.float32))
        number = float(found) - spec.start if found.shape == () else -1.0
        if not (number.is_integer() and 0 <= number < spec.num_actions and (mask is None or mask[int(number)])):
            rule = f"allowed are choices from {spec.start} to {spec.start + spec.num_actions - 1}" + (
                "" if mask is None else ", of which the mask leaves " + str((np.flatnonzero(mask) + spec.start).tolist())
            )
            raise DataError(f"player {self.name!r} chose {chosen!r} for agent {agent!r}; {rule}")
        return torch.tensor(int(number))


# -------------------------------------------------------------------------------------------------------------- finding
@dataclass(frozen=True)
class Named:
    """A player; of one that comes from a run, the environment that it was trained on, and its version."""

    player: MatchPlayer
    task: tuple[Any, Settings] | None = None
    version: int | None = None


def is_team_run(run: str | Path, *, trust: bool = False) -> bool:
    """Whether a run was trained on an environment of several agents. A run of a language model is not looked into."""
    folder = RunFolder.open(run)
    return "env" in folder.read_config() and isinstance(api.load(run, trust=trust), TeamPolicy)


def is_player(given: object) -> TypeGuard[PolicyPlayer | RandomPlayer | OwnPlayer]:
    """Whether this is a player already."""
    return isinstance(given, PolicyPlayer | RandomPlayer | OwnPlayer)


def find_player(given: object, name: str, *, best: bool = False, greedy: bool = False, trust: bool = False) -> Named:
    """The player that `given` describes: a text, a path, a policy that `rl.load` gave, or a function or class of the user."""
    if is_player(given):
        renamed = copy.copy(given)
        renamed.name = name
        return Named(renamed)
    if isinstance(given, TeamPolicy):
        return Named(PolicyPlayer(name, _acting(given), greedy=greedy))
    if isinstance(given, EnvPolicy):
        return Named(PolicyPlayer(name, {}, anywhere=Acting.of(given), greedy=greedy))
    if callable(given):
        return Named(OwnPlayer(name, given))
    if not isinstance(given, str | Path):
        raise ConfigError("players", given, f"give {KINDS}, or a policy that rl.load gave")
    text = str(given)
    if text == RANDOM:
        return Named(RandomPlayer(name))
    if text.startswith(STORED):
        asked = parse_stored(text)
        folder, params = stored_version(asked)
        return _of_run(folder, params, name, asked, greedy=greedy, trust=trust)
    if Path(text).is_dir():
        folder = RunFolder.open(text, field="players")
        return _of_run(folder, params_of(folder, best=best), name, None, greedy=greedy, trust=trust)
    if is_reference(text):
        return Named(OwnPlayer(name, _callable(text)))
    raise ConfigError("players", text, f"there is no such folder; give {KINDS}")


def _callable(text: str) -> Callable[..., Any]:
    found = load_object(text, "players")
    if not callable(found):
        raise ConfigError("players", text, f"is a {type(found).__name__}; give a function play(agent, obs, mask, rng)")
    made: Callable[..., Any] = found
    return made


def _check_takes(play: Callable[..., Any], name: str) -> None:
    """Refuse a program that cannot be called as it will be, before a match has begun."""
    called: Callable[..., Any] = play
    given: tuple[str, ...] = ("agent", "obs", "mask", "rng")
    try:
        if isinstance(play, type):
            inspect.signature(play).bind()
            # not play.__call__: of a class without one that is how the class itself is called
            called = next((vars(one)["__call__"] for one in play.__mro__ if "__call__" in vars(one)), play)
            given = ("self", *given)
        inspect.signature(called).bind(*given)
    except TypeError as error:
        fix = "give a function play(agent, obs, mask, rng), or a class without arguments whose instances are called so"
        raise ConfigError("players", name, f"cannot be called ({error}); {fix}") from error
    except ValueError:  # some built-in functions do not say what they take
        return


def _of_run(folder: RunFolder, params: ParamSet, name: str, asked: StoredPolicy | None, *, greedy: bool, trust: bool) -> Named:
    _, module, saved = open_run(folder.path, trust=trust)
    config: Any = override(module.Config(), saved)
    policy, inferencer = registry.build_saved(module.name, config).policy()
    if not isinstance(policy, TeamPolicy):
        fix = "a match needs runs on environments of several agents, with policies that act for one agent"
        raise ConfigError("players", str(folder.path), fix)
    inferencer.load_params(params)
    task = (config.env, config.env_kwargs)
    if asked is None or not asked.member:
        return Named(PolicyPlayer(name, _acting(policy), greedy=greedy), task, params.version)
    member = _member(policy, inferencer, asked)
    return Named(PolicyPlayer(name, {}, anywhere=member, greedy=greedy), task, params.version)


def _acting(policy: TeamPolicy) -> dict[str, Acting]:
    return {agent: Acting.of(one) for agent, one in policy.policies.items()}


def _member(policy: TeamPolicy, inferencer: Any, asked: StoredPolicy) -> Acting:
    """The one policy of a run that is meant: it plays for every agent with its spaces."""
    nets: Mapping[str, AgentNet] = {}
    if isinstance(inferencer, TorchInferencer) and isinstance(inferencer.net, TeamNet):
        nets = inferencer.net.members
    found = [p for p in policy.policies.values() if p.net is nets.get(asked.member)]
    if not found:
        there = ", ".join(nets) or "one, without a name"
        raise ConfigError("players", str(asked), f"that run has no policy {asked.member!r}; it has {there}")
    return Acting.of(found[0])
