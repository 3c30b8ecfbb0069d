"""An evaluation of self-play: exact numbers of games from each seat, against everybody who is there, and the right winners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runnel.core.config import override
from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.contracts.learning import SingleProcess
from runnel.core.contracts.params import ParamSet
from runnel.core.lineups import number_of
from runnel.core.routes import sides_of
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam
from runnel.envs.team.toy import Bids
from runnel.eval.league import LeagueEvaluation
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.layers import NetConfig
from runnel.nets.pool import DRAW, FROZEN, NUMBERS, SHARES, PoolNet, packed
from runnel.recipes import selfplay
from runnel.run.saved import serving

SPEC = ParallelEnv(Bids(), "bids").spec()
SIDES = sides_of([AgentRoute(".*", "main", (SampleRoute("main"),))], SPEC)


def always(bid: int) -> ActorCritic:
    """A policy that always makes the same bid."""
    spec = SIDES["main"].spec
    net = ActorCritic(spec, build_body(spec, NetConfig(hidden=(4,)), seed=1))
    with torch.no_grad():
        for x in net.parameters():
            x.zero_()
        net.body.nets.bias[-2][bid] = 50.0
    return net


def pool(*bids: int) -> PoolNet:
    """The first bid is main's, the others are those of the members of its pool, oldest first."""
    made = PoolNet({"main": always(bids[0])}, places=4, seats=2)
    state = made.state_dict()
    for i, bid in enumerate(bids[1:]):
        for kind, vector in packed(always(bid).state_dict()).items():
            state[FROZEN + kind][i] = vector
    numbers = [number_of(0, version, 1) for version in range(-1, len(bids) - 1)]
    state[NUMBERS] = torch.tensor(numbers + [0] * (5 - len(numbers)))
    state[DRAW][0, 0] = state[SHARES][0] = 1.0
    made.load_state_dict(state)
    return made


def evaluate(net: PoolNet, *, episodes: int = 10, **more: Any) -> Any:
    evaluation = LeagueEvaluation(
        lambda: SerialTeam(Bids, 4, sides=SIDES, seed=1, name="bids"),
        episodes=episodes,
        seed=5,
        roles=("main",),
        places=4,
        noise_size=net.noise_size,
        state=net.state_spec,
        **more,
    )
    try:
        with serving(
            TorchInferencer(net, greedy=True), ParamSet(3, {k: x.clone() for k, x in net.state_dict().items()})
        ) as client:
            return evaluation.run({"policy": client}, round_index=0)
    finally:
        evaluation.close()


def test_everybody_is_met_from_both_seats_and_the_better_bid_wins() -> None:
    """Bid 1 beats 0, draws with 1 and loses to 2, from either seat."""
    result = evaluate(pool(1, 0, 2, 1))
    table = result.tables["Main against"]
    assert table.rows == ["random", "main@0", "main@1", "main@2"]
    assert [list(row) for row in table.values][1:] == [[1.0] * 3, [0.0] * 3, [0.5] * 3]
    extra = result.extra
    assert (extra["win_rate/first"], extra["win_rate/worst"]) == ([1.0] * 10, [0.0] * 10)
    assert extra["win_rate/last"] == [0.5] * 10
    assert [len(extra[f"win_rate/{name}/seat_{seat}"]) for name in ("random", "worst") for seat in (0, 1)] == [5] * 4
    assert len(result.returns) == 10
    assert np.mean([r > 0 for r in result.returns]) == pytest.approx(np.mean(np.array(extra["win_rate/random"]) == 1.0))


def test_three_seats_are_played_as_often_as_each_other() -> None:
    """40 games of three agents: no seat has more than one game more than another, so win rates favour none."""
    config: Any = override(
        selfplay.Config(),
        {"env": "tensor:Spread", "total_updates": 1, "eval": {"episodes": 40, "max_steps": 2}, "net": {"hidden": (4,)}},
    )
    experiment = selfplay.build(config)
    assert experiment.evaluation is not None
    params = experiment.trainers[0].learner(SingleProcess()).params()
    evaluation = experiment.evaluation.make()
    with serving(experiment.evaluation.inferencer(), ParamSet(0, params)) as client:
        found = evaluation.run({"policy": client}, round_index=0)
    evaluation.close()
    assert sorted(len(found.extra[f"win_rate/random/seat_{seat}"]) for seat in range(3)) == [13, 13, 14]


def test_games_that_never_end_are_cut_and_told() -> None:
    """With two steps at most no game of three to six rounds ends; each counts with what was paid by then: a draw."""
    result = evaluate(pool(1, 0), episodes=6, max_steps=2)
    assert result.extra["cut"] == [1.0] * 6
    assert result.extra["win_rate/first"] == [0.5] * 6
    assert result.extra["length"] == [2.0] * 6
