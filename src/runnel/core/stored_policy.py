"""The name of a stored run's policy, `run:FOLDER[@WHICH][[QUERY]][#MEMBER]`, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runnel.core.errors import ConfigError
from runnel.core.routes import STORED

_FORM = re.compile(
    r"run:(?P<folder>[^#\[\]]+?)(@(?P<which>newest|best|\d+)(\+(?P<checksum>[0-9a-f]+))?)?"
    r"(\[(?P<query>[^\]]+)\])?(#(?P<member>[\w.-]+))?"
)


@dataclass(frozen=True)
class StoredPolicy:
    """A policy of a stored run. `checksum` is empty until it was chosen."""

    folder: str
    which: str = "newest"
    checksum: str = ""
    member: str = ""
    query: str = ""

    def __str__(self) -> str:
        checksum, member = f"+{self.checksum}" if self.checksum else "", f"#{self.member}" if self.member else ""
        query = f"[{self.query}]" if self.query else ""
        return f"{STORED}{self.folder}@{self.which}{checksum}{query}{member}"


def parse_stored(text: str) -> StoredPolicy:
    """Read `run:FOLDER[@WHICH][[QUERY]][#MEMBER]`.

    >>> parse_stored("run:runs/x@best#red")
    StoredPolicy(folder='runs/x', which='best', checksum='', member='red', query='')
    >>> str(parse_stored("run:runs/*[win_rate=0.6..0.8]"))
    'run:runs/*@newest[win_rate=0.6..0.8]'
    """
    found = _FORM.fullmatch(text)
    if found is None:
        fix = "write run:FOLDER, run:FOLDER@best, run:FOLDER@VERSION or run:FOLDER@newest[win_rate=0.6..0.8], and #POLICY where"
        raise ConfigError("teams", text, f"{fix} it has several")
    which, query = found["which"] or "newest", found["query"] or ""
    if query and which.isdigit():
        raise ConfigError("teams", text, "a number says already which version; ask with @newest or @best, or without brackets")
    return StoredPolicy(found["folder"], which, found["checksum"] or "", found["member"] or "", query)
