"""The graph of teams: policies that act in the same environments, each with an inference stream, and learn in lock-step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from runnel.agents.team import TeamLearner
from runnel.core.contracts.learning import Collective, Learner
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.flow.workers.trainer import Phase
from runnel.graphs.experiment import PARAMS, Experiment, InferenceStream, TrainerSpec
from runnel.graphs.on_policy import message_bytes
from runnel.graphs.team_config import TeamConfig
from runnel.graphs.team_task import Net, TeamTask
from runnel.nets.inferencer import AgentNet, FixedInferencer, TorchInferencer


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
    nets = task.networks(network)
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
        inference=tuple(_inference(c, task, policy, partial(task.network, policy, network)) for policy in task.sides),
        trainers=(TrainerSpec(learners, (Phase({stream.name: batch for stream in streams}),)),),
        evaluation=task.evaluation(lambda: task.networks(network)),
        policy=lambda: task.policy(lambda: task.networks(network)),
    )


def _inference(c: TeamConfig, task: TeamTask, policy: str, make_net: Callable[[], AgentNet]) -> InferenceStream:
    """Who answers for the agents of one policy: from its part of the learner's versions, or, a stored policy, as it is."""
    side = task.sides[policy]
    greedy, merge = side.route.deterministic, not c.deterministic

    def make() -> TorchInferencer:
        if side.route.stored:
            return FixedInferencer(make_net(), greedy=greedy, device=c.device, merge=merge)
        return TorchInferencer(make_net(), greedy=greedy, device=c.device, merge=merge, member=policy)

    return InferenceStream(
        make,
        name=policy,
        num_workers=c.most_policy_workers,
        depth=max(4, c.num_env_groups),
        max_bytes=message_bytes(side.spec, make_net(), num_rows=c.width * len(side.agents)),
        params="" if side.route.stored else PARAMS,
    )
