"""Which number of workers a run asks for, from idle shares and rates of a made-up run."""

from __future__ import annotations

from runnel.run.balance import CLOSED, PERIOD_S, Balance


def balance(actors: int = 1, most: int = 8, policy: int = 0) -> Balance:
    kinds = {"actor": actors} | ({"policy": policy} if policy else {})
    return Balance(dict(kinds), dict.fromkeys(kinds, most), "trainer")


def played(it: Balance, one: float, trainer: float, looks: int) -> list[int]:
    """The numbers of actors of a run in which each makes `one` units a second, and the trainer trains on up to `trainer`."""
    numbers = []
    for i in range(looks + 1):
        made = one * it.numbers["actor"]
        rate = min(made, trainer)
        idle = {f"actor-{n}": 1 - rate / made for n in range(it.numbers["actor"])} | {"trainer": 1 - rate / trainer}
        it.weigh(i * PERIOD_S, idle, rate)
        numbers.append(it.numbers["actor"])
    return numbers[1:]


def test_actors_come_until_the_trainer_is_busy_and_go_until_they_are() -> None:
    assert played(balance(1), one=10, trainer=55, looks=8) == [2, 3, 4, 4, 4, 4, 4, 4], "at 4 it waits 27 % of the time"
    assert played(balance(8), one=10, trainer=45, looks=8) == [7, 6, 6, 6, 6, 6, 6, 6], "at 6 they wait 25 % of the time"
    assert played(balance(1, most=3), one=10, trainer=500, looks=5) == [2, 3, 3, 3, 3], "there is room for three"
    assert played(balance(2), one=10, trainer=5, looks=4) == [1, 1, 1, 1], "one stays"


def test_a_change_that_makes_it_slower_is_taken_back_and_not_tried_again_soon() -> None:
    it, numbers = balance(2), []
    idle = {"actor-0": 0.0, "trainer": 0.6}
    for i in range(CLOSED + 5):
        found = it.weigh(i * PERIOD_S, idle, 100.0 if it.numbers["actor"] == 2 else 80.0)
        numbers.append(it.numbers["actor"])
        if numbers[-2:] == [3, 2]:
            assert found is not None
            assert "fell to 80%" in found[2]
    assert numbers == [2, 3, *[2] * CLOSED, 3, 2, 2][: len(numbers)]


def test_the_kind_that_holds_the_others_up_grows_and_says_why() -> None:
    it = balance(2, policy=1)
    idle = {"actor-0": 0.5, "actor-1": 0.7, "policy-0": 0.02, "trainer": 0.45}
    assert it.weigh(0.0, idle, 1.0) is None
    assert it.weigh(PERIOD_S / 2, idle, 1.0) is None, "not yet"
    found = it.weigh(PERIOD_S, idle, 1.0)
    assert found is not None
    assert found[:2] == ("policy", 2)
    assert found[2] == "staleness.balance: the trainer waits 45% of the time, actor workers 60% and policy workers 2%"


def test_a_person_decides_first() -> None:
    it = balance(1)
    it.hear({"op": "scale", "numbers": {"actor": 5}})
    assert it.weigh(0.0, {"actor-0": 0.0, "trainer": 0.9}, 1.0) is None
    assert it.weigh(PERIOD_S, {"actor-0": 0.0, "trainer": 0.9}, 1.0) == (
        "actor",
        6,
        "staleness.balance: the trainer waits 90% of the time, actor workers 0%",
    )
