"""The Ray launcher: each group is a Ray actor, on one machine or on a cluster. Ray places the actors; we supervise them.

Each node with a group of the run also has an agent. The agent makes the node's shared memory
(`flow/transports/cluster/node.py`) and serves calls of other nodes to it.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from runnel.core.config import to_data
from runnel.core.errors import ConfigError, WorkerFailure
from runnel.core.framing import Message
from runnel.flow.transports.cluster.map import ClusterMap
from runnel.flow.transports.cluster.ray import FAULTS, NAMESPACE, agent_name
from runnel.graphs.experiment import Experiment
from runnel.run.launchers.deadlines import START_TIMEOUT_S
from runnel.run.launchers.host import ProcessHandle
from runnel.run.launchers.ray_actors import AgentActor, ProcessActor
from runnel.run.launchers.ray_head import Head, connected
from runnel.run.launchers.ray_host import RayHost, RayProcess, kill, surroundings
from runnel.run.launchers.supervisor import supervise
from runnel.run.needs import SPREAD_RANKS, Need, NodeRoom, describe_fit, fit, needs_of, on_one_node, rank_groups
from runnel.run.session import Session
from runnel.run.wiring import Edges

GRACE_S = 5.0
"""Time that Ray may need to free resources that were in use until now."""
MANY = 100_000
"""Calls that an agent may have open at once. Most of them are long polls that wait."""


def launch(session: Session) -> str:
    """Run to the end; returns the status."""
    with _cluster_for(session.experiment, session.groups) as head:
        return supervise(session, RayGroups(session, head))


def _cluster_for(experiment: Experiment, groups: Mapping[str, Collection[str]]) -> AbstractContextManager[Head]:
    needs = needs_of(experiment, groups).values()
    labels = {k: v for need in needs for k, v in need.labels.items()}
    return connected(experiment.config.cluster.address, math.ceil(sum(need.cores for need in needs)), labels)


def rooms() -> list[NodeRoom]:
    """Free resources of each node of the current cluster."""
    free = ray._private.state.available_resources_per_node()
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has = free.get(node["NodeID"], {})
            memory = has.get("memory", float("inf"))
            found.append(NodeRoom(node["NodeID"], has.get("CPU", 0.0), has.get("GPU", 0.0), memory, node.get("Labels", {})))
    return found


def show_placement(experiment: Experiment, groups: Mapping[str, Collection[str]]) -> str:
    """Describe where the groups of a run would be placed; a `ConfigError` says which resources are missing."""
    with _cluster_for(experiment, groups):
        needs, nodes, ranks = needs_of(experiment, groups), rooms(), rank_groups(experiment, groups)
        return describe_fit(needs, fit(needs, nodes, on_one_node(ranks, needs)), nodes, ranks)


class Node:
    """A node of the cluster that has groups of the run: its agent, and the place of its shared memory."""

    def __init__(self, name: str, agent: Any, opening: Any) -> None:
        self.name, self.agent, self.opening = name, agent, opening
        self.memory: dict[str, Any] | None = None
        # Restart counter of the agent: random, because only "not the same as before" matters.
        self.life = secrets.randbits(40)
        self.alive = agent.live.remote()
        self.next_place = 1

    def ready(self) -> bool:
        if self.memory is None and ray.wait([self.opening], timeout=0)[0]:
            try:
                self.memory = json.loads(ray.get(self.opening))
            except RayTaskError:
                raise
            except RayError:  # the agent is gone: `gone` reports it
                return False
        return self.memory is not None

    def gone(self) -> bool:
        return bool(ray.wait([self.alive], timeout=0)[0])


class RayGroups(RayHost):
    """The `ProcessHost` of a run on a Ray cluster: its groups, and an agent on each node with groups."""

    def __init__(self, session: Session, head: Head) -> None:
        super().__init__(head, session.folder.log)
        self._session = session
        self._id = ""
        self._opened = False
        self._needs = needs_of(session.experiment, session.groups)
        self._ranks = rank_groups(session.experiment, session.groups)
        self._together = on_one_node(self._ranks, self._needs)
        self._rooms: dict[str, tuple[Any, int]] = {}
        """For each process group: Ray's placement group, and the index of the bundle in it."""
        self._handles: dict[str, RayProcess] = {}
        self._nodes: dict[str, Node] = {}
        self._maps = 0

    # ------------------------------------------------------------------------------------------------------------ start
    def open(self, groups: Collection[str]) -> None:
        """Wait until Ray has placed every group: only then is it known which edges cross nodes."""
        self._head.check()
        self._id = f"{self._session.folder.path.name[-40:]}-{secrets.token_hex(4)}"
        self._await_room(groups, START_TIMEOUT_S if self._opened else GRACE_S)
        self._opened = True
        self._reserve(groups)
        actors = {name: self._actor(name) for name in groups}
        self._handles = {name: RayProcess(name, actor, self._head) for name, actor in actors.items()}
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(handle.placed() for handle in self._handles.values()):
            for handle in self._handles.values():
                if handle.died():
                    raise WorkerFailure(handle.name, handle.died())
            if time.monotonic() > deadline:
                late = next(s.name for s in self._handles.values() if not s.placed())
                raise WorkerFailure(late, f"found no place on the cluster in {START_TIMEOUT_S:g} s")
            time.sleep(0.02)

    def _await_room(self, groups: Collection[str], timeout_s: float) -> None:
        """Wait until the groups fit the cluster; after `timeout_s` raise. A run that has lost a node may wait for another."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fit({g: self._needs[g] for g in groups}, rooms(), self._together)
                return
            except ConfigError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _reserve(self, groups: Collection[str]) -> None:
        """Reserve Ray's resources for groups: first those that must share a node, then those that name nodes, then the rest.

        In this order, because groups that can run anywhere must not use up the resources of a named node.
        """
        needs = self._needs
        together = [g for g in groups if g in self._together]
        rest = [g for g in groups if g not in self._together]
        if together:
            self._keep("STRICT_PACK", together)
        for named, spread in ((True, True), (True, False), (False, True), (False, False)):
            some = [g for g in rest if bool(needs[g].labels) == named and needs[g].spread == spread]
            if some:
                self._keep("SPREAD" if spread else "PACK", some)

    def _keep(self, strategy: str, groups: Collection[str]) -> None:
        bundles, labels = [_resources(self._needs[g]) for g in groups], [dict(self._needs[g].labels) for g in groups]
        room = placement_group(bundles, strategy=strategy, bundle_label_selector=labels if any(labels) else None)
        self._rooms |= {name: (room, index) for index, name in enumerate(groups)}

    def _actor(self, group: str) -> Any:
        if group not in self._rooms:
            self._reserve([group])
        need, (room, index) = self._needs[group], self._rooms[group]
        strategy = PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=index)
        options: dict[str, Any] = {"num_cpus": need.cores, "num_gpus": need.gpus, "scheduling_strategy": strategy}
        if need.memory:
            options["memory"] = need.memory
        name = f"runnel-{self._id}-{group}-{secrets.token_hex(2)}"
        return ray.remote(ProcessActor).options(name=name, namespace=NAMESPACE, max_concurrency=64, **options).remote()

    def start(self, name: str, order: Message) -> RayProcess:
        handle = self._handles.get(name)
        if handle is None or handle.order:
            self._head.check()
            handle = self._handles[name] = RayProcess(name, self._actor(name), self._head)
        handle.order = order
        self._advance()
        return handle

    def _advance(self) -> None:
        """Advance every group that is starting: Ray places it, its node gets an agent, then its work begins."""
        self._drop_lost_nodes()
        for handle in self._handles.values():
            if handle.begun or not handle.order or not handle.placed():
                continue
            if handle.node not in self._nodes:
                self._head.check()
                self._nodes[handle.node] = self._node(handle.node)
                self._tell_map()
            node = self._nodes[handle.node]
            if node.ready():
                self._begin(handle, node)

    def _node(self, name: str) -> Node:
        strategy = NodeAffinitySchedulingStrategy(node_id=name, soft=False)
        agent = (
            ray.remote(AgentActor)
            .options(
                name=agent_name(self._id, name),
                namespace=NAMESPACE,
                num_cpus=0,
                max_concurrency=MANY,
                scheduling_strategy=strategy,
            )
            .remote()
        )
        orders = {**self._orders(), "node": name, "map": self._map().to_data()}
        return Node(name, agent, agent.open.remote(json.dumps(orders).encode()))

    def _begin(self, handle: RayProcess, node: Node) -> None:
        handle.order |= self._orders() | {
            "work": "runnel.run.launchers.ray_actors:run_group",
            "name": handle.name,
            "run": str(self._session.folder.path.resolve()),
            "node": node.name,
            "memory": node.memory,
            "place": node.next_place,
            "map": self._map().to_data(),
        }
        node.next_place += 1
        handle.begin()
        self._tell_map()

    def _orders(self) -> Message:
        experiment = self._session.experiment
        return surroundings() | {
            "id": self._id,
            "recipe": self._session.folder.read_run_info()["recipe"],
            "config": to_data(experiment.config),
            "faults": os.environ.get(FAULTS, ""),
        }

    # -------------------------------------------------------------------------------------------------------------- map
    def _map(self) -> ClusterMap:
        groups, experiment = self._session.groups, self._session.experiment
        where = {w: self._handles[g].node if g in self._handles else "" for g, members in groups.items() for w in members}
        edges = Edges(experiment, groups)
        streams = {name: where[experiment.reader_of(name)] for name in edges.streams}
        nodes = sorted({*(n for n in where.values() if n), *self._nodes})
        lives = {name: node.life for name, node in self._nodes.items()}
        params = {
            name: (where[experiment.publisher_of(name)], _readers_of(experiment, name, where, nodes))
            for name in experiment.channels
        }
        return ClusterMap(streams, _boards(experiment, edges, where), params, lives, self._meet_at())

    def _meet_at(self) -> dict[str, str]:
        """The address of each node with ranks of the trainer, if there are several nodes; otherwise empty."""
        found = {handle.node: handle.ip for g, handle in self._handles.items() if g in self._ranks and handle.node}
        if len(found) < 2:
            return {}
        if self._together:
            raise ConfigError("cluster.place", self._session.experiment.config.cluster.place, SPREAD_RANKS)
        for address in found.values():
            if not isinstance(ip_address(address), IPv4Address):
                raise ConfigError(
                    "cluster", address, "ranks on several nodes need IPv4; give `ray start --node-ip-address` an IPv4 address"
                )
        return found

    def _clients(self) -> dict[str, list[str]]:
        """For each inference stream, the node of each client."""
        experiment = self._session.experiment
        group_of = {w: g for g, members in self._session.groups.items() for w in members}
        nodes = {g: handle.node for g, handle in self._handles.items()}
        return {
            stream.name: [nodes.get(group_of[name], "") for name in experiment.askers_of(stream.name)]
            for stream in experiment.inference
        }

    def _tell_map(self) -> None:
        self._maps += 1
        where = replace(self._map(), clients=self._clients(), number=self._maps)
        data = json.dumps(where.to_data()).encode()
        for node in self._nodes.values():
            if node.memory is not None:
                node.agent.update.remote(data)

    def _drop_lost_nodes(self) -> None:
        """Remove nodes that have lost their agent, and fail all processes on them."""
        for name in [name for name, node in self._nodes.items() if node.gone()]:
            del self._nodes[name]
            # A note of its own: Ray may have reported the processes of the node, one by one, before the node.
            self._session.ledger.note(f"node {name[:8]} was lost: its agent is gone", level="warning")
            for handle in self._handles.values():
                if handle.node == name and not handle.died():
                    handle.fail(f"was lost with its node {name[:8]}")

    # ---------------------------------------------------------------------------------------------------------- waiting
    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        self._advance()
        super().wait(self._handles.values(), timeout_s)

    def close(self) -> None:
        for handle in self._handles.values():
            kill(handle.actor, self._head)
        for node in self._nodes.values():
            kill(node.agent, self._head)
        for room in {id(room): room for room, _ in self._rooms.values()}.values():
            if not self._head.silent():
                remove_placement_group(room)
        self._handles, self._nodes, self._rooms = {}, {}, {}


def _resources(need: Need) -> dict[str, float]:
    found = {"CPU": need.cores, "GPU": need.gpus, "memory": float(need.memory)}
    return {name: number for name, number in found.items() if number}


def _boards(experiment: Experiment, edges: Edges, where: dict[str, str]) -> dict[str, dict[str, list[int]]]:
    """For each inference stream and node, the policy workers on the node."""
    found: dict[str, dict[str, list[int]]] = {}
    for stream in experiment.inference:
        if stream.name not in edges.mailbox_tables:
            continue
        nodes: dict[str, list[int]] = {}
        for index in range(stream.num_workers):
            if node := where[f"{stream.name}-{index}"]:
                nodes.setdefault(node, []).append(index)
        found[stream.name] = nodes
    return found


def _readers_of(experiment: Experiment, channel: str, where: dict[str, str], nodes: list[str]) -> list[str]:
    """Nodes that receive a parameter channel: all for the learner's, only the loaders' nodes for a frozen copy."""
    if channel == experiment.leader.channel:
        return nodes
    return sorted({where[w] for w in experiment.loaders_of(channel)} & set(nodes))
