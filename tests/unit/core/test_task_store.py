"""The store of added tasks against a plain list: what goes in comes out, in order, once, and no more than there is room for."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.contracts.tasks import Task
from runnel.core.errors import DataError
from runnel.core.task_store import TaskStore, TaskStoreView, stored_bytes

plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
tasks = st.builds(Task, st.integers(0, 9), st.dictionaries(st.text(max_size=4), plain, max_size=3))


def view_of(store: TaskStore) -> TaskStoreView:
    view = TaskStoreView()
    view.read(store.columns())
    return view


@given(st.lists(st.tuples(tasks, st.integers(0, 2)), max_size=14), st.integers(1, 8), st.integers(1, 200))
def test_it_is_a_list_without_doubles(arrivals: list[tuple[Task, int]], capacity: int, max_bytes: int) -> None:
    store, reader, since = TaskStore(capacity=capacity, max_bytes=max_bytes), TaskStoreView(), 0
    wanted: list[tuple[Task, int]] = []
    doubles, shapes = 0, {name: (x.shape, x.dtype) for name, x in store.columns().items()}
    for task, later in arrivals:
        since += later
        used = sum(stored_bytes(kept.data) for kept, _ in wanted)
        if task.id in [kept.id for kept, _ in wanted]:
            assert not store.add(task, since=since)
            doubles += 1
        elif len(wanted) == capacity or used + stored_bytes(task.data) > max_bytes:
            with pytest.raises(DataError, match="no room for one more task"):
                store.add(task, since=since)
        else:
            assert store.add(task, since=since)
            wanted.append((task, since))
        reader.read({name: x.clone() for name, x in store.columns().items()})
        assert list(zip(reader.tasks, reader.since, strict=True)) == wanted
        assert (len(store), store.doubles) == (len(wanted), doubles)
        assert store.num_bytes == sum(stored_bytes(kept.data) for kept, _ in wanted)
    assert {name: (x.shape, x.dtype) for name, x in store.columns().items()} == shapes
    again = TaskStore(capacity=capacity, max_bytes=max_bytes)
    again.restore(store.snapshot())
    assert all(torch.equal(x, store.columns()[name]) for name, x in again.columns().items())
    assert (view_of(again).tasks, again.doubles) == (reader.tasks, doubles)


@given(st.lists(tasks, max_size=6, unique_by=lambda task: task.id), st.data())
def test_a_view_reads_older_and_newer_columns_in_any_order(some: list[Task], data: st.DataObject) -> None:
    """A segment that is made again asks by the history of an older version."""
    store = TaskStore(capacity=6, max_bytes=5_000)
    published = [{name: x.clone() for name, x in store.columns().items()}]
    for number, task in enumerate(some):
        store.add(task, since=number)
        published.append({name: x.clone() for name, x in store.columns().items()})
    view = TaskStoreView()
    for number in data.draw(st.lists(st.integers(0, len(some)), max_size=8)):
        view.read(published[number])
        assert view.tasks == [Task(t.id, json.loads(json.dumps(t.data))) for t in some[:number]]
        assert view.since == list(range(number))


def test_restore_replaces_what_was_there() -> None:
    store, other = TaskStore(capacity=3, max_bytes=60), TaskStore(capacity=3, max_bytes=60)
    for task_id in (1, 2):
        store.add(Task(task_id, {"prompt": "x" * 5}), since=0)
    other.add(Task(9, {"prompt": "é"}), since=7)
    store.restore(other.snapshot())
    assert (view_of(store).tasks, view_of(store).since) == ([Task(9, {"prompt": "é"})], [7])
    assert store.add(Task(1, {"prompt": "x"}), since=7), "it is not there any more"


def test_tasks_are_in_the_order_of_their_segments() -> None:
    store = TaskStore(capacity=3, max_bytes=60)
    store.add(Task(1, {}), since=5)
    with pytest.raises(DataError, match="from segment 4 on cannot stand behind one from segment 5 on"):
        store.add(Task(2, {}), since=4)
