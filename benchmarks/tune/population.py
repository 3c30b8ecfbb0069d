"""Population based training on members of uneven speed: what it costs that members wait for each other, as a ratio.

python -m benchmarks.tune.population
python -m benchmarks.tune.population --repeats 1 --mean-s 0.02      # does it run at all?

The same members in the same processes, once as runnel trains them (nobody waits) and once with a barrier: no member goes on
before all have come to its point, which is the usual form. Updates sleep, so the cores play no part. `idle` is the share of
the workers' time, from the start to the end of the study, in which they train no member; `waiting` is the part of it before the
first member has spent its budget, where only a barrier makes anybody wait.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import machine
from benchmarks.harness import RESULTS
from runnel import tune
from runnel.tune import study as studies
from runnel.tune.pbt import TrialPopulation

NAME = "tune/population"
RECIPE = str(Path(__file__).with_name("uneven.py"))
MEMBERS = 4
Row = dict[str, Any]


class Watched(TrialPopulation):
    """A population that notes when each member is at work."""

    spans: list[tuple[float, float, int]]
    done: dict[int, float]

    def run(self) -> str:
        type(self).spans, type(self).done = [], {}
        return super().run()

    def _end(self, number: int, message: Any) -> None:
        began = self._began[number]
        super()._end(number, message)
        self.spans.append((began, time.monotonic(), number))
        if self.members[number]["reached"] >= self._last:
            self.done[number] = time.monotonic()


class WithBarrier(Watched):
    """The synchronous form: no member goes on before all have come to its point."""

    def _next(self) -> int | None:
        low = min(m["reached"] for m in self.members)
        number = super()._next()
        return number if number is not None and self.members[number]["reached"] == low else None


WAYS: dict[str, type[Watched]] = {"nobody waits": Watched, "barrier": WithBarrier}


def measure(way: str, pace: str, repeat: int, *, mean_s: float, out: Path) -> Row:
    """One study: its seconds, the share of the workers' time that is idle, and the score of the winner."""
    kind = studies.TrialPopulation = WAYS[way]  # type: ignore[misc]
    options = {"scheduler": "pbt", "members": MEMBERS, "workers": MEMBERS, "interval": 5, "metric": "bowl"}
    options |= {"direction": "minimize", "search_seed": repeat}
    settings = {"pace": pace, "mean_s": mean_s, "vector.backend": "serial"}
    study = tune.search(RECIPE, space={"rate": "log(1e-3, 1)"}, options=options, out=out, **settings)
    assert study.best is not None
    start, end, first = min(s for s, *_ in kind.spans), max(e for _, e, _ in kind.spans), min(kind.done.values())
    busy = sum(e - s for s, e, _ in kind.spans)
    early = sum(min(e, first) - s for s, e, _ in kind.spans if s < first)
    return {
        "way": way,
        "pace": pace,
        "repeat": repeat,
        "seconds": end - start,
        "first_s": first - start,
        "idle": 1.0 - busy / (MEMBERS * (end - start)),
        "waiting": 1.0 - early / (MEMBERS * (first - start)),
        "copies": len(study.read()["lineage"]),
        "best": study.best["value"],
    }


def table(rows: list[Row]) -> str:
    lines = [
        "| speed of members | form | seconds | first member done after | idle | waiting | seconds, barrier / nobody waits |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pace in dict.fromkeys(r["pace"] for r in rows):
        by = {way: [r for r in rows if (r["way"], r["pace"]) == (way, pace)] for way in WAYS}
        ratio = mean(r["seconds"] for r in by["barrier"]) / mean(r["seconds"] for r in by["nobody waits"])
        for way, some in by.items():
            numbers = [mean(r[k] for r in some) for k in ("seconds", "first_s", "idle", "waiting")]
            told = f"{ratio:.2f}" if way == "barrier" else ""
            lines.append(
                f"| {pace} | {way} | {numbers[0]:.1f} | {numbers[1]:.1f} | {numbers[2]:.1%} | {numbers[3]:.1%} | {told} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="studies of each form and pace (3)")
    parser.add_argument("--mean-s", type=float, default=0.4, help="seconds of an update in the mean (0.4)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for pace in ("steady", "fits"):
                for way in WAYS:
                    out = Path(folder) / f"{way}-{pace}-{repeat}".replace(" ", "")
                    rows.append(measure(way, pace, repeat, mean_s=args.mean_s, out=out))
                    print(json.dumps(rows[-1]), flush=True)
    text = table(rows)
    print(text)
    if not args.no_save:
        path = RESULTS / NAME
        path.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine.facts(), "arguments": vars(args), "rows": rows}
        (path / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        (path / "table.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
