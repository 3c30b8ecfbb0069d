"""That a CUDA graph could record what worlds of several agents and the policies in them do, as far as this shows on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recording import Recorded
from tensor_worlds import Chase, sides

from runnel.core.lineups import LINEUP, MEMBER
from runnel.core.records import Batch, FieldSpec
from runnel.core.trajectories import TASK_RETURN, trajectory_stream
from runnel.envs.device import TENSOR_TEAMS
from runnel.envs.device.team_columns import Playing
from runnel.envs.device.team_engine import TeamEngine
from runnel.envs.segments import CarriedSums, reply_fields
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.central import central_body
from runnel.nets.layers import NetConfig
from runnel.nets.pool import DRAW, NUMBERS, SHARES, PoolNet

STEPS, ENVS = 4, 8


def parts_for(engine: TeamEngine, nets: dict[str, Any]) -> dict[str, Playing]:
    """Memory for one segment of each policy."""
    found = {}
    for policy, side in engine.sides.items():
        net, num = nets[policy], ENVS * len(side.agents)
        spec = trajectory_stream(side.spec, num_steps=STEPS, num_envs=num, name=policy, state=net.state_spec, active=True)
        fields = {**spec.fields, TASK_RETURN: FieldSpec(("B",))}
        fields |= {MEMBER: FieldSpec(("T", "B"), torch.int64)} if LINEUP in net.state_spec else {}
        state = {key: torch.zeros(num, *leaf.shape, dtype=leaf.dtype) for key, leaf in net.state_spec.items()}
        spec = spec.__class__(**{**vars(spec), "fields": fields})
        noise = torch.rand(STEPS, num, net.noise_size, generator=torch.Generator().manual_seed(1))
        found[policy] = Playing(net.act, noise, state, spec.allocate(), reply_fields(spec))
    return found


def record(engine: TeamEngine, nets: dict[str, Any]) -> Batch:
    """Play a segment plainly, as the first call of a graph does, and then one under watch. Returns one of the segments."""
    engine.begin()
    parts = parts_for(engine, nets)
    fields = {"field": lambda _: TASK_RETURN, "device": engine.device}
    sums = {name: CarriedSums(part.noise.shape[1], {"rewards/env": 1.0}, **fields) for name, part in parts.items()}
    with torch.no_grad():
        engine.play(parts)
        with Recorded():
            for policy, part in parts.items():
                assert part.arrays is not None
                sums[policy].begin(part.arrays)
            engine.play(parts)
            for policy, part in parts.items():
                assert part.arrays is not None
                sums[policy].end(part.arrays)
    arrays = next(iter(parts.values())).arrays
    assert arrays is not None
    return arrays


def one_each(make: Any) -> tuple[str, ...]:
    """A policy for each kind of agents."""
    agents = list(make().spec.agents)
    return tuple(f"{'|'.join(agents[i] for i in kind)}=kind_{k}" for k, kind in enumerate(make().spec.kinds))


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "with a global state"])
@pytest.mark.parametrize("make", [*TENSOR_TEAMS.values(), Chase], ids=lambda make: make.__name__)
def test_every_world_can_be_recorded(make: Any, shared: bool) -> None:
    mine = sides(make, one_each(make), shared=shared)
    engine = TeamEngine(make(), ENVS, sides=mine, seed=1)
    config, nets = NetConfig(hidden=(8,)), {}
    for policy, side in mine.items():
        body = central_body(side.spec, config, seed=1) if shared else build_body(side.spec, config, seed=1)
        nets[policy] = ActorCritic(side.spec, body, normalise_obs=True)
    record(engine, nets)


@pytest.mark.parametrize("config", [{"core": "gru", "core_size": 4}, {"core": "lstm", "core_size": 4}], ids=["gru", "lstm"])
def test_memory_can_be_recorded(config: dict[str, Any]) -> None:
    mine = sides(Chase, one_each(Chase))
    engine = TeamEngine(Chase(), ENVS, sides=mine, seed=1)
    made = NetConfig(hidden=(8,), **config)
    record(engine, {policy: ActorCritic(s.spec, build_body(s.spec, made, seed=1)) for policy, s in mine.items()})


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_pool_of_opponents_can_be_recorded(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator `PoolNet` takes another way, which is taken here too."""
    make = TENSOR_TEAMS["TicTacToe"]
    (side,) = (mine := sides(make, (".*=main",))).values()
    config = NetConfig(hidden=(8,), core=core)  # type: ignore[arg-type]
    net = PoolNet({"main": ActorCritic(side.spec, build_body(side.spec, config, seed=1))}, places=3, seats=2, openings=2)
    state = net.state_dict()
    state[NUMBERS] = torch.tensor([1, 2, 3, 0])
    state[DRAW], state[SHARES] = torch.tensor([[0.4, 0.3, 0.3, 0.0]]).double(), torch.ones(1).double()
    net.load_state_dict(state)
    monkeypatch.setattr("runnel.nets.pool.is_recording", lambda x: True)
    monkeypatch.setattr("runnel.nets.pool.on_host", lambda x: False)
    arrays = record(TeamEngine(make(), ENVS, sides=mine, seed=1), {"main": net})
    assert {abs(n) for n in arrays[MEMBER].unique().tolist()} == {1, 2, 3}
    net.load_state_dict({**state, NUMBERS: torch.tensor([1, 2, 0, 0])})
    asked = Batch(obs=torch.zeros(2, *side.spec.obs["obs"].shape), noise=torch.full((2, net.noise_size), 0.5))
    asked["action_mask"] = torch.ones(2, 9, dtype=torch.bool)
    asked |= {key: torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for key, leaf in net.state_spec.items()}
    asked[LINEUP] = torch.tensor([[1, 3]] * 2)
    found = net.act(asked)["logprob"]
    assert found.isfinite().tolist() == [True, False]  # a member that is gone: whoever reads the segment stops


def test_what_cannot_be_recorded_is_found() -> None:
    """The watch itself."""
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, False])
    for bad in (
        lambda: x.sum().item(),
        lambda: bool(mask.any()),
        lambda: x[mask],
        lambda: x.masked_fill_(mask, 0.0)[[0, 1]],
        lambda: mask.nonzero(),
        lambda: torch.tensor([1.0]),
        lambda: x.index_put_((mask,), x[:1]),
    ):
        with pytest.raises(AssertionError), Recorded():
            bad()
    with Recorded():
        torch.where(mask, x, 0.0).cumsum(0)[torch.zeros(2, dtype=torch.int64)]
