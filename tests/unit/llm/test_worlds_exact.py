"""Rewards and rules of the built-in worlds, against definitions of their own and against Gymnasium."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from statistics import fmean, pvariance

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world_players import as_message, by_script, play

from runnel.core.contracts.chat import ToolFailure
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng
from runnel.llm.worlds import make_world
from runnel.llm.worlds.arithmetic import calculator_tool, evaluate, problem
from runnel.llm.worlds.frozenlake import MAPS, MOVES, best_moves, random_map, transitions


# ------------------------------------------------------------------------------------------------------------------ guess
@pytest.mark.parametrize("high", [2, 3, 7, 8, 100, 127, 128])
def test_halving_finds_every_number_within_the_guesses(high):
    for secret in range(1, high + 1):
        played = play(make_world("guess", high=high), {"secret": secret}, 0, by_script)
        assert played.total == {"reward": 1.0}
        assert len(played.turns) - 1 <= math.ceil(math.log2(high + 1))


@given(st.integers(2, 60), st.data())
@settings(max_examples=25, deadline=None)
def test_guess_says_the_truth_and_pays_by_the_numbers_left(high, data):
    secret = data.draw(st.integers(1, high))
    world = make_world("guess", high=high, shaped=0.5, max_guesses=6)
    assert world.rewards == {"reward": 1.0, "narrowed": 0.5}
    world.reset({"secret": secret}, seed=0)
    possible = set(range(1, high + 1))
    for i in range(6):
        guess = data.draw(st.integers(-3, high + 3))
        turn = world.step(as_message(f"it is between 1 and {high}: I say {guess}"))
        before = len(possible)
        possible = {n for n in possible if (n > guess) == (secret > guess) and (n < guess) == (secret < guess)}
        assert turn.rewards["narrowed"] == pytest.approx(math.log(before / len(possible), high))
        assert turn.rewards["reward"] == float(guess == secret)
        assert turn.over == (guess == secret or i == 5)
        if guess != secret:
            assert ("higher" in turn.messages[0]["content"]) == (secret > guess)
        if turn.over:
            break


# ------------------------------------------------------------------------------------------------------------------ bandit
@pytest.mark.parametrize(("arms", "luck"), [(2, 3.0), (8, 30.0), (4, 1.0)])
def test_the_trajectory_is_noise_and_the_turn_is_signal_by_exactly_so_much(arms, luck):
    """All outcomes of a uniform player, enumerated: mean and variance of the gradient in the logit of the right letter."""
    p, outcomes = 1 / arms, []
    for coin, second in itertools.product((-luck, luck), range(arms)):
        right = float(second == 1)
        score = right - p  # of the softmax
        outcomes.append(((coin + right - p) * score, (right - p) * score))
    by_trajectory, by_turn = zip(*outcomes, strict=True)
    assert fmean(by_trajectory) == pytest.approx(fmean(by_turn)) == pytest.approx(p * (1 - p))
    assert pvariance(by_turn) == pytest.approx(p * (1 - p) * (1 - 2 * p) ** 2)
    assert pvariance(by_trajectory) == pytest.approx(pvariance(by_turn) + luck**2 * p * (1 - p))
    if (arms, luck) == (8, 30.0):
        assert math.sqrt(pvariance(by_trajectory)) / fmean(by_turn) == pytest.approx(91, abs=0.5)
        assert math.sqrt(pvariance(by_turn)) / fmean(by_turn) == pytest.approx(2.3, abs=0.05)
        assert pvariance(by_trajectory) / pvariance(by_turn) == pytest.approx(1600, rel=0.01)


def test_the_bandit_pays_luck_first_and_then_the_right_letter():
    world = make_world("bandit", arms=4, rooms=3, luck=2.0)
    lucks: dict[str, list[float]] = {}
    for i, task in enumerate(world.tasks()[0][:400]):
        for first in "ab":
            second = random.Random(f"{i}{first}").choice("abcd")
            start = world.reset(task, seed=i)
            assert (start.messages[0]["content"], start.key) == ("?", "?")
            turn = world.step(as_message(first))
            assert turn.messages[0]["content"] == turn.key == str(task["room"])
            last = world.step(as_message(f" {second.upper()} "))
            assert last.terminated
            right = float(second == "abcd"[task["room"] % 4])
            assert last.rewards == {"right": right}
            lucks.setdefault(first, []).append(turn.rewards["luck"])
            lucks.setdefault(f"{first}, then {right}", []).append(turn.rewards["luck"])
    for values in lucks.values():  # no letter has more of it, and it says nothing of what follows: within four deviations
        assert abs(fmean(values)) < 4 * 2.0 / math.sqrt(len(values))
        assert abs(pvariance(values) - 4) < 4 * 4 * math.sqrt(2 / len(values))


def test_two_first_letters_of_one_group_have_lucks_of_their_own():
    world = make_world("bandit", luck=1.0)
    pairs = [[world.luck(task, i, first) for first in "ab"] for i, task in enumerate(world.tasks()[0][:200])]
    again = [[world.luck(task, i, first) for first in "ab"] for i, task in enumerate(world.tasks()[0][:200])]
    assert pairs == again
    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 4 / math.sqrt(200)


def test_the_script_knows_its_luck_and_begins_with_every_letter():
    world, firsts = make_world("bandit"), Counter()
    for i, task in enumerate(world.tasks()[0][:160]):
        world.reset(task, seed=i)
        firsts[world.script()] += 1
        lucks = [world.luck(task, i, letter) for letter in "abcdefgh"]
        assert play(world, task, i, by_script).total == {"luck": max(lucks), "right": 1.0}
    assert set(firsts) == set("abcdefgh")
    assert max(firsts.values()) < 20 + 4 * math.sqrt(160 * 7 / 64)


def taught(by_turn, seed, *, num_groups=4, size=8, updates=40, lr=0.5):
    """What GRPO's advantages make of a player that has a logit for each letter of both turns."""
    world, rng, logits = make_world("bandit"), np.random.default_rng(seed), np.zeros((2, 8))
    tasks = world.tasks()[0]
    for update in range(updates):
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        gradient = np.zeros_like(logits)
        for group in range(num_groups):
            said = np.stack([rng.choice(8, size=size, p=p) for p in chances], axis=1)
            earned = np.zeros((size, 2))
            for i, letters in enumerate(said):
                world.reset(tasks[update * num_groups + group], seed=1000 * seed + update)
                turns = [world.step(as_message("abcdefgh"[k])) for k in letters]
                earned[i] = turns[0].rewards["luck"], turns[1].rewards["right"]
            credit = earned[:, ::-1].cumsum(axis=1)[:, ::-1] if by_turn else np.tile(earned.sum(axis=1), (2, 1)).T
            credit = (credit - credit.mean(axis=0)) / (credit.std(axis=0) + 1e-6)
            for turn in range(2):
                gradient[turn] += credit[:, turn] @ (np.eye(8)[said[:, turn]] - chances[turn])
        logits += lr * gradient / (num_groups * size)
    return float(np.exp(logits[1, 1]) / np.exp(logits[1]).sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_credit_by_turn_learns_the_right_letter_and_credit_by_trajectory_does_not(seed):
    assert taught(True, seed) > 0.9
    assert taught(False, seed) < 0.4


# -------------------------------------------------------------------------------------------------------------- calculator
@given(st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_problems_are_computed_as_python_does(level, seed):
    text = problem(make_rng(seed, "test"), level)
    assert evaluate(text) == eval(text)
    assert text.count("*") == 1 + max(0, level - 1) // 2
    assert sum(text.count(sign) for sign in "+-") == level - 1


def joined(a, sign, b, minus):
    return f"{minus}({a} {sign} {b})"


SIGNS, MINUS = st.sampled_from(["+", "-", "*", "//", "%"]), st.sampled_from(["", "-"])
NUMBERS = st.integers(0, 99).map(str)


@given(st.recursive(NUMBERS, lambda inner: st.builds(joined, inner, SIGNS, inner, MINUS), max_leaves=8))
@settings(max_examples=60, deadline=None)
def test_the_evaluator_agrees_with_python(text):
    try:
        expected = eval(text)
    except ZeroDivisionError:
        with pytest.raises(ToolFailure, match="zero"):
            evaluate(text)
        return
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 +", "2 ** 5000", "9 ** 9 ** 9", "2 ** -1", "7 / 2", "1 // 0", "5 % 0", "1.5 + 1", "a", "(lambda: 1)()"),
        *("1 if 1 else 2", "__import__('os')", "1 < 2", "~1", "1, 2", "(" * 90 + ")" * 90, "1+" * 150 + "1", "007", "1 = 1"),
        *("\x00", "\ud83d", "²", "()", "1()"),
    ],
)
def test_what_is_no_small_expression_is_refused_in_words(text):
    with pytest.raises(ToolFailure) as caught:
        evaluate(text)
    assert str(caught.value)


def test_what_is_deep_but_small_is_computed():
    assert evaluate("(" * 99 + "1" + ")" * 99) == 1
    assert evaluate("-" * 199 + "1") == -1
    assert evaluate("−3 × 4 ÷ 2") == -6
    assert evaluate("2^10") == 1024


def test_the_tool_answers_in_words_and_checks_its_arguments():
    tool = calculator_tool()
    assert tool.open().call({"expression": "12 * 12"}) == "144"
    for wrong in ({}, {"expression": 3}):
        with pytest.raises(ToolFailure) as caught:
            tool.open().call(wrong)
        assert caught.value.kind == "arguments"


def test_the_calculator_pays_for_the_last_number():
    world = make_world("calculator", level=1, call_reward=0.1)
    task = {"problem": "312 * 125"}
    good = dict.fromkeys(("39000", "so 312 * 125 = 39,000.", "39000.0"), 1)
    for text, right in (good | dict.fromkeys(("39000 or 1", "3900", "none", "-39000"), 0)).items():
        world.reset(task, seed=0)
        turn = world.step(as_message(text))
        assert turn.terminated
        assert turn.rewards == {"reward": right, "called": 0.0}
    played = play(world, task, 0, by_script)
    assert (played.calls, played.total) == (["39000"], {"reward": 1.0, "called": 1.0})
    alone = make_world("calculator", tools=False)
    assert list(alone.tools()) == []
    assert play(alone, task, 0, by_script).total == {"reward": 1.0}
    with pytest.raises(ConfigError, match="call_reward"):
        make_world("calculator", tools=False, call_reward=0.5)
    with pytest.raises(DataError, match="cannot be computed"):
        world.reset({"problem": "1 / 0"}, seed=0)


def test_a_call_that_failed_pays_nothing():
    world = make_world("calculator", call_reward=0.1)
    world.reset({}, seed=0)
    with pytest.raises(ToolFailure):
        world.tools()[0].open().call({"expression": "x"})
    assert world.step(as_message("1")).rewards["called"] == 0.0


# -------------------------------------------------------------------------------------------------------------- frozenlake
@pytest.mark.parametrize("slippery", [False, True])
@pytest.mark.parametrize("name", ["4x4", "8x8"])
def test_the_lake_has_gymnasiums_maps_and_transitions(name, slippery):
    env = gymnasium.make("FrozenLake-v1", map_name=name, is_slippery=slippery).unwrapped
    table = transitions(MAPS[name], slippery)
    assert tuple("".join(c.decode() for c in row) for row in env.desc) == MAPS[name]
    assert len(table) == len(env.P)
    for state, moves in env.P.items():
        for move, outcomes in moves.items():
            ours = table[state][move]
            assert [o[1:] for o in ours] == [(int(s), float(r), bool(t)) for _, s, r, t in outcomes]
            assert [o[0] for o in ours] == pytest.approx([o[0] for o in outcomes])


@pytest.mark.parametrize("seed", range(8))
def test_random_maps_have_a_way_as_gymnasium_says(seed):
    from gymnasium.envs.toy_text.frozen_lake import is_valid

    rows = random_map(make_rng(seed, "test"), 4 + seed % 3, 0.6)
    assert is_valid([list(row) for row in rows], len(rows))
    world = make_world("frozenlake", max_turns=100)
    played = play(world, {"map": rows}, 0, by_script)
    assert played.total == {"reward": 1.0}
    assert len(played.turns) - 1 == shortest(rows)


def shortest(rows):
    """Length of a shortest way, by relaxing all tiles until nothing changes."""
    size = len(rows)
    far = {(r, c): 0 if (r, c) == (0, 0) else math.inf for r in range(size) for c in range(size)}
    for _ in range(size * size):
        for r, c in far:
            for other in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
                if rows[r][c] != "H" and other in far and far[other] + 1 < far[r, c]:
                    far[r, c] = far[other] + 1
    return far[size - 1, size - 1]


def test_slips_have_their_probabilities_in_play():
    world, seen = make_world("frozenlake", map="4x4", slippery=True), Counter()
    for i, task in enumerate(world.tasks()[0][:600]):
        world.reset(task, seed=i)
        seen[world.step(as_message("I go right")).key] += 1
    assert set(seen) == {"0", "1", "4"}  # up (the edge), right, down
    assert all(abs(n - 200) < 4 * math.sqrt(600 * 2 / 9) for n in seen.values())


def test_values_of_the_slippery_lake_are_those_of_its_best_policy():
    """Success of the policy by the table's own powers is what is known of this lake: 0.824 without a limit of steps."""
    moves, table = best_moves(MAPS["4x4"], True), transitions(MAPS["4x4"], True)
    at, won = {0: 1.0}, 0.0
    for _ in range(3000):
        following: dict[int, float] = {}
        for state, mass in at.items():
            for p, after, reward, ended in table[state][moves[state]]:
                won += mass * p * reward
                if not ended:
                    following[after] = following.get(after, 0.0) + mass * p
        at = following
    assert won == pytest.approx(14 / 17, abs=1e-6)


def test_a_walk_is_cut_off_and_a_hole_ends_it():
    world = make_world("frozenlake", map="4x4", max_turns=3)
    turns = play(world, world.tasks()[0][0], 0, lambda _: "left").turns
    assert [(t.terminated, t.truncated) for t in turns] == [(False, False)] * 3 + [(False, True)]
    falls = iter(["right", "right or down? down"])
    last = play(world, world.tasks()[0][0], 0, lambda _: next(falls)).turns[-1]
    assert (last.terminated, last.truncated, last.key, last.rewards["reward"]) == (True, False, "5", 0.0)
    assert set(MOVES) == {"left", "down", "right", "up"}
    with pytest.raises(ConfigError, match="size and frozen"):
        make_world("frozenlake", map="8x8", size=5)
    for rows in ([], ["SF", "G"], ["FF", "FG"], ["SX", "FG"], [1]):
        with pytest.raises(DataError, match="map"):
            world.reset({"map": rows}, seed=0)
