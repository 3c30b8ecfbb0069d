"""Evaluation: episodes that measure a policy, and the policy that a user loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from runnel.core.contracts.inference import InferenceClient
from runnel.core.state import Plain, WorkerEvent


class Evaluation(Protocol):
    """A measurement of a policy on separate tasks: the score of each episode, and a few samples to show."""

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> EvalResult: ...

    def close(self) -> None: ...


class EpisodeRecorder(Protocol):
    """Plays episodes for people to watch, and yields each as an event of kind `video`. It changes no measurement."""

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> Iterator[WorkerEvent]: ...


class Progress(Protocol):
    """Called often during an evaluation; raises `EvaluationInterrupted` if the run is to stop."""

    def __call__(self, done: int, total: int) -> None: ...


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


@dataclass(frozen=True)
class AgentRoute:
    """Agents whose id matches `pattern` ask `inference` and write to `samples`. The first match wins.

    An empty `samples` means that the agents act and nothing is learned from them (a fixed opponent). A `deterministic` route
    takes the most probable action instead of a drawn one. `stored` names the run whose parameters act (`run:FOLDER@VERSION`).
    """

    pattern: str = ".*"
    inference: str = "policy"
    samples: str = "trajectories"
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
