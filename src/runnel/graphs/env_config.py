"""Settings that every recipe on environments shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch

from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.spaces import EnvSpec
from runnel.data.leaves import is_stack
from runnel.data.replay import ReplayConfig
from runnel.envs.channels import ChannelsConfig
from runnel.envs.curricula.config import CurriculumConfig
from runnel.envs.registry import (
    Target,
    choose_backend,
    env_name,
    is_tensor_env,
    probe_env,
    why_not_wrapped,
    with_wrappers,
)
from runnel.envs.vector.build import same_layout
from runnel.envs.vector.choose import Choice
from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.host import num_cores
from runnel.graphs.compiling import about_compiling, check_numba
from runnel.graphs.replay_config import check_replay
from runnel.graphs.run_config import RunConfig
from runnel.graphs.start_states import open_data
from runnel.graphs.unused import OF_PRIORITIES, ON_ENVIRONMENTS
from runnel.graphs.user_objects import resolve_live
from runnel.kernels.select import Accelerator, Mode
from runnel.nets.convolutions import is_image
from runnel.nets.layers import NetConfig


def wrapped_target(env: str, wrappers: Sequence[str]) -> Target:
    """What `env` and `wrappers` of a config stand for, in-process objects among them."""
    return with_wrappers(resolve_live(env, "env"), [resolve_live(name, "wrappers") for name in wrappers])


OF_THE_ENV = {"env", "env_kwargs", "wrappers"}
"""Settings that say which environment a run plays."""


def other_env(before: RunConfig, after: RunConfig) -> RunConfig:
    """The config `after`, which plays another environment than the run `before`, with a back end that suits it; raises a
    `ConfigError` where the policy does not fit."""
    if not (isinstance(before, EnvConfig) and isinstance(after, EnvConfig)):
        raise ConfigError("env", "", "this run plays no environment; leave --env, --env-kwargs and --env-wrapper out")
    frames = before.vector.frame_stack
    own, other = (
        probe_env(wrapped_target(c.env, c.wrappers), kwargs=c.env_kwargs, frame_stack=frames) for c in (before, after)
    )
    if not same_layout(own, other):
        fix = f"the policy was trained on other spaces, those of {env_name(before.env)}: {_unlike(own, other)}"
        field = next(name for name in ("env", "env_kwargs", "wrappers") if getattr(before, name) != getattr(after, name))
        raise ConfigError(field, getattr(after, field), f"{fix}; give an environment of the same spaces")
    return replace(after, vector=VectorConfig(frame_stack=frames))


def _unlike(own: EnvSpec, other: EnvSpec) -> str:
    """What differs between two specs, in words."""
    shown = [{k: f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for k, x in s.obs.items()} for s in (other, own)]
    if shown[0] != shown[1]:
        return f"observations are {shown[0]}, and were {shown[1]}"
    if other.action != own.action:
        return f"actions are {other.action}, and were {own.action}"
    return "one of them has action masks"


@dataclass(frozen=True)
class EnvConfig(RunConfig):
    """`num_actors` actors, each with `num_envs` environments, `num_steps` steps of each in a segment."""

    on_resume: ClassVar[OnResume] = (
        may_change("compiled", then="the same network runs by other kernels")
        | stays("env", "env_kwargs", "wrappers", why="a run is of one task")
        | stays("zoo", why="it is about what a run begins with")
        | stays("num_envs", "num_steps", "num_env_groups", why="segments and environments of that number are in the checkpoint")
    )

    env: str = "CartPole-v1"
    """The environment: a Gymnasium id, module:Class, or path/to/file.py:factory; tensor:CartPole-v1 keeps the environment on
    the device."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers around the environment, the innermost first: module:Class or path/to/file.py:function, each called
    with the environment alone. Evaluations and videos use them, too. --env-wrapper NAME adds one."""
    zoo: bool = True
    """Begin with the settings that were measured on this environment, if there are some (docs/reference/zoo.md). A setting of
    yours replaces the zoo's. False: begin with the recipe's own defaults."""
    num_envs: int = bounded(8, at_least=1)
    """Environments of each actor."""
    num_steps: int = bounded(128, at_least=1)
    """Steps of each environment in one segment."""
    num_env_groups: int = bounded(1, at_least=1)
    """Number of groups into which an actor's environments are split; while one group waits for the policy, another steps."""
    vector: VectorConfig = field(default_factory=VectorConfig)
    channels: ChannelsConfig = field(default_factory=ChannelsConfig)
    net: NetConfig = field(default_factory=NetConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    compiled: Mode = "auto"
    """Whether kernels replace the plain code of the update and of acting (docs/evidence/speed.md). auto: if they serve exactly
    this learner, and the run is long enough for compiling them (some 20 seconds once on a machine) to save time: 50,000 steps
    on the CPU, 100 million on a CUDA device. on: also in short runs; refused if no kernel serves this learner. off: all code
    runs as it is written."""

    def settle(self) -> tuple[RunConfig, list[str]]:
        """The back end of the environments, where it is open."""
        told = [*self._about_preparation(), *about_compiling(self.accelerator, self.device), *self._about_normalising()]
        config = self
        if self.curriculum.kind == "states":
            found = open_data(self.curriculum)
            config = replace(self, curriculum=replace(self.curriculum, states_digest=found.digest))
            told.append(f"start states: {found}")
        if self.vector.backend != "auto" or is_tensor_env(self.env):
            return config, told
        choice = config.choose_backend()
        return replace(config, vector=choice.config), [*told, choice.text]

    def choose_backend(self) -> Choice:
        """What steps the environments of an actor, each with its share of the cores here; the plainest where every repetition
        must give the same bits, on any machine."""
        target, cores = wrapped_target(self.env, self.wrappers), num_cores()
        if self.launcher != "inproc":
            cores = max(1, cores // self.num_actors)
        return choose_backend(
            target,
            self.num_envs // self.num_env_groups,
            config=self.vector,
            kwargs=self.env_kwargs,
            cores=cores,
            plain=self.deterministic or self.curriculum.kind != "off",
        )

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        found = super().unused() | ON_ENVIRONMENTS | self.curriculum.unused()
        if is_tensor_env(self.env):
            found["vector"] = "a tensor environment steps all its copies at once"
            own = "a tensor environment declares its own (spec.channels)"
            found |= {"channels.rewards": own, "channels.costs": own}
            found.setdefault("curriculum.cut", "a tensor environment has one limit for all its episodes")
        if self.wrappers and not self.env.startswith("live:") and (why := why_not_wrapped(self.env)):
            found["wrappers"] = why
        if self.net.core == "none":
            found["net.core_size"] = "is of a recurrent core; set net.core"
        if getattr(self, "network", ""):
            found["net"] = "the network of your own is made by `network` alone"
        return found

    def _about_preparation(self) -> list[str]:
        """What is done to an Atari game, which differs between its names (`atari:`, `envpool:`, `ALE/`)."""
        from runnel.envs.preparation import describe_preparation

        text = describe_preparation(self.env, self.env_kwargs, frame_stack=self.vector.frame_stack)
        return [text] if text else []

    def _about_normalising(self) -> list[str]:
        """That the fastest kernels stand aside: those for tensor environments, GPUs and populations keep no statistics."""
        groups = [f.name for f in fields(self) if getattr(getattr(self, f.name), "normalise_obs", False)]
        compiles = self.accelerator.compiles(torch.device(self.device))
        faster = (compiles and (self.device != "cpu" or is_tensor_env(self.env))) or getattr(self, "population", 1) > 1
        if not groups or not faster:
            return []
        off = f"--{groups[0]}.no-normalise-obs --{groups[0]}.no-normalise-reward"
        return [f"kernels for tensor environments, GPUs and populations serve no network that normalises; {off} uses them"]

    def unused_on(self, spec: EnvSpec) -> dict[str, str]:
        """Settings that this run would not read on an environment of `spec`, and why."""
        found = {} if any(map(is_image, spec.obs.values())) else {"net.conv": "the environment shows no images"}
        if "obs" in spec.obs:
            found["net.critic_only"] = "the observation is one array, not a Dict of parts"
        if not any(leaf.dtype.is_floating_point for leaf in spec.obs.values()):
            why = "observations are not floats; those of bytes are scaled by the network"
            groups = [f.name for f in fields(self) if hasattr(getattr(self, f.name), "normalise_obs")]
            found |= {f"{group}.normalise_obs": why for group in groups}
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        self.net.check()
        self.vector.check()
        self.channels.check()
        if self.wrappers and self.vector.backend in ("gymnasium", "envpool"):
            fix = "it steps all copies at once, and none of them in wrappers; use serial, processes or auto"
            raise ConfigError("vector.backend", self.vector.backend, fix)
        if self.curriculum.kind == "plr" and self.placement.trainers > 1:
            fix = "plr scores tasks by what one learner makes of the whole batch; use 1, or another kind of curriculum"
            raise ConfigError("placement.trainers", self.placement.trainers, fix)
        self._check_states()
        if self.num_envs % self.num_env_groups:
            raise ConfigError("num_env_groups", self.num_env_groups, f"use a divisor of num_envs ({self.num_envs})")
        check_numba(self.compiled, self.device)

    def _check_states(self) -> None:
        if self.curriculum.kind != "states":
            return
        if self.vector.frame_stack:
            fix = "the frames before a recorded state are not recorded; use 0"
            raise ConfigError("vector.frame_stack", self.vector.frame_stack, fix)
        if self.curriculum.until < 1 and self.total_steps is None:
            fix = "is a part of total_steps, which is not set; set it, or use 1"
            raise ConfigError("curriculum.until", self.curriculum.until, fix)

    @property
    def num_planned_steps(self) -> int:
        """Environment steps until the budget is spent."""
        return self.total_steps or (self.total_updates or 0) * self.batch_steps

    @property
    def accelerator(self) -> Accelerator:
        """What lets kernels stand in for the update and for acting."""
        return Accelerator(self.compiled, self.num_planned_steps)

    @property
    def batch_segments(self) -> int:
        """Segments that hold one round of all environments."""
        return self.num_actors * self.num_env_groups

    @property
    def batch_steps(self) -> int:
        """Steps in one round of all environments."""
        return self.num_actors * self.num_envs * self.num_steps


@dataclass(frozen=True)
class ReplayEnvConfig(EnvConfig):
    """Actors fill a replay buffer, which gives out `update_ratio` batches for each step."""

    on_resume: ClassVar[OnResume] = stays(
        "update_ratio", "min_fill", why="the updates that past steps have paid for are counted by it"
    )

    recurrent: ClassVar[bool] = True
    """Whether the recipe's networks may have a recurrent core."""
    num_envs: int = 1
    """Environments of each actor."""
    num_steps: int = 32
    """Steps of each environment in one segment."""
    update_ratio: float = bounded(1.0, above=0, finite=True)
    """Number of updates for each environment step. Actors or learner wait to keep this ratio, on every launcher."""
    min_fill: int = bounded(1_000, at_least=0)
    """Environment steps in the buffer before the first update."""
    log_every: int = 50
    """Write one row of metrics every so many updates, with the means of their numbers."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        why = "this algorithm learns from single transitions"
        return {
            **super().unused(),
            **({} if self.replay.prioritised else OF_PRIORITIES),
            "staleness.max_concurrent": "update_ratio paces actors and learner",
            "net.shared": "actor and critics have layers of their own",
            **({} if self.recurrent else {"net.core": why, "net.core_size": why}),
        }

    def unused_on(self, spec: EnvSpec) -> dict[str, str]:
        """Settings that this run would not read on an environment of `spec`, and why."""
        stacked = any(is_stack(leaf) for leaf in spec.obs.values())
        why = "the environment shows no stacks of frames (uint8, [k, H, W])"
        return super().unused_on(spec) | ({} if stacked else {"replay.compress_frames": why})

    def settle(self) -> tuple[RunConfig, list[str]]:
        """As for any environment; tells of a window in which actors could only take turns."""
        config, told = super().settle()
        segment = self.num_envs // self.num_env_groups * self.num_steps
        need = math.ceil((self.batch_segments - 1) * segment * self.update_ratio)
        if self.staleness.mode == "window" and need > self.staleness.max_lag:
            told.append(
                f"staleness.max_lag = {self.staleness.max_lag} lets only one of {self.batch_segments} groups of environments "
                f"play at a time (a segment pays for {segment * self.update_ratio:g} updates); {need} would let all"
            )
        return config, told

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        check_replay(self)
