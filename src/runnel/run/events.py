"""What a callback is given: a row as a dict, with the policy of that moment, and a way to add numbers to the run's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runnel.core.contracts.evaluation import Policy
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, RunnelError
from runnel.run.checkpoint import read_params
from runnel.track.folder import Row


class Event(dict[str, Any]):
    """A row (`event["metrics"]["kl"]`), and what can be done with the run at that moment."""

    def __init__(self, row: Row, *, policy: Callable[[Row], Policy], log: Callable[[Mapping[str, float]], None]) -> None:
        super().__init__(row)
        self._policy, self._log = policy, log

    @property
    def policy(self) -> Policy:
        """The policy as it is now, apart from the one that trains: `event.policy.act(obs)`. The next event gives the same
        object with newer parameters. Where the learner is in another process, only `on_checkpoint` has it."""
        return self._policy(self)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Add numbers to the run's metrics: to this row where it is an update or an evaluation, else to the next update."""
        self._log(metrics)


class PolicyNow:
    """The current policy of a run that goes on. It is made once and then loads newer parameters."""

    def __init__(self, make: Callable[[], tuple[Policy, Inferencer]]) -> None:
        self._make = make
        self._made: tuple[Policy, Inferencer] | None = None
        self._loaded = -1
        self.source: Callable[[], ParamSet] | None = None
        """The learner's parameters, where it is in this process."""

    def at(self, row: Row) -> Policy:
        """The policy when `row` was made."""
        params = self._params(row)
        self._made = self._made or self._make()
        policy, inferencer = self._made
        if self.source is None or params.version != self._loaded:
            inferencer.load_params(params)
            self._loaded = params.version
        return policy

    def _params(self, row: Row) -> ParamSet:
        if self.source is not None:
            return self.source()
        if row["kind"] == "checkpoint":
            return ParamSet(row["version"], read_params(Path(row["path"])))
        raise RunnelError(
            f"event.policy of on_{row['kind']}: the learner is in another process; use launcher inproc, or on_checkpoint, "
            "whose event has the policy that was saved"
        )


def no_policy(row: Row) -> Policy:
    """The `policy` of events where a ledger has no run: raises."""
    raise RunnelError(f"event.policy of on_{row['kind']}: there is no run to take a policy from")


def checked_metrics(metrics: Mapping[str, float], taken: Mapping[str, object]) -> dict[str, float]:
    """What a callback logs, as numbers; a name that the run has itself is refused."""
    if not isinstance(metrics, Mapping):
        raise ConfigError("log", metrics, 'give names and numbers: event.log({"my/number": 0.5})')
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            raise ConfigError("log", name, "a metric's name is a text")
        if name in taken:
            raise ConfigError("log", name, "the run has a metric of this name; use another, such as my/NAME")
        try:
            found[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError("log", value, f"{name} is no number ({error})") from error
    return found
