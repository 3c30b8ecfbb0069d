"""The two graphs of classical agents: straight from actors to the learner, or by way of a replay buffer.

A recipe brings a task, a network and a learner; which workers there are and how they are connected is written once, here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from runnel.core.contracts.learning import Collective, Learner
from runnel.core.contracts.tasks import Curriculum, TaskSource
from runnel.core.errors import ConfigError
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.trajectories import REWARD, trajectory_stream, weighted_reward
from runnel.envs.vector.memory import check_memory
from runnel.flow.workers.trainer import Phase
from runnel.graphs.compiling import check_compiled
from runnel.graphs.env_config import EnvConfig
from runnel.graphs.env_task import EnvTask
from runnel.graphs.experiment import Experiment, InferenceStream, TrainerSpec
from runnel.graphs.joint_config import JointConfig
from runnel.graphs.joint_task import JointTask
from runnel.nets.inferencer import AgentNet, TorchInferencer

ERRORS = "this recipe's learner does not tell how far its critic erred; use alp_gmm or uniform, or the recipe ppo"
"""What to do about a curriculum that reads these errors."""


def on_policy_graph(
    c: EnvConfig | JointConfig,
    task: EnvTask | JointTask,
    *,
    network: Callable[[], AgentNet],
    learner: Callable[[Collective], Learner],
    batch_segments: int | None = None,
    return_gamma: float | None = None,
    carried_costs: Collection[str] = (),
    scores_levels: bool = False,
) -> Experiment:
    """Actors play and write `trajectories`; an update takes `batch_segments` of them (default: one round of all).

    A learner that scales rewards by their discounted return (`normalise_reward`) needs that return from one segment to the
    next: give its discount as `return_gamma`. `carried_costs` are costs whose sums of episodes it needs in the same way.
    `scores_levels`: its batches have `value` and `return` of every step, by which prioritised level replay scores tasks.
    """
    batch = batch_segments or c.batch_segments
    policy = c.lag_rule(batch, batch_steps=batch * c.num_envs // c.num_env_groups * c.num_steps)
    net, learned = network(), learned_channels(c)
    curriculum = curriculum_of(c, task, without=() if scores_levels else ("plr",), fix=ERRORS)
    single: dict[str, Any] = {"tasks": curriculum and curriculum[0]} if isinstance(task, EnvTask) else {}
    discounts = {} if return_gamma is None else dict.fromkeys(learned or (REWARD,), return_gamma)
    discounts |= {f"costs/{name}": 1.0 for name in carried_costs}
    stream = trajectory_stream(
        task.spec,
        num_steps=c.num_steps,
        num_envs=c.num_envs // c.num_env_groups,
        state=net.state_spec,
        carried=discounts,
        tasks=curriculum is not None,
        batch_segments=batch,
        capacity=max(batch * (policy.lag + 1), c.batch_segments),
        num_writers=c.most_actors,
        device=c.device,
    )
    check_env_memory(c, task, num_segments=stream.capacity // c.batch_segments)
    experiment = Experiment(
        config=c,
        title=task.name,
        streams=(stream,),
        staleness={"trajectories": policy},
        actors=task.actors(
            c.num_envs,
            num_env_groups=c.num_env_groups,
            noise_size=net.noise_size,
            state=net.state_spec,
            carried=discounts,
            **single,
        ),
        inference=(env_inference(c, task, net, network),),
        trainers=(TrainerSpec(learner, (Phase({"trajectories": batch}),), view=weighted_reward(learned)),),
        evaluation=task.evaluation(network),
        curriculum=None if curriculum is None else curriculum[1],
        check_here=task.check_states if isinstance(task, EnvTask) else None,
        look=task.about_worlds if isinstance(task, JointTask) else list,
        policy=lambda: task.policy(network),
        accelerator=c.accelerator,
    )
    return check_compiled(experiment)


def curriculum_of(
    c: EnvConfig | JointConfig, task: EnvTask | JointTask, *, without: Collection[str], fix: str
) -> tuple[Callable[[], TaskSource], Callable[[], Curriculum]] | None:
    """What makes the source of tasks for actors, and their history for the trainer; None where nobody is told what to play, as
    in a team. The kinds `without` are refused."""
    if not (isinstance(c, EnvConfig) and isinstance(task, EnvTask)):
        return None
    if c.curriculum.kind in without:
        raise ConfigError("curriculum.kind", c.curriculum.kind, fix)
    return task.curriculum(c.curriculum)


def learned_channels(c: EnvConfig | JointConfig) -> dict[str, float]:
    """The channels that rewards are made of, with their weights; a team has one reward, which it says itself."""
    return c.channels.learned if isinstance(c, EnvConfig) else {}


def check_env_memory(c: EnvConfig | JointConfig, task: EnvTask | JointTask, *, num_segments: int) -> None:
    """Refuse environments that do not fit, and say how many would; on an accelerator torch says so itself."""
    if c.device == "cpu":
        workers = c.vector.num_workers if c.vector.backend == "processes" else 0
        check_memory(
            task.spec, c.num_actors * c.num_envs, num_steps=c.num_steps, num_segments=num_segments, num_workers=workers
        )


def env_inference(
    c: EnvConfig | JointConfig, task: EnvTask | JointTask, net: AgentNet, network: Callable[[], AgentNet]
) -> InferenceStream:
    """Who answers. Between processes a message holds the rows of one vector, and each group of a ring has one outstanding."""
    return InferenceStream(
        lambda: TorchInferencer(network(), device=c.device, merge=not c.deterministic),
        num_workers=c.most_policy_workers,
        depth=max(4, c.num_env_groups),
        max_bytes=message_bytes(task.spec, net, num_rows=c.num_envs // c.num_env_groups),
    )


def message_bytes(spec: EnvSpec, net: AgentNet, *, num_rows: int) -> int:
    """Bytes of a request or a reply of `num_rows` rows, at most."""
    leaves = [*spec.obs.values(), *net.state_spec.values(), ArraySpec((net.noise_size + spec.action.mask_size + 64,))]
    row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return (1 << 14) + row_bytes * num_rows
