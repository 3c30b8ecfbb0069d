"""The two graphs of classical agents: straight from actors to the learner, or by way of a replay buffer.

A recipe brings a task, a network and a learner; which workers there are and how they are connected is written once, here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from runnel.core.config import refuse_unused
from runnel.core.errors import ConfigError
from runnel.core.protocols import Collective, Learner, OneProcess
from runnel.core.spaces import ArraySpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.leaves import leaf_bytes
from runnel.data.replay import ReplayStore, replay_stream
from runnel.data.sequences import SequenceStore, sequence_stream
from runnel.envs.vector.memory import check_memory
from runnel.flow.staleness import LagPolicy, RatioPolicy
from runnel.flow.workers.trainer import Phase
from runnel.nets.inferencer import AgentNet, TorchInferencer
from runnel.run.env_config import EnvConfig, ReplayEnvConfig
from runnel.run.env_task import EnvTask
from runnel.run.experiment import BufferSpec, DiskNeed, Experiment, InferenceStream
from runnel.run.room import copies_at_once


def on_policy_graph(
    c: EnvConfig,
    task: EnvTask,
    *,
    network: Callable[[], AgentNet],
    learner: Callable[[Collective], Learner],
    batch_segments: int | None = None,
    return_gamma: float | None = None,
) -> Experiment:
    """Actors play and write `trajectories`; an update takes `batch_segments` of them (default: one round of all).

    A learner that scales rewards by their discounted return (`normalise_reward`) needs that return from one segment to the
    next: give its discount as `return_gamma`.
    """
    batch = batch_segments or c.batch_segments
    policy = c.lag_policy(batch, batch_steps=batch * c.num_envs // c.ring * c.num_steps)
    net = network()
    stream = trajectory_stream(
        task.spec,
        num_steps=c.num_steps,
        num_envs=c.num_envs // c.ring,
        state=net.state_spec,
        carried_return=return_gamma is not None,
        batch_segments=batch,
        capacity=max(batch * (policy.lag + 1), c.batch_segments),
        num_writers=c.most_actors,
        device=c.device,
    )
    _check_memory(c, task, num_segments=stream.capacity // c.batch_segments)
    experiment = Experiment(
        config=c,
        title=task.name,
        streams=(stream,),
        staleness={"trajectories": policy},
        actors=task.actors(c.num_envs, ring=c.ring, noise_size=net.noise_size, state=net.state_spec, gamma=return_gamma),
        inference=(_inference(c, task, net, network),),
        learner=learner,
        phases=(Phase({"trajectories": batch}),),
        evaluation=task.evaluation(network),
        policy=lambda: task.policy(network),
        accelerator=c.accelerator,
    )
    return _checked(experiment)


def replay_graph(
    c: ReplayEnvConfig,
    task: EnvTask,
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
    ratio = RatioPolicy(
        ratio=c.update_ratio,
        min_fill=c.min_fill,
        segment_steps=c.num_envs // c.ring * c.num_steps,
        lag=c.staleness.lag,
        exact=exact,
        turns=c.turns,
    )
    if c.total_steps:
        ratio = replace(ratio, num_segments=ratio.segments_for(c.total_steps))
    batches = LagPolicy(lag=c.staleness.lag, batch=1, exact=exact)
    net = network()  # refuses actions that are not for it, before a budget that no budget would mend
    if c.total_steps is not None and c.total_steps < c.min_fill:
        raise ConfigError("total_steps", c.total_steps, f"ends before the first update; use at least {c.min_fill}")
    experience = trajectory_stream(
        task.spec,
        num_steps=c.num_steps,
        num_envs=c.num_envs // c.ring,
        state=net.state_spec,
        logprob=False,
        capacity=2 * c.batch_segments,
        num_writers=c.most_actors,
        reader="buffer",
    )
    make_store: type[ReplayStore] | type[SequenceStore]
    if net.state_spec:
        make_store, replay = SequenceStore, sequence_stream(experience, batch_size=batch_size, capacity=batches.lag + 2)
    else:
        make_store, replay = ReplayStore, replay_stream(task.spec, batch_size=batch_size, capacity=batches.lag + 2)
    _check_memory(c, task, num_segments=2)
    length = {"total_steps": c.total_steps, "total_updates": c.total_updates}
    experiment = Experiment(
        config=c,
        title=task.name,
        streams=(experience, replay),
        staleness={"trajectories": ratio, "replay": batches},
        actors=task.actors(c.num_envs, ring=c.ring, noise_size=net.noise_size, state=net.state_spec, device="cpu"),
        inference=(_inference(c, task, net, network),),
        learner=learner,
        phases=(Phase({"replay": 1}),),
        buffer=BufferSpec(lambda: make_store(c.replay, task.spec, source=experience, gamma=gamma, **length), ratio),
        evaluation=task.evaluation(network),
        policy=lambda: task.policy(network),
        disk=lambda: DiskNeed(once=_replay_bytes(c, task) * min(c.checkpoint.copies, copies_at_once(c))),
        accelerator=c.accelerator,
    )
    return _checked(experiment)


def _checked(experiment: Experiment) -> Experiment:
    """Refuse kernels that were asked for (`compiled` on) and that do not serve what this run learns with, before anything is
    made; a device that is not here says so later."""
    c = experiment.config
    assert isinstance(c, EnvConfig)
    here = torch.device(c.device).type == "cpu" or torch.cuda.is_available()
    if c.compiled == "on" and here:
        made = experiment.accelerator.learner(experiment.learner(_Ranks(c.placement.trainers)))
        if not made.on:
            why = made.text.partition("because ")[2] or f"no kernels are for {type(made.learner).__name__}"
            refuse_unused(c, {"compiled": f"{why} (docs/speed.md)"})
    return experiment


class _Ranks(OneProcess):
    """The first of `world_size` ranks, for a learner that is only looked at."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size


def _replay_bytes(c: ReplayEnvConfig, task: EnvTask) -> int:
    """What the observations of a full replay memory take in a checkpoint; checkpoints share what has not changed."""
    steps = min(c.replay.capacity, c.total_steps or c.replay.capacity)
    rows = -(-steps // c.num_steps)
    return leaf_bytes(task.spec.obs, rows, c.num_steps + 1, compress=c.replay.compress_frames)


def _check_memory(c: EnvConfig, task: EnvTask, *, num_segments: int) -> None:
    """Refuse environments that do not fit, and say how many would; on an accelerator torch says so itself."""
    if c.device == "cpu":
        workers = c.vector.num_workers if c.vector.backend == "processes" else 0
        check_memory(
            task.spec, c.num_actors * c.num_envs, num_steps=c.num_steps, num_segments=num_segments, num_workers=workers
        )


def _inference(c: EnvConfig, task: EnvTask, net: AgentNet, network: Callable[[], AgentNet]) -> InferenceStream:
    """Who answers. Between processes a message holds the rows of one vector, and each group of a ring has one outstanding."""
    leaves = [*task.spec.obs.values(), *net.state_spec.values(), ArraySpec((net.noise_size + task.spec.action.mask_size + 64,))]
    row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return InferenceStream(
        lambda: TorchInferencer(network(), device=c.device, merge=not c.deterministic),
        num_workers=c.most_policy_workers,
        depth=max(4, c.ring),
        max_bytes=(1 << 14) + row_bytes * (c.num_envs // c.ring),
    )
