"""Algorithms on conversations, from rewards to the gradient by token, against the papers' equations in numpy.

Conversations have one to four turns in one row or in several. The independent form reads each turn from the segment by hand,
and knows nothing of rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from made_tokens import group, talk

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.llm.algorithms.base import POLICY, Part
from runnel.llm.algorithms.gigpo import GiGPO, GiGPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.grpo_roc import SOFTEN, GRPORoC, GRPORoCConfig, choose, penalties
from runnel.llm.algorithms.loop import LOOP, LOOPConfig
from runnel.llm.algorithms.spa import SPA, SPAConfig
from runnel.llm.algorithms.turn_ppo import TurnPPO, TurnPPOConfig
from runnel.llm.algorithms.turns import Turns
from runnel.llm.learning.batches import MicroBatch, join_rows, merge, split_tokens
from runnel.ops.turns import duration_weights

LOW, HIGH = 0.1, 0.3
CLIP = {"clip_low": LOW, "clip_high": HIGH}
BOTH = {"channels": {"exact": 1.0, "win": 0.5}}
ALGORITHMS = {
    "grpo": GRPO(GRPOConfig(**CLIP), **BOTH),
    "gigpo": GiGPO(GiGPOConfig(**CLIP, gamma=0.9, step_coef=0.7), **BOTH),
    "gigpo, no scale": GiGPO(GiGPOConfig(**CLIP, gamma=0.9, scale="none"), **BOTH),
    "loop, token": LOOP(LOOPConfig(**CLIP), **BOTH),
    "loop, turn": LOOP(LOOPConfig(**CLIP, ratio="turn"), **BOTH),
    "loop, trajectory": LOOP(LOOPConfig(**CLIP, ratio="trajectory"), **BOTH),
    "turn_ppo": TurnPPO(TurnPPOConfig(**CLIP, gamma=0.9, gae_lambda=0.8, normalise=False), **BOTH),
    "turn_ppo, normalised": TurnPPO(TurnPPOConfig(**CLIP, gamma=0.9, gae_lambda=0.8), **BOTH),
}
REWARDS = ([1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.0])


def conversations(rows_of, seed=0):
    rng = np.random.default_rng(seed)
    return [talk(rng, rewards, rows_of, turn_rewards=("win",)) for rewards in REWARDS]


def joined_rows(segments, seed=1):
    """Rows with values of a critic, and log-probabilities that have moved since."""
    rng, rows = np.random.default_rng(seed), join_rows(segments)
    mask = rows["loss_mask"]
    for name, scale in (("value", 1.0), ("moved", 0.3)):
        # by the order of trained tokens, which is the same however rows are cut
        rows[name] = torch.zeros(len(mask), dtype=torch.float64)
        rows[name][mask] = torch.tensor(rng.normal(0.0, scale, size=int(mask.sum())))
    rows |= {"logprob": rows["logprob"].double(), "value": rows["value"].float()}
    return Batch(rows | {"now": rows["logprob"] + rows["moved"]})


def by_hand(segments):
    """Groups of trajectories of turns, as lists: the places of a turn's tokens among the trained ones, its key, its reward."""
    groups, place = [], 0
    for segment in segments:
        a = {k: v.tolist() for k, v in segment.arrays.items()}
        members = [[] for _ in a["rewards/exact"]]
        for turn, row in enumerate(a["turn_row"]):
            size = a["turn_end"][turn] - a["turn_start"][turn]
            reward = 0.5 * a["rewards/win"][turn]
            key, took = a["turn_key"][turn], a["duration_s"][turn]
            members[a["row_owner"][row]].append({"at": list(range(place, place + size)), "key": key, "r": reward, "d": took})
            place += size
        for trajectory, reward in zip(members, a["rewards/exact"], strict=True):
            trajectory[-1]["r"] += reward
        groups.append(members)
    return groups


def compared(values, scaled):
    """What lies above or below the others; nothing where there is nothing to compare with."""
    values = np.array(values)
    if len(values) < 2 or values.std() < 1e-9:
        return np.zeros(len(values))
    return (values - values.mean()) / (values.std(ddof=1) if scaled else 1.0)


def advantages_by_hand(name, groups, value):
    """The advantage of every turn, written beside it as `A`; with a critic its target, too."""
    for members in groups:
        totals = [sum(u["r"] for u in trajectory) for trajectory in members]
        for i, trajectory in enumerate(members):
            others = [x for j, x in enumerate(totals) if j != i]
            for u in trajectory:
                u["A"] = totals[i] - np.mean(others) if "loop" in name else compared(totals, "no scale" not in name)[i]
        if "gigpo" in name:
            steps = {}
            for trajectory in members:
                for t, u in enumerate(trajectory):
                    u["R"] = sum(0.9**k * later["r"] for k, later in enumerate(trajectory[t:]))
                    steps.setdefault(u["key"], []).append(u)
            for same in steps.values():
                for u, found in zip(same, compared([u["R"] for u in same], "no scale" not in name), strict=True):
                    u["A"] += (1.0 if "no scale" in name else 0.7) * found
        if "ppo" in name:
            for trajectory in members:
                values = [value[u["at"][0]] for u in trajectory] + [0.0]
                for t, u in enumerate(trajectory):
                    deltas = [x["r"] + 0.9 * values[k + 1] - values[k] for k, x in enumerate(trajectory)][t:]
                    u["A"] = sum((0.9 * 0.8) ** k * delta for k, delta in enumerate(deltas))
                    u["target"] = u["A"] + values[t]
    every = [u for members in groups for trajectory in members for u in trajectory]
    if "normalised" in name:
        found = np.array([u["A"] for u in every])
        for u in every:
            u["A"] = (u["A"] - found.mean()) / found.std()
    return every


def clipped(ratio, advantage):
    return np.minimum(ratio * advantage, np.clip(ratio, 1 - LOW, 1 + HIGH) * advantage)


def paper(name, groups, now, old):
    """The policy's loss, from turns with their advantage: a mean over tokens for PPO and RoC, else over trajectories."""
    trajectories, total = [x for members in groups for x in members], 0.0
    tokens = sum(len(u["at"]) for x in trajectories for u in x)
    for trajectory in trajectories:
        gap = {i: now[i] - old[i] for u in trajectory for i in u["at"]}
        for u in trajectory:
            shared = u["at"] if name == "loop, turn" else list(gap) if name == "loop, trajectory" else None
            for i in u["at"]:
                ratio = np.exp(sum(gap[j] for j in shared) if shared else gap[i])
                total += clipped(ratio, u["A"]) / (tokens if "ppo" in name or "roc" in name else len(trajectories) * len(gap))
    return -total


def slopes(loss, at, step=1e-6):
    out = np.zeros(len(at))
    for i in range(len(at)):
        move = step * (np.arange(len(at)) == i)
        out[i] = (loss(at + move) - loss(at - move)) / (2 * step)
    return out


def learned(algorithm, rows, budget, component="policy", output="logprob", field="now"):
    """The loss that the learner sums over micro-batches of `budget` tokens, and its gradient by token."""
    batch = merge([algorithm.annotate(rows, SingleProcess())])
    part_of, moving = algorithm.components[component], rows[field].clone().requires_grad_(True)
    count, denominator = float(rows["loss_mask"].sum()), float(batch[f"denominator/{component}"].sum())
    total, every = torch.zeros((), dtype=torch.float64), torch.arange(len(rows["row_length"]))
    batch["at"] = torch.arange(len(rows["tokens"]))
    for some in split_tokens(every, batch["unit"], rows["row_length"], budget):
        part = MicroBatch.of(batch, some, device="cpu")
        if POLICY not in part.kinds:
            continue
        outputs = Batch({output: moving[part.fields["at"]]})
        total = total + part_of.loss(Part.of(part, POLICY, outputs, count=count, version=3), denominator).value
    total.backward()
    return total.item(), moving.grad[rows["loss_mask"]].numpy()


@pytest.mark.parametrize("rows_of", ["trajectory", "turn"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_loss_and_gradient_are_those_of_the_paper(name, rows_of):
    segments = conversations(rows_of)
    rows = joined_rows(segments)
    now, old, value = (rows[k][rows["loss_mask"]].double().numpy() for k in ("now", "logprob", "value"))
    groups = by_hand(segments)
    advantages_by_hand(name, groups, value)
    assert len(groups[0][0]) != len(groups[0][1]), "unequal turns"
    found, gradient = learned(ALGORITHMS[name], rows, 1000 if rows_of == "turn" else 30)
    assert found == pytest.approx(paper(name, groups, now, old), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(lambda x: paper(name, groups, x, old), now), rtol=1e-4, atol=1e-6)
    batch = ALGORITHMS[name].annotate(rows, SingleProcess())
    assert not batch["advantage"][~rows["loss_mask"]].any(), "nothing of tools and environments is pushed"
    if "gigpo" in name:
        grouped = [[u["key"] for trajectory in members for u in trajectory] for members in groups]
        sizes = [keys.count(key) for keys in grouped for key in keys]
        assert batch["stats/step_groups/alone"] == pytest.approx(np.mean(np.array(sizes) == 1))
        assert batch["stats/step_groups/size"] == pytest.approx(len(sizes) / sum(1 / n for n in sizes))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_critic_of_turns_is_trained_at_their_first_tokens_alone(clip):
    segments = conversations("turn")
    rows = joined_rows(segments)
    config = TurnPPOConfig(**CLIP, gamma=0.9, gae_lambda=0.8, value_clip=clip)
    old, moved = (rows[k][rows["loss_mask"]].double().numpy() for k in ("value", "moved"))
    every = advantages_by_hand("turn_ppo", by_hand(segments), old)

    def loss(value):
        near = old + np.clip(value - old, -clip, clip) if clip else value
        errors = [max((v[u["at"][0]] - u["target"]) ** 2 for v in (value, near)) for u in every]
        return 0.5 * sum(errors) / len(errors)

    rows["later"] = rows["value"] + rows["moved"]
    found, gradient = learned(TurnPPO(config, **BOTH), rows, 40, "value", "value", "later")
    assert found == pytest.approx(loss(old + moved), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(loss, old + moved), rtol=1e-4, atol=1e-6)
    assert set(np.flatnonzero(gradient)) <= {u["at"][0] for u in every}


@pytest.mark.parametrize("rows_of", ["trajectory", "turn"])
@pytest.mark.parametrize("name", ["grpo", "gigpo", "turn_ppo", "loop, token"])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_turn_counts_by_its_duration(name, rows_of, power):
    """The gradient of a turn is that without durations, times d^power over its mean over turns (not over tokens)."""
    segments = conversations(rows_of)
    rows, plain = joined_rows(segments), ALGORITHMS[name]
    weighed = type(plain)(dataclasses.replace(plain.config, duration_power=power), **BOTH)
    before, after = (learned(algorithm, rows, 1000)[1] for algorithm in (plain, weighed))
    turns = [u for members in by_hand(segments) for trajectory in members for u in trajectory]
    raised = np.array([u["d"] ** power for u in turns])
    factor = np.concatenate([np.full(len(u["at"]), w) for u, w in zip(turns, raised / raised.mean(), strict=True)])
    np.testing.assert_allclose(after, before * factor, rtol=1e-5)
    assert factor.max() > 1.2 * factor.min()


def test_durations_are_refused_where_there_are_none():
    rows = join_rows([group(np.random.default_rng(0), [1.0, 0.0])])
    with pytest.raises(ConfigError, match="duration_power"):
        GRPO(GRPOConfig(duration_power=1.0), channels={"exact": 1.0}).annotate(rows, SingleProcess())
    with pytest.raises(DataError, match="durations of all turns are 0"):
        duration_weights(torch.zeros(3), power=1.0, collective=SingleProcess())


@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_gigpo_of_completions_is_grpo_times_one_plus_its_coefficient(coef):
    rng = np.random.default_rng(0)
    rows = join_rows([group(rng, [1.0, 0.0, 0.5]), group(rng, [0.0, 3.0, 0.0])])
    both = {"channels": {"exact": 1.0}}
    plain, stepped = GRPO(GRPOConfig(), **both), GiGPO(GiGPOConfig(step_coef=coef), **both)
    wanted = plain.annotate(rows, SingleProcess())["advantage"]
    torch.testing.assert_close(stepped.annotate(rows, SingleProcess())["advantage"], (1.0 + coef) * wanted)


def test_turn_ppo_of_completions_compares_with_the_value_of_the_prompt():
    rows = join_rows([group(np.random.default_rng(0), [1.0, 0.0])])
    mask = rows["loss_mask"]
    rows["value"] = torch.arange(len(mask)).float()
    batch = TurnPPO(TurnPPOConfig(normalise=False), channels={"exact": 2.0}).annotate(rows, SingleProcess())
    firsts = [int(part.nonzero()[0]) for part in mask.split(rows["row_length"].tolist())]
    starts = rows["row_start"].tolist()
    for start, first, length, reward in zip(starts, firsts, rows["row_length"].tolist(), (2.0, 0.0), strict=True):
        found = set(batch["advantage"][start + first : start + length].tolist())
        assert found == {reward - (start + first)}
    assert batch["denominator/value"].tolist() == [1.0, 1.0]


def test_credit_of_turns_by_hand():
    """Two trajectories: A (key 1, then 2) earns 0 and 4, B (key 1, then 3) earns 2 and 0."""
    rows = join_rows(conversations("trajectory"))
    two = Batch(
        tokens=torch.ones(10, dtype=torch.int64),
        loss_mask=torch.tensor([False, True, False, True, True, False, True, True, False, True]),
        row_start=torch.tensor([0, 5]),
        row_length=torch.tensor([5, 5]),
        row_owner=torch.tensor([0, 1]),
        group=torch.tensor([0, 0]),
        turn_row=torch.tensor([0, 0, 1, 1]),
        turn_start=torch.tensor([1, 3, 1, 4]),
        turn_end=torch.tensor([2, 5, 3, 5]),
        turn_key=torch.tensor([1, 2, 1, 3]),
        terminated=torch.ones(2, dtype=torch.bool),
    )
    two |= {"turn_rewards/win": torch.tensor([0.0, 4.0, 2.0, 0.0]), "rewards/win": torch.tensor([4.0, 2.0])}
    made = GiGPO(GiGPOConfig(gamma=0.75, scale="none"), channels={"win": 1.0}).annotate(two, SingleProcess())
    # episodes 4 and 2: +1, -1. Turns of key 1 return 3 and 2: +0.5, -0.5. Those of keys 2 and 3 are alone
    assert made["advantage"].tolist() == [0.0, 1.5, 0.0, 1.0, 1.0, 0.0, -1.5, -1.5, 0.0, -1.0]
    assert made["stats/step_groups/alone"].item() == 0.5
    assert made["stats/step_groups/size"].item() == pytest.approx(4 / 3)
    assert set(rows["turn_key"].tolist()) == {-1, 0, 1}


def test_what_is_not_of_one_turn_is_refused():
    rows = join_rows(conversations("turn"))
    for name, change, why in (
        ("turn_end", -1, "belong to no turn"),
        ("turn_start", -40, "in the order of time"),
    ):
        wrong = Batch(rows | {name: rows[name].clone()})
        wrong[name][-1] += change
        with pytest.raises(DataError, match=why):
            Turns.of(wrong)
    with pytest.raises(DataError, match="no reward channel 'style'"):
        Turns.of(rows).rewards(rows, {"style": 1.0})


# ------------------------------------------------------------------------------------------------- resampling on correct
def with_tools(rows_of):
    segments = conversations(rows_of)
    for segment in segments:
        size = len(segment.arrays["tool_calls"])
        segment.arrays["tool_calls"][:] = torch.tensor([4, 0, 2, 1])[:size]
        segment.arrays["tool_errors"][:] = torch.tensor([1, 0, 2, 0])[:size]
        segment.arrays["truncated"][:] = torch.tensor([False, False, True, False])[:size]
    return segments


@pytest.mark.parametrize("rows_of", ["trajectory", "turn"])
def test_roc_is_grpo_among_those_that_are_kept(rows_of):
    segments = with_tools(rows_of)
    rows = joined_rows(segments)
    assert penalties(rows).tolist() == [0.25, 0.5, 2.0, 0.0, 0.25, 0.5, 2.0]
    algorithm = GRPORoC(GRPORoCConfig(**CLIP, keep=0.7, pass_reward=1.0), **BOTH)
    kept = iter(algorithm.kept(rows).tolist())
    groups = [[trajectory for trajectory in members if next(kept)] for members in by_hand(segments)]
    assert [len(members) for members in groups] == [3, 2]
    advantages_by_hand("grpo", groups, None)
    now, old = (rows[k][rows["loss_mask"]].double().numpy() for k in ("now", "logprob"))
    found, gradient = learned(algorithm, rows, 40)
    assert found == pytest.approx(paper("roc", groups, now, old), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(lambda x: paper("roc", groups, x, old), now), rtol=1e-4, atol=1e-6)
    batch = algorithm.annotate(rows, SingleProcess())
    everything = [sum(u["r"] for u in trajectory) for members in by_hand(segments) for trajectory in members]
    assert batch["stats/reward/mean"] == pytest.approx(np.mean(everything)), "of all that were sampled"
    assert batch["stats/roc/kept"] == pytest.approx(5 / 7)


def test_roc_keeps_what_it_kept_however_the_batch_is_put_together():
    one, other = with_tools("trajectory")
    algorithm = GRPORoC(GRPORoCConfig(), seed=3, **BOTH)
    together, apart = algorithm.kept(join_rows([one, other])), [algorithm.kept(join_rows([x])) for x in (one, other)]
    assert torch.equal(together, torch.cat(apart))
    assert any(
        not torch.equal(GRPORoC(GRPORoCConfig(), seed=s, **BOTH).kept(join_rows([one, other])), together) for s in range(9)
    )


@pytest.mark.parametrize(
    ("num_right", "num_wrong", "keep", "expected"),
    [
        *[(8, 8, 0.5, (4, 4)), (4, 12, 0.5, (2, 6)), (1, 15, 0.5, (1, 7)), (15, 1, 0.5, (7, 1)), (12, 4, 0.25, (2, 2))],
        *[(0, 8, 0.5, (0, 4)), (8, 0, 0.5, (4, 0)), (2, 2, 1.0, (2, 2)), (1, 1, 0.5, (1, 0)), (14, 2, 0.5, (6, 2))],
    ],
)
def test_roc_keeps_right_and_wrong_ones_in_proportion(num_right, num_wrong, keep, expected):
    right = np.arange(num_right + num_wrong) < num_right
    members = np.arange(len(right)) + 100
    found = choose(np.random.default_rng(0), members, right, np.ones(len(right)), keep) - 100
    assert len(set(found)) == len(found)
    assert (int(right[found].sum()), int((~right[found]).sum())) == expected


def test_roc_prefers_clean_calls_among_right_ones_alone():
    """Shares of 2,000 draws against the probabilities: of two right ones by their penalties, of two wrong ones equal."""
    penalty = np.array([0.0, 0.5, 0.0, 1.0])
    weight, right = 1.0 / (penalty + SOFTEN), np.array([True, True, False, False])
    count = np.zeros(4)
    for seed in range(2000):
        count[choose(np.random.default_rng(seed), np.arange(4), right, weight, 0.5)] += 1
    expected = np.array([weight[0] / weight[:2].sum(), weight[1] / weight[:2].sum(), 0.5, 0.5])
    np.testing.assert_allclose(count / 2000, expected, atol=4 * 0.5 / 2000**0.5)


# ---------------------------------------------------------------------------------------------------- learned attribution
@pytest.mark.parametrize("rows_of", ["trajectory", "turn"])
def test_spa_shares_out_the_final_reward_as_its_estimator_says(rows_of):
    segments = conversations(rows_of)
    rows, algorithm = joined_rows(segments), SPA(SPAConfig(**CLIP), **BOTH)
    now, old, value, moved = (rows[k][rows["loss_mask"]].double().numpy() for k in ("now", "logprob", "value", "moved"))
    groups = by_hand(segments)
    finals = [reward for rewards in REWARDS for reward in rewards]
    every = [trajectory for members in groups for trajectory in members]
    for trajectory, final in zip(every, finals, strict=True):
        trajectory[-1]["r"] -= final
        said = [value[u["at"][-1]] for u in trajectory]
        for u, c in zip(trajectory, said, strict=True):
            u["s"] = c + (final - sum(said)) / len(said) + u["r"]
    for members in groups:
        shared = np.array([u["s"] for trajectory in members for u in trajectory])
        for trajectory in members:
            for t, u in enumerate(trajectory):
                u["A"] = sum((v["s"] - shared.mean()) / shared.std(ddof=1) for v in trajectory[t:])
    found, gradient = learned(algorithm, rows, 60)
    assert found == pytest.approx(paper("spa", groups, now, old), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(lambda x: paper("spa", groups, x, old), now), rtol=1e-4, atol=1e-6)

    def miss(x):
        gaps = [sum(x[u["at"][-1]] for u in trajectory) - final for trajectory, final in zip(every, finals, strict=True)]
        return 0.5 * sum(gap**2 for gap in gaps) / len(gaps)

    rows["later"] = rows["value"] + rows["moved"]
    found, gradient = learned(algorithm, rows, 60, "progress", "value", "later")
    assert found == pytest.approx(miss(value + moved), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(miss, value + moved), rtol=1e-4, atol=1e-6)


def test_spa_of_completions_is_grpo():
    rows = join_rows([group(np.random.default_rng(0), [1.0, 0.0, 0.5])])
    rows["value"] = torch.randn(len(rows["tokens"]), generator=torch.Generator().manual_seed(0))
    both = {"channels": {"exact": 1.0}}
    found, wanted = (
        made.annotate(rows, SingleProcess())["advantage"] for made in (SPA(SPAConfig(), **both), GRPO(GRPOConfig(), **both))
    )
    torch.testing.assert_close(found, wanted)
