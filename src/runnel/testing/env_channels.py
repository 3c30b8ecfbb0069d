"""Checks of what an environment gives beside its reward: costs and further rewards in `info`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runnel.core.checks import wrong_number
from runnel.envs.spaces import Info
from runnel.testing.env_report import EnvReport

SIX = "; Safety-Gymnasium's own six have the cost apart: wrap it in safety_gymnasium.wrappers.SafetyGymnasium2Gymnasium"
"""The fix for a step that returns six values."""


def check_channels(info: Info, known: Collection[str] | None, report: EnvReport) -> Collection[str]:
    """Check the channels in the info of a step against those of the steps before (None: it is the first). Returns their names.

    Known as such are `info["costs"]`, `info["rewards"]` and `info["cost"]`; any other number may be named as one, too.
    """
    found = _channels(info)
    for name, value in found.items():
        if (wrong := wrong_number(value)) is not None:
            report.error(f"channel {name}", f"{_words(name)} in info {wrong}; put a number into the info of every step")
    if known is None:
        if found:
            report.hint("channels", _how_to_read(found))
        return found.keys()
    for name in sorted(set(known) ^ found.keys()):
        text = f"{_words(name)} is in the info of some steps only: put it into every one, 0.0 where there is none"
        report.error(f"channel {name}", text)
    return {*known, *found}


def _channels(info: Info) -> dict[str, object]:
    nested = {group: info[group] for group in ("rewards", "costs") if isinstance(info.get(group), Mapping)}
    found = {f"{group}/{name}": value for group, part in nested.items() for name, value in part.items()}
    return found | ({"costs/cost": info["cost"]} if "cost" in info else {})


def _words(name: str) -> str:
    group, _, short = name.partition("/")
    return f"the {group[:-1]} {short!r}"


def _how_to_read(found: Collection[str]) -> str:
    ways = []
    for group in ("rewards", "costs"):
        names = [name.partition("/")[2] for name in found if name.startswith(f"{group}/")]
        ways += [f"--channels.{group} {' '.join(names)}"] if names else []
    return f"steps have {', '.join(map(_words, found))} in info, which {' and '.join(ways)} reads (docs/guides/costs.md)"
