"""Segments of worlds of several agents that are played on their device: number by number what is played step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter
from tensor_worlds import Chase, InTensors, sides

from runnel.core.contracts.samples import Sampler
from runnel.core.errors import DataError, NonFiniteError
from runnel.core.records import Batch, FieldSpec
from runnel.core.routes import Side
from runnel.core.spaces import ArraySpec
from runnel.core.trajectories import TASK_RETURN, trajectory_stream
from runnel.envs.device import Leduc, MatrixGame, Meeting, Reference, Spread, Tag, TensorTeam, TicTacToe, TwoStep
from runnel.envs.device.team_engine import TeamEngine
from runnel.envs.device.team_sampler import TeamSegmentSampler
from runnel.envs.team.sampler import TeamSampler

KINDS = ("cat_.*=cats", "mouse_.*=mice")
ALONE = ("mouse_0=first", "cat_.*=cats", "mouse_1=second")
HUNT = ("adversary_.*=hunters", "agent_.*=prey")
SEATS = ("player_0=first", "player_1=second")
ONE = (".*=shared",)
MEMORY = {"state/h": ArraySpec((2,)), "state/n": ArraySpec((), torch.int64)}


class Placed(Meeting):
    """It says where its agents are when an episode ends."""

    def episode_stats(self, state: Any) -> dict[str, Any]:
        return {"left": state["place"][:, 0], "right": 2.0 * state["place"][:, 1]}


CASES = {
    "early leavers, waits, cuts": (Chase, KINDS),
    "mixed columns": (Chase, ALONE),
    "a global state": (partial(Chase, known=True), ALONE),
    "turns": (Leduc, SEATS),
    "turns of one policy": (TicTacToe, ONE),
    "random starts": (partial(Spread, N=2, max_cycles=7), ONE),
    "two kinds": (partial(Tag, max_cycles=5), HUNT),
    "actions of two parts": (partial(Reference, max_cycles=4, two_choices=True), ONE),
    "two steps": (TwoStep, ONE),
    "continuous": (partial(Meeting, max_cycles=4), ("left=left", "right=right")),
    "numbers of episodes": (partial(Placed, max_cycles=4), ("left=left", "right=right")),
    "rounds": (partial(MatrixGame, rounds=2), ONE),
}


def acting(rows: Batch) -> Batch:
    """One of two choices, or an open one, by all that it sees and by noise; on any device."""
    obs = sum(x.reshape(len(x), -1).float().sum(1) for k, x in rows.items() if k.startswith("obs"))
    score = rows["noise"][:, 0] + 0.1 * torch.sin(obs)
    if "action_mask" not in rows:
        return Batch(action=(score > 0.5).long(), logprob=score)
    mask = rows["action_mask"]
    numbers = torch.arange(mask.shape[1], device=mask.device)
    return Batch(action=(mask * (1.0 + torch.sin(numbers + 9.0 * score[:, None]))).argmax(1), logprob=score)


def remembering(rows: Batch) -> Batch:
    """A policy whose state is made of all that it drew since the episode began, and counts its decisions."""
    found = acting(Batch({**rows, "noise": (rows["noise"] + rows["state/h"][:, :1]) % 1.0}))
    return Batch({**found, "state/h": rows["state/h"] * 0.5 + rows["noise"][:, :1], "state/n": rows["state/n"] + 1})


def moving(rows: Batch) -> Batch:
    return Batch(action=4.0 * (rows["noise"] - 0.5) - rows["obs"][:, :1], logprob=rows["noise"][:, 0])


def parts_of(rows: Batch) -> Batch:
    """The actions of `Reference`: a move and a word."""
    u = rows["noise"][:, 0]
    obs = rows["obs"].sum(1)
    both = ((u + 0.1 * obs.sin()).abs() * 49.0).long() % 50
    return Batch(action=torch.stack([both % 5, both // 5], 1), logprob=u.log())


POLICIES = {"actions of two parts": parts_of, "continuous": moving, "numbers of episodes": moving}


class Setting:
    """One case: the same worlds, sides and policies for both samplers."""

    def __init__(
        self,
        make: Callable[[], Any],
        teams: tuple[str, ...],
        *,
        steps: int = 6,
        envs: int = 5,
        shared: bool = True,
        memory: bool = False,
        silent: str = "",
        device: str = "cpu",
        policy: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.make, self.steps, self.envs, self.device = make, steps, envs, device
        self.sides: dict[str, Side] = sides(make, teams, shared=shared)
        if silent:
            side = self.sides[silent]
            self.sides[silent] = replace(side, route=replace(side.route, samples=()))
        self.states = dict.fromkeys(self.sides, MEMORY if memory else {})
        self.policy = policy or (remembering if memory else acting)

    def noise(self) -> dict[str, int]:
        return dict.fromkeys(self.sides, 1)

    def writers(self, required: Callable[[int], int] = lambda k: -1) -> dict[str, FakeWriter]:
        found = {}
        for policy, side in self.sides.items():
            if not side.trains:
                continue
            spec = trajectory_stream(
                side.spec,
                num_steps=self.steps,
                num_envs=self.envs * len(side.agents),
                name=policy,
                state=self.states[policy],
                carried=("rewards/env",),
                active=True,
                unit_rows=len(side.agents),
                device=self.device,
            )
            found[policy] = FakeWriter(replace(spec, fields={**spec.fields, TASK_RETURN: FieldSpec(("B",))}), required)
        return found

    def clients(self, *, direct: bool = True) -> dict[str, FakeClient]:
        return {policy: FakeClient(self.policy, direct=direct, published=4) for policy in self.sides}

    def lane(self, seed: int = 1) -> TeamSegmentSampler:
        env = InTensors(self.make())
        engine = TeamEngine(env, self.envs, sides=self.sides, seed=seed, index0=7, device=self.device)
        gammas = dict.fromkeys(self.sides, 0.9)
        given: dict[str, Any] = {"noise_sizes": self.noise(), "gammas": gammas, "states": self.states}
        return TeamSegmentSampler(engine, seed=seed, name="a", by_step=lambda: self.by_step(seed), **given)

    def by_step(self, seed: int = 1, vector: Any = None) -> TeamSampler:
        vector = vector or TensorTeam(InTensors(self.make()), self.envs, sides=self.sides, seed=seed, index0=7)
        gammas = dict.fromkeys(self.sides, 0.9)
        return TeamSampler([vector], noise_sizes=self.noise(), seed=seed, name="a", gammas=gammas, states=self.states)


class Replayed(TensorTeam):
    """Worlds that begin in given states: at first `first`, and where world e is over behind step t, in row t * E + e."""

    def __init__(self, env: Any, first: Batch, starts: Batch, *args: Any, **kwargs: Any) -> None:
        self.starts = {k: x.numpy() for k, x in starts.items()}
        env.initial = lambda num, generator: first.map(lambda x: x[:num].clone())
        super().__init__(env, *args, **kwargs)

    def _refill(self) -> None:
        self._used = 0

    def _begin(self, envs: np.ndarray[Any, Any]) -> None:
        rows = (self._clock - 1) * self.num_envs + envs
        self._fresh = {k: x[rows] for k, x in self.starts.items()}
        super()._begin(envs)


def play_both(case: Setting, rounds: int) -> tuple[dict[str, FakeWriter], dict[str, FakeWriter], list[Any], list[Any]]:
    """Some rounds on the device, and the same worlds with the same noise and first states step by step."""
    lane, ours, theirs, clients = case.lane(), case.writers(), case.writers(), case.clients()
    assert isinstance(lane, Sampler)
    drawn: list[Batch] = []
    env: Any = lane.engine.env
    initial = env.initial
    env.initial = lambda num, generator: drawn.append(Batch(initial(num, generator))) or drawn[-1]
    noise: dict[str, list[torch.Tensor]] = {policy: [] for policy in case.sides}
    for _ in range(rounds):
        assert lane.step(clients, ours) == case.steps * case.envs
        for policy in case.sides:
            noise[policy].append(lane._policies[policy].noise.clone())
    first, *pools = drawn
    assert len(pools) == rounds
    given = {"sides": case.sides, "seed": 1, "index0": 7}
    first = Batch({k: torch.cat([x, x[:3]]) for k, x in first.items()})  # the check of a new world asks for three rows
    vector = Replayed(InTensors(case.make()), first, Batch.cat(pools), case.envs, **given)
    host = case.by_step(vector=vector)
    for part in host._lanes[0].parts:
        queue = iter(noise[part.route.inference])
        requests = part._requests
        requests.draw = lambda requests=requests, queue=queue: requests.load(next(queue))  # type: ignore[method-assign]
    while any(len(w.committed) < rounds for w in theirs.values()):
        host.step(clients, theirs)
    return ours, theirs, lane.events(), host.events()


def compare(ours: Mapping[str, FakeWriter], theirs: Mapping[str, FakeWriter]) -> int:
    """Everything is equal, bit for bit, but that of final observations only those of truncated agents are kept. Returns their
    number."""
    num = 0
    for policy in theirs:
        for (mine, a), (other, b) in zip(ours[policy].committed, theirs[policy].committed, strict=True):
            assert (mine.version_min, mine.version_max, mine.num_steps) == (
                other.version_min,
                other.version_max,
                other.num_steps,
            )
            assert a.keys() == b.keys()
            for key in a:
                if not key.startswith("final_"):
                    assert torch.equal(a[key], b[key]), (policy, key)
            cut = a["truncated"].flatten()
            places = [{int(i): k for k, i in enumerate(x["final_index"]) if cut[i]} for x in (a, b)]
            assert places[0].keys() == places[1].keys() == set(cut.nonzero()[:, 0].tolist())
            num += len(places[0])
            for place, k in places[0].items():
                for key in (key for key in a if key.startswith("final_") and key != "final_index"):
                    assert torch.equal(a[key][k], b[key][places[1][place]]), (policy, key, place)
            # what is kept of others changes nothing: it is what stands there anyhow
            for k, place in enumerate(a["final_index"].tolist()):
                t, row = divmod(place, len(cut) // len(a["truncated"]))
                if not cut[place]:
                    assert all(torch.equal(x[k], a[key[6:]][t + 1, row]) for key, x in a.items() if key[6:] in a)
    return num


@pytest.mark.parametrize("memory", [False, True], ids=["", "with memory"])
@pytest.mark.parametrize("steps", [3, 9])
@pytest.mark.parametrize("name", CASES)
def test_a_round_on_the_device_is_what_is_played_step_by_step(name: str, steps: int, memory: bool) -> None:
    make, teams = CASES[name]
    if memory and name in POLICIES:
        pytest.skip("its policy has no memory")
    case = Setting(make, teams, steps=steps, memory=memory, policy=POLICIES.get(name))
    ours, theirs, events, others = play_both(case, rounds=24 // steps)
    num = compare(ours, theirs)
    if make().max_steps:
        assert num > 5
    assert [(e["env"], e["length"]) for e in events] == [(e["env"], e["length"]) for e in others]
    assert len(events) >= 5
    for a, b in zip(events, others, strict=True):
        assert a["return"] == pytest.approx(b["return"], abs=1e-6)
        assert a["by_policy"] == pytest.approx(b["by_policy"], abs=1e-6)


def test_a_policy_that_is_not_trained_acts_and_writes_nothing() -> None:
    case = Setting(Chase, KINDS, silent="mice", memory=True)
    ours, theirs, events, others = play_both(case, rounds=4)
    assert set(ours) == {"cats"}
    assert compare(ours, theirs) > 5
    assert [e["return"] for e in events] == pytest.approx([e["return"] for e in others])
    assert [e["return"] for e in events] == [e["by_policy"]["cats"] for e in events]
    assert any(e["return"] != e["by_policy"]["mice"] for e in events)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return str(request.param)


def drive(sampler: Any, clients: Any, writers: Mapping[str, FakeWriter], num: int) -> list[Batch]:
    """Play until each stream has `num` segments."""
    for _ in range(10_000):
        if all(len(w.committed) >= num for w in writers.values()):
            return [x for w in writers.values() for _, x in w.committed[:num]]
        sampler.step(clients, writers)
    raise AssertionError(sampler.waits_for())


def same(ours: list[Batch], theirs: list[Batch]) -> bool:
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("name", ["early leavers, waits, cuts", "random starts", "turns"])
def test_a_restored_sampler_goes_on_bit_for_bit(name: str, calls: int, device: str) -> None:
    case = Setting(*CASES[name], steps=4, memory=True, device=device)
    lane, writers, clients = case.lane(), case.writers(), case.clients()
    for _ in range(calls):
        lane.step(clients, writers)
    state, twins = lane.snapshot(), {name: w.twin() for name, w in writers.items()}
    twin = case.lane(seed=1 if not calls else 77)
    twin.restore(state, twins)
    for w in writers.values():
        w.committed.clear()
    assert same(drive(lane, clients, writers, 3), drive(twin, clients, twins, 3))
    lane.snapshot(), twin.snapshot()
    assert lane.events() == twin.events()


def test_another_kind_of_device_goes_on_where_the_worlds_are() -> None:
    """Its generators go on with another sequence; nothing else is lost."""
    case = Setting(Chase, KINDS, steps=4, memory=True)
    lane, writers, clients = case.lane(), case.writers(), case.clients()
    drive(lane, clients, writers, 2)
    state, twins = lane.snapshot(), {name: w.twin() for name, w in writers.items()}
    twin = case.lane(seed=9)
    twin.restore({**state, "device": "cuda"}, twins)
    for w in writers.values():
        w.committed.clear()
    (a, *_), (b, *_) = drive(lane, clients, writers, 1), drive(twin, clients, twins, 1)
    assert torch.equal(a["obs"][0], b["obs"][0])
    assert torch.equal(a["state/h"], b["state/h"])
    assert not torch.equal(a["logprob"], b["logprob"])


def test_it_waits_for_room_on_every_stream_and_for_every_version() -> None:
    case = Setting(Chase, KINDS, steps=4)
    lane, writers, clients = case.lane(), case.writers(required=lambda k: 3 + k), case.clients()
    clients["mice"].published = 2
    assert lane.step(clients, writers) == 0
    assert lane.waits_for() == "version 3 of policy 'mice'"
    state, twins = lane.snapshot(), {name: w.twin() for name, w in writers.items()}  # with slots, before the first step
    clients["mice"].published = 3
    assert lane.step(clients, writers) == 20
    assert lane.waits_for() == "nothing"
    assert [w.committed[0][0].num_steps for w in writers.values()] == [20, 0]  # a step of a world counts once
    twin = case.lane()
    twin.restore(state, twins)
    assert twin.step(clients, twins) == 20
    assert same([w.committed[0][1] for w in writers.values()], [w.committed[0][1] for w in twins.values()])
    held = writers["mice"]._free
    writers["mice"]._free = []
    assert lane.step(clients, writers) == 0
    assert lane.waits_for() == "room on stream 'mice'"
    writers["mice"]._free = held
    for client in clients.values():
        client.published = 4
    assert lane.step(clients, writers) == 20


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_policies_elsewhere_are_asked_step_by_step(device: str) -> None:
    """Worlds then are on the CPU, and what they give goes into segments wherever these are; so it is after a resume."""
    case = Setting(Chase, KINDS, steps=4, device=device)
    lane, writers, host = case.lane(), case.writers(), case.by_step()
    twins, clients = case.writers(), case.clients(direct=False)
    assert same(drive(lane, clients, writers, 2), drive(host, clients, twins, 2))
    again, state, later = case.lane(seed=5), lane.snapshot(), {name: w.twin() for name, w in writers.items()}
    again.restore(state, later)
    for w in (*writers.values(), *twins.values()):
        w.committed.clear()
    assert same(drive(again, clients, later, 2), drive(host, clients, twins, 2))
    assert again.snapshot().keys() == host.snapshot().keys()


def test_bad_numbers_stop_before_the_commit() -> None:
    case = Setting(Chase, KINDS, steps=4)
    lane, writers, clients = case.lane(), case.writers(), case.clients()
    drive(lane, clients, writers, 1)
    lane.engine._state["sum"][1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"chase.*policy 'cats'"):
        lane.step(clients, writers)
    assert all(len(w.committed) == 1 for w in writers.values())
    case = Setting(Chase, KINDS, steps=4)
    lane, writers, clients = case.lane(), case.writers(), case.clients()
    clients["mice"].policy = lambda rows: acting(rows) | {"logprob": torch.full((len(rows["noise"]),), torch.inf)}  # type: ignore[arg-type,return-value]
    with pytest.raises(NonFiniteError, match="policy 'mice'"):
        lane.step(clients, writers)


def test_a_policy_must_answer_what_its_stream_declares() -> None:
    case = Setting(Chase, KINDS, steps=4)
    for wrong, says in (
        (lambda rows: Batch(action=acting(rows)["action"]), "declares 'logprob'"),
        (lambda rows: Batch(acting(rows) | {"logprob": rows["noise"]}), "answered 'logprob'"),
    ):
        case.policy = wrong
        with pytest.raises(DataError, match=says):
            case.lane().step(case.clients(), case.writers())


# --------------------------------------------------------------------------------------------------------------- device
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("memory", [False, True], ids=["", "with memory"])
@pytest.mark.parametrize("name", CASES)
def test_graphs_on_a_device_play_what_plain_calls_play(name: str, memory: bool) -> None:
    if memory and name in POLICIES:
        pytest.skip("its policy has no memory")
    runs = []
    for captured in (True, False):
        case = Setting(*CASES[name], steps=4, envs=64, memory=memory, device="cuda", policy=POLICIES.get(name))
        lane, writers, clients = case.lane(), case.writers(), case.clients()
        for _ in range(8):
            if not captured and lane._play is not None:
                lane._play.forget()
            lane.step(clients, writers)
        if captured:
            assert lane._play is not None
            assert len(lane._play._graphs) == 2  # one for each slot
        lane.snapshot()
        runs.append(([x for w in writers.values() for _, x in w.committed], lane.events()))
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("name", CASES)
def test_segments_on_a_device_are_played_without_a_wait(name: str) -> None:
    case = Setting(*CASES[name], steps=4, envs=64, device="cuda", policy=POLICIES.get(name))
    lane, writers, clients = case.lane(), case.writers(), case.clients()
    for _ in range(5):
        lane.step(clients, writers)
    assert lane._reserve(writers)
    torch.cuda.set_sync_debug_mode("error")
    try:
        lane._fill(clients)
    finally:
        torch.cuda.set_sync_debug_mode("default")
