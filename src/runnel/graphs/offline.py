"""Graphs that read a data set: alone (imitation), or beside what actors play (`beside_data`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from runnel.core.contracts.learning import Collective, Learner
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_seed
from runnel.data.dataset import Dataset
from runnel.data.offline import OFFLINE, OfflineSampler, imitation_stream
from runnel.data.replay import replay_stream
from runnel.flow.workers.trainer import Phase
from runnel.graphs.env_config import EnvConfig
from runnel.graphs.env_task import EnvTask
from runnel.graphs.experiment import ActorSpec, Experiment, TrainerSpec
from runnel.graphs.run_config import RunConfig
from runnel.graphs.unused import all_of
from runnel.nets.inferencer import AgentNet


@dataclass(frozen=True)
class DataEnvConfig(EnvConfig):
    """A run on an environment that reads a data set of that environment."""

    on_resume: ClassVar[OnResume] = may_change("data", then="is where the same data set lies now") | stays(
        "data_digest", why="a run is of one data set"
    )

    data: str = ""
    """Folder of the data set (`runnel data record RUN FOLDER` makes one). It must be of the same environment."""
    data_digest: str = ""
    """The data set's digest, which names its content; another one is refused. Empty: that of the folder when the run starts."""

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        return {**super().unused(), "channels": "a data set holds the environment's own reward alone"}

    def settle(self) -> tuple[RunConfig, list[str]]:
        """As for any environment, and which data set it is."""
        config, told = super().settle()
        assert isinstance(config, DataEnvConfig)
        found = self.open_data()
        return replace(config, data_digest=found.digest), [*told, f"data: {found}"]

    def open_data(self) -> Dataset:
        """The data set of the run. A policy is loaded and evaluated without it."""
        if not self.data:
            fix = "this recipe learns from a data set; give its folder (`runnel data record RUN FOLDER` makes one)"
            raise ConfigError("data", self.data, fix)
        return Dataset.open(self.data, digest=self.data_digest)


@dataclass(frozen=True)
class ImitationConfig(DataEnvConfig):
    """A run that learns from a data set alone. Its environment is played in evaluations only."""

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        alone = "data are read and nothing is played while this recipe trains"
        return {
            **super().unused(),
            **dict.fromkeys(("num_actors", "num_envs", "num_steps", "num_env_groups"), alone),
            **all_of("placement", ("policy_workers", "max_actors", "max_policy_workers"), alone),
            "total_steps": "no steps of the environment are counted; use total_updates",
            **dict.fromkeys(("net.core", "net.core_size"), "rows are drawn one by one, without what came before them"),
            "net.critic_only": "a clone has no critic",
            "curriculum": "nothing is played while this recipe trains",
        }


def _open(c: DataEnvConfig, task: EnvTask) -> Dataset:
    """The data set of a run, if it is the one and of the environment that the run is about."""
    found = c.open_data()
    found.check_env(task.source, task.spec)
    return found


def _reader(c: DataEnvConfig, task: EnvTask, *, gamma: float = 0.0, n_step: int = 1) -> ActorSpec:
    """An actor without inference: it reads the data set."""

    def make(incarnation: int) -> OfflineSampler:
        return OfflineSampler(_open(c, task), seed=make_seed(c.seed, OFFLINE), gamma=gamma, n_step=n_step)

    return ActorSpec(f"{OFFLINE}-0", make, writes=(OFFLINE,), asks=())


def imitation_graph(
    c: DataEnvConfig,
    task: EnvTask,
    *,
    network: Callable[[], AgentNet],
    learner: Callable[[Collective], Learner],
    batch_size: int,
) -> Experiment:
    """One actor reads observations and actions; each update trains on one segment of `batch_size` of them."""
    policy = c.lag_rule(1)
    return Experiment(
        config=c,
        title=task.name,
        streams=(imitation_stream(task.spec, batch_size=batch_size, capacity=policy.lag + 2),),
        staleness={OFFLINE: policy},
        actors=(_reader(c, task),),
        inference=(),
        trainers=(TrainerSpec(learner, (Phase({OFFLINE: 1}),)),),
        evaluation=task.evaluation(network),
        policy=lambda: task.policy(network),
        check_here=lambda: _open(c, task).verify(),
        accelerator=c.accelerator,
    )


def beside_data(
    experiment: Experiment, c: DataEnvConfig, task: EnvTask, *, batch_size: int, gamma: float, n_step: int = 1
) -> Experiment:
    """The `experiment` of a replay graph, whose batches have `batch_size` transitions of the data set more.

    They come as a segment of the stream `offline`, and a learner gets the segments of all readers together. Returns are over up
    to `n_step` steps with discount `gamma`, as those of replay are.
    """
    if task.spec.channels.names:
        fix = f"its steps have {', '.join(task.spec.channels.names)}, which a data set does not hold; play another environment"
        raise ConfigError("env", c.env, fix)

    def check_here() -> None:
        _open(c, task).verify()
        task.check_states()

    leader, *others = experiment.trainers
    capacity = experiment.stream("replay").capacity
    phases = tuple(replace(phase, segments={**phase.segments, OFFLINE: 1}) for phase in leader.phases)
    return replace(
        experiment,
        streams=(*experiment.streams, replay_stream(task.spec, batch_size=batch_size, name=OFFLINE, capacity=capacity)),
        staleness={**experiment.staleness, OFFLINE: experiment.staleness["replay"]},
        actors=(*experiment.actors, _reader(c, task, gamma=gamma, n_step=n_step)),
        trainers=(replace(leader, phases=phases), *others),
        check_here=check_here,
    )
