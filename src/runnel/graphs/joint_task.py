"""An environment of several agents as one agent, as recipes use it: `TeamTask` behind the calls of `EnvTask`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from runnel.core.contracts.evaluation import AgentRoute, Policy, SampleRoute
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.envs.device.episodes import STEP_RECORDS
from runnel.envs.registry import is_tensor_env
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.spaces import flatten_obs
from runnel.envs.team.joint import JointVector, TeamReward, joint_spec
from runnel.envs.vector import VectorEnv
from runnel.eval.runner import EnvEvaluation
from runnel.graphs.env_task import actor_specs
from runnel.graphs.experiment import ActorSpec, EvaluationSpec
from runnel.graphs.joint_config import JointConfig
from runnel.graphs.team_lane import AS_ONE_AGENT
from runnel.graphs.team_task import EVAL_ENVS, TeamTask
from runnel.nets.inferencer import Acts, AgentNet, TorchInferencer
from runnel.nets.mat import TeamTransformer
from runnel.nets.policy import EnvPolicy
from runnel.nets.team import JointPolicy, TeamPolicy

TEAM = "team"


class AgentsNet(AgentNet, Protocol):
    """A network that acts for a whole team, or for one agent of it."""

    def of_agent(self, agent: int) -> Acts:
        """What acts for one agent alone, with the same weights."""
        ...


class JointTask:
    """The environment of `config`, all of whose agents are one. `algorithm` is for messages.

    With `global_state` training rows also hold it; with `own_rewards` they hold what each agent is paid itself.
    """

    def __init__(
        self,
        config: JointConfig,
        *,
        algorithm: str,
        global_state: bool = False,
        own_rewards: bool = False,
    ) -> None:
        self._config, self._own_rewards = config, own_rewards
        if is_tensor_env(config.env) and config.width > STEP_RECORDS:
            fix = f"ends of more than {STEP_RECORDS} worlds in one step are not all told, and this recipe needs them"
            raise ConfigError("num_envs", config.num_envs, f"{fix}; use less, or more num_env_groups")
        routes = [AgentRoute(".*", TEAM, (SampleRoute(TEAM),))]
        try:
            self.team = TeamTask(config, routes=routes, global_state=global_state)
        except ConfigError as error:
            if error.field != "teams" or isinstance(error, UnusedSettingError):
                raise
            fix = (
                f"{algorithm} needs agents of equal spaces: pad them to one form in a wrapper of your own, or use ippo or mappo"
            )
            raise ConfigError("env", config.env, f"{error.fix.partition(';')[0]}; {fix} with --teams") from error
        if not own_rewards and config.team_reward != "first":
            self.team.check_common_aim(algorithm)
        (side,), (seen,) = self.team.sides.values(), self.team.seen.values()
        self.name, self.agents = self.team.name, side.agents
        self.agent_spec: EnvSpec = seen.spec
        """What each agent sees and does."""
        self.spec = joint_spec(side, own_rewards=own_rewards)

    def vector(self, num_envs: int, *, seed: int, index0: int = 0, evaluation: bool = False) -> VectorEnv:
        """`num_envs` of the environment; `index0` is the number of the first among all of the run. For `evaluation` rows hold
        what agents see alone, and returns are means over agents."""
        # it is by their episodes that a team as one agent knows which environments have ended
        team = self.team.vector(num_envs, seed=seed, index0=index0, acting=evaluation, every_episode=True)
        reward: TeamReward = "mean" if evaluation else self._config.team_reward
        return JointVector(team, team_reward=reward, own_rewards=self._own_rewards and not evaluation)

    def about_worlds(self) -> list[str]:
        """What to tell before a run of worlds that stay on the CPU beside a policy on a GPU."""
        return self.team.about_worlds(AS_ONE_AGENT)

    def actors(
        self,
        num_envs: int,
        *,
        noise_size: int,
        num_env_groups: int = 1,
        state: Mapping[str, ArraySpec] | None = None,
        carried: Mapping[str, float] | None = None,
    ) -> tuple[ActorSpec, ...]:
        """The actors of the run, as those of `EnvTask`."""
        width = num_envs // num_env_groups

        def sampler(env_seed: int, starts: Iterable[int], **own: Any) -> Sampler:
            vectors = [self.vector(width, seed=env_seed, index0=first) for first in starts]
            return VecEnvSampler(vectors, noise_size=noise_size, state=state, carried=carried, **own)

        return actor_specs(self._config, num_envs, width, sampler)

    def evaluation(self, make_net: Callable[[], AgentNet]) -> EvaluationSpec | None:
        """Greedy episodes beside training, as `config.eval` says; None where it says none."""
        c = self._config
        episodes, seed = c.eval.episodes, make_seed(c.seed, "evaluation")
        if not episodes:
            return None

        def make() -> EnvEvaluation:
            net = make_net()

            def vector() -> VectorEnv:
                return self.vector(min(episodes, EVAL_ENVS), seed=seed, evaluation=True)

            noise, state = net.noise_size, net.state_spec
            return EnvEvaluation(
                vector, episodes=episodes, seed=seed, noise_size=noise, state=state, max_steps=c.eval.max_steps
            )

        return EvaluationSpec(make, lambda: TorchInferencer(make_net(), greedy=True, device=c.device))

    def policy(self, make_net: Callable[[], AgentNet]) -> tuple[Policy, Inferencer]:
        """What `rl.load` gives back: it acts for a dict of observations by agent."""
        net, spaces, seed = cast(AgentsNet | TeamTransformer, make_net()), self.team.spaces, self._config.seed
        inferencer = TorchInferencer(net)
        if isinstance(net, TeamTransformer):
            flatten = {agent: flatten_obs(spaces[agent]) for agent in self.agents}
            return JointPolicy(net, self.spec, self.agent_spec, flatten=flatten, seed=seed), inferencer
        policies = {
            agent: EnvPolicy(net.of_agent(i), self.agent_spec, flatten=flatten_obs(spaces[agent]), seed=seed)
            for i, agent in enumerate(self.agents)
        }
        return TeamPolicy(policies), inferencer
