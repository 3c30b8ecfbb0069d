"""A plan that acts by itself: a run measures its own stages, predicts the rate of each number of workers, and takes the best.

ReaLHF (Mei et al. 2024, arXiv:2406.14088) searches a plan from measured costs before a run. Here the costs are those of the
run while it goes on, and the formula is that of `runnel plan` (`plan/model.py`). Every `placement.replan_s` seconds the run
says which rate it reached, which one was predicted for it, and which one it predicts from now on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from runnel.graphs.experiment import Experiment
from runnel.plan.costs import Costs, LinearCost
from runnel.plan.model import Placement, Prediction, predict, step_cycle
from runnel.plan.search import rank
from runnel.run.balance import CLOSED, WAITS, WORSE, Change
from runnel.run.ledger import Ledger
from runnel.run.wiring import available_cores
from runnel.track.folder import Row
from runnel.track.numbers import short

GAIN = 1.1
"""A change must be predicted to make the run at least so many times as fast: the formula is not more exact than that."""
LEAST_UPDATES = 3
"""Updates without which a period says too little."""

Numbers = Mapping[str, int]
"""Workers by kind: actor, policy."""


@dataclass(frozen=True)
class Layout:
    """What of a run's placement stays while the numbers of its workers change."""

    start: Placement
    """The placement that the run was started with."""
    num_steps: float
    """Requests of a segment; 1 for a language model."""
    segment_units: float
    """With replay: the steps of a segment. 0: what is left of a batch for each of its segments."""
    replay: bool
    tokens: bool
    trainer: str
    """The leading trainer."""
    groups: Mapping[str, Sequence[str]]
    """The workers of each process."""
    own_cores: bool
    """Whether each process has cores that are reserved for it (a Ray cluster), so that no other takes them."""

    @staticmethod
    def of(experiment: Experiment, groups: Mapping[str, Sequence[str]]) -> Layout:
        config, leader = experiment.config, experiment.leader
        player = next(a for a in experiment.actors if a.name == "actor-0")
        spec, replay = experiment.stream(player.writes[0]), any(t.paces for t in experiment.transforms)
        tokens, servers = bool(leader.token_streams), config.placement.policy_workers
        start = Placement(
            actors=config.num_actors,
            inference="split" if servers else "inline",
            servers=servers,
            num_env_groups=1 if tokens else getattr(config, "num_env_groups", 1),
            trainers=config.placement.trainers,
            batch_segments=spec.batch_segments,
            staleness=config.staleness,
            devices=config.device.startswith("cuda"),
            cores=available_cores(),
        )
        steps = 1.0 if tokens else float(spec.sizes["T"])
        units = spec.num_rows * steps if replay else 0.0
        return Layout(start, steps, units, replay, tokens, leader.name, groups, config.launcher == "ray")

    def placement(self, numbers: Numbers) -> Placement:
        """The placement with other numbers of workers."""
        p = replace(self.start, actors=numbers["actor"], servers=numbers.get("policy", 0))
        return replace(p, cores=p.actors + p.servers + p.trainers) if self.own_cores else p


@dataclass(frozen=True)
class Reading:
    """What a run had counted at a moment."""

    time: float
    updates: int
    units: int
    """Steps or tokens that were trained on."""
    spent: Mapping[str, float]
    """Seconds of work by worker, since the session began."""
    cpu: Mapping[str, float]
    """Seconds of computing by process."""

    @staticmethod
    def of(ledger: Ledger, now: float, *, tokens: bool) -> Reading:
        units = ledger.tokens if tokens else ledger.steps
        return Reading(now, ledger.version, units, dict(ledger.spent), dict(ledger.cpu))

    def since(self, before: Reading) -> Reading:
        """The counts between two moments."""
        return Reading(
            self.time - before.time,
            self.updates - before.updates,
            self.units - before.units,
            {k: v - before.spent.get(k, 0.0) for k, v in self.spent.items()},
            {k: v - before.cpu.get(k, 0.0) for k, v in self.cpu.items()},
        )


def costs_of(layout: Layout, numbers: Numbers, span: Reading) -> Costs:
    """The costs of a run's stages, from what it counted in a span of time with these numbers of workers.

    A segment costs the seconds for which its actor worked. If the trainer waited for samples, no actor was held back, so what
    passed beside that work belongs to the segment too: environments in other processes, rewards, waits for a reply.
    """
    group = next(name for name, workers in layout.groups.items() if layout.trainer in workers)
    at_trainer = sum(span.spent.get(name, 0.0) for name in layout.groups[group])
    waited = at_trainer <= (1.0 - WAITS) * span.time
    p, whole = layout.placement(numbers), span.time * numbers["actor"]
    worked = min(whole, sum(s for name, s in span.spent.items() if _kind(name) == "actor"))
    playing = whole if waited and p.inference == "inline" else worked
    serving = sum(s for name, s in span.spent.items() if _kind(name) == "policy")
    segment = layout.segment_units or span.units / span.updates / p.batch_segments
    costs = Costs(
        name="this run",
        unit="tokens" if layout.tokens else "steps",
        rows=segment / layout.num_steps,
        num_env_groups=p.num_env_groups,
        num_steps=layout.num_steps,
        step=LinearCost(0.0, playing / span.units),
        step_cpu=min(1.0, sum(s for name, s in span.cpu.items() if _kind(name) == "actor") / max(playing, 1e-9)),
        infer=LinearCost(),
        serve=LinearCost(0.0, serving / span.units),
        message_s=0.0,
        update=LinearCost(at_trainer / span.updates, 0.0),
        update_cpu=min(1.0, span.cpu.get(group, 0.0) / max(at_trainer, 1e-9)),
        publish_s=0.0,
        load_s=0.0,
        batch_segments=p.batch_segments,
        update_ratio=span.updates / span.units if layout.replay else 0.0,
        update_units=1.0 if layout.replay else 0.0,
    )
    if waited and p.inference != "inline":
        requests = span.units / costs.rows
        round_trip = whole * p.num_env_groups / requests
        costs = replace(costs, wake_s=max(0.0, round_trip - step_cycle(costs, p)) / 2)
    return costs


def _kind(name: str) -> str:
    return name.rpartition("-")[0]


@dataclass
class Replan:
    """`numbers` are the workers of each kind at present, `most` how many there may be."""

    layout: Layout
    numbers: dict[str, int]
    most: dict[str, int]
    period_s: float
    predicted: float = 0.0
    """Steps or tokens a second that were predicted for the present numbers; 0: nobody has predicted."""
    _begun: float | None = None
    _start: Reading | None = None
    _tried: tuple[dict[str, int], float] | None = None
    """The numbers before the last change, and the rate that they reached."""
    _closed: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Numbers that were taken back, with the looks for which they are not tried again."""

    @staticmethod
    def of(experiment: Experiment, groups: Mapping[str, Sequence[str]]) -> Replan | None:
        """The plan that a config asks for, if any."""
        config = experiment.config
        if not config.placement.replan_s:
            return None
        numbers, most = {"actor": config.num_actors}, {"actor": config.most_actors}
        if config.placement.policy_workers:
            numbers["policy"], most["policy"] = config.placement.policy_workers, config.most_policy_workers
        layout = Layout.of(experiment, groups)
        return Replan(layout, numbers, most, config.placement.replan_s, config.placement.predicted_per_s)

    def hear(self, order: Row) -> None:
        """A person has set numbers: go on from those."""
        self.numbers |= {kind: min(int(n), self.most[kind]) for kind, n in order["numbers"].items() if kind in self.numbers}
        self._begun, self._start, self._tried, self.predicted = None, None, None, 0.0

    def look(self, now: float, ledger: Ledger) -> Change | None:
        """At the end of a period: what was reached in it, and the numbers of workers from now on. None in between.

        The first half of a period is not measured: workers start in it, and may compile kernels.
        """
        if self._begun is None:
            if "idle" not in ledger.pace:  # it has made no update since it started
                return None
            self._begun = now
        if self._start is None and now >= self._begun + self.period_s / 2:
            self._start = Reading.of(ledger, now, tokens=self.layout.tokens)
        if self._start is None or now < self._begun + self.period_s:
            return None
        span = Reading.of(ledger, now, tokens=self.layout.tokens).since(self._start)
        self._begun, self._start = now, None
        if span.updates < LEAST_UPDATES or span.units <= 0:
            text = f"{span.updates} updates in {span.time:.3g} s are too few to plan by; use a longer placement.replan_s"
            return Change({}, f"placement.replan_s: {text}", "plan", {})
        return self._plan(span)

    def _plan(self, span: Reading) -> Change:
        """What was reached, what was predicted, and what comes now."""
        reached, before, told = span.units / span.time, dict(self.numbers), self.predicted
        self._closed = {numbers: left - 1 for numbers, left in self._closed.items() if left > 1}
        costs = costs_of(self.layout, self.numbers, span)
        now = predict(costs, self.layout.placement(self.numbers))
        old, self._tried = self._tried, None
        if old is not None and reached < WORSE * old[1]:
            self._closed[_key(before)] = CLOSED
            self.numbers, self.predicted = dict(old[0]), old[1]
            why = f"that is {reached / old[1]:.0%} of the rate before the change, so it is taken back"
            return self._change(before, told, reached, why)
        best = self._best(costs)
        if best.units_per_s < GAIN * now.units_per_s:
            self.predicted = now.units_per_s
            return self._change(before, told, reached, f"no other number of workers should be {GAIN - 1:.0%} faster")
        self._tried, self.predicted = (before, reached), best.units_per_s
        self.numbers = {k: best.placement.actors if k == "actor" else best.placement.servers for k in self.numbers}
        why = f"limited by {now.bottleneck}: predicted are {short(now.units_per_s)} with these numbers"
        why += f" and {short(best.units_per_s)} with {_words(self.numbers)}, which are set now"
        return self._change(before, told, reached, why)

    def _best(self, costs: Costs) -> Prediction:
        """The fastest of all numbers that there is room for; of equally fast ones, the fewest workers."""
        kinds = list(self.numbers)
        ranges = [range(1, self.most[kind] + 1) for kind in kinds]
        found = [dict(zip(kinds, some, strict=True)) for some in itertools.product(*ranges)]
        allowed = [numbers for numbers in found if numbers == self.numbers or _key(numbers) not in self._closed]
        return min((predict(costs, self.layout.placement(numbers)) for numbers in allowed), key=rank)

    def _change(self, ran: dict[str, int], told: float, reached: float, why: str) -> Change:
        """An order for the kinds of which the number changes, with the rates as text and as data."""
        unit = "tokens" if self.layout.tokens else "steps"
        was = f" ({short(told)} were predicted)" if told else ""
        text = f"placement.replan_s: {_words(ran)} reached {short(reached)} {unit}/s{was}; {why}"
        about = {"workers": ran, "predicted": told or None, "reached": reached, "unit": unit}
        about |= {"next_workers": dict(self.numbers), "next_predicted": self.predicted}
        return Change({k: n for k, n in self.numbers.items() if n != ran[k]}, text, "plan", about)


def _key(numbers: Numbers) -> tuple[int, ...]:
    return tuple(numbers[kind] for kind in sorted(numbers))


def _words(numbers: Numbers) -> str:
    names = {"actor": "actor", "policy": "policy worker"}
    return " and ".join(f"{n} {names[kind]}{'s' * (n != 1)}" for kind, n in numbers.items())
