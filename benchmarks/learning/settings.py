"""The settings behind a result: those that it was measured with, and those that its entry has today.

An entry names few settings. The others are defaults of the recipe, and of the zoo (`runnel/run/zoo.py`), and those change. So
a result keeps all settings of its run that decide what is learned (`config`), and it is stale once its entry gives others.
Results that are older than this rule have no `config`, and nothing is said of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.learning.entries import Learning

from runnel.core.config import flat, to_data
from runnel.run import registry

Row = dict[str, Any]
PLACES = ("device", "compiled", "placement.", "vector.", "checkpoint.")
"""Settings that say where and how fast a run is made, and not what it learns."""
OF_THE_RUN = ("seed", "out", "name", "tags", "zoo", "launcher", "cluster.", "control")
"""Settings that name a run and start its processes. What `zoo` brings is among the other settings."""
WATCHED = ("track", "sinks.", "log_every", "trace", "record.")
"""Settings that say what is written down of a run."""
NOT_LEARNED = (*PLACES, *OF_THE_RUN, *WATCHED)


def same_learning(settings: Row, others: Row) -> bool:
    """Whether two sets of settings differ at most in `PLACES`."""
    ours, theirs = ({k: v for k, v in s.items() if not k.startswith(PLACES)} for s in (settings, others))
    return bool(json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs)))


def learned(config: Row) -> Row:
    """The settings of a whole config, as data, that decide what is learned, under dotted names."""
    return {k: v for k, v in flat(config).items() if not k.startswith(NOT_LEARNED) and not k.endswith(".metrics_every")}


def settings_today(entry: Learning) -> Row:
    """What a run of `entry` would be trained with now: its own settings over those of the zoo, over the recipe's defaults."""
    config = registry.configure(registry.load_recipe(entry.recipe), entry.settings)
    found: Row = json.loads(json.dumps(learned(to_data(config))))
    return found


def changed(row: Row, entry: Learning) -> dict[str, tuple[Any, Any]]:
    """The settings in which `entry` differs today from what `row` was measured with: (then, now) by dotted name.

    Only those that both know: a setting that came later had no other value before.
    """
    then, now = row.get("config", {}), settings_today(entry)
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}


def about_stale(rows: Iterable[Row], entry: Learning) -> str:
    """Which settings of the measured `rows` are not those of today, or nothing."""
    found = {name: then for row in rows for name, (then, _) in changed(row, entry).items()}
    return ", ".join(f"`{name}` {then}" for name, then in sorted(found.items()))
