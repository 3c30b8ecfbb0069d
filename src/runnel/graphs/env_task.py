"""An environment as recipes use it: what to play, with samplers, evaluations and a policy made to fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from runnel.core.config import refuse_unused
from runnel.core.contracts.evaluation import AgentRoute, Policy, SampleRoute
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.samples import Sampler
from runnel.core.contracts.tasks import Curriculum, TaskSource
from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec
from runnel.core.state import Settings
from runnel.data.dataset import Source
from runnel.envs.curricula.config import CurriculumConfig
from runnel.envs.curricula.uniform import NoHistory
from runnel.envs.device import TensorVector
from runnel.envs.device.sampler import DeviceSampler
from runnel.envs.registry import (
    choose_backend,
    env_name,
    evaluation_kwargs,
    is_tensor_env,
    make_vector,
    obs_flattener,
    probe_env,
)
from runnel.envs.render import RenderedEnv, check_renders
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.starts import START_TASKS, Starts
from runnel.envs.vector import VectorEnv
from runnel.envs.vector.config import VectorConfig
from runnel.eval.episodes import EpisodePlayer
from runnel.eval.recording import VideoRecorder
from runnel.eval.runner import EnvEvaluation
from runnel.graphs.env_config import EnvConfig, wrapped_target
from runnel.graphs.experiment import ActorSpec, EvaluationSpec, PlayConfig
from runnel.graphs.run_config import RunConfig
from runnel.graphs.start_states import RecordedStarts, check_states
from runnel.kernels.select import Accelerator
from runnel.nets.inferencer import Acts, AgentNet, TorchInferencer
from runnel.nets.policy import EnvPolicy
from runnel.track.media import VideoWriter, check_encoder

EVAL_ENVS = 16
EVAL_ENVS_ON_DEVICE = 1024


class EnvTask:
    """`env` (an id, `module:Class`, `file.py:factory`, `tensor:NAME`) under the seed and device of `config`, in `wrappers`
    (None: those of `config`)."""

    def __init__(
        self,
        env: str,
        config: RunConfig,
        *,
        kwargs: Settings | None = None,
        wrappers: Sequence[str] | None = None,
    ) -> None:
        if wrappers is None:
            wrappers = config.wrappers if isinstance(config, EnvConfig) else ()
        self._target, self._config, self._kwargs = wrapped_target(env, wrappers), config, dict(kwargs or {})
        self._env, self._wrappers = env, tuple(wrappers)
        self.name = env_name(self._target)
        self._vector = config.vector if isinstance(config, EnvConfig) else VectorConfig()
        if self._vector.backend == "auto":
            self._vector = self._choose(config)
        self._channels = config.channels.declared if isinstance(config, EnvConfig) else None
        frames = self._vector.frame_stack
        self.spec = probe_env(self._target, kwargs=self._kwargs, frame_stack=frames, channels=self._channels)
        if isinstance(config, EnvConfig):
            config.channels.check_weights(self.spec.channels)
            if config.curriculum.kind == "states":
                self.spec = replace(self.spec, tasks=START_TASKS)
            refuse_unused(config, config.unused_on(self.spec))

    def _choose(self, config: RunConfig) -> VectorConfig:
        """What a run would choose (`EnvConfig.settle`), where the config comes from no run."""
        if isinstance(config, EnvConfig):
            return config.choose_backend().config
        return choose_backend(self._target, 1, kwargs=self._kwargs, plain=True).config

    def vector(
        self,
        num_envs: int,
        *,
        seed: int,
        index0: int = 0,
        evaluation: bool = False,
        device: str = "",
        tasks: bool = False,
        starts: Starts | None = None,
    ) -> VectorEnv:
        """`num_envs` of the environment; `index0` is the number of the first among all of the run.

        For `evaluation` they are in this process, and without what only helps training (clipped rewards). With `tasks` they
        play what they are told. With `starts` their states can be saved, and with both they may begin at one; they are in this
        process, too, unless they are told.
        """
        device, kwargs, vector = device or self._config.device, self._kwargs, self._vector
        if evaluation:
            kwargs = evaluation_kwargs(self._target, kwargs)
        saving = starts is not None and not tasks
        if saving or (evaluation and vector.backend == "processes"):
            vector = replace(vector, backend="serial", num_workers=0, step_timeout_s=0.0)
        return make_vector(
            self._target,
            num_envs,
            seed=seed,
            index0=index0,
            device=device,
            kwargs=kwargs,
            config=vector,
            channels=self._channels,
            tasks=tasks,
            starts=starts,
        )

    @property
    def most_eval_envs(self) -> int:
        """Environments of an evaluation. On an accelerator a step takes as long for a thousand as for one."""
        on_device = is_tensor_env(self._target) and self._config.device != "cpu"
        return EVAL_ENVS_ON_DEVICE if on_device else EVAL_ENVS

    def actors(
        self,
        num_envs: int,
        *,
        noise_size: int,
        num_env_groups: int = 1,
        state: Mapping[str, ArraySpec] | None = None,
        carried: Mapping[str, float] | None = None,
        stream: str = "trajectories",
        device: str = "",
        tasks: Callable[[], TaskSource] | None = None,
    ) -> tuple[ActorSpec, ...]:
        """The actors of the run, all writing `stream`. Each has environments of its own, in `num_env_groups` groups; those
        of tensors are on `device` (default: the run's). `carried` are the channels whose sums segments carry, with their
        discounts. `tasks` makes what says which tasks they play, if they are told."""
        width = num_envs // num_env_groups

        def sampler(env_seed: int, starts: Iterable[int], **own: Any) -> Sampler:
            told = None if tasks is None or self._states is None else self._states.starts
            made: dict[str, Any] = {"seed": env_seed, "device": device, "tasks": tasks is not None, "starts": told}
            vectors = [self.vector(width, index0=first, **made) for first in starts]
            own |= {"state": state, "carried": carried, "source": None if tasks is None else tasks()}
            if num_env_groups == 1 and isinstance(vectors[0], TensorVector):
                return DeviceSampler(vectors[0], noise_size=noise_size, **own)
            return VecEnvSampler(vectors, noise_size=noise_size, **own)

        return actor_specs(self._config, num_envs, width, sampler, stream=stream)

    def curriculum(self, config: CurriculumConfig) -> tuple[Callable[[], TaskSource], Callable[[], Curriculum]] | None:
        """What makes the source of tasks for actors and their history for the trainer; None where the environment chooses."""
        if config.kind == "off":
            return None
        if self._states is not None:
            return self._states.source, NoHistory
        space, seed = self.spec.tasks, make_seed(self._config.seed, "curriculum")
        if space is None:
            fix = f"{self.name} declares no task_space, so nothing can be told to it; give it one, or use off"
            raise ConfigError("curriculum.kind", config.kind, fix)
        if self._vector.backend in ("gymnasium", "envpool"):
            fix = "only environments that are reset one by one can be told what to play; use serial or processes"
            raise ConfigError("vector.backend", self._vector.backend, fix)
        return partial(config.source, space, seed), partial(config.history, space, seed)

    @property
    def _states(self) -> RecordedStarts | None:
        """The recorded states at which episodes of the run may begin."""
        c = self._config
        if not isinstance(c, EnvConfig) or c.curriculum.kind != "states":
            return None
        segment_steps = c.num_envs // c.num_env_groups * c.num_steps
        return RecordedStarts(c.curriculum, make_seed(c.seed, "curriculum"), c.total_steps, segment_steps)

    def check_states(self) -> None:
        """Refuse recorded states that are not of this environment, as it is here."""
        if isinstance(self._config, EnvConfig) and self._config.curriculum.kind == "states":
            check_states(self._config.curriculum, self)

    def evaluation(self, make_net: Callable[[], AgentNet]) -> EvaluationSpec | None:
        """Greedy episodes beside training, as `config.eval` says; None where it says none."""
        episodes, seed = self._config.eval.episodes, make_seed(self._config.seed, "evaluation")
        if not episodes:
            return None

        def make() -> EnvEvaluation:
            state = make_net().state_spec

            def vector() -> VectorEnv:
                return self.vector(min(episodes, self.most_eval_envs), seed=seed, evaluation=True)

            return EnvEvaluation(vector, episodes=episodes, seed=seed, state=state, max_steps=self._config.eval.max_steps)

        return EvaluationSpec(
            make=make,
            inferencer=lambda: TorchInferencer(make_net(), greedy=True, device=self._config.device),
            recorder=lambda: self.recorder(make_net),
            check_recorder=self.check_recorder,
            player=lambda plan: (self.player(make_net, plan), self.spec, self.source),
        )

    @property
    def source(self) -> Source:
        """The environment as a data set names it."""
        return Source(self._env, self._kwargs, self._wrappers)

    def player(self, make_net: Callable[[], AgentNet], plan: PlayConfig) -> EpisodePlayer:
        """Plays whole episodes with the rewards of training, as `plan` says."""
        if plan.states_every and (frames := self._vector.frame_stack):
            fix = f"a run that stacks frames (vector.frame_stack {frames}) begins at no state: those before it are not known"
            raise ConfigError("states_every", plan.states_every, f"{fix}; use 0")
        net, seed = make_net(), make_seed(self._config.seed, "data", plan.seed)

        def vector() -> VectorEnv:
            starts = Starts() if plan.states_every else None
            return self.vector(min(plan.episodes, self.most_eval_envs), seed=seed, index0=0, starts=starts)

        every = plan.states_every
        return EpisodePlayer(vector, plan.episodes, seed, net.noise_size, net.state_spec, plan.max_steps, every)

    def recorder(self, make_net: Callable[[], AgentNet]) -> VideoRecorder:
        """Plays episodes to be looked at, as `config.record` says."""
        c, frames = self._config.record, self._vector.frame_stack
        return VideoRecorder(
            make=lambda: RenderedEnv(self._target, kwargs=self._kwargs, frame_stack=frames),
            policy=lambda net: self._acting(net),
            state=lambda: make_net().state_spec,
            video=VideoWriter,
            episodes=c.videos,
            seed=make_seed(self._config.seed, "recording"),
            max_steps=c.max_steps,
            fps=c.fps,
        )

    def check_recorder(self) -> None:
        """Raise a `ConfigError` where no video can be made of this environment, here."""
        videos = self._config.record.videos
        check_encoder("record.videos", videos)
        frames = self._vector.frame_stack
        check_renders(self._target, kwargs=self._kwargs, frame_stack=frames, field="record.videos", value=videos)

    def _acting(self, net: Acts, *, acts: Acts | None = None, seed: int = 0) -> EnvPolicy:
        """`net` as a policy of raw observations: of those parts that it reads (a critic may read more)."""
        spec = replace(self.spec, obs=getattr(net, "policy_obs", self.spec.obs))  # a user's own network reads all
        frames, keys = self._vector.frame_stack, spec.obs.keys()
        flatten = obs_flattener(self._target, kwargs=self._kwargs, frame_stack=frames, keys=keys)
        return EnvPolicy(net, spec, acts=acts, flatten=flatten, seed=seed)

    def policy(self, make_net: Callable[[], AgentNet]) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back."""
        inferencer = TorchInferencer(make_net())
        acts = Accelerator().acts(inferencer.net)
        return self._acting(inferencer.net, acts=acts, seed=self._config.seed), inferencer


def actor_specs(
    config: RunConfig, num_envs: int, width: int, sampler: Callable[..., Sampler], *, stream: str = "trajectories"
) -> tuple[ActorSpec, ...]:
    """The actors of a run, all writing `stream`. Each has `num_envs` environments of its own, in groups of `width`.

    `sampler(env_seed, starts, routes=..., seed=..., name=...)` makes what plays them; `starts` are the numbers of the first
    environment of each group.
    """

    def maker(index: int) -> Callable[[int], Sampler]:
        def make(incarnation: int) -> Sampler:
            seed = make_seed(config.seed, "actor", incarnation)
            starts = range(index * num_envs, (index + 1) * num_envs, width)
            routes = [AgentRoute(samples=(SampleRoute(stream),))]
            return sampler(seed, starts, routes=routes, seed=make_seed(seed, index), name=f"actor-{index}")

        return make

    return tuple(ActorSpec(f"actor-{i}", maker(i), writes=(stream,)) for i in range(config.most_actors))
