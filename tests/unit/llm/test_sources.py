"""Which prompt a segment gets: a pure function of seed, number of the segment, and the history of its version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.contracts.tasks import Curriculum, Draw, TaskSource
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Header, Segment
from runnel.core.task_table import TaskTable
from runnel.llm.learning.task_history import DifficultyHistory, SourceHistory
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tasks import DifficultyConfig, DifficultySource, Example, SourcesConfig, TextTask
from runnel.llm.tasks.sources import MixedSource, join_tasks, named_tasks

EXAMPLES = [Example(str(i)) for i in range(10)]
PLACE = {e.id: i for i, e in enumerate(EXAMPLES)}
ACCURACY = [0.0, 1.0, 0.5, 0.3, 1.0, 0.0, 0.95, 0.05, 0.9, 0.1]
SPEC = rollout_stream(group_size=2, max_prompt=4, max_tokens=4, num_replaced=3)


def segment_of(sequence, task_id, rewards, replaced=()):
    arrays = SPEC.allocate()
    arrays["rewards/reward"][:] = torch.tensor(rewards)
    arrays["replaced/task_id"][:] = -1
    for i, (other, reward) in enumerate(replaced):
        arrays["replaced/task_id"][i], arrays["replaced/reward"][i] = other, reward
    return Segment(0, SPEC, Header(sequence=sequence, task_id=task_id), arrays)


def history_of(**kwargs):
    config = DifficultyConfig(on=True, **{"momentum": 0.0, **kwargs})
    return DifficultyHistory(config, channels={"reward": 1.0}, capacity=len(EXAMPLES))


def play(source, history, accuracy, sequences, batch=1):
    """Play batches of segments; each prompt has an accuracy of its own. Returns the places of the prompts."""
    played = []
    for first in range(sequences.start, sequences.stop, batch):
        known = {k: v.clone() for k, v in history.history().items()}
        tasks = [source.next(Draw(s, history=known)) for s in range(first, first + batch)]
        rewards = [accuracy[PLACE[t.id]] for t in tasks]
        pairs = enumerate(zip(tasks, rewards, strict=True))
        history.see({"rollouts": [segment_of(first + i, t.id, [r, r]) for i, (t, r) in pairs]}, Batch())
        played += [PLACE[t.id] for t in tasks]
    return played


def source_of(seed=1, **kwargs):
    return DifficultySource(EXAMPLES, DifficultyConfig(on=True, **kwargs), seed=seed)


def test_new_prompts_are_all_tried_then_those_in_the_band():
    source: TaskSource = source_of()
    history: Curriculum = history_of()
    played = play(source, history, ACCURACY, range(40))
    assert sorted(played[:10]) == list(range(10))
    assert set(played[10:]) == {2, 3, 8, 9}


def test_solved_and_unsolved_prompts_come_back_after_a_while():
    played = play(source_of(retry_after=20), history_of(retry_after=20), [0.0] * 5 + [0.5] * 5, range(60))
    visits = np.bincount(played, minlength=10)
    assert all(1 < v < 5 for v in visits[:5])
    assert all(v > 6 for v in visits[5:])


def test_it_never_runs_dry():
    played = play(source_of(retry_after=10**6), history_of(retry_after=10**6), [1.0] * 10, range(40))
    assert np.bincount(played).tolist() == [4] * 10, "where none may be played, each pass has every prompt once"


def test_an_attempt_after_another_gets_another_prompt():
    source, known = source_of(), history_of().history()
    drawn = [source.next(Draw(3, attempt, history=known)).id for attempt in range(40)]
    assert len(set(drawn)) > 5
    assert drawn == [source_of().next(Draw(3, attempt, history=known)).id for attempt in range(40)]


@given(st.integers(1, 4), st.permutations(range(12)))
def test_who_asks_and_in_which_order_changes_nothing(batch, order):
    history = history_of(retry_after=5)
    play(source_of(retry_after=5), history, ACCURACY, range(12), batch=batch)
    known = history.history()
    alone = {s: source_of(retry_after=5).next(Draw(s, history=known)).id for s in range(12, 24)}
    source = source_of(retry_after=5)
    assert {12 + i: source.next(Draw(12 + i, history=known)).id for i in order} == alone


def test_the_history_is_the_running_mean_of_each_prompt_and_of_those_that_were_replaced():
    history = history_of(momentum=0.5)
    ids = [e.id for e in EXAMPLES]
    metrics = history.see(
        {"rollouts": [segment_of(0, ids[4], [1.0, 0.0]), segment_of(1, ids[2], [1.0, 1.0])], "demos": []}, Batch()
    )
    assert metrics == {"tasks/seen": 2.0, "tasks/in_band": 0.5}
    history.see({"rollouts": [segment_of(2, ids[4], [0.0, 0.0], replaced=[(ids[7], 0.0), (ids[2], 0.0)])]}, Batch())
    known = history.history()
    assert int(known["num"]) == 3
    assert known["ids"][:3].tolist() == [ids[4], ids[2], ids[7]]
    assert known["mean"][:3].tolist() == [0.25, 0.5, 0.0]
    assert known["visits"][:3].tolist() == [2, 2, 1]
    assert known["last"][:3].tolist() == [2, 2, 2]
    other = history_of(momentum=0.5)
    other.restore(history.snapshot())
    assert all(torch.equal(other.history()[k], known[k]) for k in known)


@given(st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1)), max_size=60), st.integers(1, 9), st.floats(0, 0.9))
def test_a_table_against_a_dict(values, capacity, momentum):
    table, expected = TaskTable(capacity=capacity, momentum=momentum), {}
    for sequence, (task, value) in enumerate(values):
        table.add(task, value, sequence=sequence)
        if task not in expected and len(expected) == capacity:
            del expected[min(expected, key=lambda t: expected[t][2])]
        mean, visits, _ = expected.get(task, (value, 0, 0))
        new = value if not visits else momentum * mean + (1 - momentum) * value
        expected[task] = (new, visits + 1, sequence)
    found = zip(table.ids.tolist(), table.mean.tolist(), table.visits.tolist(), table.last.tolist(), strict=True)
    assert {task: rest for task, *rest in found} == {task: list(rest) for task, rest in expected.items()}
    smaller = TaskTable(capacity=3, momentum=momentum)
    smaller.restore(table.snapshot())
    latest = sorted(table.last.tolist())[-3:]
    assert sorted(smaller.last.tolist()) == latest
    if len(smaller.ids):
        smaller.add(int(smaller.ids[0]), 0.5, sequence=100)
        assert len(smaller.ids) == len(latest)


# ------------------------------------------------------------------------------------------------------------- sources
def mixed_history(**kwargs):
    tasks = {name: TextTask(name, [Example(f"{name}{i}") for i in range(5)], [Example(f"{name} held")], same) for name in "abc"}
    joined, sources = join_tasks(tasks)
    config = SourcesConfig(pick="ucb", **kwargs)
    return SourceHistory(config, list(sources), channels={"reward": 1.0}, find=joined.find), joined, sources


def same(prompts, completions, **columns):
    return [1.0] * len(completions)


def test_shares_are_those_of_the_paper():
    history, _, sources = mixed_history(window=3, temperature=0.2, explore=0.7)
    rng = np.random.default_rng(0)
    expected = {name: [] for name in sources}
    for sequence in range(20):
        name = "aab"[sequence % 3]
        rewards = rng.integers(0, 2, 2).astype(float)
        spread = rewards.std(ddof=1)
        expected["b"].append(0.0)  # what was replaced came before
        expected[name].append(np.abs((rewards - rewards.mean()) / (spread + 1e-6)).mean() if spread > 0 else 0.0)
        replaced = [(sources["b"][0].id, 1.0)]
        metrics = history.see({"rollouts": [segment_of(sequence, sources[name][sequence % 5].id, rewards, replaced)]}, Batch())
    counts = np.array([len(some) for some in expected.values()])
    means = np.array([np.mean(some[-3:]) if some else 0.0 for some in expected.values()])
    bound = means + 0.7 * np.sqrt(2 * np.log(counts.sum() + 1) / (counts + 1))
    shares = np.exp(bound / 0.2) / np.exp(bound / 0.2).sum()
    assert history.shares().numpy() == pytest.approx(shares, rel=1e-5)
    assert [metrics[f"tasks/share/{name}"] for name in "abc"] == pytest.approx(shares, rel=1e-5)
    other, _, _ = mixed_history(window=3, temperature=0.2, explore=0.7)
    other.restore(history.snapshot())
    assert torch.equal(other.shares(), history.shares())


def test_the_source_that_can_be_learned_is_found():
    """One source is always solved, one never, one at times: the last is played most of the time, the others now and then."""
    found = []
    for seed in range(5):
        history, _, sources = mixed_history()
        source, rng, played = MixedSource(sources, DifficultyConfig(), seed=seed), np.random.default_rng(seed), []
        for sequence in range(400):
            task = source.next(Draw(sequence, history=dict(history.history())))
            name = task.data["example"].columns["source"]
            rewards = {"a": [1.0, 1.0], "b": [0.0, 0.0], "c": rng.permutation([0.0, 1.0])}[name]
            history.see({"rollouts": [segment_of(sequence, task.id, rewards)]}, Batch())
            played.append(name)
        shares = [played[200:].count(name) / 200 for name in "abc"]
        found.append(shares[2] > 0.6 and min(shares) > 0)
    assert sum(found) == 5


def test_joined_tasks_keep_their_examples_apart():
    train, held = {name: [Example("p"), Example(name)] for name in "ab"}, {"a": 1, "b": 3}
    tasks = {name: TextTask(name, train[name], [Example(f"{name}{i}") for i in range(held[name])], same) for name in "ab"}
    joined, sources = join_tasks(tasks)
    assert [e.columns["source"] for e in joined.train] == ["a", "a", "b", "b"]
    assert [e.text for e in joined.train] == ["p", "a", "p", "b"] == [joined.train[i - 4].text for i in range(4)]
    assert [e.text for e in joined.train[1:3]] == ["a", "p"]
    assert [e.text for e in joined.eval] == ["a0", "b0", "b1", "b2"]
    assert len({e.id for e in joined.train}) == 4
    for name in "ab":
        assert joined.find(sources[name][0].id).columns == {"source": name}


def test_bad_sources():
    for wrong, why in (
        (["a"], "NAME=TASK"),
        (["a=x", "a=y"], "two sources"),
        (["a=x"], "only one source"),
        (["a b=x"], "NAME="),
    ):
        with pytest.raises(ConfigError, match=why):
            named_tasks(wrong)
    tasks = {name: TextTask(name, [Example(name)], [Example("held")], reward) for name, reward in (("a", same), ("b", len))}
    with pytest.raises(ConfigError, match="one reward"):
        join_tasks(tasks)
    both = {name: TextTask(name, [Example(t)], [Example(h)], same) for name, t, h in (("a", "x", "y"), ("b", "y", "z"))}
    with pytest.raises(DataError, match="source 'b': 1 evaluation prompts"):
        join_tasks(both)
    odd = {name: TextTask(name, [Example(name, columns={"source": 1})], [Example("h")], same) for name in "ab"}
    with pytest.raises(DataError, match="column 'source' of its own"):
        join_tasks(odd)[0].train[0]


def test_bad_settings():
    for wrong in ({"window": 0}, {"temperature": 0.0}, {"explore": -1.0}):
        with pytest.raises(ConfigError, match=r"sources\."):
            SourcesConfig(**wrong)
    for wrong in ({"low": 0.9, "high": 0.1}, {"momentum": 1.0}, {"retry_after": 0}):
        with pytest.raises(ConfigError, match=r"filter\."):
            DifficultyConfig(**wrong)
