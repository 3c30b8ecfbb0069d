"""The graph of teams: policies that act in the same environments, each with an inference stream, and learn in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from runnel.agents.team import TeamLearner
from runnel.core.contracts.evaluation import SampleRoute
from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.routes import Side
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import REWARD, own_steps, trajectory_stream
from runnel.flow.staleness import LagRule
from runnel.flow.workers.trainer import Phase
from runnel.graphs.compiling import check_compiled
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
    learner: Callable[[str, Net, Collective], Learner] | None = None,
    together: Callable[[Mapping[str, Net], Collective], Learner] | None = None,
    others: Mapping[str, Callable[[Collective], Learner]] | None = None,
    return_gamma: float | None = None,
    played: Callable[[str, EnvSpec], Net] | None = None,
    replies: Mapping[str, torch.dtype] | None = None,
    stays_on_cpu: str = "",
) -> Experiment:
    """Actors play with all policies and write a stream for each that is trained; an update takes one round of each stream.

    `network` makes the network of a policy, from its name and the spec of its agents; `learner` its learner on one rank, which
    reads the first stream of its route. `others` makes the learners of further streams that a route names, by stream. All of
    them are members of one `TeamLearner`, so that there is one line of versions. Instead of `learner`, `together` makes one
    learner of all policies, from their networks, whose update crosses them (`agents/joint.py`); it reads a stream of each
    policy's name. `return_gamma` is as in `on_policy_graph`.

    `played` makes the network as evaluations, `rl.load` and runs that name a stored policy use it, where that is another one
    with the same parameters. `replies` says what segments keep of a policy's replies, by step, in place of `logprob`.
    `stays_on_cpu` is why segments of this recipe are wanted in host memory, also where policies are on a GPU.
    """
    if (learner is None) == (together is None):
        raise ConfigError("learner", learner, "give either a learner for each policy or one that learns all together")
    finished = played or network

    def made(policy: str, spec: EnvSpec) -> Net:
        return (finished if task.sides[policy].route.stored else network)(policy, spec)

    nets, trained, beside = task.networks(made), task.trained, others or {}
    for policy, side in trained.items():
        _check_burn_in(side, nets[policy])
        if together is not None and (side.route.samples[0].num_steps != c.num_steps or side.route.samples[0].burn_in):
            fix = "policies that learn together have segments of one length, without burn-in; leave these options out"
            raise ConfigError("teams", policy, fix)
    on_cpu = task.why_on_cpu(stays_on_cpu)
    given: dict[str, Any] = {"carried": () if return_gamma is None else (REWARD,), "device": "cpu" if on_cpu else c.device}
    streams = tuple(
        _stream(c, side, sample, nets[policy], replies=replies, **given)
        for policy, side in trained.items()
        for sample in side.route.samples
    )
    if unknown := [name for name in beside if name not in {stream.name for stream in streams}]:
        there = ", ".join(stream.name for stream in streams)
        raise ConfigError("others", unknown[0], f"no route writes a stream of this name; the streams are {there}")

    def learners(ranks: Collective) -> Learner:
        if learner is None:
            assert together is not None
            return together({policy: network(policy, side.spec) for policy, side in trained.items()}, ranks)
        members = {policy: learner(policy, network(policy, side.spec), ranks) for policy, side in trained.items()}
        reads = {policy: (side.route.samples[0].stream,) for policy, side in trained.items()}
        return TeamLearner(members | {name: make(ranks) for name, make in beside.items()}, reads)

    read = {*(side.route.samples[0].stream for side in trained.values()), *beside}
    experiment = Experiment(
        config=c,
        title=task.name,
        streams=streams,
        staleness={stream.name: _lag_rule(c, stream, streams) for stream in streams},
        actors=task.actors(nets, gamma=return_gamma, on_cpu=on_cpu),
        look=lambda: task.about_worlds(stays_on_cpu),
        inference=tuple(_inference(c, task, policy, partial(task.network, policy, made)) for policy in task.sides),
        trainers=(TrainerSpec(learners, (Phase({s.name: s.batch_segments for s in streams if s.name in read}),)),),
        evaluation=task.evaluation(lambda: task.networks(finished)),
        policy=lambda: task.policy(lambda: task.networks(finished)),
        accelerator=c.accelerator,
    )
    return check_compiled(experiment)


def _stream(
    c: TeamConfig,
    side: Side,
    sample: SampleRoute,
    net: AgentNet,
    *,
    carried: Sequence[str],
    replies: Mapping[str, torch.dtype] | None,
    device: str,
) -> StreamSpec:
    """A stream of one policy. All streams have the same steps in an update, in more or fewer segments."""
    batch = c.batch_segments * (c.num_steps // sample.num_steps)
    stream = trajectory_stream(
        side.spec,
        num_steps=sample.num_steps,
        num_envs=c.width * len(side.agents),
        name=sample.stream,
        logprob=replies is None,
        state=net.state_spec,
        burn_in=sample.burn_in,
        carried=carried,
        active=True,
        unit_rows=len(side.agents),
        batch_segments=batch,
        capacity=batch * (c.staleness.lag + 1),
        num_writers=c.most_actors,
        device=device,
    )
    more = {name: FieldSpec(("T", "B"), dtype) for name, dtype in (replies or {}).items()}
    return replace(stream, fields={**stream.fields, **more})


def _lag_rule(c: TeamConfig, stream: StreamSpec, streams: Sequence[StreamSpec]) -> LagRule:
    """The staleness policy of one of the `streams`.

    In a window a long segment may be too old although the newest short ones of the same steps are not. The steps that replace
    it need a few short segments more than the run trains on. So there the longest segments alone, without which nobody plays,
    end with the run.
    """
    rule = c.lag_rule(stream.batch_segments, batch_steps=c.batch_steps)
    shorter = own_steps(stream) < max(map(own_steps, streams))
    return replace(rule, stop=None) if shorter and not rule.exact else rule


def _check_burn_in(side: Side, net: AgentNet) -> None:
    for sample in side.route.samples:
        if sample.burn_in and not net.state_spec:
            fix = "burn-in brings a recurrent state up to date, and this network has none; set net.core, or leave burn-in out"
            raise ConfigError("teams", f"{sample.stream}: burn-in {sample.burn_in}", fix)


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
        max_bytes=message_bytes(task.seen[policy].spec, make_net(), num_rows=c.width * len(side.agents)),
        params="" if side.route.stored else PARAMS,
    )
