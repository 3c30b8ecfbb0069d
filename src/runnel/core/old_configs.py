"""What `config.json` of older runs means today: the one table of settings that were renamed, revalued or added later.

Run folders of older versions are still loaded, resumed and shown. A person who types an old name gets an error that
says the new one (`core/hints.py`), so no setting has two names.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.core.state import JsonObject, Settings

RENAMED = {
    **{f"{group}.lam": f"{group}.gae_lambda" for group in ("ppo", "appo", "a2c", "impala")},
    **{f"{group}.clip": f"{group}.clip_range" for group in ("ppo", "appo")},
    "ring": "num_env_groups",
}
"""Settings by dotted name: what they were called, and what they are called today."""
ADDED_LATER: dict[str, object] = {"a2c.normalise_reward": False, "impala.normalise_reward": False}
"""Settings whose default today is not what runs did before the setting existed."""
REVALUED: dict[str, list[tuple[object, object]]] = {"compiled": [(None, "auto"), (True, "on"), (False, "off")]}
"""Settings whose values were written otherwise: (old, new)."""


def todays_config(config: Settings) -> JsonObject:
    """A `config.json` of any age, as data, in today's names and values.

    >>> todays_config({"ring": 2, "compiled": None, "ppo": {"lam": 0.9}})
    {'compiled': 'auto', 'ppo': {'gae_lambda': 0.9}, 'num_env_groups': 2}
    """
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in config.items()}
    for old, new in RENAMED.items():
        holder, old_field = _holder(found, old)
        if old_field in holder:
            holder.setdefault(_holder(found, new)[1], holder.pop(old_field))
    for name, before in ADDED_LATER.items():
        group, _, field = name.partition(".")
        if isinstance(found.get(group), dict):
            found[group].setdefault(field, before)
    for name, values in REVALUED.items():
        # by identity: 1 == True, and a number was never a value of such a setting
        for old_value, new_value in values:
            if name in found and found[name] is old_value:
                found[name] = new_value
    return found


def _holder(config: JsonObject, name: str) -> tuple[JsonObject, str]:
    """The dict that holds a setting (an empty one if the group is missing), and the setting's name in it."""
    group, _, field = name.rpartition(".")
    holder = config.get(group, {}) if group else config
    return (holder if isinstance(holder, dict) else {}), field
