"""The graph with a replay buffer: actors, buffer, learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec
from runnel.core.rng import make_rng
from runnel.core.trajectories import DECISIONS, trajectory_stream, weighted_reward
from runnel.data.leaves import leaf_bytes
from runnel.data.replay import ReplayStore, replay_stream
from runnel.data.sequences import SequenceStore, sequence_stream
from runnel.flow.staleness import LagRule, ReplayRatioRule
from runnel.flow.workers.buffer import ReplayBuffer
from runnel.flow.workers.trainer import Phase
from runnel.graphs.compiling import check_compiled
from runnel.graphs.env_config import ReplayEnvConfig
from runnel.graphs.env_task import EnvTask
from runnel.graphs.experiment import DiskNeed, Experiment, TrainerSpec, TransformSpec, copies_at_once
from runnel.graphs.joint_config import TeamReplayConfig
from runnel.graphs.joint_task import JointTask
from runnel.graphs.on_policy import check_env_memory, curriculum_of, env_inference, learned_channels
from runnel.nets.inferencer import AgentNet

IN_ORDER = "the trainer sees drawn batches, not the episodes in their order; use uniform or states, or an on-policy recipe"
"""What to do about curricula that read the episodes of training."""


def replay_graph(
    c: ReplayEnvConfig | TeamReplayConfig,
    task: EnvTask | JointTask,
    *,
    network: Callable[[], AgentNet],
    learner: Callable[[Collective], Learner],
    batch_size: int,
    gamma: float,
) -> Experiment:
    """Actors write `trajectories`, the buffer turns them into `replay` batches, the trainer answers with priorities.

    A batch is `batch_size` transitions; for a recurrent network it is `batch_size` rows of `num_steps` steps.
    """
    if c.min_fill < batch_size:
        raise ConfigError("min_fill", c.min_fill, f"must hold a batch; use at least {batch_size}")
    exact = c.staleness.mode != "window"
    ratio = ReplayRatioRule(
        ratio=c.update_ratio,
        min_fill=c.min_fill,
        segment_steps=c.num_envs // c.num_env_groups * c.num_steps,
        lag=c.staleness.lag,
        exact=exact,
        turns=c.turns,
    )
    if c.total_steps:
        ratio = replace(ratio, num_segments=ratio.segments_for(c.total_steps))
    batches = LagRule(lag=c.staleness.lag, batch=1, exact=exact)
    net = network()  # refuses actions that are not for it, before a budget that no budget would mend
    curriculum = curriculum_of(c, task, without=("plr", "alp_gmm"), fix=IN_ORDER)
    single: dict[str, Any] = {"device": "cpu", "tasks": curriculum and curriculum[0]} if isinstance(task, EnvTask) else {}
    if c.total_steps is not None and c.total_steps < c.min_fill:
        raise ConfigError("total_steps", c.total_steps, f"ends before the first update; use at least {c.min_fill}")
    experience = trajectory_stream(
        task.spec,
        num_steps=c.num_steps,
        num_envs=c.num_envs // c.num_env_groups,
        state=net.state_spec,
        logprob=False,
        tasks=curriculum is not None,
        capacity=2 * c.batch_segments,
        num_writers=c.most_actors,
        reader="buffer",
    )
    make_store: type[ReplayStore] | type[SequenceStore]
    if net.state_spec:
        make_store, replay = SequenceStore, sequence_stream(experience, batch_size=batch_size, capacity=batches.lag + 2)
    else:
        make_store, replay = ReplayStore, replay_stream(task.spec, batch_size=batch_size, capacity=batches.lag + 2)
    if isinstance(task, JointTask):
        replay = replace(replay, fields={**replay.fields, DECISIONS: FieldSpec(("B",), torch.int64)})
    check_env_memory(c, task, num_segments=2)

    def buffer(incarnation: int) -> ReplayBuffer:
        store = make_store(
            c.replay,
            task.spec,
            source=experience,
            gamma=gamma,
            total_steps=c.total_steps,
            total_updates=c.total_updates,
        )
        return ReplayBuffer(store=store, policy=ratio, rng=make_rng(c.seed, "buffer"))

    experiment = Experiment(
        config=c,
        title=task.name,
        streams=(experience, replay),
        staleness={"trajectories": ratio, "replay": batches},
        actors=task.actors(
            c.num_envs,
            num_env_groups=c.num_env_groups,
            noise_size=net.noise_size,
            state=net.state_spec,
            **single,
        ),
        inference=(env_inference(c, task, net, network),),
        trainers=(TrainerSpec(learner, (Phase({"replay": 1}),), view=weighted_reward(learned_channels(c))),),
        transforms=(TransformSpec("buffer", buffer, reads=("trajectories",), writes=("replay",), paces=True),),
        evaluation=task.evaluation(network),
        curriculum=None if curriculum is None else curriculum[1],
        check_here=task.check_states if isinstance(task, EnvTask) else None,
        look=task.about_worlds if isinstance(task, JointTask) else list,
        policy=lambda: task.policy(network),
        disk=lambda: DiskNeed(once=_replay_bytes(c, task) * min(c.checkpoint.copies, copies_at_once(c))),
        accelerator=c.accelerator,
    )
    return check_compiled(experiment) if isinstance(c, ReplayEnvConfig) else experiment


def _replay_bytes(c: ReplayEnvConfig | TeamReplayConfig, task: EnvTask | JointTask) -> int:
    """What the observations of a full replay memory take in a checkpoint; checkpoints share what has not changed."""
    steps = min(c.replay.capacity, c.total_steps or c.replay.capacity)
    rows = -(-steps // c.num_steps)
    return leaf_bytes(task.spec.obs, rows, c.num_steps + 1, compress=c.replay.compress_frames)
