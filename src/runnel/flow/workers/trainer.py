"""The trainer worker: takes batches, lets the learner update, and publishes the new version."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from runnel.core.checks import name_of, short
from runnel.core.clock import Clock
from runnel.core.contracts.learning import HasReference, HasWeightCheck, Learner, LoadsParams, TakesParts, Update
from runnel.core.contracts.params import ParamPublisher
from runnel.core.contracts.samples import SharedReader
from runnel.core.contracts.tasks import Curriculum, TakesTasks
from runnel.core.errors import CheckpointError, DataError, NonFiniteError
from runnel.core.records import Batch, Segment, SegmentView
from runnel.core.state import State, WorkerEvent
from runnel.core.trajectories import OF_TEAMS, decisions_in
from runnel.core.weight_check import pack
from runnel.core.worker import Worker
from runnel.flow.params import ChannelSubscriber
from runnel.flow.workers.settings import SettingChanges


@dataclass(frozen=True)
class Phase:
    """What a batch is until version `until` (None: to the end): the number of segments from each named reader."""

    segments: Mapping[str, int]
    until: int | None = None


@dataclass(frozen=True)
class Budget:
    """When training ends: at the first limit that is reached."""

    total_steps: int | None = None
    total_updates: int | None = None
    total_tokens: int | None = None

    def progress(self, *, steps: int, updates: int, tokens: int) -> float:
        """Fraction of the budget that is spent, in [0, 1]."""
        pairs = ((steps, self.total_steps), (updates, self.total_updates), (tokens, self.total_tokens))
        return min(1.0, max([n / total for n, total in pairs if total], default=0.0))


Arrival = Mapping[str, Any]
"""New `tasks` as plain data, and the `version` whose history is the first to have them."""
Taken = Mapping[str, Sequence[Segment]]
"""The segments of a batch, by reader."""


def phase_at(phases: Sequence[Phase], version: int) -> Phase:
    """The phase in which the learner is at `version`."""
    return next(p for p in phases if p.until is None or version < p.until)


def seen(segments: Taken, view: SegmentView | None) -> Taken:
    """The segments as their learner sees them."""
    return segments if view is None else {name: [view(s) for s in group] for name, group in segments.items()}


def count_steps(segments: Taken, token_streams: Collection[str]) -> tuple[int, int]:
    """Environment steps and tokens in a batch."""
    num = {name: sum(s.header.num_steps for s in group) for name, group in segments.items()}
    tokens = sum(n for name, n in num.items() if name in token_streams)
    return sum(num.values()) - tokens, tokens


def count_decisions(segments: Taken) -> int | None:
    """The steps of agents that decided, in all segments of teams; None where no segment is of a team."""
    of_teams = [s for group in segments.values() for s in group if not OF_TEAMS.isdisjoint(s.arrays)]
    found = [num for s in of_teams if (num := decisions_in(s.spec, s.arrays)) is not None]
    return sum(found) if found else None


class TrainerWorker(Worker):
    """Consumes segments of its readers and parameters of other trainers (`loads`), produces parameter versions and frozen
    copies (`frozen`: a publisher for each). A `curriculum` sees every batch; its history is published (`tasks`) beside each
    version.

    The trainer that `leads` makes the versions of the run; the others train beside it.

    One poll is one update, so no update is in progress between two polls. A learner that takes parts (`TakesParts`) has them
    one by one, in the order of the stream; a poll is then one segment. Settings of the learner change between two batches
    (`changes`). A checkpoint between two polls says which segments of an
    unfinished batch the learner has had; after a restore it gets these again, before anything else.

    The trainer waits for segments from the actors or from a transform.
    """

    kind = "trainer"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        learner: Learner,
        readers: Mapping[str, SharedReader],
        publisher: ParamPublisher,
        phases: Sequence[Phase],
        budget: Budget,
        token_streams: Sequence[str] = (),
        view: SegmentView | None = None,
        frozen: Mapping[str, ParamPublisher] | None = None,
        loads: Mapping[str, ChannelSubscriber] | None = None,
        curriculum: Curriculum | None = None,
        tasks: ParamPublisher | None = None,
        leads: bool = True,
        live: Mapping[str, type] | None = None,
    ) -> None:
        super().__init__(name, clock)
        self.curriculum, self._tasks = curriculum, tasks
        self.leads, self._loads = leads, dict(loads or {})
        self.changes = SettingChanges(learner, live or {})
        self._arrivals: list[Arrival] = []
        """New tasks that wait for their version."""
        self.learner, self.readers, self.publisher = learner, readers, publisher
        self._frozen, self._fixed = dict(frozen or {}), dict[str, int]()
        self.phases, self.budget, self._token_streams = phases, budget, token_streams
        self._view = view
        self.version = 0
        self.steps = 0
        self.tokens = 0
        self.agent_steps = 0
        """Decisions of agents, where a step of an environment has several or none; 0 where it has one."""
        self._waiting = ""
        self._batch = Batch()
        """What the learner made of all segments of the batch in progress."""
        self._parts: list[tuple[str, Segment]] = []
        """What the learner has had of the batch in progress: stream and segment. Only of a learner that takes parts."""
        self._parts_again: list[tuple[str, int]] = []
        """After a restore: streams and sample ids of those segments."""
        self._odd: set[str] = set()
        """Metrics with a warning already that they are not finite."""

    @property
    def progress(self) -> float:
        return self.budget.progress(steps=self.steps, updates=self.version, tokens=self.tokens)

    @property
    def channel(self) -> str:
        """The name of the parameter channel that it publishes."""
        return self.publisher.name

    @property
    def trainer(self) -> str:
        """The name of the trainer that it is a rank of."""
        return self.name

    @property
    def next_version(self) -> int:
        """The first version whose update can use a changed setting: not one of which parts were trained on already."""
        return self.version + bool(self._parts)

    @property
    def finished(self) -> bool:
        return self.progress >= 1.0

    def add_tasks(self, arrivals: Sequence[Arrival]) -> None:
        """Publish new tasks, each from its version on."""
        self._arrivals += arrivals

    def setup(self) -> None:
        check_learner(self.learner)
        if self._loads and not isinstance(self.learner, LoadsParams):
            who, names = name_of(self.learner), ", ".join(self._loads)
            raise DataError(
                f"learner {who} has no load_params(channel, params), but its trainer loads {names}; see LoadsParams"
            )
        self._fixed.clear()
        self._publish()
        for reader in self.readers.values():
            reader.advance(self.version)
        self._take_parts_again()

    def _take_parts_again(self) -> None:
        """Give the learner the segments of an unfinished batch that a checkpoint names."""
        again, self._parts_again = self._parts_again, []
        if again:
            self._change_settings()
        if again and isinstance(self.learner, TakesParts):  # what it had loaded of other trainers is in its own state
            held = {(name, s.header.sample_id): s for name, reader in self.readers.items() for s in reader.taken()}
            for name, sample_id in again:
                self._add_part(self.learner, name, held[name, sample_id])

    def poll(self) -> int:
        if self.finished:
            self._waiting = "nothing: the budget is spent"
            return 0
        wanted = self._phase().segments
        if isinstance(self.learner, TakesParts) and self.learner.takes_parts:
            return self._poll_part(self.learner, wanted)
        # Take nothing before all readers have enough: between two polls the trainer must not hold a part of a batch. All of
        # them are asked, because that also drops what is too old: were it left on one stream, a writer of several streams
        # would find room on the others alone, and wait for this one for ever.
        found = {name: self.readers[name].available() for name in wanted}
        if (short := next((name for name, num in wanted.items() if found[name] < num), None)) is not None:
            self._waiting = f"{wanted[short]} segments on stream {self.readers[short].spec.name!r}"
            return 0
        if missing := self._load():
            self._waiting = f"the first parameters of channel {missing!r}"
            return 0
        self._change_settings()
        segments = self._take(wanted)
        lags = self._lags(segments)
        self._batch = Batch()
        self._update(segments, self._train(segments), lags)
        return 1

    def _poll_part(self, learner: TakesParts, wanted: Mapping[str, int]) -> int:
        """Give the learner the next segment of the batch; after the last one it takes its step."""
        had = Counter(name for name, _ in self._parts)
        missing_on = [name for name, num in wanted.items() if had[name] < num]
        name = next((name for name in missing_on if self.readers[name].available()), None)
        if name is None:
            self._waiting = f"one more segment of a batch on stream {self.readers[missing_on[0]].spec.name!r}"
            return 0
        if not self._parts and (missing := self._load()):
            self._waiting = f"the first parameters of channel {missing!r}"
            return 0
        if not self._parts:
            self._change_settings()
        (segment,) = self.readers[name].take(1)
        self._add_part(learner, name, segment)
        if len(self._parts) < sum(wanted.values()):
            return 1
        whole = {name: [s for stream, s in self._parts if stream == name] for name in wanted}
        lags = self._lags(whole)
        with self.timer.stage("update"):
            update = learner.finish_parts()
        self._parts = []
        self._update(whole, update, lags)
        return 1

    def _add_part(self, learner: TakesParts, name: str, segment: Segment) -> None:
        self._parts.append((name, segment))
        with self.timer.stage("update"):
            learner.add_part({name: [segment]}, progress=self.progress)

    def _change_settings(self) -> None:
        if self.changes.waiting:
            for event in self.changes.apply(self.version):
                self.emit(event)

    def _lags(self, segments: Taken) -> list[int]:
        """How many versions each segment is behind the learner; demonstrations are not."""
        made = [s.header.version_min for group in segments.values() for s in group]
        return [self.version - v for v in made if v >= 0] or [0]

    def _load(self) -> str:
        """Give the learner the newest parameters of other trainers; returns a channel that has none yet, or an empty text."""
        for channel, subscriber in self._loads.items():
            found = subscriber.poll()
            if found is not None:
                assert isinstance(self.learner, LoadsParams), "checked at setup"
                self.learner.load_params(channel, found)
        return next((channel for channel, subscriber in self._loads.items() if subscriber.newest() < 0), "")

    def _take(self, wanted: Mapping[str, int]) -> Taken:
        return {name: self.readers[name].take(num) for name, num in wanted.items()}

    def _phase(self) -> Phase:
        return phase_at(self.phases, self.version)

    def _train(self, segments: Taken) -> Update:
        with self.timer.stage("prepare"):
            batch = self.learner.prepare(seen(segments, self._view), progress=self.progress)
        self._batch = batch
        with self.timer.stage("update"):
            return self.learner.update(batch)

    def _update(self, segments: Taken, update: Update, lags: Sequence[int]) -> None:
        """The learner has taken its step: publish, release, and tell."""
        self._look_at(update)
        seen = {} if self.curriculum is None else self.curriculum.see(segments, self._batch)
        self._batch = Batch()
        self.version += 1
        steps, tokens = count_steps(segments, self._token_streams)
        self.steps, self.tokens = self.steps + steps, self.tokens + tokens
        decisions = count_decisions(segments)
        self.agent_steps += decisions or 0
        added = self._take_tasks()
        with self.timer.stage("publish"):
            self._check()
            self._publish()
        for name, group in segments.items():
            self.readers[name].release(group, feedback=update.feedback.get(name))
        # Last: the writers that this wakes must find the new version published.
        for reader in self.readers.values():
            reader.advance(self.version)
        lag = {"staleness/mean": sum(lags) / len(lags), "staleness/max": float(max(lags))}
        counted = {} if decisions is None else {"agent_steps": float(self.agent_steps)}
        own = update.metrics | seen  # a learner that knows the version of each token has more exact values
        metrics = own | {name: value for name, value in lag.items() if name not in own}
        self.emit(
            {
                "kind": "update" if self.leads else "beside",
                "version": self.version,
                "steps": self.steps,
                "tokens": self.tokens,
                "progress": self.progress,
                "metrics": metrics,
                "counted": counted,  # since the start: a row over several updates has the last one, not their mean
                "sample_ids": {name: [s.header.sample_id for s in group] for name, group in segments.items()},
                **self._times(),
            }
        )
        for event in (*update.events, *added):
            self.emit(event)

    def _take_tasks(self) -> list[WorkerEvent]:
        """Give the curriculum the new tasks of this version; an event for those that were not known."""
        due = [a for a in self._arrivals if a["version"] <= self.version]
        self._arrivals = [a for a in self._arrivals if a["version"] > self.version]
        num = 0
        for arrival in due:
            assert isinstance(self.curriculum, TakesTasks), "a run without room for new tasks gets none"
            num += self.curriculum.add(arrival["tasks"], version=arrival["version"])
        return [{"kind": "tasks", "num": num}] if num else []

    def _look_at(self, update: Update) -> None:
        """Check an update against the contract; warn once about each metric that is not finite."""
        for name in check_update(self.learner, update, self.version):
            if name not in self._odd:
                self._odd.add(name)
                text = f"metric {name!r} of learner {name_of(self.learner)} is {update.metrics[name]} at version {self.version}"
                self.emit({"kind": "event", "level": "warning", "text": f"{text}; the run goes on without it"})

    def _times(self) -> dict[str, Any]:
        """Wall-clock fields of the update event, kept apart so that metrics of two runs can be compared."""
        return {}

    def _check(self) -> None:
        check_finite(self.learner.params(), self.version)

    def _publish(self) -> None:
        """Publish the frozen copies that have changed and the history of tasks, then the new version."""
        # In this order, so that a worker that loads the version finds what belongs to it.
        if self._frozen and isinstance(self.learner, HasReference):
            for name, copy in self.learner.frozen().items():
                if self._fixed.get(name) != copy.version:
                    self._frozen[name].publish(copy.version, copy.params)
                    self._fixed[name] = copy.version
        if self.curriculum is not None and self._tasks is not None:
            self._tasks.publish(self.version, self.curriculum.history())
        self._publish_params()

    def _publish_params(self) -> None:
        params = self.learner.params()
        if isinstance(self.learner, HasWeightCheck):
            params = {**params, **pack(self.learner.weight_check())}
        self.publisher.publish(self.version, params)

    def waits_for(self) -> str:
        return self._waiting

    def snapshot(self) -> State:
        counts = {"version": self.version, "steps": self.steps, "tokens": self.tokens, "agent_steps": self.agent_steps}
        parts = [[name, segment.header.sample_id] for name, segment in self._parts]
        state = {"learner": self.learner.state_dict(), **counts, **({"parts": parts} if parts else {})}
        return state if self.curriculum is None else state | {"curriculum": self.curriculum.snapshot()}

    def restore(self, state: State) -> None:
        self.learner.load_state_dict(state["learner"])
        self.version, self.steps, self.tokens = state["version"], state["steps"], state["tokens"]
        self.agent_steps = state.get("agent_steps", 0)  # checkpoints of older releases have none
        self._arrivals = [a for a in self._arrivals if a["version"] > self.version]  # the curriculum has the others
        if self.curriculum is not None:
            if "curriculum" not in state:
                fix = "finish the run with that release, or start a new one from it with --init-from"
                raise CheckpointError(f"a release made it in which every actor kept a history of tasks of its own; {fix}")
            self.curriculum.restore(state["curriculum"])
        self._parts, self._parts_again = [], [(name, sample_id) for name, sample_id in state.get("parts", [])]


def check_finite(params: Mapping[str, Tensor], version: int) -> None:
    """Raise `NonFiniteError` for NaN or infinite parameters, before they reach actors or a checkpoint."""
    # The loss is checked too, but a finite loss may have an infinite gradient.
    floats = {name: x for name, x in params.items() if x.is_floating_point()}
    if all(x.is_cpu for x in floats.values()):
        # One cheap test for all. Large finite numbers may overflow it, so each tensor is checked below.
        total = sum(x.sum().item() for x in floats.values())
    else:
        total = float(get_total_norm(list(floats.values()), math.inf))
    if math.isfinite(total):
        return
    name = next((name for name, x in floats.items() if not bool(torch.isfinite(x).all())), None)
    if name is not None:
        raise NonFiniteError(f"params/{name}", version, "after the update; lower the learning rate, or look at the gradient")


def check_learner(learner: Any) -> None:
    """Refuse a learner that lacks a method of the contract, or has parameters that are not tensors by name."""
    from torch import Tensor

    from runnel.core.contracts.learning import Sharded

    who = name_of(learner)
    missing = [m for m in ("prepare", "update", "params", "state_dict", "load_state_dict") if not hasattr(learner, m)]
    if missing:
        raise DataError(f"learner {who} has no {', '.join(missing)}; see docs/guides/add-an-algorithm.md")
    if isinstance(learner, Sharded):  # its parameters are sharded: no rank has all of them
        return
    params = learner.params()
    wrong = [str(k) for k, x in params.items() if not isinstance(x, Tensor)] if isinstance(params, Mapping) else ["all"]
    if wrong:
        raise DataError(f"learner {who}: params() must give tensors by name; wrong: {', '.join(wrong)}")


def check_update(learner: Any, update: Any, version: int) -> list[str]:
    """Refuse the result of `update` if it is no `Update`, a metric is no number, or a loss or gradient norm is not finite.

    Returns the names of other metrics that are not finite. A mean over no values must not end a run, but gives a warning.
    """
    from runnel.core.contracts.learning import Update

    odd = []
    if not isinstance(update, Update):
        raise DataError(f"learner {name_of(learner)}: update(batch) gave {type(update).__name__}, expected an Update")
    for name, value in update.metrics.items():
        if not isinstance(value, int | float):
            gave = f"{short(value)} ({type(value).__name__})"
            raise DataError(f"learner {name_of(learner)}: metric {name!r} is {gave}; expected a plain number: use float(...)")
        if not math.isfinite(value):
            if name.startswith(("loss", "grad_norm")):
                raise NonFiniteError(f"metric {name!r}", version, f"of learner {name_of(learner)}")
            odd.append(name)
    return odd
