"""The learner of self-play: who is trained on what, results, the pool, and that what is frozen stays as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from runnel.agents.league import LeagueLearner, PoolConfig
from runnel.agents.outcomes import Outcomes
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.errors import CheckpointError, ConfigError
from runnel.core.lineups import LINEUP, MEMBER, number_of
from runnel.core.records import Batch, FieldSpec, Header, Segment
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import ACTIVE, TASK_RETURN, trajectory_stream
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig
from runnel.nets.pool import PoolNet
from runnel.ops.matchmaking import DRAW, LOSS, WIN

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=3))
MAIN, FIRST = number_of(0, -1, 1), number_of(0, 0, 1)
T, E = 12, 6


def net(seed: int = 0) -> ActorCritic:
    return ActorCritic(SPEC, build_body(SPEC, NetConfig(hidden=(8,)), seed=seed), normalise_obs=True)


def league(config: PoolConfig | None = None, **ppo: Any) -> LeagueLearner:
    config = config or PoolConfig(size=3, every=1)
    settings = PPOConfig(**{"num_epochs": 2, "num_minibatches": 2, "lr": 1e-2, "normalise_obs": True, **ppo})
    roles = {role: PPOLearner(settings, net(i), seed=i) for i, role in enumerate(config.roles)}
    return LeagueLearner(config, roles, stream="main", seats=2, num_lanes=1)


def stream(**sizes: Any) -> Any:
    made = trajectory_stream(
        SPEC,
        num_steps=sizes.get("num_steps", T),
        num_envs=2 * E,
        name="main",
        state={LINEUP: ArraySpec((2,), torch.int64)},
        active=True,
        unit_rows=2,
    )
    return replace(made, fields={**made.fields, MEMBER: FieldSpec(("T", "B"), torch.int64), TASK_RETURN: FieldSpec(("B",))})


def segment(seed: int, members: tuple[int, ...] = (MAIN, FIRST), *, count: int | None = None, version: int = 0) -> Segment:
    """Episodes of four steps in which members are drawn for each seat; the better seat gets 1, the other -1, at the end."""
    spec, rng = stream(), np.random.default_rng(seed)
    arrays = spec.allocate()
    arrays["obs"].copy_(torch.from_numpy(rng.normal(size=arrays["obs"].shape)))
    arrays["action"].copy_(torch.from_numpy(rng.integers(0, 3, size=arrays["action"].shape)))
    arrays["logprob"].fill_(float(np.log(1 / 3)))
    arrays[ACTIVE].fill_(True)
    lineups = torch.from_numpy(rng.choice(np.array(members), size=(T // 4, E, 2)))
    arrays[MEMBER].copy_(lineups.flatten(1).repeat_interleave(4, 0))
    ends = torch.arange(3, T, 4)
    arrays["terminated"][ends] = True
    paid = torch.from_numpy(rng.choice([-1.0, 0.0, 1.0], size=(len(ends), E))).float()
    arrays["rewards/env"][ends] = torch.stack([paid, -paid], dim=2).flatten(1)
    index = arrays["terminated"].flatten().nonzero().flatten()
    arrays["final_index"][: len(index)] = index
    used = {"F": len(index)}
    number = seed if count is None else count
    header = Header(used=used, sample_id=number * 2 * E, version_min=version, version_max=version)
    arrays = Batch({k: x[: len(index)] if spec.fields[k].dims[0] == "F" else x for k, x in arrays.items()})
    return Segment(0, spec, header, arrays)


def train(learner: LeagueLearner, *seeds: int, **more: Any) -> Any:
    for seed in seeds:
        found = segment(seed, version=learner.version, **more)
        update = learner.update(learner.prepare({"main": [found]}, progress=0.0))
    return update


def test_what_frozen_members_see_and_get_reaches_neither_gradients_nor_statistics() -> None:
    """Rows of a frozen member filled with other observations, actions and rewards: not one bit of the update differs."""
    found = []
    for spoil in (False, True):
        learner, one = league(normalise_reward=False), segment(1)
        theirs = one.arrays[MEMBER] != MAIN
        assert 0.3 < float(theirs.float().mean()) < 0.7
        if spoil:
            a = one.arrays
            a["obs"][:T] = a["obs"][:T].masked_fill(theirs.unsqueeze(-1), 900.0)
            a["action"][theirs], a["logprob"][theirs], a["rewards/env"][theirs] = 2, -9.0, 50.0
            ended = theirs.flatten()[a["final_index"]]
            a["final_obs"][ended] = -900.0
        learner.update(learner.prepare({"main": [one]}, progress=0.0))
        found.append({k: x.clone() for k, x in learner.params().items() if k.startswith("main/")})
    for key, x in found[0].items():
        assert torch.equal(x, found[1][key]), key
    alone = int((segment(1).arrays[MEMBER] == MAIN).sum())
    assert int(found[0]["main/normalisers.obs.count"]) == alone


def test_nothing_is_learned_from_random_openings() -> None:
    """Their moves have the number of whoever they stand for with a minus: no bit of the update depends on them."""
    found = []
    for action in (0, 2):
        learner, one = league(normalise_reward=False), segment(1)
        first = torch.arange(0, T, 4)
        one.arrays[MEMBER][first] *= -1
        one.arrays["action"][first] = action
        learner.update(learner.prepare({"main": [one]}, progress=0.0))
        found.append({k: x.clone() for k, x in learner.params().items() if k.startswith("main/")})
        assert sum(learner.pool.row(1, torch.zeros(5))["games"]["main"]["main@0"][:3]) > 0
    assert all(torch.equal(x, found[1][key]) for key, x in found[0].items())
    assert int(found[0]["main/normalisers.obs.count"]) == int((segment(1).arrays[MEMBER] == MAIN).sum()) * 3 // 4


def test_against_itself_both_seats_are_trained_as_ppo_alone_would() -> None:
    learner, one = league(), segment(1, (MAIN,))
    plain = PPOLearner(learner.members["main"].config, net(0), seed=0)  # type: ignore[attr-defined]
    fields = {k: f for k, f in one.spec.fields.items() if k not in (MEMBER, LINEUP, TASK_RETURN)}
    alone = Segment(0, replace(one.spec, fields=fields), one.header, Batch({k: one.arrays[k] for k in fields}))
    plain.update(plain.prepare({"main": [alone]}, progress=0.0))
    learner.update(learner.prepare({"main": [one]}, progress=0.0))
    for key, x in plain.params().items():
        assert torch.equal(x, learner.params()[f"main/{key}"]), key


def test_a_frozen_policy_acts_the_same_bit_for_bit_after_a_hundred_updates() -> None:
    learner = league(PoolConfig(size=2, every=1000))
    train(learner, 0)
    acts = PoolNet({"main": net(5)}, places=3, seats=2)
    acts.load_state_dict(learner.params(), assign=True)
    rng = np.random.default_rng(0)
    asked = Batch(
        obs=torch.from_numpy(rng.normal(size=(40, 3))).float(),
        noise=torch.from_numpy(rng.uniform(0.01, 0.99, size=(40, acts.noise_size))).float(),
    )
    told = {number: Batch({**asked, LINEUP: torch.full((40, 2), number)}) for number in (MAIN, FIRST)}
    before = {number: acts.act(rows) for number, rows in told.items()}
    train(learner, *range(1, 101))
    after = {number: acts.act(rows) for number, rows in told.items()}
    assert all(torch.equal(after[FIRST][key], x) for key, x in before[FIRST].items())
    assert not torch.equal(after[MAIN]["logprob"], before[MAIN]["logprob"])
    learner.pool.verify()


def test_a_frozen_policy_that_changes_is_found_out() -> None:
    learner = league()
    train(learner, 0, 1)
    state = learner.state_dict()
    league().load_state_dict(state)
    state["pool"]["memory"]["frozen.float32"][1, 3] += 1e-6
    with pytest.raises(CheckpointError, match=r"member main@1 of the pool has changed since it was frozen"):
        league().load_state_dict(state)


def test_results_are_counted_by_seat_and_an_episode_across_segments_as_one() -> None:
    """Left (main) leads by what was paid before the segment; right gets 2 in it. Carried, that is a win, a draw and a loss."""
    learner = league(PoolConfig(size=2, every=1000))
    one = segment(1, (MAIN,), count=0)
    a = one.arrays
    a[MEMBER][:] = torch.tensor([MAIN, FIRST]).repeat(E)
    a["rewards/env"].zero_()
    a["rewards/env"][3, 1::2] = 2.0
    a[TASK_RETURN].zero_()
    a[TASK_RETURN][0:6:2] = torch.tensor([3.0, 2.0, 1.0])
    a["terminated"][4:] = False
    learner.update(learner.prepare({"main": [one]}, progress=0.0))
    row = learner.pool.row(1, torch.zeros(4))
    assert row["by_seat"]["main"]["main@0"] == [[1, 1, 4], [0, 0, 0]]
    assert row["games"]["main"]["main@0"] == [1, 1, 4, 6]
    assert row["elo"]["main"] < 1000.0 == row["elo"]["main@0"]


def test_who_leaves_early_is_compared_when_the_other_has_ended_too() -> None:
    """Left leaves at step 1 with 1; right ends at step 2 of the next segment with 0, 1 or 2. A new episode forgets the old."""
    outcomes = Outcomes(seats=2, num_lanes=1, lanes_per_writer=1)
    first, second = segment(1, (MAIN,), count=0), segment(2, (MAIN,), count=1)
    for one in (first, second):
        one.arrays[MEMBER][:] = torch.tensor([MAIN, FIRST]).repeat(E)
        one.arrays["terminated"].zero_()
        one.arrays["rewards/env"].zero_()
        one.arrays[TASK_RETURN].zero_()
    first.arrays["rewards/env"][1, 0::2] = 1.0
    first.arrays["terminated"][1, 0::2] = True
    first.arrays[ACTIVE][2:, 0::2] = False
    assert not outcomes.see(first)
    second.arrays[ACTIVE][:3, 0::2] = False
    second.arrays["rewards/env"][2, 1::2] = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0, 0.0])
    second.arrays["terminated"][2, 1::2] = True
    later = Outcomes(seats=2, num_lanes=1, lanes_per_writer=1)
    later.load_state_dict(outcomes.state_dict())
    games = later.see(second)
    assert games == {
        (MAIN, FIRST, 0, WIN): 4,
        (FIRST, MAIN, 1, LOSS): 4,
        (MAIN, FIRST, 0, DRAW): 1,
        (FIRST, MAIN, 1, DRAW): 1,
        (MAIN, FIRST, 0, LOSS): 1,
        (FIRST, MAIN, 1, WIN): 1,
    }
    assert outcomes.see(replace(second, header=replace(second.header, sample_id=5 * 2 * E))) == {}, "a segment is missing"


def test_a_member_is_over_only_when_no_vector_can_be_in_an_episode_of_it() -> None:
    outcomes = Outcomes(seats=2, num_lanes=2, lanes_per_writer=2)
    outcomes.see(segment(0, (MAIN,), count=0, version=7))
    assert not outcomes.is_over(FIRST, since=5), "one vector has said nothing yet"
    older = segment(1, (MAIN,), count=1, version=4)
    outcomes.see(older)
    assert not outcomes.is_over(FIRST, since=5), "it acted when the member was still drawn"
    playing = segment(2, (MAIN,), count=3, version=7)
    playing.arrays["terminated"][-1] = False
    playing.arrays[MEMBER][-1, 1] = FIRST
    outcomes.see(playing)
    assert not outcomes.is_over(FIRST, since=5), "an episode of it is open"
    outcomes.see(segment(3, (MAIN,), count=5, version=7))
    assert outcomes.is_over(FIRST, since=5)


def test_the_member_that_is_picked_least_makes_room_and_the_first_stays() -> None:
    config = PoolConfig(size=3, every=1, pick="pfsp", power=2.0, window=1000)
    learner = league(config)
    train(learner, 0, 1)
    members = learner.pool.frozen()
    assert members == [FIRST, number_of(0, 1, 1), number_of(0, 2, 1)]
    beaten = segment(2, (MAIN,), count=2, version=2)
    beaten.arrays[MEMBER][:] = torch.tensor([MAIN, members[1], members[2], MAIN]).repeat(E // 2)
    beaten.arrays["rewards/env"][3::4] = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(E // 2)
    learner.update(learner.prepare({"main": [beaten]}, progress=0.0))  # main beats member 1 and loses to member 2
    assert learner.pool.frozen() == [FIRST, members[2], number_of(0, 3, 1)]
    for seed in range(3, 12):
        train(learner, seed)
    assert learner.pool.frozen()[0] == FIRST
    assert len(learner.pool.frozen()) == 3


def test_a_row_tells_of_the_last_games_of_a_member_that_has_left() -> None:
    """Between two rows a member may join, play and leave: its games stand in the row that tells that it is gone."""
    learner = league(PoolConfig(size=2, every=1, window=1000))
    train(learner, 0)
    member = number_of(0, 1, 1)
    met = segment(1, (MAIN,), count=1, version=1)
    met.arrays[MEMBER][:] = torch.tensor([MAIN, member, member, MAIN]).repeat(E // 2)
    events = learner.update(learner.prepare({"main": [met]}, progress=0.0)).events
    (row,) = [event for event in events if event["kind"] == "league"]
    assert [m["name"] for m in row["members"]] == ["main", "main@0", "main@2"]
    assert row["games"]["main"]["main@1"][3] == sum(map(sum, row["by_seat"]["main"]["main@1"])) > 0
    assert "main@1" not in row["elo"]
    assert "main@1" not in row["picked"]


def test_a_copy_joins_when_everybody_is_beaten() -> None:
    learner = league(PoolConfig(size=3, every=0, beat=0.6, window=1000))
    drawn = segment(0, (MAIN,))
    drawn.arrays[MEMBER][:] = torch.tensor([MAIN, FIRST, FIRST, MAIN]).repeat(E // 2)
    drawn.arrays["rewards/env"].zero_()
    learner.update(learner.prepare({"main": [drawn]}, progress=0.0))
    assert learner.pool.frozen() == [FIRST]
    won = segment(1, (MAIN,))
    won.arrays[MEMBER][:] = drawn.arrays[MEMBER]
    won.arrays["rewards/env"][3::4] = torch.tensor([1.0, -1.0, -1.0, 1.0]).repeat(E // 2)
    for count in (1, 2, 3):
        learner.update(
            learner.prepare({"main": [replace(won, header=replace(won.header, sample_id=count * 2 * E))]}, progress=0.0)
        )
    assert len(learner.pool.frozen()) == 2
    payoffs = learner.pool.standing(0).payoffs
    assert torch.equal(payoffs, -payoffs.T)
    assert float(payoffs[1, 0]) > 0.1


def test_exploiters_train_on_their_own_rows_and_begin_anew() -> None:
    """The exploiter plays main alone. When its time is over a copy joins the pool, and it has its first parameters again."""
    config = PoolConfig(size=4, every=1000, exploiters=1, league_exploiters=1, exploiter_updates=3)
    learner = league(config)
    main, exploiter, _ = (number_of(i, -1, 3) for i in range(3))
    draw = learner.params()["league.draw"]
    assert draw[1].tolist() == [1.0] + [0.0] * (2 + config.places)
    assert float(draw[2, :3].sum()) == 0.0
    first = {k: x.clone() for k, x in learner.params().items()}
    for seed in range(3):
        train(learner, seed, members=(main, exploiter))
        if seed == 0:
            moved = {k.partition("/")[0] for k, x in first.items() if "/" in k and not torch.equal(x, learner.params()[k])}
            assert moved == {"main", "exploiter-0"}
    assert [learner.pool.name(n) for n in learner.pool.frozen()] == ["main@0", "exploiter-0@3", "league-exploiter-0@3"]
    for key, x in learner.params().items():
        if key.startswith("exploiter-0/"):
            assert torch.equal(x, first[key]), key
        if key.startswith("main/") and key.endswith("weight.0"):
            assert not torch.equal(x, first[key])
    frozen = learner.pool.params()["frozen.float32"]
    assert not torch.equal(frozen[1], frozen[0])
    games = learner.pool.row(3, torch.zeros(3 + config.places))["games"]
    assert games["main"]["exploiter-0"][3] == games["exploiter-0"]["main"][3] > 0
    assert games["main"]["exploiter-0"][0] == games["exploiter-0"]["main"][2]


def test_a_run_that_starts_from_another_has_its_policy_as_first_member() -> None:
    donor, learner = league(), league()
    train(donor, 0, 1)
    learner.start_from({k: x.clone() for k, x in donor.base_params().items()})
    assert learner.pool.frozen() == [FIRST]
    acts = PoolNet({"main": net(5)}, places=4, seats=2)
    acts.load_state_dict(learner.params())
    asked = Batch(
        obs=torch.ones(2, 3), noise=torch.full((2, acts.noise_size), 0.4), **{LINEUP: torch.tensor([[MAIN, FIRST]] * 2)}
    )
    found = acts.act(asked)
    # two networks of equal weights, of which each has one row: some processors round their products differently
    torch.testing.assert_close(found["logprob"][0], found["logprob"][1], rtol=1e-6, atol=0.0)


def test_roles_and_settings_are_those_of_the_pool() -> None:
    learner = league()
    learner.set("main/lr", 0.5)
    assert learner.members["main"].config.lr == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="the pool has the roles main"):
        LeagueLearner(PoolConfig(), {"other": learner.members["main"]}, stream="main", seats=2, num_lanes=1)
