"""What each process group needs of a node, and whether a cluster has it. Ray does the placing; this says beforehand how.

A placement is a few lines, the first that matches a worker of the group counts:

    actor-*: 1 core, on cpu, spread
    policy-*: 1 gpu, on gpu
    trainer*: 4 cores, 1 gpu, 32 GiB, on zone=a, pack

The ranks of a trainer are on one node, and meet on its loopback, unless their line says `spread`: then they may be on several,
and meet over the network.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runnel.core.errors import ConfigError
from runnel.graphs.experiment import Experiment

POOL = "pool"
"""The label of a node that `on NAME` means: `ray start --labels pool=NAME`."""
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
SPREAD_RANKS = (
    "the ranks of a trainer are on one node; for several, where they meet over the network (docs/scale/security.md says what "
    "that opens), ask for it: add `spread` to the line of `trainer*`"
)
OVER_NETWORK = "they meet over the network; each opens ports without a password on its node's own address"
GRAMMAR = "write PATTERN: N cores, N gpus, N GiB, on POOL (or on LABEL=VALUE), spread or pack"


@dataclass(frozen=True)
class Need:
    """What one process takes of a node, and whether its kind is spread over nodes or packed onto few."""

    cores: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False

    def __str__(self) -> str:
        parts = [f"{self.cores:g} core{'s' if self.cores != 1 else ''}"]
        parts += [f"{self.gpus:g} gpu{'s' if self.gpus != 1 else ''}"] if self.gpus else []
        parts += [f"{self.memory / UNITS['GiB']:.3g} GiB"] if self.memory else []
        return ", ".join(parts) + "".join(f" on {k}={v}" for k, v in self.labels.items())


def parse_line(line: str, default: Need) -> tuple[list[str], Need]:
    """Patterns and need of one line.

    >>> patterns, need = parse_line("actor-* policy-*: 2 cores, 512 MiB, on cpu, spread", Need())
    >>> patterns, str(need), need.spread
    (['actor-*', 'policy-*'], '2 cores, 0.5 GiB on pool=cpu', True)
    """
    names, colon, rest = line.partition(":")
    if not colon or not names.split():
        raise ConfigError("cluster.place", line, GRAMMAR)
    need = default
    for part in (p.strip() for p in rest.split(",")):
        need = _with_part(need, part, line)
    return names.split(), need


def _with_part(need: Need, part: str, line: str) -> Need:
    if part in ("spread", "pack"):
        return replace(need, spread=part == "spread")
    if found := re.fullmatch(r"on (?:([\w./-]+)=)?([\w.-]+)(?: nodes?)?", part):
        return replace(need, labels={**need.labels, found[1] or POOL: found[2]})
    if found := re.fullmatch(r"(\d+(?:\.\d+)?) (cores?|gpus?|MiB|GiB)", part):
        number, unit = float(found[1]), found[2]
        if unit in UNITS:
            return replace(need, memory=int(number * UNITS[unit]))
        return replace(need, cores=number) if unit.startswith("core") else replace(need, gpus=number)
    raise ConfigError("cluster.place", line, f"{part!r} is not understood; {GRAMMAR}")


def needs_of(experiment: Experiment, groups: Mapping[str, Collection[str]]) -> dict[str, Need]:
    """What each group needs. By default the cores of its threads, and a GPU if it computes on one."""
    config = experiment.config
    found: dict[str, Need] = {}
    for group, workers in groups.items():
        on_gpu = config.device.startswith("cuda") and _computes(experiment, workers)
        need = Need(cores=float(config.placement.threads), gpus=float(on_gpu))
        for line in config.cluster.place:
            patterns, stated = parse_line(line, need)
            if any(fnmatch.fnmatch(w, p) for w in workers for p in patterns):
                need = stated
                break
        found[group] = need
    for line in config.cluster.place:
        patterns, _ = parse_line(line, Need())
        if not any(fnmatch.fnmatch(w, p) for workers in groups.values() for w in workers for p in patterns):
            names = ", ".join(w for workers in groups.values() for w in workers)
            raise ConfigError("cluster.place", line, f"matches no worker; the workers are {names}")
    return found


def _computes(experiment: Experiment, workers: Collection[str]) -> bool:
    """Whether a group has a network: actors that ask others have none."""
    remote = {s.name for s in experiment.inference if s.num_workers}
    asking = {a.name for a in experiment.actors if set(a.asks) <= remote}
    return any(w not in asking for w in workers)


def rank_groups(experiment: Experiment, groups: Mapping[str, Collection[str]]) -> list[str]:
    """The groups of ranks that train together with others; empty if every trainer has one rank."""
    ranks = [experiment.ranks_of(trainer) for trainer in experiment.trainers]
    names = {name for some in ranks if len(some) > 1 for name in some}
    return [g for g, workers in groups.items() if names & set(workers)]


def on_one_node(ranks: Sequence[str], needs: Mapping[str, Need]) -> list[str]:
    """Those of `ranks` that must be on one node: all, unless a line says that they are spread."""
    return [] if any(needs[g].spread for g in ranks) else list(ranks)


def _join(needs: Mapping[str, Need], together: Collection[str]) -> Need:
    """What groups that must be on one node need of it together."""
    some = [needs[g] for g in together]
    labels: dict[str, str] = {}
    for need in some:
        for key, value in need.labels.items():
            if labels.setdefault(key, value) != value:
                raise ConfigError("cluster.place", f"on {key}={labels[key]}, on {key}={value}", SPREAD_RANKS)
    return Need(sum(n.cores for n in some), sum(n.gpus for n in some), sum(n.memory for n in some), labels)


@dataclass(frozen=True)
class NodeRoom:
    """What a node of the cluster has free."""

    name: str
    cores: float
    gpus: float = 0.0
    memory: float = float("inf")
    labels: Mapping[str, str] = field(default_factory=dict)

    def takes(self, need: Need) -> bool:
        fits = self.cores >= need.cores and self.gpus >= need.gpus and self.memory >= need.memory
        return fits and all(self.labels.get(k) == v for k, v in need.labels.items())

    def less(self, need: Need) -> NodeRoom:
        return replace(self, cores=self.cores - need.cores, gpus=self.gpus - need.gpus, memory=self.memory - need.memory)


def fit(needs: Mapping[str, Need], nodes: Sequence[NodeRoom], together: Sequence[str] = ()) -> dict[str, str]:
    """A node for each group, the same for those in `together`, or a `ConfigError` that says what is missing. Who can be on
    fewest nodes comes first, then the largest needs, as a scheduler would.

    >>> fit({"trainer": Need(2), "actor-0": Need(1)}, [NodeRoom("a", 2), NodeRoom("b", 1)])
    {'trainer': 'a', 'actor-0': 'b'}
    """
    if together:
        first, *others = together
        whole = {g: need for g, need in needs.items() if g not in others} | {first: _join(needs, together)}
        try:
            found = fit(whole, nodes)
        except ConfigError as error:
            if error.value != first:
                raise
            raise ConfigError("cluster", " and ".join(together), f"{error.fix}; {SPREAD_RANKS}") from None
        return {g: found[first if g in others else g] for g in needs}
    room = {n.name: n for n in nodes}
    found = {}
    where = {g: sum(has_labels(n, need) for n in nodes) for g, need in needs.items()}
    for group in sorted(needs, key=lambda g: (where[g], -needs[g].gpus, -needs[g].memory, -needs[g].cores)):
        need = needs[group]
        able = sorted((n for n in room.values() if n.takes(need)), key=lambda n: n.cores, reverse=need.spread)
        if not able:
            raise ConfigError("cluster", group, _missing(need, list(room.values()), sum(g not in found for g in needs)))
        found[group] = able[0].name
        room[able[0].name] = able[0].less(need)
    return {group: found[group] for group in needs}


def has_labels(node: NodeRoom, need: Need) -> bool:
    """Whether a node is of the kind that a need names."""
    return all(node.labels.get(k) == v for k, v in need.labels.items())


def _missing(need: Need, nodes: Sequence[NodeRoom], left: int) -> str:
    """What a group does not find, in words."""
    such = [n for n in nodes if has_labels(n, need)]
    wanted = "".join(f" {k}={v}" for k, v in need.labels.items())
    if not such:
        return f"needs {need}, but no node has the label{wanted}; start nodes with `ray start --labels{wanted}`"
    free = "; ".join(f"{n.name[:8]} has {n.cores:g} cores, {n.gpus:g} gpus free" for n in such[:4])
    return f"needs {need}, and no node has that left ({free}); {left} processes are without a place: add nodes, or start fewer"


def describe_fit(
    needs: Mapping[str, Need], places: Mapping[str, str], nodes: Sequence[NodeRoom], ranks: Collection[str] = ()
) -> str:
    """The placement against the cluster, for `--dry-run`; `ranks` are the groups of a trainer of several."""
    lines = [f"placement on {len(nodes)} node{'s' if len(nodes) != 1 else ''} (Ray may choose others that fit as well)"]
    for node in nodes:
        here = [g for g, name in places.items() if name == node.name]
        marks = "".join(f", {k}={v}" for k, v in node.labels.items() if not k.startswith("ray.io/"))
        lines.append(f"  node {node.name[:12]} ({node.cores:g} cores, {node.gpus:g} gpus{marks} free):")
        lines += [f"    {group}: {needs[group]}" for group in here] or ["    nothing"]
    if ranks and any(needs[g].spread for g in ranks):
        num = len({places[g] for g in ranks})
        lines.append(
            f"ranks are on {num} node{'s' if num != 1 else ''}: " + (OVER_NETWORK if num > 1 else "they meet on the loopback")
        )
    return "\n".join(lines)
