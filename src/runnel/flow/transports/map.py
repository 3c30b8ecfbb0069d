"""The map of a run on a cluster: which node holds what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from runnel.flow.inference import InferenceSpec


@dataclass(frozen=True)
class Map:
    """Where everything lies: plain data, the same for all, and another one when nodes come or go.

    `streams`: the node of each sample stream. `boards`: by inference stream and node, the numbers of the policy workers there.
    `params`: the node where each channel is published, and the nodes that read it.
    """

    streams: dict[str, str]
    boards: dict[str, dict[str, list[int]]]
    params: dict[str, tuple[str, list[str]]]
    lives: dict[str, int] = field(default_factory=dict)
    """Which agent of a node it is: one that is started in place of another has nothing of what that had."""

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Map:
        boards = {name: dict(nodes) for name, nodes in data["boards"].items()}
        params = {name: (home, list(all)) for name, (home, all) in data["params"].items()}
        return Map(dict(data["streams"]), boards, params, dict(data["lives"]))

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def served_by(self, stream: str, client: int) -> str:
        """The node that answers a client whose own node has no policy workers: they take turns. Empty if there are none."""
        nodes = [name for name, numbers in sorted(self.boards[stream].items()) for _ in numbers]
        return nodes[client % len(nodes)] if nodes else ""


def board_on(spec: InferenceSpec, where: Map, node: str) -> InferenceSpec:
    """The mailboxes of one node: for all clients, and the policy workers that are there (or the agent in their place)."""
    return replace(spec, num_servers=max(1, len(where.boards[spec.name].get(node, [])))) if spec.fixed else spec
