"""An environment as recipes use it: what to play, with samplers, evaluations and a policy made to fit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runnel.core.config import refuse_unused
from runnel.core.contracts.evaluation import AgentRoute, Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.samples import Sampler
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec
from runnel.core.state import Array, Settings
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
from runnel.envs.spaces import Obs
from runnel.envs.vector import VectorEnv
from runnel.envs.vector.config import VectorConfig
from runnel.eval.recording import VideoRecorder
from runnel.eval.runner import EnvEvaluation
from runnel.graphs.env_config import EnvConfig, wrapped_target
from runnel.graphs.experiment import ActorSpec, EvaluationSpec
from runnel.graphs.run_config import RunConfig
from runnel.kernels.select import Accelerator
from runnel.nets.inferencer import AgentNet, TorchInferencer
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
        self.name = env_name(self._target)
        self._vector = config.vector if isinstance(config, EnvConfig) else VectorConfig()
        if self._vector.backend == "auto":
            self._vector = self._choose(config)
        self.spec = probe_env(self._target, kwargs=self._kwargs, frame_stack=self._vector.frame_stack)
        if isinstance(config, EnvConfig):
            refuse_unused(config, config.unused_on(self.spec))

    def _choose(self, config: RunConfig) -> VectorConfig:
        """What a run would choose (`EnvConfig.settle`), where the config comes from no run."""
        if isinstance(config, EnvConfig):
            return config.choose_backend().config
        return choose_backend(self._target, 1, kwargs=self._kwargs, plain=True).config

    def vector(self, num_envs: int, *, seed: int, index0: int = 0, evaluation: bool = False, device: str = "") -> VectorEnv:
        """`num_envs` of the environment; `index0` is the number of the first among all of the run.

        For `evaluation` they are in this process, and without what only helps training (clipped rewards).
        """
        device, kwargs, vector = device or self._config.device, self._kwargs, self._vector
        if evaluation:
            kwargs = evaluation_kwargs(self._target, kwargs)
            if vector.backend == "processes":
                vector = replace(vector, backend="serial", num_workers=0, step_timeout_s=0.0)
        return make_vector(self._target, num_envs, seed=seed, index0=index0, device=device, kwargs=kwargs, config=vector)

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
        gamma: float | None = None,
        stream: str = "trajectories",
        device: str = "",
    ) -> tuple[ActorSpec, ...]:
        """The actors of the run, all writing `stream`. Each has environments of its own, in `num_env_groups` groups; those
        of tensors are on `device` (default: the run's). `gamma` is the discount of the returns that segments carry, if any."""
        width = num_envs // num_env_groups

        def maker(index: int) -> Callable[[int], Sampler]:
            def make(incarnation: int) -> Sampler:
                seed, name = make_seed(self._config.seed, "actor", incarnation), f"actor-{index}"
                routes, own = [AgentRoute(samples=stream)], make_seed(seed, index)
                starts = [index * num_envs + i * width for i in range(num_env_groups)]
                vectors = [self.vector(width, seed=seed, index0=start, device=device) for start in starts]
                if num_env_groups == 1 and isinstance(vectors[0], TensorVector):
                    return DeviceSampler(
                        vectors[0], routes=routes, noise_size=noise_size, seed=own, name=name, state=state, gamma=gamma
                    )
                return VecEnvSampler(
                    vectors, routes=routes, noise_size=noise_size, seed=own, name=name, state=state, gamma=gamma
                )

            return make

        return tuple(ActorSpec(f"actor-{i}", maker(i), writes=(stream,)) for i in range(self._config.most_actors))

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
        )

    def recorder(self, make_net: Callable[[], AgentNet]) -> VideoRecorder:
        """Plays episodes to be looked at, as `config.record` says."""
        c, frames = self._config.record, self._vector.frame_stack
        return VideoRecorder(
            make=lambda: RenderedEnv(self._target, kwargs=self._kwargs, frame_stack=frames),
            policy=lambda net: EnvPolicy(net, self.spec, flatten=self._flattener()),
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

    def _flattener(self) -> Callable[[Obs], dict[str, Array]]:
        return obs_flattener(self._target, kwargs=self._kwargs, frame_stack=self._vector.frame_stack)

    def policy(self, make_net: Callable[[], AgentNet]) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back."""
        inferencer = TorchInferencer(make_net())
        return EnvPolicy(
            inferencer.net,
            self.spec,
            acts=Accelerator().acts(inferencer.net),
            flatten=self._flattener(),
            seed=self._config.seed,
        ), inferencer
