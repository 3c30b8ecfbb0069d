"""What the stages of a recipe cost: the numbers that the model of a placement and the simulation of a cluster start from.

`plan/measure.py` measures them with the recipe's own pieces; they are kept as JSON, and may be written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from runnel.core.errors import ConfigError


@dataclass(frozen=True)
class LinearCost:
    """Seconds as a line over a number of rows: `base + per_row * n`.

    >>> LinearCost.fit([(1, 3.0), (3, 7.0)])
    LinearCost(base=1.0, per_row=2.0)
    >>> LinearCost(1.0, 2.0)(10)
    21.0
    """

    base: float = 0.0
    """Seconds that a call costs however few its rows are."""
    per_row: float = 0.0
    """Seconds of each row."""

    def __call__(self, rows: float) -> float:
        return self.base + self.per_row * rows

    @staticmethod
    def fit(points: Sequence[tuple[float, float]]) -> LinearCost:
        """The line through (rows, seconds) with the least relative squares; neither part is below 0."""
        n, s = np.array([p[0] for p in points], float), np.array([p[1] for p in points], float)
        if len(set(n.tolist())) < 2:
            return LinearCost(0.0, float(s.mean() / n.mean()))
        weight = 1.0 / np.maximum(s, 1e-9)
        base, slope = np.linalg.lstsq(np.stack([weight, n * weight], 1), s * weight, rcond=None)[0]
        if base < 0:
            return LinearCost(0.0, round(float((s / n).mean()), 12))
        if slope < 0:
            return LinearCost(round(float(s.mean()), 12), 0.0)
        return LinearCost(round(float(base), 12), round(float(slope), 12))


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of every stage. The defaults are chosen so that SRL's Atari figures come out (docs/scale/plan.md).

    A request is what an actor asks at once: the rows of one vector of environments. For a language model the completions that
    one engine has in the making are its rows, and all that one actor makes for a batch counts as one segment.
    """

    name: str = "Atari as SRL reports it"
    """The recipe and its task."""
    unit: Literal["steps", "tokens"] = "steps"
    rows: float = 1.0
    """Rows of a request: environments of a vector, or completions that decode together."""
    num_env_groups: int = 1
    """Requests that an actor has of its own: its environments are `num_env_groups * rows`."""
    num_steps: float = 16.0
    """Requests of a segment."""
    step: LinearCost = LinearCost(0.0, 8.0e-3)
    """Seconds of a step in the actor, by rows: environments and writing, without inference."""
    step_cpu: float = 1.0
    """Share of it that computes; the rest sleeps and leaves its core to others."""
    infer: LinearCost = LinearCost(0.0, 23.0e-3)
    """Seconds of inference inside the actor, by rows."""
    serve: LinearCost = LinearCost(5.0e-4, 1.1e-4)
    """Seconds of a batch in a policy worker, by rows."""
    message_s: float = 2.0e-4
    """Seconds that a request and its reply cost the actor, beyond the answer itself."""
    respond_s: float = 0.0
    """Seconds that a policy worker spends on one request beside the batch: taking it in, writing the reply."""
    wake_s: float = 0.0
    """Seconds until a waiting process has seen what another wrote."""
    update: LinearCost = LinearCost(5.0e-3, 6.0e-5)
    """Seconds of an update by the steps (or tokens) in its batch, all epochs included."""
    update_cpu: float = 1.0
    """Cores that an update keeps busy."""
    publish_s: float = 1.0e-3
    """Seconds that a version takes to be checked and published where it is shared."""
    copy_s: float = 0.0
    """Seconds more where it is copied: between processes, and wherever actors may be behind."""
    load_s: float = 1.0e-3
    """Seconds that a version takes to be loaded, and compared with what the learner says of it."""
    ledger_s: float = 0.0
    """Seconds an update of the run's own bookkeeping: rows of metrics."""
    batch_segments: int = 1
    """Segments of one update, as the recipe is configured."""
    update_ratio: float = 0.0
    """Replay: updates for each step; 0 trains on each batch once."""
    update_units: float = 0.0
    """Replay: rows of an update's batch."""
    insert_s: float = 0.0
    """Replay: seconds that a segment takes to get into the buffer."""
    select_s: float = 0.0
    """Replay: seconds that a batch takes to be drawn."""
    segment_bytes: int = 16 * 7056
    request_bytes: int = 4 * 7056
    reply_bytes: int = 2100
    param_bytes: int = 12_000_000
    notes: tuple[str, ...] = field(default=())
    """What could not be measured, in words."""

    @property
    def segment_units(self) -> float:
        """Steps or tokens of a segment."""
        return self.rows * self.num_steps

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Costs:
        """Costs from JSON; what the file leaves out has its default."""
        if not Path(path).is_file():
            raise ConfigError("costs", str(path), "there is no such file; make one with `runnel plan RECIPE --save FILE`")
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ConfigError("costs", str(path), f"is not JSON: {error}") from error
        return Costs.of(data)

    @staticmethod
    def of(data: dict[str, Any]) -> Costs:
        """Costs from plain data.

        >>> Costs.of({"name": "mine", "step": {"base": 0.0, "per_row": 0.001}}).step(4)
        0.004
        """
        known = {f.name: f for f in fields(Costs)}
        for key in data:
            if key not in known:
                raise ConfigError(f"costs.{key}", data[key], f"unknown; use one of {', '.join(known)}")
        values: dict[str, Any] = {
            k: LinearCost(**v) if isinstance(getattr(Costs, k, None), LinearCost) else v for k, v in data.items()
        }
        if "notes" in values:
            values["notes"] = tuple(values["notes"])
        return replace(Costs(), **values)
