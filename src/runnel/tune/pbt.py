"""Population based training (Jaderberg et al. 2017, arXiv:1711.09846) on live runs.

Members train at the same time. Each is a run with its own seed and settings. After each interval, every member of the worst
quarter takes over the weights of a member of the best quarter (`exploit.py`), with settings near that one's. A member that
failed counts among the worst. The settings of a member, interval by interval, are the schedule that the search has found.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from runnel.core.errors import RunnelError
from runnel.core.framing import Message
from runnel.core.state import State
from runnel.tune.exploit import take_over
from runnel.tune.folder import Book, StudyFolder, Trial, blank_trial, read_json, write_json
from runnel.tune.job_pool import JobPool
from runnel.tune.settings import Setup
from runnel.tune.show import View
from runnel.tune.space import Param, Value

RESAMPLE = 0.25
"""Probability that a setting is drawn again instead of moved a little."""
Member = State
"""The entry of one member in population.json."""


class TrialPopulation:
    """The members of one study. `population.json` holds all that is needed to resume it."""

    def __init__(self, setup: Setup, folder: StudyFolder, pool: JobPool, book: Book, view: View) -> None:
        self._setup, self._folder, self._pool, self._book, self._view = setup, folder, pool, book, view
        self._began: dict[int, float] = {}
        self.state = read_json(folder.population) if folder.population.is_file() else self._fresh()
        self._num_intervals = -(-setup.total // setup.interval)

    def _fresh(self) -> State:
        members = []
        for number in range(self._setup.options.members):
            chance = random.Random(f"{self._setup.options.search_seed}-begin-{number}")
            params = {p.name: p.draw(chance) for p in self._setup.space.values()}
            blank = dict.fromkeys(("value", "error", "parent", "copied_at"))
            members.append({"params": params, "history": [params], "reached": 0, "steps": [], "seconds": 0.0, **blank})
        return {"interval": 0, "members": members, "copies": None, "lineage": []}

    @property
    def members(self) -> list[Member]:
        found: list[Member] = self.state["members"]
        return found

    def run(self) -> str:
        """Train interval by interval until the budget is spent (`finished`), or until an interruption (`interrupted`)."""
        self._write()
        while self.state["interval"] < self._num_intervals:
            due = [number for number, m in enumerate(self.members) if m["reached"] <= self.state["interval"]]
            if self._pool.work(due, self._start, self._end) == "interrupted":
                return "interrupted"
            if not any(m["value"] is not None for m in self.members):
                raise RunnelError(f"every member failed; the first: {self.members[0]['error']}")
            self._exchange()
        return "finished"

    # --------------------------------------------------------------------------------------------------------- training
    def _start(self, number: int) -> None:
        until = min(1.0, (self.state["interval"] + 1) * self._setup.interval / self._setup.total)
        segments = [{"until": until, "settings": self.members[number]["params"]}]
        run = {"path": str(self.path_of(number)), "seed": self._setup.seeds[number], "tags": ["tuning"], "segments": segments}
        self._began[number] = time.monotonic()
        self._pool.start(number, self._setup.order([run], log=self._folder.log))

    def _end(self, number: int, message: Message) -> None:
        if message["kind"] == "point" or message.get("status") == "interrupted":
            return
        member = self.members[number]
        member["seconds"] += time.monotonic() - self._began.pop(number)
        member["reached"] = self.state["interval"] + 1
        if message["kind"] == "failed":
            member |= {"value": None, "error": message["error"]}
        else:
            (value,) = message["values"]
            member |= {"value": value, "error": None, "steps": [*member["steps"], [message["at"], value]]}
        self._write()

    def path_of(self, number: int) -> Path:
        return self._folder.trials / f"{number:04}-seed-{self._setup.seeds[number]}"

    # --------------------------------------------------------------------------------------------------------- exchange
    def _exchange(self) -> None:
        """Make the copies between two intervals. The plan is saved first, so an exchange that was killed is repeated by it."""
        last = self.state["interval"] + 1 >= self._num_intervals
        if self.state["copies"] is None:
            self.state["copies"] = [] if last else self.plan()
            self._write()
        for copy in self.state["copies"]:
            self._copy(copy)
        for copy in self.state["copies"]:
            self._settle(copy)
        for member in [] if last else self.members:
            member["history"].append(member["params"])
        self.state |= {"copies": None, "interval": self.state["interval"] + 1}
        self._write()

    def plan(self) -> list[State]:
        """The copies of this exchange: member, parent and new settings. The same call gives the same plan."""
        chance = random.Random(f"{self._setup.options.search_seed}-exchange-{self.state['interval']}")
        ranked = sorted((n for n, m in enumerate(self.members) if m["value"] is not None), key=self._rank)
        lost = [n for n, m in enumerate(self.members) if m["value"] is None]
        num = max(1, len(self.members) // 4)
        best = ranked[:num]
        worst = [n for n in ranked[-num:] if self._rank(n) > self._rank(best[-1])]
        return [self._one_copy(n, chance.choice(best), chance) for n in [*worst, *lost]]

    def _rank(self, number: int) -> float:
        value = float(self.members[number]["value"])
        return -value if self._setup.maximise else value

    def _one_copy(self, member: int, parent: int, chance: random.Random) -> State:
        source = self.members[parent]
        after = {p.name: explore(p, source["params"][p.name], chance) for p in self._setup.space.values()}
        before = self.members[member]["params"]
        return {"member": member, "parent": parent, "step": source["steps"][-1][0], "before": before, "after": after}

    def _copy(self, copy: State) -> None:
        number, parent = copy["member"], copy["parent"]
        changes = ", ".join(f"{k} {copy['before'][k]} -> {v}" for k, v in copy["after"].items() if v != copy["before"][k])
        at = f"{self._setup.budget.removeprefix('total_')} {copy['step']}"
        note = f"took over from member {parent} at {at}; {changes or 'same settings'}"
        mark = {"interval": self.state["interval"], "parent": parent}
        take_over(self.path_of(parent), self.path_of(number), seed=self._setup.seeds[number], note=note, mark=mark)

    def _settle(self, copy: State) -> None:
        member, parent = self.members[copy["member"]], self.members[copy["parent"]]
        history = [dict(p) for p in parent["history"][: self.state["interval"] + 1]]
        member |= {"params": copy["after"], "history": history, "parent": copy["parent"], "copied_at": copy["step"]}
        member |= {"value": parent["value"], "error": None}
        self.state["lineage"].append(copy)

    # ---------------------------------------------------------------------------------------------------------- writing
    def _write(self) -> None:
        write_json(self._folder.population, self.state)
        self._book.put([self._told(n, m) for n, m in enumerate(self.members)])
        self._book.data["lineage"] = self.state["lineage"]
        self._book.write()
        self._view.show(self._book)

    def _told(self, number: int, member: Member) -> Trial:
        over = member["reached"] >= self._num_intervals
        state = "failed" if member["error"] else "complete" if over else "running"
        trial = blank_trial(number, member["params"], [self._folder.relative(self.path_of(number))])
        return trial | {"state": state} | {k: member[k] for k in ("value", "steps", "seconds", "error", "parent", "copied_at")}

    def schedule(self, number: int) -> list[State]:
        """The settings that led to a member, as segments of the budget."""
        history, share = self.members[number]["history"], self._setup.interval / self._setup.total
        return [{"until": min(1.0, (i + 1) * share), "settings": params} for i, params in enumerate(history)]


def explore(param: Param, value: Value, chance: random.Random) -> Value:
    """A value near `value`; with probability `RESAMPLE` a random one."""
    return param.draw(chance) if chance.random() < RESAMPLE else param.perturb(value, chance)
