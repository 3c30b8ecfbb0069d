"""Passes over prompts that grow: every prompt once in each pass, by pure functions; as it always was where nothing is added."""

from __future__ import annotations

import random
from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st

import runnel as rl
from runnel.core.contracts.tasks import Task
from runnel.core.rng import make_rng
from runnel.core.task_store import TaskStore
from runnel.llm.tasks import DifficultyConfig, DifficultySource
from runnel.llm.tasks.new_examples import NewExamples
from runnel.llm.tasks.new_tasks import example_data
from runnel.llm.tasks.passes import Passes
from runnel.llm.tasks.sources import MixedSource, NamedExamples

steps = st.lists(st.integers(0, 9), max_size=6).map(lambda gaps: list(accumulate(gaps)))


@given(st.integers(1, 7), st.integers(0, 3))
def test_without_new_prompts_each_pass_is_its_own_shuffle(num: int, seed: int) -> None:
    passes = Passes(num, seed=seed, name="prompts")
    for sequence in range(3 * num):
        order = make_rng(seed, "prompts", "pass", sequence // num).permutation(num)
        assert passes.at(sequence) == order[sequence % num]


@given(st.integers(1, 7), steps, st.integers(0, 3))
def test_every_pass_has_every_prompt_once(num: int, since: list[int], seed: int) -> None:
    """Also the pass in which prompts arrive; and a prompt is played at most twice as many segments after its arrival as others
    arrived with or before it."""
    passes, played, total = Passes(num, seed=seed), list[int](), num + len(since)
    sequence = 0
    while (len(since) and sequence <= since[-1]) or sequence % total or sequence < 40:
        played.append(passes.at(sequence, since))
        sequence += 1
    left: set[int] = set()
    for place_in_stream, place in enumerate(played):
        new = {num + i for i, first in enumerate(since) if first == place_in_stream}
        if not left:
            left = set(range(num + sum(first < place_in_stream for first in since)))
        left |= new
        assert place in left, "a prompt twice in one pass"
        left.remove(place)
    for i, first in enumerate(since):
        waiting = sum(other <= first for other in since)
        assert num + i in played[first : first + 2 * waiting + 2 * len(since)]


@given(st.integers(1, 7), steps, st.randoms(use_true_random=False))
def test_the_order_of_asking_changes_nothing(num: int, since: list[int], order: random.Random) -> None:
    """One actor asks for all segments, another for some; one that is made again is asked for twice, and by an older history."""
    passes = Passes(num, seed=5)
    wanted = [passes.at(sequence, since) for sequence in range(60)]
    other = Passes(num, seed=5)
    for sequence in order.choices(range(60), k=40):
        known = since if order.random() < 0.5 else [first for first in since if first <= sequence]
        assert other.at(sequence, known) == wanted[sequence]


def history_of(examples: list[tuple[rl.Example, int]]) -> TaskStore:
    store = TaskStore(capacity=8, max_bytes=2_000)
    for example, since in examples:
        store.add(Task(example.id, example_data(example)), since=since)
    return store


def test_a_source_plays_what_was_added() -> None:
    old, new = [rl.Example(word) for word in "abc"], [rl.Example("x", columns={"level": 2}), rl.Example("y")]
    history = history_of([(new[0], 4), (new[1], 4)]).columns()
    source = DifficultySource(old, DifficultyConfig(), seed=1, new=NewExamples())
    tasks = [source.next(rl.core.Draw(s, history=history)) for s in range(8)]
    assert {task.id for task in tasks[:3]} == {e.id for e in old}
    assert {task.id for task in tasks[3:]} == {e.id for e in (*old, *new)}
    assert next(t for t in tasks if t.id == new[0].id).data["example"].columns == {"level": 2}
    instead = {source.next(rl.core.Draw(s, attempt=1, history=history)).id for s in range(4, 60)}
    assert instead == {e.id for e in (*old, *new)}, "what stands in for a prompt is any of them"
    before = {source.next(rl.core.Draw(3, attempt=k, history=history)).id for k in range(1, 60)}
    assert before == {e.id for e in old}, "none before its time"


def test_each_of_several_sources_plays_its_own() -> None:
    old = {name: NamedExamples(name, [rl.Example(name + word) for word in "abc"]) for name in ("s", "t")}
    new = [rl.Example("x", columns={"source": "t"}), rl.Example("y", columns={"source": "s"})]
    history = {**history_of([(e, 2) for e in new]).columns(), "shares": torch.tensor([0.0, 1.0])}
    source = MixedSource(old, DifficultyConfig(), seed=1, new={name: NewExamples(name) for name in old})
    played = {source.next(rl.core.Draw(s, history=history)).data["example"].text for s in range(2, 12)}
    assert played == {"ta", "tb", "tc", "x"}
