"""An environment of several agents as recipes use it: who follows which policy; samplers, evaluation and a policy for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from runnel.core.config import refuse_unused
from runnel.core.contracts.evaluation import AgentRoute, Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.core.routes import ROUTES, TEAMS, Side, sides_of, team_routes, with_lengths
from runnel.core.spaces import ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device import TensorTeam
from runnel.envs.device.team import DrawnTeam
from runnel.envs.device.team_engine import TeamEngine
from runnel.envs.device.team_sampler import TeamSegmentSampler
from runnel.envs.registry import env_name, is_tensor_env, make_team_env, make_tensor_team
from runnel.envs.spaces import flatten_obs
from runnel.envs.team.contract import TeamVector
from runnel.envs.team.global_state import with_global_state
from runnel.envs.team.named import is_vmas
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.processes import ProcessTeam
from runnel.envs.team.sampler import TeamSampler
from runnel.envs.team.serial import SerialTeam
from runnel.eval.team_recording import TeamVideoRecorder
from runnel.eval.teams import TeamEvaluation
from runnel.graphs.experiment import ActorSpec, EvaluationSpec
from runnel.graphs.team_config import AUTO, TeamConfig
from runnel.graphs.team_lane import about_worlds, why_by_step, why_on_cpu
from runnel.graphs.user_objects import resolve_live
from runnel.nets.central import state_of
from runnel.nets.inferencer import AgentNet, TorchInferencer
from runnel.nets.policy import EnvPolicy
from runnel.nets.team import TeamNet, TeamPolicy
from runnel.track.media import VideoWriter, check_encoder

EVAL_ENVS = 16
Nets = Mapping[str, AgentNet]
Net = TypeVar("Net", bound=AgentNet)


class TeamTask:
    """The environment of `config`, and the sides of its agents. What does not fit together is refused here.

    `stored` gives the parameters of a stored policy (`rl.run.stored_params`), for routes that name one. `routes` are those of a
    recipe that says itself who follows which policy, and to which streams, or make them of the spec; otherwise `config.teams`
    says it. With `global_state` training rows also hold what only critics read (`envs/team/global_state.py`), and with `clock`
    the step of the episode, for learners that read all streams together.
    """

    def __init__(
        self,
        config: TeamConfig,
        *,
        stored: Callable[[str], Mapping[str, Tensor]] | None = None,
        routes: Sequence[AgentRoute] | Callable[[TeamSpec], Sequence[AgentRoute]] | None = None,
        global_state: bool = False,
        clock: bool = False,
    ) -> None:
        if routes is not None:
            refuse_unused(config, {"teams": "this recipe says itself which policy serves an agent"})
        self._config, self._stored = config, stored
        self._target = resolve_live(config.env, "env")
        self.name = env_name(self._target)
        probe = ParallelEnv(self.make(), self.name)
        self.spec = probe.spec()
        self.spaces = {agent: probe.env.observation_space(agent) for agent in probe.agents}
        given = routes(self.spec) if callable(routes) else routes
        field = TEAMS if routes is None else ROUTES
        found = with_lengths(team_routes(config.teams, probe.agents) if given is None else given, config.num_steps)
        self.seen = sides_of(found, self.spec, field=field)
        """The sides, with what their agents see alone: all that an evaluation needs."""
        self.sides: dict[str, Side] = self.seen
        if global_state:
            self.sides = {policy: with_global_state(side, probe, clock=clock) for policy, side in self.seen.items()}
        if hasattr(probe.env, "close"):
            probe.env.close()
        refuse_unused(config, config.unused_on(self.spec))

    def check_common_aim(self, algorithm: str) -> None:
        """Refuse a game in which all agents together always get 0, for an algorithm that trains them on what they get together.
        Known are the games of OpenSpiel, our own worlds, and environments whose `metadata` says it (`ZERO_SUM`)."""
        if self.spec.zero_sum and len(self.trained) == len(self.sides):
            fix = f"what some win the others lose, so all together get 0 whatever they do, and {algorithm} would learn nothing"
            raise ConfigError("env", self._config.env, f"{fix}; use selfplay, nfsp, ippo or independent_q")

    def make(self) -> Any:
        """One environment."""
        return make_team_env(self._target, kwargs=self._config.env_kwargs)

    def vector(
        self, num_envs: int, *, seed: int, index0: int = 0, acting: bool = False, every_episode: bool = False
    ) -> TeamVector:
        """`num_envs` of the environment; `index0` is the number of the first among all of the run. With `acting`, rows hold
        only what agents see. With `every_episode`, or `acting`, no episode is left out of the records of a step."""
        c, sides = self._config.vector, self.seen if acting else self.sides
        given: dict[str, Any] = {"sides": sides, "seed": seed, "index0": index0, "name": self.name}
        if is_tensor_env(self._target):
            env = make_tensor_team(self._target, kwargs=self._config.env_kwargs)
            return TensorTeam(env, num_envs, every_episode=acting or every_episode, **given)
        if is_vmas(self._target):
            from runnel.envs.team.vmas import VmasTeam

            return VmasTeam(self._target, num_envs, options=self._config.env_kwargs, **given)
        given["restart"] = c.on_error == "restart"
        if c.backend in AUTO:
            return SerialTeam(self.make, num_envs, **given)
        return ProcessTeam(self.make, num_envs, num_workers=c.num_workers, step_timeout_s=c.step_timeout_s, **given)

    def _engine(self, num_envs: int, *, seed: int, index0: int, device: str) -> TeamEngine:
        """Tensor worlds for training that play whole segments on `device`."""
        env = make_tensor_team(self._target, kwargs=self._config.env_kwargs)
        return TeamEngine(env, num_envs, sides=self.sides, seed=seed, index0=index0, name=self.name, device=device)

    @property
    def state(self) -> dict[str, ArraySpec]:
        """The leaves of the global state in training rows."""
        return state_of(next(iter(self.trained.values())).spec)

    @property
    def trained(self) -> dict[str, Side]:
        """The sides that are learned from."""
        return {policy: side for policy, side in self.sides.items() if side.trains}

    def network(self, policy: str, make: Callable[[str, EnvSpec], Net]) -> Net:
        """The network of a policy; that of a stored one with its parameters."""
        side = self.sides[policy]
        net, text = make(policy, side.spec), side.route.stored
        if text:
            if self._stored is None:
                raise ConfigError("teams", text, "this recipe reads no stored runs; name a policy that it trains")
            try:
                net.load_state_dict(self._stored(text))
            except (RuntimeError, KeyError) as error:  # what torch raises for other shapes, and for other names
                fix = "its parameters do not fit these agents; use a run of the same recipe, with its settings of `net`"
                raise ConfigError("teams", text, f"{fix} ({str(error).splitlines()[-1].strip()})") from error
        return net

    def networks(self, make: Callable[[str, EnvSpec], Net]) -> dict[str, Net]:
        """The networks of all policies."""
        return {policy: self.network(policy, make) for policy in self.sides}

    def why_on_cpu(self, stays: str = "") -> str:
        """Why the worlds of this run step on the CPU, one step at a time; empty where they play whole segments on its device.
        `stays` is a reason that the recipe has itself."""
        return why_by_step(self._config, self._target, self.sides) or stays or why_on_cpu(self._config)

    def about_worlds(self, stays: str = "") -> list[str]:
        """What to tell before a run of worlds that stay on the CPU beside policies on a GPU."""
        return about_worlds(self._config, self._target, self.why_on_cpu(stays))

    def actors(self, nets: Nets, *, gamma: float | None, on_cpu: str = "") -> tuple[ActorSpec, ...]:
        """The actors of the run: each asks all policies, and writes the streams of those that are trained. `on_cpu` says why
        worlds are not on the run's device (`why_on_cpu`)."""
        c, in_rounds = self._config, not why_by_step(self._config, self._target, self.sides)
        gammas = {} if gamma is None else dict.fromkeys(self.trained, gamma)
        writes = tuple(sample.stream for side in self.trained.values() for sample in side.route.samples)
        noise_sizes = {policy: net.noise_size for policy, net in nets.items()}
        states = {policy: net.state_spec for policy, net in nets.items()}

        def maker(index: int) -> Callable[[int], Sampler]:
            def make(incarnation: int) -> Sampler:
                seed, name = make_seed(c.seed, "actor", incarnation), f"actor-{index}"
                starts = [index * c.num_envs + i * c.width for i in range(c.num_env_groups)]
                given: dict[str, Any] = {"noise_sizes": noise_sizes, "seed": make_seed(seed, index), "name": name}
                given |= {"gammas": gammas, "states": states}

                def by_step() -> TeamSampler:
                    return TeamSampler([self.vector(c.width, seed=seed, index0=start) for start in starts], **given)

                if not in_rounds:
                    return by_step()
                # on the CPU, too: a run that was begun on a device may be resumed there
                engine = self._engine(c.width, seed=seed, index0=starts[0], device="cpu" if on_cpu else c.device)
                return TeamSegmentSampler(engine, by_step=by_step, at_once=not on_cpu, **given)

            return make

        return tuple(ActorSpec(f"actor-{i}", maker(i), writes=writes, asks=tuple(self.sides)) for i in range(c.most_actors))

    def evaluation(self, make_nets: Callable[[], Nets]) -> EvaluationSpec | None:
        """Greedy episodes of all policies beside training, as `config.eval` says; None where it says none."""
        c = self._config
        episodes, seed = c.eval.episodes, make_seed(c.seed, "evaluation")
        if not episodes:
            return None

        def make() -> TeamEvaluation:
            nets = make_nets()
            return TeamEvaluation(
                lambda: self.vector(min(episodes, EVAL_ENVS), seed=seed, acting=True),
                episodes=episodes,
                seed=seed,
                noise_sizes={policy: net.noise_size for policy, net in nets.items()},
                states={policy: net.state_spec for policy, net in nets.items()},
                max_steps=c.eval.max_steps,
            )

        return EvaluationSpec(
            make,
            lambda: TorchInferencer(self._together(make_nets()), greedy=True, device=c.device),
            recorder=lambda: self._recorder(make_nets()),
            check_recorder=self._check_recorder,
        )

    def _recorder(self, nets: Nets) -> TeamVideoRecorder:
        """Plays episodes to be looked at, as `config.record` says."""
        c, seed = self._config.record, make_seed(self._config.seed, "recording")
        world = self._drawn()
        assert world is not None, "the recorder was checked"
        return TeamVideoRecorder(
            make=lambda: TensorTeam(world, 1, sides=self.seen, seed=seed, name=self.name),
            noise_sizes={policy: net.noise_size for policy, net in nets.items()},
            states={policy: net.state_spec for policy, net in nets.items()},
            video=VideoWriter,
            episodes=c.videos,
            seed=seed,
            max_steps=c.max_steps,
            fps=c.fps or world.fps,
        )

    def _drawn(self) -> DrawnTeam | None:
        """The world, if it draws itself."""
        world = make_tensor_team(self._target, kwargs=self._config.env_kwargs) if is_tensor_env(self._target) else None
        return world if isinstance(world, DrawnTeam) else None

    def _check_recorder(self) -> None:
        """Raise a `ConfigError` where no video can be made of this environment, here."""
        if videos := self._config.record.videos:
            check_encoder("record.videos", videos)
            if self._drawn() is None:
                fix = "of environments with several agents only tensor worlds that draw themselves are recorded; use 0"
                raise ConfigError("record.videos", videos, f"{self.name} is none: {fix}")

    def _together(self, nets: Nets) -> TeamNet:
        """All policies as one network, whose parameters are those of the trained ones."""
        return TeamNet(nets, fixed={policy for policy, side in self.sides.items() if side.route.stored})

    def policy(self, make_nets: Callable[[], Nets]) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back: it acts for a dict of observations by agent."""
        nets, policies = make_nets(), {}
        for name, side in self.seen.items():
            for agent in side.agents:
                flatten = flatten_obs(self.spaces[agent])
                policies[agent] = EnvPolicy(nets[name], side.spec, flatten=flatten, seed=self._config.seed)
        return TeamPolicy(policies), TorchInferencer(self._together(nets))
