"""The costs of a recipe's stages: the input of the placement model and of the cluster simulation.

`plan/measure.py` measures them by running the recipe's own workers. They are kept as JSON, and may be written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.track.folder import Settings


@dataclass(frozen=True)
class LinearCost:
    """Seconds as a line over a number of rows: `base + per_row * n`.

    >>> LinearCost.fit([(1, 3.0), (3, 7.0)])
    LinearCost(base=1.0, per_row=2.0)
    >>> LinearCost(1.0, 2.0)(10)
    21.0
    """

    base: float = 0.0
    """Seconds of a call, for any number of rows."""
    per_row: float = 0.0
    """Seconds more for each row."""

    def __call__(self, rows: float) -> float:
        return self.base + self.per_row * rows

    @staticmethod
    def fit(points: Sequence[tuple[float, float]]) -> LinearCost:
        """Fit a line to points (rows, seconds) by least squares of the relative errors. Neither part is below 0."""
        n, s = np.array([p[0] for p in points], float), np.array([p[1] for p in points], float)
        if len(set(n.tolist())) < 2:
            return LinearCost(0.0, float(s.mean() / n.mean()))
        weight = 1.0 / np.maximum(s, 1e-9)  # relative errors: else the largest batches alone would decide the base
        base, slope = np.linalg.lstsq(np.stack([weight, n * weight], 1), s * weight, rcond=None)[0]
        if base < 0:
            return LinearCost(0.0, round(float((s / n).mean()), 12))
        if slope < 0:
            return LinearCost(round(float(s.mean()), 12), 0.0)
        return LinearCost(round(float(base), 12), round(float(slope), 12))


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of every stage. The defaults reproduce SRL's Atari figures (docs/scale/plan.md).

    A request holds the rows that an actor sends at once: those of one env group. For a language model, its rows are the
    completions that one engine decodes together, and one segment is all that one actor makes for a batch.
    """

    name: str = "Atari as SRL reports it"
    """The recipe and its task."""
    unit: Literal["steps", "tokens"] = "steps"
    rows: float = 1.0
    """Rows of a request: environments of a vector, or completions that decode together."""
    num_env_groups: int = 1
    """Env groups of an actor: it has `num_env_groups * rows` environments."""
    num_steps: float = 16.0
    """Requests of a segment."""
    step: LinearCost = LinearCost(0.0, 8.0e-3)
    """Seconds of a step in the actor, by rows: environments and writing, without inference."""
    step_cpu: float = 1.0
    """Share of a step that computes. The rest sleeps, and leaves the core to others."""
    infer: LinearCost = LinearCost(0.0, 23.0e-3)
    """Seconds of inference inside the actor, by rows."""
    serve: LinearCost = LinearCost(5.0e-4, 1.1e-4)
    """Seconds of a batch in a policy worker, by rows."""
    message_s: float = 2.0e-4
    """Seconds of the actor to write a request and read its reply."""
    respond_s: float = 0.0
    """Seconds of a policy worker to read one request and write its reply, beside the batch."""
    wake_s: float = 0.0
    """Seconds until a waiting process wakes after another has written."""
    update: LinearCost = LinearCost(5.0e-3, 6.0e-5)
    """Seconds of an update, by the steps (or tokens) in its batch, with all its epochs."""
    update_cpu: float = 1.0
    """Cores that an update keeps busy."""
    publish_s: float = 1.0e-3
    """Seconds to check and publish a version without a copy."""
    copy_s: float = 0.0
    """Seconds more to copy it: between processes, and if actors may be behind."""
    load_s: float = 1.0e-3
    """Seconds to load a version, with its weight check."""
    ledger_s: float = 0.0
    """Seconds of each update for the run's bookkeeping: rows of metrics."""
    batch_segments: int = 1
    """Segments of one update, as the recipe is configured."""
    update_ratio: float = 0.0
    """Replay: updates for each step. 0: no replay, each batch is trained on once."""
    update_units: float = 0.0
    """Replay: rows of an update's batch."""
    insert_s: float = 0.0
    """Replay: seconds to insert a segment into the buffer."""
    select_s: float = 0.0
    """Replay: seconds to draw a batch."""
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
        """Write the costs as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Costs:
        """Read costs from JSON. Fields that the file leaves out have their defaults."""
        if not Path(path).is_file():
            raise ConfigError("costs", str(path), "there is no such file; make one with `runnel plan RECIPE --save FILE`")
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ConfigError("costs", str(path), f"is not JSON: {error}") from error
        return Costs.of(data)

    @staticmethod
    def of(data: Settings) -> Costs:
        """Make costs from plain data.

        >>> Costs.of({"name": "mine", "step": {"base": 0.0, "per_row": 0.001}}).step(4)
        0.004
        """
        zero = asdict(LinearCost())  # what a line leaves out is 0, and not the default of that stage
        filled = {k: {**zero, **v} if isinstance(getattr(Costs, k, None), LinearCost) else v for k, v in data.items()}
        return override(Costs(), filled, "costs.")
