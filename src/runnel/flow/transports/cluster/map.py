"""The map of a run on a cluster: which node holds what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClusterMap:
    """Where everything lies: plain data, the same for all, and another one when nodes come or go.

    `streams`: the node of each sample stream. `mailbox_tables`: by inference stream and node, the policy workers there.
    `params`: the node where each channel is published, and the nodes that read it.
    """

    streams: dict[str, str]
    mailbox_tables: dict[str, dict[str, list[int]]]
    params: dict[str, tuple[str, list[str]]]
    lives: dict[str, int] = field(default_factory=dict)
    """Which agent of a node it is: one that is started in place of another has nothing of what that had."""
    meet_at: dict[str, str] = field(default_factory=dict)
    """Where ranks of a trainer that are on several nodes meet: the own address of each of these. Empty where they are on one:
    they meet on the loopback."""

    clients: dict[str, list[str]] = field(default_factory=dict)
    """By inference stream: the node of each of its clients, empty while it has none."""
    number: int = 0
    """Of two maps the one with the larger number is the newer."""

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ClusterMap:
        mailbox_tables = {name: dict(nodes) for name, nodes in data["mailbox_tables"].items()}
        params = {name: (home, list(all)) for name, (home, all) in data["params"].items()}
        rest = {"clients": dict(data["clients"]), "number": data["number"]}
        return ClusterMap(dict(data["streams"]), mailbox_tables, params, dict(data["lives"]), dict(data["meet_at"]), **rest)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def served_by(self, stream: str, client: int) -> str:
        """The node that answers a client whose own node has no policy workers: they take turns. Empty if there are none."""
        nodes = [name for name, numbers in sorted(self.mailbox_tables[stream].items()) for _ in numbers]
        return nodes[client % len(nodes)] if nodes else ""
