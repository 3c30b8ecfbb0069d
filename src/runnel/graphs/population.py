"""The graph of a population: several networks and learners that share one actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.eval.population import PopulationEvaluation
from runnel.graphs.env_config import EnvConfig
from runnel.graphs.env_task import EnvTask
from runnel.graphs.experiment import EvaluationSpec, Experiment
from runnel.graphs.on_policy import on_policy_graph
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.population import Population


def population_graph(
    c: EnvConfig,
    task: EnvTask,
    *,
    members: int,
    network: Callable[[int | None], Population],
    learner: Callable[[Collective], Learner],
    chosen: int,
    return_gamma: float | None = None,
) -> Experiment:
    """As `on_policy_graph`, with `c.num_envs` environments for each of `members`, evaluated apart.

    `network(None)` is all members side by side; `network(chosen)` the one that `rl.load` gives.
    """
    for name, value in (("num_actors", c.num_actors), ("num_env_groups", c.num_env_groups)):
        if value != 1:
            raise ConfigError(name, value, "a population plays in one actor with one group of environments; use 1")
    if c.placement.trainers != 1:
        raise ConfigError("placement.trainers", c.placement.trainers, "the members of a population learn in one trainer; use 1")
    if c.placement.policy_workers:
        raise ConfigError("placement.policy_workers", c.placement.policy_workers, "a population acts beside its actor; use 0")
    if c.curriculum.kind != "off":
        fix = "members learn apart, so they would need a history each; use off"
        raise ConfigError("curriculum.kind", c.curriculum.kind, fix)
    if c.net.core != "none":
        raise ConfigError("net.core", c.net.core, "a population has no recurrent members; use none")
    wide = replace(c, num_envs=members * c.num_envs)
    graph = on_policy_graph(wide, task, network=lambda: network(None), learner=learner, return_gamma=return_gamma)
    return replace(
        graph,
        config=c,
        evaluation=_evaluation(c, task, members, network),
        policy=lambda: task.policy(lambda: network(chosen)),
    )


def _evaluation(
    c: EnvConfig, task: EnvTask, members: int, network: Callable[[int | None], Population]
) -> EvaluationSpec | None:
    episodes, seed = c.eval.episodes, make_seed(c.seed, "evaluation")
    if not episodes:
        return None
    return EvaluationSpec(
        make=lambda: PopulationEvaluation(
            lambda num: task.vector(num, seed=seed, evaluation=True),
            members=members,
            episodes=episodes,
            most_envs=max(1, task.most_eval_envs // members),
            seed=seed,
            max_steps=c.eval.max_steps,
        ),
        inferencer=lambda: TorchInferencer(network(None), greedy=True, device=c.device),
    )
