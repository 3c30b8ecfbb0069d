"""Measures what the stages of a recipe cost on this machine, by running its workers for a few seconds in this process."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from runnel.core.clock import WallClock
from runnel.core.config import override
from runnel.core.contracts.inference import Inferencer, Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.flow.inference.inline import InlineClient
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import ChannelSubscriber, LocalChannel, load
from runnel.flow.workers.actor import ActorWorker
from runnel.graphs.env_config import EnvConfig
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import EvalConfig, RunConfig
from runnel.plan.costs import Costs, LinearCost
from runnel.run import registry
from runnel.run.group import ProcessGroup
from runnel.run.launchers.inproc import torch_threads
from runnel.run.ledger import Ledger
from runnel.run.timed_ends import KeepingReader, TimedClient
from runnel.run.wiring import place, wire
from runnel.track.folder import RunFolder
from runnel.track.sinks.config import SinksConfig

ENDLESS = 1_000_000_000
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of the inference batches that are timed."""
ECHO = "import os, select\nwhile select.select([0], [], []) and (b := os.read(0, 1)): os.write(1, b)"
PAUSE_S = 2e-3
"""Seconds between two timed messages. Like the processes of a run, this one then wakes from a sleep and finds cold caches."""


def measure(recipe: str, config: RunConfig, *, seconds: float = 2.0) -> Costs:
    """Run the recipe in this process: a warm-up of about `seconds`, the same time measured, then single parts one by one."""
    with torch_threads(config.placement.threads), tempfile.TemporaryDirectory(prefix="runnel-plan-") as out:
        return _Measurement(recipe, registry.build(recipe, plain(config)), RunFolder.create(out, "plan")).run(seconds)


def endless(config: RunConfig) -> RunConfig:
    """The config for a run without an end, evaluations, checkpoints and sinks."""
    config = replace(config, total_steps=None, total_updates=ENDLESS, total_tokens=None)
    config = replace(config, eval=EvalConfig(episodes=0), track=(), sinks=SinksConfig())
    if isinstance(config, EnvConfig) and config.curriculum.kind == "states":  # a part of a budget that there is not
        config = override(config, {"curriculum.until": 1.0})
    return override(config, {"checkpoint": {"every": 0}})


def plain(config: RunConfig) -> RunConfig:
    """`endless`, in one process."""
    alone = {"policy_workers": 0, "reference_workers": 0, "trainers": 1}
    return override(endless(config), {"launcher": "inproc", "placement": alone})


class _Measurement:
    def __init__(self, recipe: str, experiment: Experiment, folder: RunFolder) -> None:
        self.recipe, self.experiment = recipe, experiment
        self.group: ProcessGroup = wire(experiment, place(experiment), "main", clock=WallClock())
        self.ledger = Ledger(folder, WallClock(), log_every=experiment.config.log_every)
        self.actors = [w for w in self.group.workers if isinstance(w, ActorWorker)]
        self.clients: list[TimedClient] = []
        for actor in self.actors:  # `plain` asks for no policy workers, so all clients are inline
            timed = {name: TimedClient(cast(InlineClient, client)) for name, client in actor.clients.items()}
            actor.clients = timed
            self.clients += timed.values()
        trainer = self.group.trainer
        assert trainer is not None
        self.trainer = trainer
        self.readers = {
            name: KeepingReader(self.group.tables[r.spec.name], r.spec.readers[0]) for name, r in trainer.readers.items()
        }
        trainer.readers = self.readers
        self.spent = defaultdict[str, float](float)
        self.commits: list[tuple[float, int]] = []
        """Units so far, and version, whenever actors had committed more; where updates are paced by them."""

    def run(self, seconds: float) -> Costs:
        try:
            self.group.start()
            self._rounds(seconds)
            self._rounds(seconds, updates=3)
            return self._costs()
        finally:
            self.group.close()
            self.ledger.close()

    def _rounds(self, seconds: float, updates: int = 1) -> None:
        """Poll all workers in turn, and time each by wall and processor time. Earlier measurements are dropped."""
        self.spent.clear()
        self.group.stages()  # a call returns the times since the last one
        for client in self.clients:
            client.forget()
        units, version, start = self._units(), self.trainer.version, time.perf_counter()
        self.commits.clear()
        while time.perf_counter() - start < seconds or self.trainer.version - version < updates or self._wants_commits():
            for worker in self.group.workers:
                wall, cpu = time.perf_counter(), time.process_time()
                worker.poll()
                self._add(worker.kind, time.perf_counter() - wall, time.process_time() - cpu)
                self.group._note(worker)
                if self._paced and (now := self._units()) > (self.commits[-1][0] if self.commits else units):
                    self.commits.append((now, self.trainer.version))
            wall = time.perf_counter()
            for name, spent in self.group.stages().items():
                stage = name.partition("/")[2]
                self.spent[stage] += spent
            self.ledger.add(self.group.collect())
            self._add("ledger", time.perf_counter() - wall, 0.0)
        self.spent["updates"] = self.trainer.version - version
        self.spent["units"] = self._units() - units

    def _wants_commits(self) -> bool:
        """Whether the ratio of updates cannot be counted yet: it is, from one arrival of segments to another. At any other
        moment some updates are still owed, which tells in a sum of few."""
        return self._paced and len(self.commits) < 2

    def _update_ratio(self) -> float:
        (first, before), (last, after) = self.commits[0], self.commits[-1]
        return (after - before) / (last - first)

    @property
    def _paced(self) -> bool:
        return any(t.paces for t in self.experiment.transforms)

    def _add(self, kind: str, wall: float, cpu: float) -> None:
        self.spent[f"{kind}_s"] += wall
        self.spent[f"{kind}_cpu"] += cpu

    def _units(self) -> float:
        """Steps or tokens that actors have committed so far."""
        streams = {s for a in self.experiment.actors for s in a.writes}
        return sum(self.group.tables[s].accounting(0).steps for s in streams)

    # ----------------------------------------------------------------------------------------------------------- costs
    def _costs(self) -> Costs:
        e, spent, notes = self.experiment, self.spent, list[str]()
        updates, calls = spent["updates"], sum(c.calls for c in self.clients)
        tokens = bool(e.leader.token_streams)
        asked = sum(c.infer_s for c in self.clients)
        rows, num_steps, segments = self._shape(calls)
        steps = calls or spent["units"] / rows
        step_s = max(0.0, spent["actor_s"] - asked - sum(c.load_s for c in self.clients)) / steps
        step_cpu = max(0.0, spent["actor_cpu"] - sum(c.infer_cpu for c in self.clients)) / steps
        serve, exchange = self._serve(tokens, notes)
        infer_s = asked / calls if calls else 0.0
        if not tokens and calls:  # at least as slow as in the run, where each step of the environments leaves cold caches
            serve = LinearCost(max(serve.base, infer_s - serve.per_row * rows), serve.per_row)
        if tokens:  # scaled to the mean of the run, which includes prefill: the points are decode steps only
            scale = infer_s / max(serve(rows), 1e-9)
            serve = LinearCost(serve.base * scale, serve.per_row * scale)
        update_s = (spent["prepare"] + spent["update"]) / updates
        copy_s, load_s = self._versions()
        loads = sum(c.loads for c in self.clients)
        load_s = max(load_s, sum(c.load_s for c in self.clients) / loads if loads else 0.0)
        copied = copy_s if e.lag else 0.0
        params = self.trainer.learner.params()
        message_s, respond_s = mailbox_seconds(*exchange) if exchange else (0.0, 0.0)
        request_bytes, reply_bytes = map(num_bytes, exchange) if exchange else (0, 0)
        buffer = self._paced
        units = self._batch_units()
        return Costs(
            name=f"{self.recipe} on {e.title}",
            unit="tokens" if tokens else "steps",
            rows=rows,
            num_env_groups=1 if tokens else getattr(e.config, "num_env_groups", 1),
            num_steps=num_steps,
            step=LinearCost(0.0, step_s / rows),
            step_cpu=min(1.0, step_cpu / step_s) if step_s else 1.0,
            infer=LinearCost(max(0.0, infer_s - serve.per_row * rows), min(serve.per_row, infer_s / rows)),
            serve=serve,
            message_s=message_s,
            respond_s=respond_s,
            wake_s=wake_seconds(),
            update=LinearCost(update_s, 0.0) if buffer else self._update_line(units, update_s),
            update_cpu=max(0.1, spent["trainer_cpu"] / max(spent["trainer_s"], 1e-9)),
            publish_s=max(0.0, spent["publish"] / updates - copied),
            copy_s=copy_s,
            load_s=load_s,
            ledger_s=spent["ledger_s"] / updates,
            batch_segments=segments,
            update_ratio=self._update_ratio() if buffer else 0.0,
            update_units=units if buffer else 0.0,
            insert_s=spent["insert"] / (spent["units"] / (rows * num_steps)),
            select_s=spent["select"] / updates,
            segment_bytes=self._segment_bytes(),
            request_bytes=request_bytes,
            reply_bytes=reply_bytes,
            param_bytes=num_bytes(params),
            notes=tuple(notes),
        )

    def _shape(self, calls: int) -> tuple[float, float, int]:
        """Rows of a request, requests of a segment, segments of a batch."""
        e, spent = self.experiment, self.spent
        spec = e.stream(e.actors[-1].writes[0])
        if not e.leader.token_streams:
            return float(spec.num_rows), float(spec.sizes["T"]), spec.batch_segments
        players = [a for a in e.actors if a.asks and "rollouts" in a.writes] or list(e.actors)
        rows = spent["units"] / max(calls, 1)
        return rows, spent["units"] / spent["updates"] / len(players) / rows, len(players)

    def _serve(self, tokens: bool, notes: list[str]) -> tuple[LinearCost, tuple[Batch, Batch] | None]:
        """Seconds of an inference batch by rows; of a torch policy also a sample request with its reply."""
        if tokens:
            return LinearCost.fit([p for c in self.clients for p in c.points]), None
        sample = next((c.sample for c in self.clients if c.sample is not None), None)
        if sample is None:
            notes.append("environments ask a compiled policy row by row; inference apart from them was not measured")
            return LinearCost(0.0, 0.0), None
        inferencer = self.experiment.inference[0].make()
        inferencer.load_params(ParamSet(0, self.trainer.learner.params()))
        return infer_line(inferencer, sample)

    def _batch_units(self) -> float:
        """Steps or tokens of an update's batch."""
        reader = max(self.readers.values(), key=lambda r: r.takes)
        return reader.steps / max(reader.takes, 1)

    def _update_line(self, units: float, update_s: float) -> LinearCost:
        """Seconds of an update by steps or tokens.

        The second point of the line is the last batch with all of its segments twice. For a language model, the line begins at
        0.
        """
        if self.experiment.leader.token_streams:
            return LinearCost(0.0, update_s / units)
        learner, twice = self.trainer.learner, {name: [*r.batch, *r.batch] for name, r in self.readers.items()}
        spent = _median(lambda: learner.update(learner.prepare(twice, progress=0.5)), times=3)
        slope = max(0.0, min((spent - update_s) / units, update_s / units))
        return LinearCost(update_s - slope * units, slope)

    def _versions(self) -> tuple[float, float]:
        """Seconds to publish a copy of a version, and to load it."""
        params = dict(self.trainer.learner.params())
        channel, inferencer = LocalChannel("policy", shared=False, depth=2), self.experiment.inference[0].make()
        versions = iter(range(100))
        copy_s = _median(lambda: channel.publish(next(versions), params), times=5)
        found = ChannelSubscriber(channel).poll()
        assert found is not None
        return copy_s, _median(lambda: load(inferencer, found), times=5)

    def _segment_bytes(self) -> int:
        """Bytes of a segment as actors send it."""
        spec = self.experiment.stream(self.experiment.actors[-1].writes[0])
        return sum(math.prod(spec.shape(name)) * f.dtype.itemsize for name, f in spec.fields.items())


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    """The bytes of all tensors together."""
    return sum(x.nbytes for x in tensors.values())


def infer_line(inferencer: Inferencer, sample: Batch) -> tuple[LinearCost, tuple[Batch, Batch]]:
    """Seconds of inference by rows, called as by a policy worker; with a request and its reply."""
    points, replies = list[tuple[float, float]](), list[Reply]()

    def infer(rows: Batch) -> None:
        inferencer.submit([Request(0, rows, -1)])
        replies[:] = inferencer.step()

    for n in SIZES:
        rows = tiled(sample, n)
        points.append((float(n), _median(partial(infer, rows), times=15)))
    infer(sample)
    return LinearCost.fit(points), (sample, replies[0].rows)


def tiled(rows: Batch, num: int) -> Batch:
    """`num` rows, made by repeating the given ones."""
    return rows.map(lambda x: x[torch.arange(num) % x.shape[0]])


def mailbox_seconds(request: Batch, reply: Batch) -> tuple[float, float]:
    """Seconds that a request with its reply takes at the client's and at the server's end of a mailbox."""
    max_bytes = 2 * (num_bytes(request) + num_bytes(reply)) + (1 << 14)
    mailboxes = MailboxTable.local(InferenceSpec("plan", 1, 1, 4, max_bytes=max_bytes))
    client = MailboxClient(mailboxes, 0, ChannelSubscriber(LocalChannel("none", shared=True, depth=1)))
    server = MailboxServer(mailboxes, 0)
    at_client, at_server = list[float](), list[float]()
    for _ in range(30):
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        ticket = client.submit(request)
        middle = time.perf_counter()
        found = server.poll()
        server.reply([Reply(found[0].id, reply, 0)])
        late = time.perf_counter()
        client.poll()
        client.ready(ticket)
        at_client.append(middle - start + time.perf_counter() - late)
        at_server.append(late - middle)
    return sorted(at_client)[15], sorted(at_server)[15]


def wake_seconds() -> float:
    """Seconds until another process has read what this one writes to a pipe: half of a round trip."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        stdin, stdout = child.stdin, child.stdout
        assert stdin is not None
        assert stdout is not None

        def round_trip() -> None:
            stdin.write(b"x")
            stdout.read(1)

        spent = _median(round_trip, times=50, pause_s=PAUSE_S)
        stdin.close()
    return spent / 2


def _median(call: Callable[[], object], *, times: int, pause_s: float = 0.0) -> float:
    """The median of the seconds that `call` takes, after one call to warm up, with a pause before each call."""
    call()
    spent = []
    for _ in range(times):
        time.sleep(pause_s)
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return sorted(spent)[times // 2]
