"""Changes of live settings: which of them a learner takes, and from which of its versions on each counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.core.contracts.learning import HasLiveSettings, HasMembers, Learner
from runnel.core.state import JsonObject, WorkerEvent

Change = Mapping[str, Any]
"""`name` (`ppo.lr`, of one member `red/ppo.lr`), `value`, and the `version` whose update is the first to use it."""


class SettingChanges:
    """The changes of one learner's settings that wait for their version.

    Ranks of a trainer and a run that was resumed get the same list, so they use each value from the same version on.
    """

    def __init__(self, learner: Learner, owners: Mapping[str, type]) -> None:
        """`owners`: the live settings of the run by dotted name, and the config class that has each."""
        self._learner = learner
        takes = learner.takes if isinstance(learner, HasLiveSettings) else {}
        self.names = [name for name, owner in owners.items() if name.rpartition(".")[2] in takes.get(owner, ())]
        """The settings of the run that this learner takes."""
        self.members = list(learner.members) if self.names and isinstance(learner, HasMembers) else []
        self.waiting: list[Change] = []

    def replace(self, changes: Sequence[Change]) -> None:
        """Wait for `changes`, and for no others."""
        self.waiting = list(changes)

    def apply(self, version: int) -> list[WorkerEvent]:
        """Make the changes that are due before the update of `version`, in their order; an event for each that begins here."""
        due = [change for change in self.waiting if change["version"] <= version]
        self.waiting = [change for change in self.waiting if change["version"] > version]
        for change in due:
            member, _, name = change["name"].rpartition("/")
            field = name.rpartition(".")[2]
            assert isinstance(self._learner, HasLiveSettings), "only settings that it takes are given to it"
            self._learner.set(f"{member}/{field}" if member else field, change["value"])
        return [_event(change) for change in due if change["version"] == version]


def _event(change: Change) -> JsonObject:
    return {"kind": "setting", "name": change["name"], "value": change["value"]}
