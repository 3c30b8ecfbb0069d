"""Settings that every recipe on environments with several agents shares."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.spaces import TeamSpec
from runnel.envs.registry import is_tensor_env
from runnel.envs.team.named import is_vmas
from runnel.envs.vector.config import VectorConfig
from runnel.graphs.compiling import check_numba
from runnel.graphs.run_config import RunConfig
from runnel.graphs.unused import ON_ENVIRONMENTS, all_of
from runnel.kernels.select import Accelerator, Mode
from runnel.nets.convolutions import is_image
from runnel.nets.layers import NetConfig

AUTO = ("auto", "serial")
"""Back ends that step environments one after the other, in the process of their actor."""


@dataclass(frozen=True)
class TeamConfig(RunConfig):
    """`num_actors` actors, each with `num_envs` environments of several agents, `num_steps` steps of each in a segment."""

    on_resume: ClassVar[OnResume] = (
        may_change("compiled", then="the same networks run by other kernels")
        | stays("env", "env_kwargs", why="a run is of one task")
        | stays("teams", why="the policies and their parameters are part of the checkpoint")
        | stays("num_envs", "num_steps", "num_env_groups", why="segments and environments of that number are in the checkpoint")
    )

    env: str = "runnel.envs.team.toy:Whisper"
    """An environment with PettingZoo's parallel or AEC API: pettingzoo:FAMILY.NAME, openspiel:GAME, lbforaging:TASK,
    module:Class or path/to/file.py:factory; tensor:Spread and vmas:SCENARIO play all their worlds at once."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    teams: tuple[str, ...] = ()
    """Which policy serves which agents: PATTERN=POLICY ..., for example "red_.*=red" "blue_.*=blue". A pattern is a regular
    expression of whole agent ids, and the first that matches wins. In a word: shared (or nothing) is one policy for all agents,
    each is a policy for every agent, with a network, an optimiser and a stream of its own. POLICY may be one of a finished run,
    which acts and never changes: run:FOLDER, run:FOLDER@best, run:FOLDER@VERSION#POLICY, or a query,
    run:FOLDER@newest[win_rate=0.6..0.8]. Options follow a colon: "red_.*=red: 32 steps, burn-in 8" gives the length of its
    segments and the steps before each that only bring a recurrent state up to date; "deterministic" is for stored policies."""
    num_envs: int = bounded(8, at_least=1)
    """Environments of each actor."""
    num_steps: int = bounded(128, at_least=1)
    """Steps of each environment in one update, and in one segment where `teams` does not say otherwise."""
    num_env_groups: int = bounded(1, at_least=1)
    """Groups that an actor's environments are split into; while one group waits for the policies, another steps."""
    vector: VectorConfig = field(default_factory=VectorConfig)
    net: NetConfig = field(default_factory=NetConfig)
    compiled: Mode = "auto"
    """Whether kernels replace the plain code of the update and of acting (docs/evidence/speed.md). auto: if they serve exactly
    this learner, and the run is long enough for compiling them (some 20 seconds once on a machine) to save time: 50,000 steps,
    on the CPU. on: also in short runs; refused if no kernel serves this learner. off: all code runs as it is written."""

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        core = {"net.core_size": "is of a recurrent core; set net.core"} if self.net.core == "none" else {}
        vector = {"vector.frame_stack": "no frames of teams are stacked", "vector.threads": "no back end of teams has threads"}
        if self.vector.backend in AUTO:
            why = "is of processes, which auto does not choose for teams; set vector.backend processes"
            vector |= all_of("vector", ("num_workers", "step_timeout_s"), why)
        if is_tensor_env(self.env):
            vector = {"vector": "a tensor environment steps all its worlds at once"}
        if is_vmas(self.env):
            vector = {"vector": "VMAS steps all its worlds at once"}
        return super().unused() | ON_ENVIRONMENTS | core | vector

    def unused_on(self, spec: TeamSpec) -> dict[str, str]:
        """Settings that this run would not read on an environment of `spec`, and why."""
        leaves = [leaf for agent in spec.agents.values() for leaf in agent.obs.values()]
        found = {} if any(map(is_image, leaves)) else {"net.conv": "no agent sees images"}
        if all("obs" in agent.obs for agent in spec.agents.values()):
            found["net.critic_only"] = "observations are single arrays, not Dicts of parts"
        if not any(leaf.dtype.is_floating_point for leaf in leaves):
            groups = [f.name for f in fields(self) if hasattr(getattr(self, f.name), "normalise_obs")]
            why = "observations are not floats; those of bytes are scaled by the network"
            found |= {f"{group}.normalise_obs": why for group in groups}
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        self.net.check()
        self.vector.check()
        if self.vector.backend not in (*AUTO, "processes"):
            raise ConfigError("vector.backend", self.vector.backend, "teams have serial (which auto is for them) and processes")
        if self.num_envs % self.num_env_groups:
            raise ConfigError("num_env_groups", self.num_env_groups, f"use a divisor of num_envs ({self.num_envs})")
        check_numba(self.compiled, self.device)

    @property
    def accelerator(self) -> Accelerator:
        """What lets kernels stand in for the update and for acting."""
        return Accelerator(self.compiled, self.total_steps or (self.total_updates or 0) * self.batch_steps)

    @property
    def batch_segments(self) -> int:
        """Segments of each policy that hold one round of all environments."""
        return self.num_actors * self.num_env_groups

    @property
    def width(self) -> int:
        """Environments of one group."""
        return self.num_envs // self.num_env_groups

    @property
    def batch_steps(self) -> int:
        """Steps of environments in one round of all of them."""
        return self.num_actors * self.num_envs * self.num_steps


def check_in_step(config: TeamConfig) -> None:
    """Refuse settings under which the streams of a team would not hold the same steps, for learners that read them together."""
    if config.staleness.mode == "window":
        fix = "segments of several policies would be taken as they come, and not those of one round; use sync or one_step"
        raise ConfigError("staleness.mode", config.staleness.mode, fix)
