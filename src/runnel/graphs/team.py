"""The graph of teams: policies that act in the same environments, each with an inference stream, and learn in lock-step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from runnel.agents.team import TeamLearner
from runnel.core.contracts.learning import Collective, Learner
from runnel.core.routes import Side
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.flow.workers.trainer import Phase
from runnel.graphs.experiment import Experiment, InferenceStream, TrainerSpec
from runnel.graphs.on_policy import message_bytes
from runnel.graphs.team_config import TeamConfig
from runnel.graphs.team_task import TeamTask
from runnel.nets.inferencer import AgentNet, TorchInferencer

Net = TypeVar("Net", bound=AgentNet)


def team_graph(
    c: TeamConfig,
    task: TeamTask,
    *,
    network: Callable[[str, EnvSpec], Net],
    learner: Callable[[str, Net, Collective], Learner],
    return_gamma: float | None = None,
) -> Experiment:
    """Actors play with all policies and write a stream for each that is trained; an update takes one round of each stream.

    `network` makes the network of a policy, from its name and the spec of its agents; `learner` its learner on one rank. The
    learners are members of one `TeamLearner`, so that all policies have one line of versions. `return_gamma` is as in
    `on_policy_graph`.
    """
    batch = c.batch_segments
    rule = c.lag_rule(batch, batch_steps=c.batch_steps)
    nets = _networks(task, network)
    trained = task.trained
    streams = tuple(
        trajectory_stream(
            side.spec,
            num_steps=c.num_steps,
            num_envs=c.width * len(side.agents),
            name=side.route.samples,
            carried_return=return_gamma is not None,
            active=True,
            unit_rows=len(side.agents),
            batch_segments=batch,
            capacity=batch * (rule.lag + 1),
            num_writers=c.most_actors,
        )
        for side in trained.values()
    )

    def learners(ranks: Collective) -> TeamLearner:
        members = {policy: learner(policy, network(policy, side.spec), ranks) for policy, side in trained.items()}
        return TeamLearner(members, {policy: (side.route.samples,) for policy, side in trained.items()})

    return Experiment(
        config=c,
        title=task.name,
        streams=streams,
        staleness={stream.name: c.lag_rule(batch, batch_steps=c.batch_steps) for stream in streams},
        actors=task.actors({policy: net.noise_size for policy, net in nets.items()}, gamma=return_gamma),
        inference=tuple(_inference(c, policy, side, nets[policy], network) for policy, side in task.sides.items()),
        trainers=(TrainerSpec(learners, (Phase({stream.name: batch for stream in streams}),)),),
        evaluation=task.evaluation(lambda: _networks(task, network)),
        policy=lambda: task.policy(lambda: _networks(task, network)),
    )


def _networks(task: TeamTask, network: Callable[[str, EnvSpec], Net]) -> dict[str, Net]:
    return {policy: network(policy, side.spec) for policy, side in task.sides.items()}


def _inference(
    c: TeamConfig, policy: str, side: Side, net: AgentNet, network: Callable[[str, EnvSpec], AgentNet]
) -> InferenceStream:
    """Who answers for the agents of one policy, from its part of the learner's versions."""

    def make() -> TorchInferencer:
        greedy = side.route.deterministic
        return TorchInferencer(
            network(policy, side.spec), greedy=greedy, device=c.device, merge=not c.deterministic, member=policy
        )

    return InferenceStream(
        make,
        name=policy,
        num_workers=c.most_policy_workers,
        depth=max(4, c.num_env_groups),
        max_bytes=message_bytes(side.spec, net, num_rows=c.width * len(side.agents)),
    )
