"""The one function that assembles a run: workers, streams and channels of one process group.

An edge inside a group is `inproc`; an edge between groups is `shm`. `wire` is called once per process, with the same
experiment and the same placement, and builds only what lives there.
"""

from __future__ import annotations

import fnmatch
import os
from contextlib import ExitStack
from functools import partial
from typing import Literal, Protocol, cast

import torch

from runnel.core.clock import Clock
from runnel.core.contracts.evaluation import Progress
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.learning import SingleProcess
from runnel.core.contracts.params import SharedPublisher
from runnel.core.contracts.samples import RankReader, SampleReader, SampleWriter, SharedReader
from runnel.core.errors import ConfigError
from runnel.core.records import StreamSpec
from runnel.core.routes import STORED
from runnel.core.trace import TraceTrack, TraceWriter
from runnel.core.trajectories import ACTIVE
from runnel.core.worker import Worker
from runnel.flow.collective import TorchCollective
from runnel.flow.inference.inline import InlineClient
from runnel.flow.inference.mailboxes import InferenceServer, InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.lossy import make_reader
from runnel.flow.params import Channel, ChannelSubscriber, FixedChannel, NoChannel
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import AdmissionRule
from runnel.flow.traced import TracedPublisher, TracedReader, TracedSubscriber, TracedWriter
from runnel.flow.transports.inproc import InprocTransport
from runnel.flow.transports.shm import ShmTransport
from runnel.flow.workers.actor import ActorWorker, SavedClient
from runnel.flow.workers.evaluator import EvaluatorWorker, Keep
from runnel.flow.workers.policy import PolicyWorker
from runnel.flow.workers.ranks import FollowingTrainer, LeadingTrainer
from runnel.flow.workers.trainer import TrainerWorker
from runnel.flow.workers.transform import TransformWorker
from runnel.graphs.experiment import TASKS, ActorSpec, Experiment, InferenceStream, TrainerSpec, TransformSpec
from runnel.graphs.run_config import RunConfig
from runnel.nets.inferencer import TorchInferencer
from runnel.run.group import ProcessGroup
from runnel.run.live_settings import live_owners
from runnel.run.stored import partner_params


class Outer(Protocol):
    """The transport of edges that leave a group: shared memory, or a cluster."""

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        """The table of a stream, for those who read it."""
        ...

    def rank_reader(self, spec: StreamSpec, policy: AdmissionRule, rank: int, ranks: int) -> RankReader:
        """What a rank that follows sees of a stream that the trainer reads."""
        ...

    @property
    def meet_at(self) -> str:
        """The address of this machine at which its ranks meet others: the loopback, unless others are elsewhere."""
        ...

    def writer(self, spec: StreamSpec, policy: AdmissionRule, index: int) -> SampleWriter: ...

    def client(self, spec: InferenceSpec, index: int, subscriber: ChannelSubscriber, *, first: int = 0) -> SavedClient:
        """Tickets count up from `first`."""
        ...

    def server(self, spec: InferenceSpec, index: int) -> InferenceServer: ...

    def params(self, name: str, *, depth: int) -> Channel: ...

    def wait(self, timeout_s: float, *also: int) -> bool:
        """Wait until new data may be there, a descriptor in `also` can be read, or the time has passed."""
        ...

    def catch_up(self) -> None:
        """Wait until everything published so far has arrived here (before a checkpoint is restored)."""
        ...

    def flush(self) -> None:
        """Wait until everything written so far has arrived (before a checkpoint)."""
        ...


def place(experiment: Experiment) -> dict[str, list[str]]:
    """Process groups by name, from the launcher and the placement."""
    names, config, main = experiment.worker_names(), experiment.config, experiment.leader.name
    if config.launcher == "inproc":
        return {"main": names}
    groups: dict[str, list[str]] = {}
    left = list(names)
    for patterns in config.placement.groups:
        members = [n for n in left if any(fnmatch.fnmatch(n, p) for p in patterns.split())]
        if not members:
            raise ConfigError("placement.groups", patterns, f"matches no worker; the workers are {', '.join(names)}")
        groups[main if main in members else members[0]] = members
        left = [n for n in left if n not in members]
    alone = {a.name for a in experiment.actors} | {f"{s.name}-{i}" for s in experiment.inference for i in range(s.num_workers)}
    alone |= set(experiment.trainer_names()) - {main}
    # On a cluster the readers of a stream are on one node, so a transform stays with the trainer there.
    alone |= {t.name for t in experiment.transforms if not t.paces and config.launcher != "ray"}
    for name in left:
        groups.setdefault(name if name in alone else main, []).append(name)
    for members in groups.values():
        for trainer in experiment.trainers:
            if len(ranks := [n for n in experiment.ranks_of(trainer) if n in members]) > 1:
                raise ConfigError("placement.groups", config.placement.groups, f"{' and '.join(ranks)} need a process each")
    return {g: sorted(members, key=names.index) for g, members in groups.items()}


class Edges:
    """The streams, channels and mailbox tables that cross process groups under one placement."""

    def __init__(self, experiment: Experiment, groups: dict[str, list[str]]) -> None:
        group_of = {worker: g for g, workers in groups.items() for worker in workers}
        self.streams = {
            s.name: s
            for s in experiment.streams
            if len({group_of[w] for w in (*experiment.writers_of(s.name), *experiment.readers_of(s.name))}) > 1
        }
        self.channels = experiment.channels if len(groups) > 1 else []
        self.mailbox_tables = {}
        for stream in experiment.inference:
            workers = [f"{stream.name}-{i}" for i in range(stream.num_workers)]
            askers = experiment.askers_of(stream.name)
            if len({group_of[w] for w in (*workers, *askers)}) > 1 and workers:
                self.mailbox_tables[stream.name] = board_spec(experiment, stream)

    def allocate(self) -> dict[str, int]:
        """Allocate shared memory for the edges that cross. Returns file descriptors by name."""
        return ShmTransport.allocate(self.streams, self.channels, self.mailbox_tables)


def board_spec(experiment: Experiment, stream: InferenceStream) -> InferenceSpec:
    """The mailboxes of an inference stream."""
    clients = len(experiment.askers_of(stream.name))
    fixed = experiment.config.turns
    return InferenceSpec(stream.name, clients, stream.num_workers, stream.depth, stream.max_bytes, fixed)


def wire(
    experiment: Experiment,
    groups: dict[str, list[str]],
    group: str,
    *,
    clock: Clock,
    outer: Outer | None = None,
    progress: Progress | None = None,
    incarnation: int = 0,
    recorder: TraceWriter | None = None,
    keep: Keep | None = None,
) -> ProcessGroup:
    """Build the workers of `group` and their ends of the streams. With a `recorder` they trace what they do.
    `keep` gets the parameters after an evaluation."""
    return _Wiring(experiment, groups, group, clock, outer, progress, incarnation, recorder, keep).build()


class _Wiring:
    def __init__(
        self,
        experiment: Experiment,
        groups: dict[str, list[str]],
        group: str,
        clock: Clock,
        outer: Outer | None,
        progress: Progress | None,
        incarnation: int,
        recorder: TraceWriter | None,
        keep: Keep | None,
    ) -> None:
        self.recorder, self._keep = recorder, keep if experiment.config.checkpoint.best else None
        self._track: TraceTrack | None = None
        """The track on which the worker that is being built records its trace."""
        self.experiment, self.groups, self.group, self.clock = experiment, groups, group, clock
        self.edges, self.outer, self.inproc = Edges(experiment, groups), outer, InprocTransport()
        self.progress, self.incarnation = progress, incarnation
        self._tables: dict[str, SlotTable] = {}
        self._mailbox_tables: dict[str, MailboxTable] = {}
        self._channels: dict[str, Channel] = {}

    def build(self) -> ProcessGroup:
        workers = self._workers()
        mine = set(self.groups[self.group])
        owned = {s.name: self._table(s.name) for s in self.experiment.streams if self.experiment.reader_of(s.name) in mine}
        channels = {name: self._params(name) for name in self.experiment.channels if self.experiment.publisher_of(name) in mine}
        writers = {s.name: self.experiment.writers_of(s.name) for s in self.experiment.streams}
        return ProcessGroup(self.group, workers, owned, channels, writers, self.recorder)

    def _workers(self) -> list[Worker]:
        """Build the workers of this group. If one cannot be built, those before it are closed."""
        workers: list[Worker] = []
        with ExitStack() as stack:
            for name in self.groups[self.group]:
                self._track = None if self.recorder is None else self.recorder.track(name)
                # the worker joins the stack before the next one is built: if that fails, this one is closed
                workers.append(worker := self._worker(name))
                worker.timer.track = self._track
                stack.callback(worker.close)
            stack.pop_all()
        return workers

    def _worker(self, name: str) -> Worker:
        e = self.experiment
        for actor in e.actors:
            if actor.name == name:
                return self._actor(actor)
        for transform in e.transforms:
            if transform.name == name:
                return self._transform(transform)
        for trainer in e.trainers:
            if name in e.ranks_of(trainer):
                return self._trainer(trainer, e.ranks_of(trainer).index(name))
        if name == "evaluator":
            return self._evaluator()
        stream_name, _, index = name.rpartition("-")
        return self._policy(next(s for s in e.inference if s.name == stream_name), int(index))

    def _actor(self, spec: ActorSpec) -> ActorWorker:
        clients, writers = self._clients(spec), {s: self._writer(s, spec.name) for s in spec.writes}
        return ActorWorker(spec.name, self.clock, sampler=spec.make(self.incarnation), clients=clients, writers=writers)

    def _transform(self, spec: TransformSpec) -> TransformWorker:
        return TransformWorker(
            spec.name,
            self.clock,
            transform=spec.make(self.incarnation),
            readers={stream: self._reader(stream, spec.name) for stream in spec.reads},
            clients=self._clients(spec),
            writers={stream: self._writer(stream, spec.name) for stream in spec.writes},
        )

    def _clients(self, spec: ActorSpec | TransformSpec) -> dict[str, SavedClient]:
        """The clients of the inference streams that an actor or a transform asks: served inline, or by workers."""
        clients: dict[str, SavedClient] = {}
        for stream in self.experiment.inference:
            if stream.name not in spec.asks:
                continue
            if stream.num_workers:
                clients[stream.name] = self._client(stream, spec.name)
            else:
                clients[stream.name] = self._inline(self._fast(stream.make()), stream.params)
        return clients

    def _policy(self, stream: InferenceStream, index: int) -> PolicyWorker:
        name = f"{stream.name}-{index}"
        server, subscriber = self._server(stream, index), self._subscriber(stream.params)
        return PolicyWorker(name, self.clock, server=server, inferencer=self._fast(stream.make()), subscriber=subscriber)

    def _trainer(self, spec: TrainerSpec, rank: int) -> Worker:
        e, num_ranks = self.experiment, len(self.experiment.ranks_of(spec))
        collective = rank_collective(e.config, rank, num_ranks, self._outer().meet_at) if num_ranks > 1 else None
        idle_rows = any(ACTIVE in e.stream(name).fields for name in spec.reads)
        live = live_owners(e.config)
        made = e.accelerator.learner(spec.learner(SingleProcess() if collective is None else collective), idle_rows=idle_rows)
        learner, leads = made.learner, spec is e.leader
        if rank:
            assert collective is not None, "a rank that follows has others beside it"
            ends = {name: self._outer().rank_reader(e.stream(name), e.staleness[name], rank, num_ranks) for name in spec.reads}
            here = all(isinstance(end, TableReader) for end in ends.values())
            return FollowingTrainer(
                f"{spec.name}-{rank}",
                self.clock,
                learner=learner,
                readers=ends,
                collective=collective,
                # several ranks are processes, so the channel is shared memory
                publisher=cast(SharedPublisher, self._params(spec.channel)),
                phases=spec.phases,
                budget=e.budget_of(spec),
                token_streams=spec.token_streams,
                view=spec.view,
                here=here,
                leads=leads,
                live=live,
            )
        readers = {name: self._shared_reader(name) for name in spec.reads}
        kind = TrainerWorker if collective is None else partial(LeadingTrainer, collective=collective)
        trainer: TrainerWorker = kind(
            spec.name,
            self.clock,
            learner=learner,
            readers=readers,
            publisher=self._publisher(spec.channel),
            phases=spec.phases,
            budget=e.budget_of(spec),
            token_streams=spec.token_streams,
            view=spec.view,
            frozen={name: self._publisher(name) for name in e.frozen_channels} if leads else None,
            loads={name: self._subscriber(name) for name in spec.loads},
            curriculum=e.curriculum() if leads and e.curriculum is not None else None,
            tasks=self._publisher(TASKS) if leads and e.curriculum is not None else None,
            leads=leads,
            live=live,
        )
        if made.text:
            trainer.emit({"kind": "event", "text": made.text})
        return trainer

    def _evaluator(self) -> EvaluatorWorker:
        spec = self.experiment.evaluation
        assert spec is not None
        client = self._inline(self._fast(spec.inferencer()), self.experiment.leader.channel)
        config = self.experiment.config
        recorder = spec.recorder() if config.record.videos and spec.recorder is not None else None
        return EvaluatorWorker(
            "evaluator",
            self.clock,
            evaluation=spec.make(),
            client=client,
            others={name: self._inline(self._fast(make()), channel) for name, (make, channel) in spec.others.items()},
            every=config.eval.every,
            progress=self.progress,
            recorder=recorder,
            record_every=config.record.every,
            keep=self._keep,
        )

    def _fast(self, inferencer: Inferencer) -> Inferencer:
        """The inferencer, with a kernel in place of its network's `act` where one serves."""
        if isinstance(inferencer, TorchInferencer):
            inferencer.acts = self.experiment.accelerator.acts(inferencer.net)
        return inferencer

    def _inline(self, inferencer: Inferencer, channel: str) -> InlineClient:
        return InlineClient(inferencer, self._subscriber(channel))

    def _table(self, name: str) -> SlotTable:
        if name not in self._tables:
            spec, policy = self.experiment.stream(name), self.experiment.staleness[name]
            crosses = name in self.edges.streams
            self._tables[name] = self._outer().samples(spec, policy) if crosses else self.inproc.samples(spec, policy)
        return self._tables[name]

    def _writer(self, stream: str, worker: str) -> SampleWriter:
        index = self.experiment.writers_of(stream).index(worker)
        writer: SampleWriter
        if stream in self.edges.streams:
            writer = self._outer().writer(self.experiment.stream(stream), self.experiment.staleness[stream], index)
        else:
            writer = TableWriter(self._table(stream), index)
        return writer if self._track is None else cast(SampleWriter, TracedWriter(writer, self._track))

    def _reader(self, stream: str, reader: str) -> SampleReader:
        end = make_reader(self._table(stream), reader)
        return end if self._track is None else cast(SampleReader, TracedReader(end, self._track))

    def _shared_reader(self, stream: str) -> SharedReader:
        """The end of the pacing reader, which can share what it takes with other ranks."""
        return cast(SharedReader, self._reader(stream, self.experiment.reader_of(stream)))

    def _client(self, stream: InferenceStream, worker: str) -> SavedClient:
        index, spec = self.experiment.askers_of(stream.name).index(worker), self._spec(stream)
        # a restarted actor numbers its requests from another range, so that no late reply matches a new request
        first, subscriber = self.incarnation << 32, self._subscriber(stream.params)
        if stream.name in self.edges.mailbox_tables:
            return self._outer().client(spec, index, subscriber, first=first)
        return MailboxClient(self._mailboxes(stream), index, subscriber, first=first)

    def _server(self, stream: InferenceStream, index: int) -> InferenceServer:
        crosses = stream.name in self.edges.mailbox_tables
        return self._outer().server(self._spec(stream), index) if crosses else MailboxServer(self._mailboxes(stream), index)

    def _spec(self, stream: InferenceStream) -> InferenceSpec:
        return board_spec(self.experiment, stream)

    def _mailboxes(self, stream: InferenceStream) -> MailboxTable:
        """Of a stream whose both ends are in this group."""
        if stream.name not in self._mailbox_tables:
            self._mailbox_tables[stream.name] = MailboxTable.local(self._spec(stream))
        return self._mailbox_tables[stream.name]

    def _params(self, name: str) -> Channel:
        """The leading learner's own tensors are shared only in one process and synchronously; else versions are copied."""
        if name not in self._channels:
            depth = self.experiment.channel_depth
            shared = self.experiment.lag == 0 and name == self.experiment.leader.channel
            if name in self.edges.channels:
                self._channels[name] = self._outer().params(name, depth=depth)
            else:
                self._channels[name] = self.inproc.params(name, depth=depth, shared=shared)
        return self._channels[name]

    def _publisher(self, name: str) -> Channel:
        channel = self._params(name)
        return channel if self._track is None else cast(Channel, TracedPublisher(channel, self._track))

    def _subscriber(self, channel: str) -> ChannelSubscriber:
        e = self.experiment
        history = self._params(TASKS) if channel == e.leader.channel and e.curriculum is not None else None
        if channel.startswith(STORED):
            end = ChannelSubscriber(FixedChannel(partner_params(channel)))
        else:
            end = ChannelSubscriber(self._params(channel) if channel else NoChannel(), history)
        return end if self._track is None else cast(ChannelSubscriber, TracedSubscriber(end, self._track, channel))

    def _outer(self) -> Outer:
        assert self.outer is not None, "an edge crosses groups, but this process was given no transport"
        return self.outer


def rank_collective(config: RunConfig, rank: int, ranks: int, host: str) -> TorchCollective:
    """The collective of one rank, which is to be found at `host`. `device` cuda gives each rank a GPU of its own; else ranks
    meet through the host."""
    own = config.device == "cuda"
    if own:
        if not torch.cuda.device_count():
            raise ConfigError(
                "device", config.device, f"rank {rank} sees no GPU on its node; give `trainer*` one in cluster.place"
            )
        torch.cuda.set_device(rank % torch.cuda.device_count())  # a cluster shows each process its own GPU alone
    timeout_s = 1.5 * config.placement.stage_timeout_s
    backend: Literal["gloo", "nccl"] = "nccl" if own else "gloo"
    return TorchCollective(rank, ranks, host=host, backend=backend, timeout_s=timeout_s)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
