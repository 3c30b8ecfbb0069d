"""Write the tables of docs/evidence/results.md and docs/reference/zoo.md again, from `benchmarks/results/learning`.

python -m benchmarks.learning.pages
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import venvs
from benchmarks.harness import RESULTS
from benchmarks.learning.entries import FITS, TASKS, Learning, default, own_defaults
from benchmarks.learning.report import read_seeds
from benchmarks.learning.settings import about_stale

from runnel.eval.statistics import mean_interval
from runnel.run.zoo import ZOO, zoo_settings

DOCS, OUT = venvs.ROOT / "docs", RESULTS / "learning"
BEGIN, END = "<!-- table: python -m benchmarks.learning.pages -->\n", "<!-- end of the table -->"
NAMES = {env: task for task, (env, _) in TASKS.items()}


def measured(entry: Learning) -> tuple[str, str, str]:
    """Seeds with a link to their curves, and settings that are no longer the entry's; return in training and greedy return."""
    rows = read_seeds(entry.name, OUT)
    if not rows:
        return "not run", "", ""
    cut = [r["steps"] for r in rows if r["status"] == "cut"]
    link = f"[{len(rows)}](../../benchmarks/results/learning/{entry.name}/table.md)" + (f", cut at {min(cut):,}" if cut else "")
    if stale := about_stale(rows, entry):
        link += f", stale: measured with {stale}"
    return link, words([r["train_return"] for r in rows]), words([r["eval_return"] for r in rows])


def words(values: list[float]) -> str:
    """A mean with its interval over seeds; one or two have none that says anything."""
    mean, half = mean_interval(np.array(values))
    return f"{mean:.4g} ({mean - half:.4g} to {mean + half:.4g})" if len(values) > 2 else f"{mean:.4g}"


def reference(entry: Learning) -> str:
    """What somebody else has published, and of what."""
    score = entry.scores[0]
    if score.reference is None:
        return ""
    kind = "training" if score.key == "train_return" else "greedy"
    spread = f" ± {score.spread:g}" if score.spread else ""
    return f"{score.reference:g}{spread} {kind} ({score.source})"


def shown(value: Any) -> str:
    """A value as the page writes it."""
    return f"{value:,}" if type(value) is int else str(value)


def results() -> str:
    """Every recipe on every environment that fits it, one line each."""
    lines = ["| recipe, environment | steps | settings | seeds | training | greedy | reference |"]
    lines += ["| --- | ---: | --- | ---: | ---: | ---: | --- |"]
    for recipe, tasks in FITS.items():
        for task in tasks:
            entry = default(recipe, task)
            of_zoo = set(zoo_settings(recipe, entry.settings["env"])) - {"total_steps"}
            entries = [(entry, "zoo" if of_zoo else "defaults")]
            if read_seeds(f"{entry.name}-no-zoo", OUT):
                entries.append((own_defaults(recipe, task), "defaults (`--no-zoo`)"))
            for e, settings in entries:
                seeds, train, greedy = measured(e)
                what = f"`{recipe}`, {e.settings['env']} | {e.settings['total_steps']:,} | {settings}"
                lines.append(f"| {what} | {seeds} | {train} | {greedy} | {reference(e)} |")
    return "\n".join(lines) + "\n"


def zoo() -> str:
    """Every entry of the zoo on one line."""
    lines = ["| recipe | environment | settings | seeds | training | greedy |", "| --- | --- | --- | ---: | ---: | ---: |"]
    for recipe, entries in ZOO.items():
        for env, settings in entries.items():
            given = ", ".join(f"`{name}` {shown(value)}" for name, value in settings.items())
            lines.append(f"| `{recipe}` | {env} | {given} | {' | '.join(measured(default(recipe, NAMES[env])))} |")
    return "\n".join(lines) + "\n"


def fill(page: Path, table: str) -> None:
    """Put `table` between the marks of `page`."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark, f"{page} has no place for a table"
    assert end, f"{page} has no end of its table"
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    fill(DOCS / "evidence/results.md", results())
    fill(DOCS / "reference/zoo.md", zoo())
