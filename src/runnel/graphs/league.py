"""The graph of self-play: all agents of an environment are played by live policies and a pool of frozen ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from runnel.agents.league import LeagueLearner, PoolConfig
from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import ConfigError
from runnel.core.lineups import MEMBER
from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.rng import make_seed
from runnel.core.routes import Side
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import REWARD, TASK_RETURN, trajectory_stream
from runnel.eval.league import LeagueEvaluation
from runnel.flow.workers.trainer import Phase
from runnel.graphs.compiling import check_compiled
from runnel.graphs.experiment import EvaluationSpec, Experiment, InferenceStream, TrainerSpec
from runnel.graphs.on_policy import message_bytes
from runnel.graphs.team_config import TeamConfig
from runnel.graphs.team_task import EVAL_ENVS, TeamTask
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.pool import PoolNet

MAIN = "main"
"""The policy, the stream and the inference stream of self-play."""
SELF_PLAY = (AgentRoute(".*", MAIN, (SampleRoute(MAIN),)),)
"""The routes of self-play: one policy plays every seat."""


def league_graph(
    c: TeamConfig,
    task: TeamTask,
    pool: PoolConfig,
    *,
    network: Callable[[str, EnvSpec], ActorCritic],
    learner: Callable[[str, ActorCritic, Collective], Learner],
    return_gamma: float | None = None,
) -> Experiment:
    """Actors play lineups of live and frozen policies; an update takes one round of segments.

    `task` is a `league_task`. `network` makes the network of a role (`main`, `exploiter-0`, ...), `learner` its learner;
    `return_gamma` is as in `on_policy_graph`. `rl.load` gives the live main policy, for every agent.
    """
    side = task.sides[MAIN]
    _check(c)
    roles = {role: network(role, side.spec) for role in pool.roles}
    seats = len(side.agents)

    def together() -> PoolNet:
        return PoolNet(
            {role: network(role, side.spec) for role in pool.roles}, places=pool.places, seats=seats, openings=pool.openings
        )

    net = together()

    def learners(ranks: Collective) -> LeagueLearner:
        made = {role: learner(role, network(role, side.spec), ranks) for role in roles}
        lanes = {"num_lanes": c.batch_segments, "lanes_per_writer": c.num_env_groups}
        return LeagueLearner(pool, made, stream=MAIN, seats=seats, **lanes)

    on_cpu = task.why_on_cpu()
    carried = () if return_gamma is None else (REWARD,)
    stream = _stream(c, side, net, carried=carried, device="cpu" if on_cpu else c.device)
    experiment = Experiment(
        config=c,
        title=task.name,
        streams=(stream,),
        staleness={MAIN: c.lag_rule(stream.batch_segments, batch_steps=c.batch_steps)},
        actors=task.actors({MAIN: net}, gamma=return_gamma, on_cpu=on_cpu),
        look=task.about_worlds,
        inference=(
            InferenceStream(
                lambda: TorchInferencer(together(), device=c.device, merge=not c.deterministic),
                name=MAIN,
                num_workers=c.most_policy_workers,
                depth=max(4, c.num_env_groups),
                max_bytes=message_bytes(side.spec, net, num_rows=c.width * seats),
            ),
        ),
        trainers=(TrainerSpec(learners, (Phase({MAIN: stream.batch_segments}),)),),
        evaluation=_evaluation(c, task, pool, together),
        policy=lambda: task.policy(lambda: {MAIN: network(MAIN, side.spec)}),
        accelerator=c.accelerator,
    )
    return check_compiled(experiment)


def league_task(c: TeamConfig) -> TeamTask:
    """The environment of `c` for self-play: one policy plays every seat. Refuses agents that no policy could play alike."""
    try:
        task = TeamTask(c, routes=SELF_PLAY)
    except ConfigError as error:
        if (error.field, error.value) != ("teams", MAIN):
            raise
        fix = "self-play is for seats that one policy can play; train a policy for each kind of agent with ippo and --teams"
        raise ConfigError("env", c.env, f"{error.fix.partition(';')[0]}; {fix} (and run:FOLDER@best as an opponent)") from error
    if len(task.spec.agents) < 2:
        raise ConfigError("env", c.env, f"it has one agent ({next(iter(task.spec.agents))}), and self-play needs two; use ppo")
    return task


def _check(c: TeamConfig) -> None:
    """Refuse what a pool cannot do."""
    if c.placement.trainers > 1:
        raise ConfigError("placement.trainers", c.placement.trainers, "results of games are not shared by ranks yet; use 1")
    if c.most_actors > c.num_actors:
        fix = "an actor that leaves may be in an episode of a member whose place is needed; use 0"
        raise ConfigError("placement.max_actors", c.placement.max_actors, fix)


def _stream(c: TeamConfig, side: Side, net: PoolNet, *, carried: tuple[str, ...], device: str) -> StreamSpec:
    """A stream that also says who acted for each row, and what its episode had paid before the segment."""
    stream = trajectory_stream(
        side.spec,
        num_steps=c.num_steps,
        num_envs=c.width * len(side.agents),
        name=MAIN,
        state=net.state_spec,
        carried=carried,
        active=True,
        unit_rows=len(side.agents),
        batch_segments=c.batch_segments,
        capacity=c.batch_segments * (c.staleness.lag + 1),
        num_writers=c.most_actors,
        device=device,
    )
    return replace(stream, fields={**stream.fields, MEMBER: FieldSpec(("T", "B"), torch.int64), TASK_RETURN: FieldSpec(("B",))})


def _evaluation(c: TeamConfig, task: TeamTask, pool: PoolConfig, together: Callable[[], PoolNet]) -> EvaluationSpec | None:
    """The main policy against a random player and each member of the pool; None where `c.eval` says none."""
    episodes, seed = c.eval.episodes, make_seed(c.seed, "evaluation")
    if not episodes:
        return None
    seats = len(task.sides[MAIN].agents)
    # environment i plays with main in seat i modulo their number: of 16 environments and three seats, one would be played more
    num_envs = min(episodes, max(seats, EVAL_ENVS - EVAL_ENVS % seats))

    def make() -> LeagueEvaluation:
        net = together()
        return LeagueEvaluation(
            lambda: task.vector(num_envs, seed=seed, acting=True),
            episodes=episodes,
            seed=seed,
            roles=pool.roles,
            places=pool.places,
            noise_size=net.noise_size,
            state=net.state_spec,
            max_steps=c.eval.max_steps,
        )

    return EvaluationSpec(make, lambda: TorchInferencer(together(), greedy=True, device=c.device))
