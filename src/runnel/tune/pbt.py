"""Population based training (Jaderberg et al. 2017, arXiv:1711.09846) on live runs, in which no member waits for another.

Each member is a run with its own seed and settings. When it comes to a point of its budget, a multiple of the interval, it is
compared with every other member at the newest point that both have passed, and goes on at once: as it is, or, if it is in the
worst quarter, from the state that a member of the best quarter had at that point, with settings near that one's. So a slow
member is not judged worse for being slow. A member that failed counts among the worst.

What changes on the way are live settings, recorded in the run's own settings.json (`run/live_settings.py`). Those of a member,
from version to version, are the schedule that the search has found.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from runnel.core.errors import ConfigError, RunnelError
from runnel.core.framing import Message
from runnel.core.state import State
from runnel.track.folder import RunFolder
from runnel.tune.exploit import keep_state, take_over
from runnel.tune.folder import Book, StudyFolder, Trial, blank_trial, read_json, write_json
from runnel.tune.job_pool import JobPool
from runnel.tune.settings import Setup
from runnel.tune.show import View
from runnel.tune.space import Param, Value

RESAMPLE = 0.25
"""Probability that a setting is drawn again instead of moved a little."""
QUARTER = 4
MOST_FAILURES = 3
"""A member that fails so often in a row is given up."""
TOLD = "member.json"
"""Beside a state that is kept: how far the member was, and with which settings it came there."""
Member = State
"""The entry of one member in population.json: `values` are its scores by point."""


class TrialPopulation:
    """The members of one study. `population.json` holds all that is needed to resume it."""

    def __init__(self, setup: Setup, folder: StudyFolder, pool: JobPool, book: Book, view: View) -> None:
        self._setup, self._folder, self._pool, self._book, self._view = setup, folder, pool, book, view
        self._began: dict[int, float] = {}
        self.state = read_json(folder.population) if folder.population.is_file() else self._fresh()
        if "copy" not in self.state:
            raise ConfigError("out", str(folder.path), "an older version began this population; begin anew in another folder")
        self._last = -(-setup.total // setup.interval)

    def _fresh(self) -> State:
        members: list[Member] = []
        for number in range(self._setup.options.members):
            chance = random.Random(f"{self._setup.options.search_seed}-begin-{number}")
            params = {p.name: p.draw(chance) for p in self._setup.space.values()}
            blank = {"error": None, "failures": 0, "parent": None, "copied_at": None}
            members.append({"params": params, "reached": 0, "values": {}, "steps": [], "seconds": 0.0, **blank})
        return {"members": members, "copy": None, "lineage": []}

    @property
    def members(self) -> list[Member]:
        found: list[Member] = self.state["members"]
        return found

    def run(self) -> str:
        """Train until every member has spent its budget (`finished`), or until an interruption (`interrupted`)."""
        self._finish_copy()
        self._write()
        status = self._pool.work(self._next, self._start, self._end)
        if status == "finished" and not any(m["values"] for m in self.members):
            raise RunnelError(f"every member failed; the first: {self.members[0]['error']}")
        return status

    # --------------------------------------------------------------------------------------------------------- training
    def _next(self) -> int | None:
        """The member to train next: of those that are not at work the one that is least far. A member that failed first takes
        over from a better one, as soon as there is one."""
        idle = [n for n, m in enumerate(self.members) if n not in self._pool.handles and m["reached"] < self._last]
        for number in sorted(idle, key=lambda n: (self.members[n]["reached"], n)):
            member = self.members[number]
            if not member["error"] or (member["failures"] < MOST_FAILURES and self._exchange(number)):
                return number
        return None

    def _start(self, number: int) -> None:
        member = self.members[number]
        until = min(1.0, (member["reached"] + 1) * self._setup.interval / self._setup.total)
        segments = [{"until": until, "settings": member["params"]}]
        run = {"path": str(self.path_of(number)), "seed": self._setup.seeds[number], "tags": ["tuning"], "segments": segments}
        self._began[number] = time.monotonic()
        self._pool.start(number, self._setup.order([run], log=self._folder.log))

    def _end(self, number: int, message: Message) -> None:
        if message["kind"] == "point" or message.get("status") == "interrupted":
            return
        member = self.members[number]
        member["seconds"] += time.monotonic() - self._began.pop(number)
        if message["kind"] == "failed":
            member |= {"error": message["error"], "failures": member["failures"] + 1}
        else:
            self._check_live(number)
            (value,) = message["values"]
            member |= {"reached": member["reached"] + 1, "failures": 0, "steps": [*member["steps"], [message["at"], value]]}
            member["values"][str(member["reached"])] = value
            if member["reached"] < self._last:
                self._keep(number)
                self._exchange(number)
        self._write()

    def _check_live(self, number: int) -> None:
        """Refuse a search of settings that the run's own learner does not take; its first run has told which it takes."""
        known, _ = RunFolder(self.path_of(number)).live()
        for name in self._setup.space:
            if name not in known:
                fix = "the learner has no `set` for it (HasLiveSettings); live settings of this run: " + ", ".join(known)
                raise ConfigError("search", name, fix)

    def path_of(self, number: int) -> Path:
        return self._folder.trials / f"{number:04}-seed-{self._setup.seeds[number]}"

    # --------------------------------------------------------------------------------------------------------- exchange
    def known_at(self, point: int) -> dict[int, int]:
        """By member, the newest point up to `point` for which it has a score."""
        passed = {n: [int(p) for p in m["values"] if int(p) <= point] for n, m in enumerate(self.members)}
        return {n: max(points) for n, points in passed.items() if points}

    def parents_for(self, number: int) -> list[int]:
        """The members that this one may take over from: none, unless it failed or is in the worst quarter, and only better ones
        whose state of that point is kept."""
        member = self.members[number]
        at = self.known_at(member["reached"] + 1 if member["error"] else member["reached"])
        at = {n: point for n, point in at.items() if n != number or not member["error"]}
        scores = {n: self._rank(self.members[n]["values"][str(point)]) for n, point in at.items()}
        ranked = sorted(scores, key=lambda n: scores[n])
        num = max(1, len(ranked) // QUARTER)
        if not member["error"]:
            ranked = ranked[:num] if number in ranked[-num:] else []
            # where scores fall while all members learn (self-play), whoever comes first to a point is always worse than
            # those who are still behind it: it goes back to one of them once, and then on
            back = member["reached"] not in member.get("went_back", [])
            ranked = [n for n in ranked if back or at[n] == member["reached"]]
            return [n for n in ranked if scores[n] < scores[number] and self._state_of(n, at[n]).is_dir()]
        return [n for n in ranked[:num] if self._state_of(n, at[n]).is_dir()]

    def _rank(self, value: float) -> float:
        return -value if self._setup.maximise else value

    def _exchange(self, number: int) -> bool:
        """Let a member take over from a better one, if it is to; returns whether it did. The plan is saved first: a copy that
        was killed is repeated by it."""
        member, parents = self.members[number], self.parents_for(number)
        if not parents:
            return False
        chance = random.Random(f"{self._setup.options.search_seed}-exchange-{number}-{member['reached']}")
        parent = chance.choice(parents)
        point = self.known_at(member["reached"] + bool(member["error"]))[parent]
        theirs = read_json(self._state_of(parent, point) / TOLD)
        after = {p.name: explore(p, theirs["params"][p.name], chance) for p in self._setup.space.values()}
        plan = {"member": number, "parent": parent, "step": theirs["step"], "before": member["params"], "after": after}
        self.state["copy"] = {**plan, "point": point}
        self._write()
        self._finish_copy()
        return True

    def _finish_copy(self) -> None:
        """Do what was planned, and note it."""
        copy = self.state["copy"]
        if copy is None:
            return
        number, parent, point = copy["member"], copy["parent"], copy["point"]
        changes = ", ".join(f"{k} {copy['before'][k]} -> {v}" for k, v in copy["after"].items() if v != copy["before"][k])
        at = f"{self._setup.budget.removeprefix('total_')} {copy['step']}"
        note = f"took over from member {parent} at {at}; {changes or 'same settings'}"
        take_over(
            self.path_of(parent),
            self.path_of(number),
            state=self._state_of(parent, point),
            seed=self._setup.seeds[number],
            settings=copy["after"],
            note=note,
            mark={"copy": len(self.state["lineage"])},
        )
        member, theirs = self.members[number], self.members[parent]
        if point < member["reached"]:
            member["went_back"] = [*member.get("went_back", []), member["reached"]]
        member["values"] = {p: v for p, v in member["values"].items() if int(p) < point}
        member["values"][str(point)] = theirs["values"][str(point)]
        member["steps"] = [[step, value] for step, value in member["steps"] if step <= copy["step"]]
        member |= {"params": copy["after"], "reached": point, "error": None, "parent": parent, "copied_at": copy["step"]}
        self.state["lineage"].append({k: v for k, v in copy.items() if k != "point"})
        self.state["copy"] = None
        self._write()

    # ----------------------------------------------------------------------------------------------------------- states
    def _state_of(self, number: int, point: int) -> Path:
        return self._folder.points / f"{point:04}-{number:04}"

    def _keep(self, number: int) -> None:
        """Keep the state of a member at its point, while it is among the best quarter there and others are still to come."""
        member = self.members[number]
        point = member["reached"]
        state = self._state_of(number, point)
        keep_state(self.path_of(number), state)
        write_json(state / TOLD, {"step": member["steps"][-1][0], "params": member["params"]})
        there = sorted(
            (n for n, m in enumerate(self.members) if str(point) in m["values"]), key=lambda n: self._score(n, point)
        )
        for n in there[max(1, len(there) // QUARTER) :]:
            shutil.rmtree(self._state_of(n, point), ignore_errors=True)
        low = min(m["reached"] for m in self.members)
        for path in self._folder.points.iterdir():  # whoever comes next is at the point behind `low`, or further
            if int(path.name.partition("-")[0]) < low:
                shutil.rmtree(path, ignore_errors=True)

    def _score(self, number: int, point: int) -> float:
        return self._rank(self.members[number]["values"][str(point)])

    # ---------------------------------------------------------------------------------------------------------- writing
    def _write(self) -> None:
        write_json(self._folder.population, self.state)
        self._book.put([self._told(n, m) for n, m in enumerate(self.members)])
        self._book.data["lineage"] = self.state["lineage"]
        self._book.write()
        self._view.show(self._book)

    def _told(self, number: int, member: Member) -> Trial:
        state = "failed" if member["error"] else "complete" if member["reached"] >= self._last else "running"
        trial = blank_trial(number, member["params"], [self._folder.relative(self.path_of(number))])
        value = None if member["error"] else member["values"].get(str(member["reached"]))
        more = {k: member[k] for k in ("steps", "seconds", "error", "parent", "copied_at")}
        return trial | {"state": state, "value": value} | more

    def schedule(self, number: int) -> list[State]:
        """The changes of settings that led to a member."""
        return RunFolder(self.path_of(number)).read_changes()


def explore(param: Param, value: Value, chance: random.Random) -> Value:
    """A value near `value`; with probability `RESAMPLE` a random one."""
    return param.draw(chance) if chance.random() < RESAMPLE else param.perturb(value, chance)
