"""Tasks that are added while a run goes on: they are played, every actor plays the same, a killed run takes them again at the
same versions, none is lost, and what cannot be played is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_task_history import LETTERS, SETTINGS
from tiny_slices import content

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import DataError
from runnel.core.state import State
from runnel.llm.tasks.new_tasks import example_data
from runnel.run import new_tasks, session
from runnel.run.checkpoint import Checkpoints, read_part
from runnel.track.folder import RunFolder
from runnel.track.locks import Holder

ROOM: dict[str, Any] = {
    **SETTINGS,
    "filter": {"on": True, "low": 0.0, "high": 1.0, "retry_after": 20},
    "new_tasks": {"capacity": 6, "max_bytes": 2_000},
}
"""The filter passes over nothing here; it keeps a table of what was played."""
NEW = [rl.Example(word, word[::-1]) for word in ("xyz", "xyw", "bdz", "zzz")]
IDS = {example.id for example in NEW}


class Killed(Exception):
    """Ends a run at once, as a kill would: nothing is saved."""


Step = Callable[[Path], object]


def play(path: Path, steps: dict[int, Step], *, recipe: str = "grpo", resume: bool = False, **settings: Any) -> rl.Run | None:
    """Train or resume the run in `path`, with a step after some of its versions."""

    def on_update(row: dict[str, Any]) -> None:
        steps.get(row["version"], lambda run: None)(path)

    try:
        if resume:
            return rl.resume(path, on_update=on_update, **settings)
        return rl.train(recipe, out=str(path.parent), name=path.name, on_update=on_update, **{**ROOM, **settings})
    except Killed:
        return None


def add(*examples: rl.Example) -> Step:
    return lambda run: rl.add_tasks(run, examples)


def kill(run: Path) -> None:
    raise Killed


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are read in every round."""
    monkeypatch.setattr(session, "ORDERS_S", 0.0)


def history_of(run: Path) -> State:
    newest = Checkpoints(run / "checkpoints").newest_whole()
    assert newest is not None
    found: State = read_part(newest, "worker-trainer")["curriculum"]
    return found


def stored(run: Path) -> dict[str, Any]:
    """The store of added tasks, as the newest checkpoint has it."""
    return {name: np.asarray(value).tolist() for name, value in history_of(run)["new"].items()}


def played(run: Path) -> dict[int, tuple[int, int]]:
    """By task, how often it was played, and the number of the last segment."""
    found = history_of(run)["prompts"]["table"]
    columns = (np.asarray(found[name]).tolist() for name in ("ids", "visits", "last"))
    return {task_id: (visits, last) for task_id, visits, last in zip(*columns, strict=True)}


def told(run: Path) -> list[tuple[int, int]]:
    return [(r["version"], r["added"]) for r in RunFolder(run).read_rows()[0] if r.get("what") == "tasks"]


def versions(run: Path) -> list[int]:
    return [row["version"] for row in map(json.loads, (run / "tasks.jsonl").read_text().splitlines()) if "version" in row]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one actor that gets three tasks after version 2, and one more after version 5."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "ORDERS_S", 0.0)
        play(path, {2: add(*NEW[:3]), 5: add(NEW[0], NEW[3])})
    return path


def test_new_tasks_are_played_soon_and_told(whole: Path, tmp_path: Path) -> None:
    rows = [row for row in content(whole)[0] if row["kind"] == "update"]
    assert versions(whole) == [v for v, _ in told(whole)] == [3, 6]
    assert [num for _, num in told(whole)] == [3, 1]
    assert [row["metrics"]["tasks/added"] for row in rows] == [0] * 3 + [3] * 3 + [4] * 6
    orders = [r["text"] for r in RunFolder(whole).read_rows()[0] if r.get("what") == "order"]
    assert orders == ["new tasks were ordered: 3", "new tasks were ordered: 1 (1 more are known already)"]
    run = tmp_path / "run"
    play(run, {2: add(*NEW[:3]), 5: add(NEW[0], NEW[3])}, total_updates=8)
    found, first = played(run), 4 * 3
    assert {visits for visits, _ in found.values()} == {1}, "28 prompts and 4 new ones make a pass of 32 groups"
    assert len(found) == 32
    assert {found[e.id][1] for e in NEW[:3]} == {first, first + 2, first + 4}, "every second prompt is a new one"
    assert found[NEW[3].id][1] == 4 * 6


@pytest.mark.parametrize(
    ("at", "steps"),
    [
        ("before the checkpoint that has them", {7: kill}),
        ("behind the checkpoint that has them", {9: kill}),
        ("before the order was answered", {5: lambda run: (add(NEW[0], NEW[3])(run), half_a_line(run), kill(run))}),
        ("while it was written down", {7: lambda run: (half_a_line(run), kill(run))}),
    ],
)
def test_a_killed_run_goes_on_as_one_that_was_not(at: str, steps: dict[int, Step], whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    play(run, {2: add(*NEW[:3]), 5: add(NEW[0], NEW[3]), **steps})
    newest = max(int(path.name) for path in (run / "checkpoints").glob("0*"))
    assert newest == (8 if at.startswith("behind") else 4)
    play(run, {}, resume=True)
    if "answered" in at:  # it is answered by the first round of the next start, at version 4
        assert versions(run) == [3, 5]
        assert played(run).keys() >= IDS
        return
    assert content(run) == content(whole)
    assert (played(run), told(run), stored(run)) == (played(whole), told(whole), stored(whole))
    assert (run / "tasks.jsonl").read_text().count("\n") == 2


def half_a_line(run: Path) -> None:
    with (run / "tasks.jsonl").open("a") as file:
        file.write('{"order": "cut o')


def test_a_killed_run_of_four_actors_goes_on_in_processes_of_their_own(whole: Path, tmp_path: Path) -> None:
    """And plays what one actor has played in one process: tasks that wait for their version reach the trainer at its start."""
    run = tmp_path / "run"
    play(run, {2: add(*NEW[:3]), 5: add(NEW[0], NEW[3]), 7: kill}, num_actors=4)
    assert rl.resume(run, launcher="local").status == "finished"
    assert (played(run), told(run)) == (played(whole), told(whole))


def test_one_actor_in_a_process_of_its_own_plays_what_four_in_one_process_do(tmp_path: Path) -> None:
    """Which version is the first to have them, timing decides; from there on nothing depends on it."""
    one, four = tmp_path / "one", tmp_path / "four"

    def on_update(row: dict[str, Any]) -> bool:
        if row["version"] == 2:
            rl.add_tasks(one, NEW[:3])
        return not one.joinpath("tasks.jsonl").is_file() or row["version"] < versions(one)[0] + 4

    endless = {**ROOM, "launcher": "local", "total_updates": 100_000, "checkpoint": {"every": 0}}
    last = rl.train("grpo", out=str(tmp_path), name="one", on_update=on_update, **endless).version
    (first,) = versions(one)
    assert told(one) == [(first, 3)]
    play(four, {first - 1: add(*NEW[:3])}, num_actors=4, total_updates=last, checkpoint={"every": 0})
    assert (played(four), told(four)) == (played(one), told(one))
    assert {e.id for e in NEW[:3]} <= played(one).keys()


AHEAD: dict[str, dict[str, Any]] = {
    "one step": {"staleness": {"mode": "one_step"}},
    "window": {"staleness": {"mode": "window", "max_lag": 2}},
    "warm-up": {"warmup_updates": 4, "demo_rows": 8},
    "refills": {"recipe": "dapo", "max_refills": 2, "task": f"{LETTERS}:make_flat_task"},
}


@pytest.mark.parametrize("mode", list(AHEAD))
def test_also_where_actors_run_ahead_or_begin_again(mode: str, tmp_path: Path) -> None:
    settings = {**AHEAD[mode], "filter": {"on": False}}
    run, broken = tmp_path / "run", tmp_path / "broken"
    play(run, {2: add(*NEW[:3])}, **settings)
    play(broken, {2: add(*NEW[:3]), 7: kill}, **settings)
    rl.resume(broken)
    assert content(broken) == content(run)
    assert [r["metrics"]["tasks/added"] for r in content(run)[0] if r["kind"] == "update"][-1] == 3


def test_rewards_get_their_columns_and_records_find_them(tmp_path: Path) -> None:
    """Of two sources, on which the reward gives what a column says; a bandit needs to know the source of what was played."""
    with open(tmp_path / "reward.py", "w") as file:
        file.write(
            "def pay(prompts, completions, pay, **columns):\n    return [p * len(c) for p, c in zip(pay, completions)]\n"
        )
    for name in ("a", "b"):
        rows = [{"prompt": name + c, "answer": c, "pay": 0.01} for c in "bcdefghijklmnopqrstuvwxy"]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    more = tmp_path / "more.jsonl"
    more.write_text('{"prompt": "bz", "answer": "z", "pay": 100.0, "source": "b"}\n')
    settings = {
        "task": "reverse",
        "tasks": tuple(f"{name}={tmp_path / name}.jsonl" for name in "ab"),
        "data": {"reward": (f"{tmp_path}/reward.py:pay",), "eval_share": 0.3},
        "sources": {"pick": "ucb"},
        "record": {"groups_every": 1},
        "filter": {"on": False},
        "max_tokens": 6,
    }
    run = tmp_path / "run"
    play(run, {2: lambda path: main(["add-tasks", str(path), str(more)])}, **settings)
    best = [r["metrics"]["reward/mean"] for r in content(run)[0] if r["kind"] == "update"]
    assert max(best[:3]) < 1 < max(best), "its column decides what it pays"
    assert sum(history_of(run)["sources"]["counts"].values()) == 4 * 12


GOOD = {"prompt": "xyz", "answer": "zyx"}
BAD: dict[str, tuple[str, str]] = {
    "no JSON": ('{"prompt": "xyz"', r"line 2: not JSON"),
    "no object": ("[1]", r"line 2: a row is an object with columns, not list"),
    "no prompt": ('{"answer": "x"}', r"line 2: the column 'prompt' is missing or empty"),
    "empty prompt": ('{"prompt": ""}', r"line 2: the prompt is empty"),
    "wrong prompt": ('{"prompt": 3}', r"line 2: a prompt is text or a list of messages, not int"),
    "half a character": ('{"prompt": "\\ud83d"}', r"line 2: the column 'prompt' has half a character"),
    "held out": ('{"prompt": "adg"}', r"line 2: the prompt 'adg' is one of the evaluation; .* leave the row out"),
    "too long": (
        '{"prompt": "' + "abcdefgh" * 20 + '"}',
        r"line 2: the prompt has \d+ tokens, and this run has room for \d+; shorten",
    ),
    "no number": ('{"prompt": "xyw", "level": NaN}', r"line 2: the columns hold more than plain JSON"),
    "too many": (
        "\n".join(json.dumps({"prompt": f"x{i}"}) for i in range(6)),
        r"new_tasks.capacity = 6: 7 new tasks, and 6 places left",
    ),
    "too large": (
        json.dumps({"prompt": "xyw", "note": "x" * 3_000}),
        r"new_tasks.max_bytes = 2000: .* and 2000 bytes left; give fewer",
    ),
}


def test_what_cannot_be_played_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, which changes nothing; and by the run, where somebody has written the order into its folder."""
    run = tmp_path / "run"
    file = tmp_path / "more.jsonl"

    def try_all(path: Path) -> None:
        for bad, why in BAD.values():
            file.write_text(f"{json.dumps(GOOD)}\n{bad}\n")
            with pytest.raises((rl.ConfigError, DataError), match=why):
                rl.add_tasks(path, file)
            assert main(["add-tasks", str(path), str(file)]) in (1, 2)
        assert str(file) in capsys.readouterr().err
        with pytest.raises(rl.ConfigError, match="give at least one"):
            rl.add_tasks(path, [])
        with pytest.raises(DataError, match=r"example 0: the column 'x' .*|example 0: the columns hold more than plain JSON"):
            rl.add_tasks(path, [rl.Example("xyz", columns={"x": {1, 2}})])
        assert not RunFolder(path).orders.exists()
        held_out = {**example_data(NEW[0]), "prompt": "adg"}
        for number, tasks in enumerate(([held_out], [{"prompt": "x"}], "x", [{**held_out, "prompt": [1]}])):
            RunFolder(path).add_order({"op": "tasks", "id": str(number), "tasks": tasks})

    play(run, {2: try_all}, total_updates=4)
    rows = [json.loads(line) for line in (run / "tasks.jsonl").read_text().splitlines()]
    assert [list(row) for row in rows] == [["order", "refused"]], "the others are no orders"
    assert "is one of the evaluation" in rows[0]["refused"]
    warned = [r["text"] for r in RunFolder(run).read_rows()[0] if r["kind"] == "event" and r["level"] == "warning"]
    assert [text.startswith("refused: example 0 of an order: the prompt 'adg'") for text in warned] == [True]
    assert told(run) == []


def test_a_run_that_cannot_take_any_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"

    def refused(path: Path) -> None:
        with pytest.raises(rl.ConfigError, match=r"new_tasks\.capacity = 0: this run has no room .* --new-tasks\.capacity N"):
            rl.add_tasks(path, NEW)
        RunFolder(path).add_order({"op": "tasks", "id": "1", "tasks": [example_data(NEW[0])]})

    play(run, {1: refused}, new_tasks={"capacity": 0}, total_updates=3, filter={"on": False})
    assert "no room for new tasks" in next(r["text"] for r in RunFolder(run).read_rows()[0] if r.get("level") == "warning")
    with pytest.raises(rl.ConfigError, match="no process is training it; resume it"):
        rl.add_tasks(run, NEW)
    monkeypatch.setattr(RunFolder, "holder", lambda self: Holder("here"))
    shutil.copytree(run, tmp_path / "damaged")
    (tmp_path / "damaged" / "tasks.jsonl").write_text("[]\n")
    with pytest.raises(rl.ConfigError, match=r"tasks\.jsonl'?: line 1 is no row of new tasks; restore the file"):
        new_tasks.TaskOrders(RunFolder(tmp_path / "damaged"), None)
    with pytest.raises(rl.RunnelError, match=r"new_tasks\.max_bytes"):
        rl.train("grpo", out=str(tmp_path), **{**ROOM, "new_tasks": {"max_bytes": 5}})
    with pytest.raises(rl.ConfigError, match=r"new_tasks\.capacity.*room of that size"):
        rl.resume(run, total_updates=5, **{"new_tasks.capacity": 3})


def test_places_that_others_have_asked_for_are_taken(tmp_path: Path) -> None:
    """Orders that the run has not answered yet count; doubles do not, nor do the task's own prompts."""

    def order(path: Path) -> None:
        assert rl.add_tasks(path, [*NEW[:3], NEW[0]]) == 3
        assert rl.add_tasks(path, [{"prompt": "xyz", "answer": "zyx"}, {"prompt": "beg", "answer": "geb"}]) == 0
        with pytest.raises(rl.ConfigError, match="4 new tasks, and 3 places left"):
            rl.add_tasks(path, [rl.Example(f"q{i}") for i in range(4)])

    play(tmp_path / "run", {1: order}, total_updates=4)
    orders = [r["text"] for r in RunFolder(tmp_path / "run").read_rows()[0] if r.get("what") == "order"]
    wanted = ["3 (1 more are known already)", "0 (2 more are known already)"]
    assert orders == [f"new tasks were ordered: {text}" for text in wanted]
    assert told(tmp_path / "run") == [(2, 3)]
    assert LETTERS.is_file()
