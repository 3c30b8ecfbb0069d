"""An environment as recipes use it: what to play, with samplers, evaluations and a policy made to fit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runnel.core.protocols import AgentRoute, Inferencer, Policy
from runnel.core.rng import make_seed
from runnel.envs.registry import env_name, make_vector, obs_flattener, probe_env
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.vector import VectorEnv
from runnel.eval.runner import EnvEvaluation
from runnel.nets.inferencer import ActingNet, TorchInferencer
from runnel.nets.policy import EnvPolicy
from runnel.run.experiment import ActorSpec, EvaluationSpec, RunConfig
from runnel.run.registry import resolve_live

EVAL_ENVS = 16


class EnvTask:
    """`env` (an id, `module:Class`, `file.py:factory`, `tensor:NAME`) under the seed and device of `config`."""

    def __init__(self, env: str, config: RunConfig, *, kwargs: Mapping[str, Any] | None = None) -> None:
        self._target, self._config, self._kwargs = resolve_live(env, "env"), config, dict(kwargs or {})
        self.name = env_name(self._target)
        self.spec = probe_env(self._target, kwargs=self._kwargs)

    def vector(self, num_envs: int, *, seed: int, index0: int = 0) -> VectorEnv:
        """`num_envs` of the environment; `index0` is the number of the first among all of the run."""
        device = self._config.device
        return make_vector(self._target, num_envs, seed=seed, index0=index0, device=device, kwargs=self._kwargs)

    def actors(self, num_envs: int, *, noise_size: int, stream: str = "trajectories") -> tuple[ActorSpec, ...]:
        """The actors of the run, each with its own environments, all writing `stream`."""

        def maker(index: int) -> Callable[[int], VecEnvSampler]:
            def make(incarnation: int) -> VecEnvSampler:
                seed = make_seed(self._config.seed, "actor", incarnation)
                vector = self.vector(num_envs, seed=seed, index0=index * num_envs)
                routes, name = [AgentRoute(samples=stream)], f"actor-{index}"
                return VecEnvSampler([vector], routes=routes, noise_size=noise_size, seed=make_seed(seed, index), name=name)

            return make

        return tuple(ActorSpec(f"actor-{i}", maker(i), writes=(stream,)) for i in range(self._config.num_actors))

    def evaluation(self, make_net: Callable[[], ActingNet]) -> EvaluationSpec | None:
        """Greedy episodes beside training, as `config.eval` says; None where it says none."""
        episodes, seed = self._config.eval.episodes, make_seed(self._config.seed, "evaluation")
        if not episodes:
            return None
        return EvaluationSpec(
            make=lambda: EnvEvaluation(lambda: self.vector(min(episodes, EVAL_ENVS), seed=seed), episodes=episodes, seed=seed),
            inferencer=lambda: TorchInferencer(make_net(), greedy=True, device=self._config.device),
        )

    def policy(self, make_net: Callable[[], ActingNet]) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back."""
        inferencer = TorchInferencer(make_net())
        return EnvPolicy(
            inferencer.net, self.spec, flatten=obs_flattener(self._target, kwargs=self._kwargs), seed=self._config.seed
        ), inferencer
