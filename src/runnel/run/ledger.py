"""The ledger turns events of workers into rows for the files, the live view and the user's callbacks.

The numbers of training in a row are deterministic. All that depends on wall time is under `time`.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from runnel.core.clock import Clock
from runnel.core.disk import refused
from runnel.core.errors import ConfigError, DiskError
from runnel.core.state import State
from runnel.core.trajectories import channel_metric, episode_metric
from runnel.core.user_code import brief, mistake
from runnel.eval.statistics import summarise
from runnel.eval.tally import incomplete
from runnel.run.best import BestParams
from runnel.run.events import Event, PolicyNow, checked_metrics, no_policy
from runnel.run.version_counts import VersionCounts
from runnel.track.collapse import Watcher
from runnel.track.conversations import ConversationLog
from runnel.track.cut import FileMark
from runnel.track.folder import Row, RunFolder
from runnel.track.groups import GroupFile
from runnel.track.league import LeagueFile
from runnel.track.live import LiveView
from runnel.track.load import LOOK_EVERY_S, Load
from runnel.track.media import EpisodeFiles
from runnel.track.pace import Pace
from runnel.track.sinks import GuardedSink, JsonlSink, Sink
from runnel.track.status import make_end

Callback = Callable[[Event], object]
What = Literal[
    "checkpoint", "restart", "worker_lost", "resume", "warning", "order", "plan", "note", "collapse", "setting", "tasks"
]
"""What an event is about."""
RECENT_EPISODES = 100
WINDOW_S = 5.0
LUMP_S = 0.2
FIRST_LOOK_S = 0.25
COUNTED = frozenset(10**n for n in range(1, 10))
"""A repeated failure is told the first time, and again at these counts."""


ENV_FAULTS = ("env_failed", "env_lost", "env_restarted")
"""Events of environments that broke and were survived; counted, and told."""


@dataclass(frozen=True)
class Callbacks:
    """Functions of an event (a row) that the run calls, on every launcher; one that returns False stops the run."""

    on_update: Callback | None = None
    on_episode: Callback | None = None
    on_eval: Callback | None = None
    on_checkpoint: Callback | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            if (value := getattr(self, f.name)) is not None and not callable(value):
                raise ConfigError(f.name, value, "give a function of a row (a dict)")


@dataclass(frozen=True)
class _Mark:
    """Where the counts stood at a moment; `busy` is seconds of work by worker since the start."""

    time: float
    steps: int
    tokens: int
    busy: Mapping[str, float]


class Ledger:
    """Rows of one run. Lives in the launching process."""

    def __init__(
        self,
        folder: RunFolder,
        clock: Clock,
        *,
        callbacks: Callbacks | None = None,
        stop_return: float | None = None,
        log_every: int = 1,
        keep_videos: int = 50,
        watcher: Watcher | None = None,
        stop_on: Literal["nothing", "collapse"] = "nothing",
        policy: PolicyNow | None = None,
    ) -> None:
        self.clock, self.policy, self._folder = clock, policy, folder.path
        self._logged: dict[str, float] = {}
        """What callbacks have logged, for the next row of an update."""
        self.view: LiveView | None = None
        self._metrics, self._samples = JsonlSink(folder.metrics), JsonlSink(folder.samples)
        self._groups, self._league = GroupFile(folder.groups), LeagueFile(folder.league)
        self._talks = ConversationLog(folder.conversations)
        self._best = BestParams(folder.best)
        self._videos = EpisodeFiles(folder.episodes, keep=keep_videos)
        self._sinks: Sequence[GuardedSink] = ()
        self.refused = False
        """Whether the disk refused a row. That raised an error once; later rows are dropped."""
        self._kept: list[Row] | None = None
        """Rows that wait while the ledger may not write to its files; None: it may."""
        self._marks_to_cut: dict[str, FileMark] = {}
        self._callbacks = callbacks or Callbacks()
        self._stop_return, self._watcher, self._stop_on = stop_return, watcher, stop_on
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._by_policy: dict[str, deque[float]] = {}
        """Recent returns of each policy, where several play together."""
        self._channels: dict[str, deque[float]] = {}
        """Recent sums of further rewards and costs, and other numbers of episodes, as metrics are called."""
        self._num_episodes = 0
        self._others: dict[str, float] = {}
        """Metrics of the last update of each trainer that does not lead, under its name."""
        self._faults: dict[str, int] = {}
        self._troubles: dict[str, tuple[int, str]] = {}
        """Failures that the run survived, by kind of mistake: their number, and the text of the first."""
        self._proved: tuple[int, dict[str, float]] = (-1, {})
        """The newest version that an engine has checked, and the largest numbers that any of them found."""
        self._log_every, self._sums = log_every, dict[str, tuple[float, int]]()
        self._stages, self._cpu_of = dict[str, float](), dict[str, float]()
        self.spent: dict[str, float] = {}
        """Seconds of work by worker since the session began; those of workers that left stay."""
        self.cpu: dict[str, float] = {}
        """Seconds of computing by process, the same way."""
        self.pace: Row = {}
        """Rates and idle shares at the last update."""
        self._start = clock.now()
        self._first = _Mark(self._start, 0, 0, {})
        self._marks: deque[_Mark] = deque(maxlen=200)
        self._pace = Pace()
        self._busy: dict[str, float] = {}
        self._wall_before = 0.0
        self._load, self._next_look = Load(), self._start + FIRST_LOOK_S
        self._load.look()
        self.version, self.steps, self.tokens, self.progress = 0, 0, 0, 0.0
        self._counts = VersionCounts()
        self._early: list[Row] = []
        """Evaluations and videos of versions whose update event has not arrived from its process yet."""
        self.streams: Row = {}
        self.last_eval: Row | None = None
        self.stop_reason: str | None = None
        self.stop_status = "stopped"
        """The status of a run that ends for `stop_reason`: solved, stopped or collapsed."""
        self.collapses: dict[str, str] = {}
        """What was told of each kind of collapse that is not over."""
        self.recoveries: list[tuple[str, float]] = []
        """Processes that were lost and came back, with the seconds that it took."""

    def attach(self, sinks: Sequence[GuardedSink]) -> None:
        """Send rows to `sinks` too. Call it after a restore, so that sinks see files that are already cut back."""
        self._sinks = sinks

    def hold(self) -> None:
        """From now on keep rows in memory, and put off cutting the files back."""
        self._kept = []

    def cut(self) -> None:
        """Bring the files back to the checkpoint that was restored."""
        marks, self._marks_to_cut = self._marks_to_cut, {}
        files = {"metrics": self._metrics, "samples": self._samples}
        lost = [text for name, mark in marks.items() if (text := files[name].cut(mark, self.version))]
        if marks:
            self._videos.cut(self.version)
            self._groups.cut(self.version)
            self._league.cut(self.version)
            self._best.cut(self.version)
            self._talks.cut()
            for sink in self._sinks:
                sink.rewind()
        for text in lost:
            warnings.warn(f"{text}; the run goes on without them", stacklevel=2)
            self.note(f"{text}; the run goes on without them", level="warning")

    def release(self) -> None:
        """Write the rows that were kept, and all later ones at once."""
        kept, self._kept = self._kept or [], None
        for row in kept:
            self._write(row, show=False)

    def wall_s(self) -> float:
        """Seconds of this run, those before a resume included."""
        return self._wall_before + self.clock.now() - self._start

    # -------------------------------------------------------------------------------------------------------- intake
    def add_stages(self, stages: Mapping[str, float]) -> None:
        for name, seconds in stages.items():
            self._stages[name] = self._stages.get(name, 0.0) + seconds
            worker = name.partition("/")[0]
            self.spent[worker] = self.spent.get(worker, 0.0) + seconds

    def note_cpu(self, group: str, seconds: float) -> None:
        """The process of a group has computed so long since it started. One that was started again counts from 0."""
        before = self._cpu_of.get(group, 0.0)
        self.cpu[group] = self.cpu.get(group, 0.0) + (seconds - before if seconds >= before else seconds)
        self._cpu_of[group] = seconds

    def forget(self, workers: Sequence[str]) -> None:
        """These workers left by order: report no idle time for them."""
        for worker in workers:
            self._busy.pop(worker, None)

    def add(self, events: Sequence[Row]) -> None:
        """Add events of workers. Each kind has its own path."""
        for event in events:
            kind = event["kind"]
            if kind in ("eval", "video") and event["version"] > self.version:
                self._early.append(event)
            elif kind == "episode":
                self._episode(event)
            elif kind == "update":
                self._update(event)
            elif kind == "beside":
                self._update_beside(event)
            elif kind == "eval":
                self._eval(event)
            elif kind == "proof":
                self._proof(event["version"], event["metrics"])
            elif kind == "setting":
                told = f"{event['name']} = {event['value']!r} from now on"
                self.note(told, what="setting", about={"name": event["name"], "value": event["value"]})
            elif kind == "tasks":
                self.note(f"new tasks from now on: {event['num']}", what="tasks", about={"added": event["num"]})
            elif kind == "sample":
                self._samples.row({k: v for k, v in event.items() if k != "worker"})
            elif kind in ("video", "group", "league", "conversation"):
                self._show(event)
            elif kind == "failure":
                at, lines = event.get("prompt", ""), event.get("lines", "")  # those of a user's own code
                text = f"{event['worker']}: {event['rows']} rows cancelled: {event['reason']} {at}".rstrip() + lines
                self._trouble(mistake(event["reason"] + lines), text)
            elif kind in ENV_FAULTS:
                self._faults[kind] = self._faults.get(kind, 0) + 1
                where = f"environment {event['env']}, episode {event['episode']}, step {event['step']}"
                text = f"{event['worker']}: {kind.replace('_', ' ')} ({where}): {event['error']}"
                self._trouble(f"{kind} {mistake(event['error'])}", text)
            elif kind == "call_retried":
                self._faults[kind] = self._faults.get(kind, 0) + 1
                what = event.get("what", "a reward was called again")
                text = f"{event['worker']}: {what}: {event['reason']} {event['prompt']}"
                self._trouble(f"{kind} {mistake(event['reason'])}", text)
            else:
                self.note(f"{event['worker']}: {event['text']}", level=event.get("level", "info"))

    def _show(self, event: Row) -> None:
        """Keep a video, a group, a conversation or a row of a league. A full disk is only warned of, no reason to end."""
        kind, version = event["kind"], event["version"]
        at = {"version": version, "steps": self.steps, "tokens": self.tokens}
        try:
            if kind == "video":
                self._videos.add(event, version=version, steps=self._counts.of(version)[0])
            elif kind == "league":
                self._league.add({k: v for k, v in event.items() if k not in ("kind", "worker")})
            elif kind == "conversation":
                self._talks.keep(event, at)
            else:
                self._groups.add({**at, **{k: v for k, v in event.items() if k not in ("kind", "worker")}})
        except OSError as error:
            told = refused(error, self._folder, what=f"a {kind} of version {version} was not kept")
            if told is None:
                raise
            self.note(str(told), level="warning")

    def _trouble(self, mistake: str, text: str) -> None:
        """Warn of a failure that the run survived: the first of its kind in full, later ones as a count, now and then."""
        count, shown = self._troubles.get(mistake, (0, text))
        self._troubles[mistake] = count + 1, shown
        if count == 0:
            self.note(text, level="warning")
        elif count + 1 in COUNTED:
            self.note(f"{count + 1} times so far: {brief(shown)}", level="warning")

    def _count_troubles(self) -> None:
        """At the end, warn how often each repeated failure happened."""
        for count, shown in self._troubles.values():
            if count > 1:
                self.note(f"{count} times in all: {brief(shown)}", level="warning")

    def _episode(self, event: Row) -> None:
        self._returns.append(event["return"])
        self._lengths.append(event["length"])
        for policy, total in event.get("by_policy", {}).items():
            self._by_policy.setdefault(policy, deque(maxlen=RECENT_EPISODES)).append(total)
        for field, metric in (("channels", channel_metric), ("statistics", episode_metric)):
            for name, number in event.get(field, {}).items():
                self._channels.setdefault(metric(name), deque(maxlen=RECENT_EPISODES)).append(number)
        self._num_episodes += 1
        self._talks.add(event)
        self._call(self._callbacks.on_episode, event)

    def _proof(self, version: int, found: Mapping[str, float]) -> None:
        known, before = self._proved
        if version >= known:
            worst = {name: max(value, before[name]) for name, value in found.items()} if version == known else dict(found)
            self._proved = version, worst

    def _update(self, event: Row) -> None:
        self.version, self.steps, self.tokens = event["version"], event["steps"], event["tokens"]
        self.progress, self.streams = event["progress"], {**self.streams, **event["streams"]}
        self._counts.add(self.version, self.steps, self.tokens)
        due = self.version % self._log_every == 0 or self.progress >= 1.0
        beside = self._beside()
        metrics = self._mean(event["metrics"], due) | event.get("counted", {}) | beside
        row = {k: event[k] for k in ("kind", "version", "steps", "tokens", "progress", "sample_ids")}
        before = self.stop_reason
        try:  # the callback comes before the row is written, because the row holds what the callback logs
            self._call(self._callbacks.on_update, {**row, "metrics": metrics})
        finally:
            if due:
                metrics, self._logged = self._logged | metrics, {}
                time = self._time() | self._talks.take_seconds() | event.get("time", {})
                self._write({**row, "metrics": metrics, "streams": self.streams, **self._talks.take(), "time": time})
        asked, self.stop_reason = self.stop_reason, before
        if self._watcher is not None:
            self._watch(self._watcher, {**event["metrics"], **beside})
        if self.stop_status != "collapsed":  # a collapse goes before the stop that a callback asks for
            self.stop_reason = asked
        early, self._early = self._early, []
        self.add(early)

    def _update_beside(self, event: Row) -> None:
        """An update of a trainer that does not lead: its numbers stand in the next row of the leader, under its name."""
        name = event["worker"]
        self.streams = {**self.streams, **event["streams"]}
        self._others = {k: v for k, v in self._others.items() if not k.startswith(f"{name}/")}
        numbers = {**event["metrics"], **event.get("counted", {}), "version": float(event["version"])}
        self._others |= {f"{name}/{k}": v for k, v in numbers.items()}

    def _beside(self) -> dict[str, float]:
        """Metrics beside those of the learner: other trainers, recent episodes, faults, weight checks of engines."""
        found = dict(self._others)
        if self._returns:
            found["return"] = sum(self._returns) / len(self._returns)
            found["episode_length"] = sum(self._lengths) / len(self._lengths)
            found["episodes"] = float(self._num_episodes)
        found |= {f"return/{policy}": sum(recent) / len(recent) for policy, recent in self._by_policy.items()}
        found |= {name: sum(recent) / len(recent) for name, recent in self._channels.items()} | self._talks.metrics()
        found |= {f"faults/{kind}": float(num) for kind, num in self._faults.items()}
        proved, numbers = self._proved
        return found | ({**numbers, "mismatch/canary_version": float(proved)} if numbers else {})

    def _watch(self, watcher: Watcher, metrics: Mapping[str, float]) -> None:
        """Warn of a collapse, once, and end the run if `stop_on` says so. Every update is checked, also between two rows."""
        for found in watcher.see(self.version, metrics):
            about = {"collapse": found.kind, "since": found.since}
            if found.level == "note":
                self.note(found.text)
            elif found.level == "over":
                self.collapses.pop(found.kind, None)
                self.note(found.text, what="collapse", about={**about, "over": True})
            elif found.level == "collapse":
                self.collapses[found.kind] = found.text
                self.note(found.text, level="warning", what="collapse", about=about)
                if self.view is None:
                    print(f"runnel: warning: {found.text}", file=sys.stderr)
            if found.level in ("collapse", "still") and self._stop_on == "collapse" and self.stop_reason is None:
                self.stop_status = "collapsed"
                self.stop_reason = f"stopped by stop_on collapse: {found.kind} since version {found.since}"

    def _mean(self, metrics: Mapping[str, float], due: bool) -> dict[str, float]:
        """The metrics of one update, or, where a row is due, their means since the last row."""
        if self._log_every == 1:
            return dict(metrics)
        for name, value in metrics.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)
        if not due:
            return dict(metrics)
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums = {}
        return means

    def _time(self) -> Row:
        """Rates and idle shares over the last seconds. Other processes report in batches, so a single interval would jump."""
        now = self.clock.now()
        for name, seconds in self._stages.items():
            worker = name.partition("/")[0]
            self._busy[worker] = self._busy.get(worker, 0.0) + seconds
        last = self._marks[-1] if self._marks and now - self._marks[-1].time >= LUMP_S else self._first
        then = next((m for m in self._marks if LUMP_S <= now - m.time <= WINDOW_S), last)
        span = max(now - then.time, 1e-9)
        row: Row = {
            "wall_s": self.wall_s(),
            "left_s": self._pace.left_s(now, self.progress),
            "steps_per_s": (self.steps - then.steps) / span,
            "tokens_per_s": (self.tokens - then.tokens) / span,
            "stages": self._stages,
            "idle": {w: max(0.0, 1.0 - (s - then.busy.get(w, 0.0)) / span) for w, s in self._busy.items()},
        }
        if now >= self._next_look and (system := self._load.look()) is not None:
            row["system"] = system
            self._next_look = now + LOOK_EVERY_S
        self._marks.append(_Mark(now, self.steps, self.tokens, dict(self._busy)))
        self._stages, self.pace = {}, row
        return row

    def _eval(self, event: Row) -> None:
        summary = summarise(event["returns"])
        steps, tokens = self._counts.of(event["version"])
        self._counts.forget_before(event["version"])
        row: Row = {
            "kind": "eval",
            "version": event["version"],
            "steps": steps,
            "tokens": tokens,
            "returns": event["returns"],
            "mean": summary.mean,
            "low": summary.low,
            "high": summary.high,
            "num": summary.num,
            "extra": {k: sum(v) / len(v) for k, v in event["extra"].items() if v},
            "samples": event["samples"],
            "time": {"wall_s": self.wall_s()},
        }
        if "passed" in event["extra"]:
            row["per_prompt"] = {k: event["extra"][k] for k in ("passed", "judged")}
        if "length" in event["extra"]:
            row["lengths"] = [int(n) for n in event["extra"]["length"]]
        row |= {name: int(sum(event["extra"][name])) for name in ("cut", "crashed") if name in event["extra"]}
        if event.get("tables"):
            row["tables"] = event["tables"]
        self.last_eval = row
        try:
            self._call(self._callbacks.on_eval, row)
        finally:
            self._write(row)
        for text in incomplete(event["extra"]):
            self.note(f"evaluation of version {event['version']}: {text}", level="warning")
        if self._stop_return is not None and summary.mean >= self._stop_return and self.stop_status != "collapsed":
            self.stop_status = "solved"
            self.stop_reason = f"evaluation reached {summary.mean:.4g} (stop_return is {self._stop_return:g})"

    def note(
        self, text: str, *, level: str = "info", what: What | None = None, about: Mapping[str, object] | None = None
    ) -> None:
        """Write an event row. One about a checkpoint goes to the files, not to the live view."""
        what = what or ("note" if level == "info" else "warning")
        row = {"kind": "event", "level": level, "what": what, "text": text, "version": self.version, **(about or {})}
        self._write({**row, "time": {"wall_s": self.wall_s()}}, show=what != "checkpoint")

    def lost(self, what: str, then: str) -> None:
        """Report that a worker is gone; `then` says how the run goes on."""
        self._faults["worker_lost"] = self._faults.get("worker_lost", 0) + 1
        self.note(f"{what}; {then}", level="warning", what="worker_lost")

    def recovered(self, who: str, seconds: float) -> None:
        """Report that a lost process works again."""
        self.recoveries.append((who, seconds))
        self.note(f"{who} is back after {seconds:.1f} s", level="warning", what="restart")

    def checkpoint(self, path: Path, version: int, *, seconds: float = 0.0) -> None:
        """A checkpoint is finished; it took so long."""
        size = sum(file.stat().st_size for file in path.iterdir())
        self.note(f"checkpoint at version {version}, {size / 1e6:.1f} MB, {seconds:.2f} s", what="checkpoint")
        self._call(self._callbacks.on_checkpoint, {"kind": "checkpoint", "version": version, "path": str(path)})

    def end(self, status: str, train_s: float) -> None:
        """The last row of a run, with the accounts as they stand. `status` is as launchers say it (`make_end`)."""
        if self.stop_reason is not None:
            self.note(self.stop_reason)
        self._count_troubles()
        self._write(
            {"kind": "end", **make_end(status), "streams": self.streams, "time": {"wall_s": self.wall_s(), "train_s": train_s}}
        )

    def tick(self, text: str = "") -> None:
        if self.view is not None:
            self.view.tick(text)

    # -------------------------------------------------------------------------------------------------------- output
    def _write(self, row: Row, *, show: bool = True) -> None:
        if self.view is not None and show:
            self.view.row(row)
        if self._kept is not None:
            self._kept.append(row)
            return
        if self.refused:
            return
        try:
            self._metrics.row(row)
        except DiskError:
            self.refused = True
            raise
        for sink in self._sinks:
            sink.row(row)

    def _files(self) -> list[Sink]:
        """All sinks and files. The files come last, because a sink that fails writes a warning into them."""
        return [*self._sinks, self._metrics, self._samples]

    def _call(self, callback: Callback | None, row: Row) -> None:
        if callback is None:
            return
        policy = self.policy.at if self.policy is not None else no_policy
        try:
            answer = callback(Event(row, policy=policy, log=partial(self._log, row)))
        except Exception as error:  # keep its type: the caller of `train` may catch it
            error.add_note(f"raised by the callback on_{row['kind']} at version {self.version} ({self.steps:,} steps)")
            raise
        if isinstance(answer, bool | np.bool_) and not answer and self.stop_status == "stopped":
            self.stop_reason = f"a callback asked to stop after {row['kind']}"

    def _log(self, row: Row, metrics: Mapping[str, float]) -> None:
        """Numbers of a callback: into the row of an evaluation, else into the next one of an update."""
        found = checked_metrics(metrics, row.get("metrics", {}) if row["kind"] == "update" else {})
        if row["kind"] == "eval":
            row["metrics"] = {**row.get("metrics", {}), **found}
        else:
            self._logged |= found

    def close(self) -> None:
        for sink in self._files():
            sink.close()
        if self.view is not None:
            self.view.close()

    # ---------------------------------------------------------------------------------------------------- checkpoint
    def snapshot(self) -> State:
        for sink in self._files():
            sink.flush()
        marks = {"metrics": self._metrics.mark(), "samples": self._samples.mark()}
        ends = {key: {name: mark[key] for name, mark in marks.items()} for key in ("offset", "digest")}
        return {**self._state(), "offsets": ends["offset"], "digests": ends["digest"]}

    def nothing(self) -> State:
        """The state of a ledger before its run begins: its files are empty."""
        return {**self._state(), "offsets": {"metrics": 0, "samples": 0}}

    def _state(self) -> State:
        return {
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "by_policy": {policy: list(recent) for policy, recent in self._by_policy.items()},
            "channels": {name: list(recent) for name, recent in self._channels.items()},
            "num_episodes": self._num_episodes,
            "conversations": self._talks.snapshot(),
            "faults": dict(self._faults),
            "others": dict(self._others),
            "proved": [self._proved[0], dict(self._proved[1])],
            "sums": {name: list(pair) for name, pair in self._sums.items()},
            "logged": dict(self._logged),
            "wall_s": self.wall_s(),
            "counts": [self.version, self.steps, self.tokens],
            "last_eval": self.last_eval,
            "watch": {} if self._watcher is None else self._watcher.snapshot(),
            "collapses": dict(self.collapses),
        }

    def restore(self, state: State) -> None:
        """Cut the files back to where the checkpoint was, and go on from there."""
        self._returns.clear()
        self._lengths.clear()
        self._returns.extend(state["returns"])
        self._lengths.extend(state["lengths"])
        kept = state.get("by_policy", {})  # older checkpoints have none
        self._by_policy = {policy: deque(recent, maxlen=RECENT_EPISODES) for policy, recent in kept.items()}
        kept = state.get("channels", {})  # older checkpoints have none
        self._channels = {name: deque(recent, maxlen=RECENT_EPISODES) for name, recent in kept.items()}
        self._num_episodes, self._wall_before = state["num_episodes"], state["wall_s"]
        self._talks.restore(state.get("conversations", {}))  # older checkpoints have none
        self._faults = dict(state["faults"])
        self._others = dict(state.get("others", {}))  # older checkpoints have none
        version, found = state.get("proved", (-1, {}))  # older checkpoints have none
        self._proved = int(version), dict(found)
        self._sums = {name: (float(total), int(count)) for name, (total, count) in state["sums"].items()}
        self._logged = dict(state.get("logged", {}))  # older checkpoints have none
        self.version, self.steps, self.tokens = state["counts"]
        self._counts.begin(self.version, self.steps, self.tokens)
        self._early.clear()
        self.progress = 0.0  # the next update tells; the budget may be another than that of the checkpoint
        self._start = self.clock.now()
        self._first = _Mark(self._start, self.steps, self.tokens, {})
        self._marks.clear()
        self._pace = Pace()
        self._busy, self._stages, self.spent, self.cpu = {}, {}, {}, {}
        self.last_eval = state["last_eval"]
        if self._watcher is not None:
            self._watcher.restore(state.get("watch", {}))  # older checkpoints have none
        self.collapses = dict(state.get("collapses", {}))
        self._marks_to_cut = marks_of(state)
        if self._kept is None:
            self.cut()


def marks_of(state: State) -> dict[str, FileMark]:
    """Where the files ended when the ledger was saved. Older checkpoints have no digests."""
    digests = state.get("digests", {})
    return {name: {"offset": offset, "digest": digests.get(name)} for name, offset in state["offsets"].items()}
