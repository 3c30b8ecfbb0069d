"""Several actors whose policies write segments of different lengths: whoever is polled when, nobody waits for ever, and the
accounts add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fake_streams import FakeClient
from hypothesis import example, given, settings
from hypothesis import strategies as st
from team_envs import Leaver

from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.routes import sides_of, with_lengths
from runnel.core.trajectories import trajectory_stream
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.sampler import TeamSampler
from runnel.envs.team.serial import SerialTeam
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import LagRule, StalenessConfig
from runnel.flow.transports.inproc import InprocTransport
from runnel.recipes import ippo

NUM_STEPS = 8
BATCHES = 4


class Run:
    """Actors, their streams, and a trainer that takes a batch of every stream and then is one version further."""

    def __init__(self, lengths: dict[str, tuple[int, ...]], *, num_actors: int, lanes: int, lag: int, turns: bool, exact: bool):
        routes = [
            AgentRoute(f"{name}_.*", name, tuple(SampleRoute(f"{name}{n}", n, burn_in=n % NUM_STEPS) for n in sizes))
            for name, sizes in lengths.items()
        ]
        self.sides = sides_of(with_lengths(routes, NUM_STEPS), ParallelEnv(Leaver(), "probe").spec())
        self.tables: dict[str, SlotTable] = {}
        longest = max(n for sizes in lengths.values() for n in sizes)
        for side in self.sides.values():
            for sample in side.route.samples:
                batch = num_actors * lanes * (NUM_STEPS // sample.num_steps)
                spec = trajectory_stream(
                    side.spec,
                    num_steps=sample.num_steps,
                    num_envs=1,
                    name=sample.stream,
                    burn_in=sample.burn_in,
                    active=True,
                    batch_segments=batch,
                    capacity=batch * (lag + 1),
                    num_writers=num_actors,
                )
                # as `team_graph` has it: the longest segments alone end with the run
                rule = LagRule(
                    lag=lag, batch=batch, exact=exact, turns=turns, stop=BATCHES if sample.num_steps == longest else None
                )
                self.tables[sample.stream] = InprocTransport().samples(spec, rule)
        self.readers = {name: TableReader(table, "trainer") for name, table in self.tables.items()}
        self.version, self.made_by = 0, dict.fromkeys(self.tables, 0)
        self.clients: dict[str, Any] = {name: FakeClient() for name in self.sides}
        self.samplers = [self._sampler(index, lanes) for index in range(num_actors)]
        self.writers = [{name: TableWriter(t, index) for name, t in self.tables.items()} for index in range(num_actors)]

    def _sampler(self, index: int, lanes: int) -> TeamSampler:
        vectors = [SerialTeam(Leaver, 1, sides=self.sides, seed=1, index0=index * lanes + i, name="toy") for i in range(lanes)]
        return TeamSampler(vectors, noise_sizes=dict.fromkeys(self.sides, 1), seed=index, name=f"a{index}")

    def play(self, actor: int) -> int:
        return self.samplers[actor].step(self.clients, self.writers[actor])

    def train(self) -> int:
        """An update, if every stream has a batch."""
        found = [reader.available() for reader in self.readers.values()]  # all are asked, as a trainer does: see its poll
        if any(num < reader.spec.batch_segments for num, reader in zip(found, self.readers.values(), strict=True)):
            return 0
        for reader in self.readers.values():
            reader.release(reader.take(reader.spec.batch_segments))
        self.version += 1
        for client in self.clients.values():
            client.published = self.version
        for reader in self.readers.values():
            reader.advance(self.version)
        return 1

    def check_accounts(self) -> None:
        for reader in self.readers.values():
            account = reader.accounting()
            gone = sum(account.dropped.values()) + sum(account.cancelled.values())
            assert account.dispatched == account.consumed + gone + account.in_flight


@settings(max_examples=50, deadline=None)
@given(
    early=st.sampled_from([(8,), (4,), (2,), (8, 2), (2, 4), (1, 2, 8)]),
    late=st.sampled_from([(8,), (4,), (1,), (), (4, 8)]),
    num_actors=st.integers(1, 3),
    lanes=st.integers(1, 2),
    lag=st.integers(0, 2),
    turns=st.booleans(),
    exact=st.booleans(),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=40),
)
@example(early=(8,), late=(8,), num_actors=2, lanes=2, lag=1, turns=False, exact=False, order=[0] * 6)
# the longer segment is dropped, and a shorter one of the same steps is not
@example(
    early=(8,),
    late=(4,),
    num_actors=2,
    lanes=2,
    lag=1,
    turns=False,
    exact=False,
    order=[1, 3, 1, 2, 2, 3, 1, 3, 1, 3, 2, 2, 0, 0],
)
def test_nobody_waits_for_ever(
    early: tuple[int, ...],
    late: tuple[int, ...],
    num_actors: int,
    lanes: int,
    lag: int,
    turns: bool,
    exact: bool,
    order: list[int],
) -> None:
    """The order says whom to poll next; when it is over, it begins anew. A round in which nobody can do anything is the end."""
    run = Run({"early": early, "late": late}, num_actors=num_actors, lanes=lanes, lag=lag, turns=turns, exact=exact or lag == 0)
    idle = 0
    while run.version < BATCHES:
        for who in [*order, *range(num_actors + 1)]:
            did = run.train() if who >= num_actors else run.play(who)
            idle = 0 if did else idle + 1
        run.check_accounts()
        waits = [sampler.waits_for() for sampler in run.samplers]
        assert idle <= num_actors or run.version == BATCHES, f"version {run.version}: all stand still; {waits}"


def test_in_a_window_the_longest_segments_alone_end_with_the_run() -> None:
    for mode, ends in (("window", {"a": None, "b": 4}), ("one_step", {"a": 4, "b": 4})):
        staleness = StalenessConfig(mode=mode)
        config = ippo.Config(teams=("sender=a: 16 steps", "receiver=b"), total_updates=4, num_steps=32, staleness=staleness)
        rules = ippo.build(replace(config, total_steps=None)).staleness
        assert {name: rule.stop for name, rule in rules.items() if isinstance(rule, LagRule)} == ends
