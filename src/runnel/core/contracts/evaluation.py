"""Evaluation: episodes that measure a policy, and the policy that a user loads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runnel.core.contracts.inference import InferenceClient
from runnel.core.errors import DataError
from runnel.core.state import Plain, WorkerEvent

POLICY = "policy"
"""The client of an evaluation that serves the policy which is measured."""
Clients = Mapping[str, InferenceClient]


class Evaluation(Protocol):
    """A measurement of a policy on separate tasks: the score of each episode, and a few samples to show.

    `clients` has the policy that is measured (`POLICY`), and whatever else the evaluation asks, under the names that its
    `EvaluationSpec` gives: another team's policy, a critic, a judge.
    """

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult: ...

    def close(self) -> None: ...


class EpisodeRecorder(Protocol):
    """Plays episodes for people to watch, and yields each as an event of kind `video`. It changes no measurement."""

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> Iterator[WorkerEvent]: ...


class Progress(Protocol):
    """Called often during an evaluation; raises `EvaluationInterrupted` if the run is to stop."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class ResultTable:
    """A table of numbers that an evaluation found beside returns: a matrix of pay-offs, scores by turn. NaN: not measured."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        shape = (len(self.rows), {len(row) for row in self.values})
        if shape != (len(self.values), {len(self.columns)}) and self.values:
            found = f"{len(self.values)} rows of {sorted(shape[1])} values"
            raise DataError(f"a table of {len(self.rows)} x {len(self.columns)} names has {found}; give each name its values")

    def as_data(self) -> dict[str, Plain]:
        """The table as plain data, for the files of a run: NaN becomes None."""
        values = [[None if math.isnan(x) else float(x) for x in row] for row in self.values]
        return {"rows": list(self.rows), "columns": list(self.columns), "values": values}


@dataclass
class EvalResult:
    """Scores of the episodes of one evaluation (`returns`), other per-episode numbers, and a few samples to read.

    `extra["cut"]` flags returns that stop at a limit of steps. `extra["crashed"]` flags episodes without a return, because
    their environment failed. Each key exists only if there was such an episode. `faults` says what failed.
    """

    returns: list[float]
    extra: dict[str, list[float]] = field(default_factory=dict)
    samples: list[WorkerEvent] = field(default_factory=list)
    faults: list[WorkerEvent] = field(default_factory=list)
    tables: dict[str, ResultTable] = field(default_factory=dict)
    """Tables by title; reports and the board show those of the last evaluation."""


@dataclass(frozen=True)
class SampleRoute:
    """A sample stream that agents write to, in segments of `num_steps` steps (0: as many as the run's own `num_steps`).

    With `burn_in`, a segment begins with the last so many steps of the segment before it. A recurrent network goes over them to
    bring its state up to date, and nothing is learned from them.
    """

    stream: str = "trajectories"
    num_steps: int = 0
    burn_in: int = 0


@dataclass(frozen=True)
class AgentRoute:
    """Agents whose id matches `pattern` ask `inference` and write to every stream of `samples`. The first match wins.

    Without `samples` the agents act and nothing is learned from them (a fixed opponent). A `deterministic` route takes the most
    probable action instead of a drawn one. `stored` names the run whose parameters act (`run:FOLDER@VERSION`).
    """

    pattern: str = ".*"
    inference: str = "policy"
    samples: tuple[SampleRoute, ...] = (SampleRoute(),)
    deterministic: bool = False
    stored: str = ""


class Policy(Protocol):
    """A policy that acts, as `rl.load` returns it."""

    def act(self, obs: Plain, *, deterministic: bool = True) -> Plain:
        """An action that `env.step` accepts."""
        ...

    def reset(self) -> None:
        """Forget recurrent state."""
        ...
