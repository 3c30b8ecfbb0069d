"""The cluster map: which node of a run holds which stream, mailboxes and parameter channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClusterMap:
    """Placement of all edges of a run, as plain data. Every process has the same map; it is replaced when nodes come or go.

    `streams`: the node of each sample stream. `mailbox_tables`: by inference stream and node, the policy workers there.
    `params`: the node where each channel is published, and the nodes that read it.
    """

    streams: dict[str, str]
    mailbox_tables: dict[str, dict[str, list[int]]]
    params: dict[str, tuple[str, list[str]]]
    lives: dict[str, int] = field(default_factory=dict)
    """Restart counter of each node's agent. A restarted agent has none of the data of the one before."""
    meet_at: dict[str, str] = field(default_factory=dict)
    """If a trainer has ranks on several nodes: the address of each of these nodes. Otherwise empty (loopback)."""

    clients: dict[str, list[str]] = field(default_factory=dict)
    """For each inference stream, the node of each client; empty while the client has no node."""
    number: int = 0
    """Version of the map: the map with the larger number is the newer one."""

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ClusterMap:
        mailbox_tables = {name: dict(nodes) for name, nodes in data["mailbox_tables"].items()}
        params = {name: (home, list(all)) for name, (home, all) in data["params"].items()}
        rest = {"clients": dict(data["clients"]), "number": data["number"]}
        return ClusterMap(dict(data["streams"]), mailbox_tables, params, dict(data["lives"]), dict(data["meet_at"]), **rest)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def served_by(self, stream: str, client: int) -> str:
        """The node that serves a client on a node without policy workers (round robin); empty if no node has any."""
        nodes = [name for name, numbers in sorted(self.mailbox_tables[stream].items()) for _ in numbers]
        return nodes[client % len(nodes)] if nodes else ""
