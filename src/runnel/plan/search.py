"""Finds the placement on a described cluster that gives the most steps or tokens a second: enumerate, predict, rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from runnel.core.bounds import bounded, check_bounds
from runnel.core.config import flat, override, to_data
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject
from runnel.flow.staleness import StalenessConfig
from runnel.graphs.run_config import RunConfig
from runnel.plan.costs import Costs, LinearCost
from runnel.plan.model import Inference, Placement, Prediction, predict
from runnel.plan.simulate import NetworkConfig
from runnel.track.folder import Settings

NUM_ENV_GROUPS = (1, 2, 4, 8, 16, 32)
ALWAYS_TOLD = ("launcher", "num_actors", "num_segments")


@dataclass(frozen=True)
class NodeKind:
    """A number of equal nodes."""

    nodes: int = bounded(1, at_least=1)
    cores: int = bounded(2, at_least=1)
    gpus: int = bounded(0, at_least=0)


@dataclass(frozen=True)
class Cluster:
    """The nodes and the network that workers can be placed on.

    >>> c = Cluster((NodeKind(4, 64, 0), NodeKind(1, 16, 8)))
    >>> c.cores, c.gpus, c.num_nodes
    (272, 8, 5)
    """

    kinds: tuple[NodeKind, ...] = (NodeKind(),)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @staticmethod
    def of(data: Settings) -> Cluster:
        """Make a cluster from plain data: `{"nodes": [{"nodes": 4, "cores": 64, "gpus": 1}, ...], "network": {"gbps":
        100}}`."""
        unknown = set(data) - {"nodes", "network"}
        if unknown:
            raise ConfigError("cluster", sorted(unknown), "unknown; use nodes and network")
        try:
            kinds = tuple(override(NodeKind(), kind) for kind in data["nodes"])
            return Cluster(kinds, override(NetworkConfig(), data.get("network", {})))
        except (ConfigError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError("cluster", data, f"give nodes with nodes, cores, gpus, and network with gbps: {error}") from error

    @property
    def cores(self) -> int:
        return sum(k.nodes * k.cores for k in self.kinds)

    @property
    def gpus(self) -> int:
        return sum(k.nodes * k.gpus for k in self.kinds)

    @property
    def num_nodes(self) -> int:
        return sum(k.nodes for k in self.kinds)

    def check(self) -> None:
        for kind in self.kinds:
            check_bounds(kind)
        check_bounds(self.network, "network.")


def on_accelerators(costs: Costs, speedup: float) -> Costs:
    """The costs with inference and updates `speedup` times as fast. The speedup is a guess of the user's."""
    if speedup <= 0:
        raise ConfigError("gpu-speedup", speedup, "use a number above 0")
    serve, update = (LinearCost(x.base / speedup, x.per_row / speedup) for x in (costs.serve, costs.update))
    return replace(costs, serve=serve, update=update)


def placement_of(config: RunConfig, costs: Costs, *, cores: int) -> Placement:
    """The placement that a config describes, on one machine."""
    servers = config.placement.policy_workers
    return Placement(
        actors=config.num_actors,
        inference="split" if servers else "inline",
        servers=servers,
        num_env_groups=getattr(config, "num_env_groups", 1),
        trainers=config.placement.trainers,
        batch_segments=costs.batch_segments,
        staleness=config.staleness,
        one_process=config.launcher == "inproc",
        cores=cores,
    )


def placements(costs: Costs, cluster: Cluster, staleness: StalenessConfig) -> Iterator[Placement]:
    """Every sensible placement: trainers and policy workers in powers of two, actors on all cores that are left.

    Replay has one trainer. If there are accelerators, trainers and policy workers are not more than those. The number of
    environments of an actor stays, since it is a hyperparameter. So does the batch of a language model.
    """
    devices, cores = cluster.gpus > 0, cluster.cores
    room = cluster.gpus if devices else cores
    network = cluster.network if cluster.num_nodes > 1 else None
    one = Placement(staleness=staleness, devices=devices, cores=cores, network=network)
    if cluster.num_nodes == 1:
        yield replace(one, one_process=True, batch_segments=costs.batch_segments, actors=max(1, costs.batch_segments), cores=1)
    for trainers in powers(1 if costs.update_ratio else room):
        ways: list[tuple[Inference, int]] = [("inline", 0), ("central", trainers)]
        ways += [("split", servers) for servers in powers(room - trainers)]
        for inference, servers in ways:
            used = 0 if devices else trainers + (servers if inference == "split" else 0)
            for actors in actor_counts(cores - used, trainers):
                yield from sizes(costs, replace(one, actors=actors, inference=inference, servers=servers, trainers=trainers))


def sizes(costs: Costs, p: Placement) -> Iterator[Placement]:
    """The placement with every possible size of its requests."""
    if costs.unit == "tokens":  # the completions of a batch are shared by all actors
        whole = costs.rows * costs.batch_segments
        if whole >= p.actors:
            yield replace(p, rows=whole / p.actors, batch_segments=p.actors)
        return
    envs = round(costs.rows * costs.num_env_groups)
    for num_env_groups in NUM_ENV_GROUPS if p.inference != "inline" else (1,):
        if envs % num_env_groups == 0:
            batch = costs.batch_segments if costs.update_ratio else p.actors * num_env_groups
            yield replace(p, num_env_groups=num_env_groups, rows=envs / num_env_groups, batch_segments=batch)


def powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself.

    >>> powers(6), powers(0)
    ([1, 2, 4, 6], [])
    """
    found = [1 << i for i in range(max(most, 0).bit_length()) if 1 << i <= most]
    return found if not found or found[-1] == most else [*found, most]


def actor_counts(cores: int, trainers: int) -> list[int]:
    """All cores that are left, half of them, a quarter. Actors beyond what trainers can use only make batches larger."""
    found = [cores // part // trainers * trainers for part in (1, 2, 4)]
    return sorted({n for n in found if n >= 1}, reverse=True)


def search(costs: Costs, cluster: Cluster, staleness: StalenessConfig) -> list[Prediction]:
    """The predictions of all placements, the fastest first. Of placements of equal speed, those with fewer workers come first.

    >>> best = search(Costs(), Cluster((NodeKind(2, 64, 1),)), StalenessConfig(mode="window"))[0]
    >>> best.placement.inference, best.placement.trainers
    ('central', 2)
    """
    cluster.check()
    found = [predict(costs, p) for p in placements(costs, cluster, staleness)]
    if not found:
        raise ConfigError("cores", cluster.cores, "leaves no core for an actor; describe a larger cluster")
    return sorted(found, key=rank)


def rank(q: Prediction) -> tuple[float, int, int]:
    """The fastest first; of equal speed, those with fewer workers."""
    p = q.placement
    # two digits: the model is not more exact than that
    return (-float(f"{q.units_per_s:.2g}"), p.trainers + p.servers, p.actors * p.num_env_groups)


def best_of_each(ranked: Sequence[Prediction]) -> list[Prediction]:
    """The best placement in one process, and the best with each kind of inference, in order of rank."""
    seen: dict[tuple[str, bool], Prediction] = {}
    for q in ranked:
        seen.setdefault((q.placement.inference, q.placement.one_process), q)
    return list(seen.values())


def chosen_settings(p: Placement, config: RunConfig) -> JsonObject:
    """The settings of a run that give it a placement, by dotted name. Only what a search chooses is among them."""
    if p.one_process:
        return {"launcher": "inproc", "placement.policy_workers": 0, "placement.trainers": 1, "placement.groups": ()}
    found: JsonObject = {"launcher": "local" if p.network is None else "ray", "num_actors": p.actors}
    if hasattr(config, "num_env_groups"):
        found["num_env_groups"] = p.num_env_groups
    if hasattr(config, "num_segments"):
        found["num_segments"] = p.batch_segments
    groups = ("policy-* trainer",) if p.inference == "central" else ()
    return {**found, "placement.policy_workers": p.servers, "placement.trainers": p.trainers, "placement.groups": groups}


def train_flags(p: Placement, config: RunConfig) -> list[str]:
    """The flags of `runnel train RECIPE` for a placement: the settings that matter, or that the config has otherwise."""
    now = flat(to_data(config))
    found = {k: v for k, v in chosen_settings(p, config).items() if k in ALWAYS_TOLD or v != type(v)(now[k])}
    if not p.one_process:
        found["staleness.mode"] = p.staleness.mode
        if p.staleness.mode == "window":
            found["staleness.max_lag"] = p.staleness.max_lag
    words = [(f"--{k.replace('_', '-')}", *(v if isinstance(v, tuple) else (str(v),))) for k, v in found.items()]
    return [word for some in words for word in some]
