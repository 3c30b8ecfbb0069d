"""The live settings of a run: which there are, what has changed, and from which version on (settings.json).

A change takes effect between two updates. It is written down with the first version that uses it before any trainer hears of
it. So a run that goes on from an earlier checkpoint makes the same changes at the same versions again.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from pathlib import Path

from runnel.core.config import override, settings_of, to_data
from runnel.core.errors import ConfigError
from runnel.core.live_settings import not_live, with_live
from runnel.core.resuming import rule_of
from runnel.core.state import Settings
from runnel.graphs.run_config import RunConfig
from runnel.run import registry
from runnel.run.trust import check_code, is_made_here, recipe_of, remember_run
from runnel.track.folder import Row, RunFolder

START = -1
"""The version of a value that counted from the beginning."""


def live_owners(config: RunConfig) -> dict[str, type]:
    """The settings of a run that its config classes mark as live, by dotted name, with the class that has each."""
    rules = {s.name: (s.owner, rule_of(s.owner, s.field)) for s in settings_of(config)}
    return {name: owner for name, (owner, rule) in rules.items() if rule is not None and rule.live}


def check_change(config: RunConfig, name: str, value: object, *, known: Collection[str], members: Collection[str]) -> RunConfig:
    """The config with a new value of the live setting `name`; a `ConfigError` if it is not among the `known` ones, if the value
    cannot work, or if there is no such member (`red/ppo.lr`). A value of one member leaves the config as it is."""
    member, _, plain = name.rpartition("/")
    if plain not in known:
        raise not_live(name, value, known)
    if member and member not in members:
        told = f"use one of {', '.join(members)}" if members else "learners here have no values of their own; leave it out"
        raise ConfigError(name, value, f"there is no such member; {told}")
    group, _, field = plain.rpartition(".")
    try:
        with_live(_at(config, group) if group else config, field, value)
        changed = override(config, {plain: value})
        changed.check()
    except ConfigError as error:
        raise ConfigError(name, value, error.fix) from error
    return config if member else changed


def _at(config: object, name: str) -> object:
    return reduce(getattr, name.split("."), config)


def change_settings(run: str | Path, settings: Settings, *, trust: bool = False) -> None:
    """Give live settings of a run that is being trained new values: `{"ppo.lr": 1e-4}`, of one member `{"red/ppo.lr": 1e-4}`.

    They count from one of the next versions on, which the run notes. A setting that may not change while a run goes on is
    refused, and so is a value that cannot work. `trust`: as in `rl.load`.
    """
    folder = RunFolder.open(run)
    folder.check_files()
    recipe, saved = recipe_of(folder), folder.read_config()
    check_code(folder.path, recipe, saved, trust=trust)
    config, (known, members) = override(registry.load_recipe(recipe).Config(), saved), folder.live()
    if not settings:
        raise ConfigError("settings", {}, f"say what to set; live settings of this run: {', '.join(known) or 'none'}")
    for name, value in settings.items():
        config = check_change(config, name, value, known=known, members=members)
    if folder.holder().state not in ("here", "unknown"):
        raise ConfigError("run", str(run), "no process is training it; resume it with the new settings")
    folder.add_order({"op": "set", "settings": dict(settings)})


class LiveSettings:
    """Live settings, in the launching process."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, changes: Sequence[Row] = (), *, forget: Collection[str] = ()
    ) -> None:
        """`changes` are those of a run that goes on (`read_changes`), or that a new run is to make; without those of settings
        that got values of their own when the run was resumed (`forget`)."""
        self._folder, self.config = folder, config
        self._changes = [c for c in changes if c["name"].rpartition("/")[2] not in forget]
        self._taken: dict[str, Row] = {}

    def begin(self, taken: Mapping[str, Row]) -> None:
        """The workers are set up: `taken` says what each trainer's learner takes. Write it down, for those who give orders."""
        self._taken = {name: dict(found) for name, found in taken.items()}
        if self.names or "live" in self._folder.read_run_info():
            self._folder.change_run_info(live=self._taken)
        if self._changes or self._folder.settings.exists():
            self._folder.write_changes(self._changes)

    @property
    def names(self) -> list[str]:
        """The settings that may change, by dotted name."""
        return list(dict.fromkeys(name for found in self._taken.values() for name in found["names"]))

    @property
    def members(self) -> list[str]:
        """The members of the learners that have values of their own."""
        return list(dict.fromkeys(name for found in self._taken.values() for name in found["members"]))

    def check(self, settings: Settings) -> RunConfig:
        """The config after a change of `settings`; a `ConfigError` if one of them is refused."""
        config = self.config
        for name, value in settings.items():
            config = check_change(config, name, value, known=self.names, members=self.members)
        return config

    def record(self, settings: Settings, versions: Mapping[str, int]) -> None:
        """Write down a change of `settings`, which `check` has passed, from the trainers' `versions` on. Later changes of the
        same settings, which a run that went back had still before it, are dropped."""
        config = self.check(settings)
        for name, value in settings.items():
            plain = name.rpartition("/")[2]
            given = value if "/" in name else to_data(_at(config, plain))
            for trainer, found in self._taken.items():
                if plain in found["names"]:
                    self._add({"trainer": trainer, "version": versions[trainer], "name": name, "value": given}, plain)
        self._folder.write_changes(self._changes)
        keep_config(self._folder, config)
        self.config = config

    def _add(self, change: Row, plain: str) -> None:
        def replaced(old: Row) -> bool:
            names = (change["name"],) if change["name"] != plain else (plain, f"/{plain}")
            later = old["trainer"] == change["trainer"] and bool(old["version"] >= change["version"])
            return later and (old["name"] == names[0] or old["name"].endswith(names[1:]))

        mine = [c for c in self._changes if c["trainer"] == change["trainer"] and c["name"] == change["name"]]
        if change["name"] == plain and not any("was" in c for c in mine if not replaced(c)):
            change["was"] = next((c["was"] for c in mine if "was" in c), to_data(_at(self.config, plain)))
        self._changes = [*(c for c in self._changes if not replaced(c)), change]

    def replay(self) -> list[Row]:
        """All changes in the order of their versions, for trainers at any version. First what each setting was before."""
        begun = [{**c, "version": START, "value": c["was"]} for c in self._changes if "was" in c]
        return [*begun, *sorted(self._changes, key=operator.itemgetter("version"))]


def keep_config(folder: RunFolder, config: RunConfig) -> None:
    """Write the config of a run that goes on; whoever had made the run has made it still."""
    recipe = recipe_of(folder)
    own = is_made_here(folder.path, recipe, folder.read_config())
    folder.write_config(to_data(config))
    if own:
        remember_run(folder)
