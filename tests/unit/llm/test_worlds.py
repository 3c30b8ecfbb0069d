"""All built-in worlds: the same conversation for the same task, seed and messages, from any saved state; tasks; options."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from statistics import fmean

import pytest
from world_players import ODD, SPEAK, as_message, at_random, by_script, make, plain, play

from runnel.core.contracts.chat import HasLane, HasScript, HasState, HasTasks
from runnel.core.errors import ConfigError, DataError
from runnel.llm.tasks.reverse import make_reverse
from runnel.llm.worlds import WORLDS, make_world

NAMES = sorted(WORLDS)


def some_tasks(world, count=3):
    train, held = world.tasks()
    return [*train[:count], *held[:count]]


def test_every_world_has_a_random_player_here():
    assert set(SPEAK) == set(WORLDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_world_offers_all_that_it_can(name):
    world = make(name)
    assert all(isinstance(world, kind) for kind in (HasLane, HasTasks, HasState, HasScript))


@pytest.mark.parametrize("name", NAMES)
def test_the_script_needs_no_more_tokens_than_the_world_says(name):
    """Counted in letters and one token more for the end: no tokenizer that we have needs more."""
    world = make(name)
    for task in some_tasks(world):
        world.reset(task, seed=0)
        said = world.script()
        text = said if isinstance(said, str) else json.dumps(said["tool_calls"][0]["function"])
        assert len(text) + 1 <= world.max_tokens, text


def test_retry_needs_what_its_task_needs():
    assert make("retry").max_tokens == make_reverse(num_words=5, num_eval=5).max_tokens


@pytest.mark.parametrize("name", NAMES)
def test_one_task_one_seed_and_the_same_messages_are_one_conversation(name):
    for i, task in enumerate(some_tasks(make(name))):
        first, second = (play(make(name), task, i, at_random(name, i)) for _ in range(2))
        assert [plain(t) for t in first.turns] == [plain(t) for t in second.turns]
        world = make(name)
        play(world, task, i, at_random(name, i))  # a world that was played before begins anew
        again = play(world, task, i, at_random(name, i))
        assert [plain(t) for t in again.turns] == [plain(t) for t in first.turns]


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_equally_from_every_turn(name):
    task = some_tasks(make(name))[0]
    world, speak = make(name), at_random(name, 3)
    world.reset(task, seed=3)
    states, said, heard = [], [], []
    while not heard or not heard[-1].over:
        states.append(json.dumps(world.get_state()))
        scripted = world.script()
        said.append((scripted, as_message(speak(world))))
        heard.append(world.step(said[-1][1]))
    for start, state in enumerate(states):
        other = make(name)
        other.set_state(json.loads(state))
        for (scripted, message), turn in zip(said[start:], heard[start:], strict=True):
            assert other.script() == scripted
            assert plain(other.step(message)) == plain(turn)


@pytest.mark.parametrize("name", ["calculator", "search"])
def test_calls_of_tools_are_part_of_the_state(name):
    world = make(name)
    task = world.tasks()[0][0]
    whole = play(world, task, 0, by_script)
    world.reset(task, seed=0)
    for n in range(len(whole.calls)):
        arguments = world.script()["tool_calls"][0]["function"]["arguments"]
        other = make(name)
        other.set_state(json.loads(json.dumps(world.get_state())))
        assert other.script() == world.script()
        for one in (world, other):
            assert one.tools()[0].open().call(arguments) == whole.calls[n]
        assert other.get_state() == world.get_state()
    assert world.step(as_message(world.script())).rewards["reward"] == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_a_copy(name):
    world = make(name)
    world.reset(some_tasks(world)[0], seed=0)
    state = world.get_state()
    before = json.dumps(state)
    play(world, some_tasks(world)[1], 1, at_random(name, 0))
    assert json.dumps(state) == before


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_plain_always_the_same_and_in_one_split_only(name):
    (train, held), (again, _) = make(name).tasks(), make(name).tasks()
    assert len(train) >= len(held) >= 2
    a, b = ({json.dumps(t, sort_keys=True) for t in part[:100]} for part in (train, held))
    assert not a & b
    assert [train[i] for i in (0, 5, -1)] == [again[i] for i in (0, 5, len(train) - 1)]
    assert train[2:4] == [train[2], train[3]]
    assert all(json.loads(json.dumps(t)) == t for t in [train[0], held[0]])
    with pytest.raises(IndexError):
        train[len(train)]


@pytest.mark.parametrize("name", NAMES)
def test_odd_messages_are_answered_and_earn_nothing(name):
    world = make(name)
    for i in range(len(ODD)):
        order = iter(ODD[i:] * 500)
        played = play(world, some_tasks(world)[0], i, lambda world, order=order: next(order), limit=3000)
        total = played.total
        assert total.get("reward", 0.0) == 0.0 or name == "frozenlake", total  # some of them are moves
        assert all(isinstance(m["content"], str) for t in played.turns for m in t.messages)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_played_is_refused_with_its_name(name):
    world = make(name)
    with pytest.raises(DataError, match="reset"):
        world.step({"role": "assistant", "content": "1"})
    play(world, {}, 7, by_script)  # a task drawn by the seed
    with pytest.raises(DataError, match="reset"):
        world.step({"role": "assistant", "content": "1"})
    with pytest.raises(DataError, match=name):
        world.reset({"nothing": 1}, seed=0)


def test_the_page_lists_every_world_with_its_options():
    page = (Path(__file__).parents[3] / "docs/guides/worlds.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    options = {row[0].strip("`"): row[3] for row in rows if row[3].startswith("`")}
    assert sorted(options) == NAMES
    counts = ["num_train=10000", "num_eval=256"]
    assert all(f"`{text}`" in page for text in counts)
    for name in NAMES:
        parameters = inspect.signature(type(make(name))).parameters.values()
        known = [f"{p.name}={p.default!r}" for p in parameters]
        assert options[name] == ", ".join(f"`{text}`" for text in known if text not in counts)
        assert ("num_train" in {p.name for p in parameters}) == (f"`{name}`" in made_when_played(page))


def made_when_played(page):
    """The sentence of the page about worlds that make their tasks."""
    return next(line for line in page.splitlines() if "make their tasks when they are played" in line)


def test_an_unknown_world_or_option_is_refused():
    with pytest.raises(ConfigError, match=r"choose one of bandit, calculator"):
        make_world("chess")
    with pytest.raises(ConfigError, match=r"guess.size = 3: is no option of this world; it has high, max_guesses, shaped"):
        make_world("guess", size=3)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("guess", "high", 1),
        ("guess", "high", 2.5),
        ("guess", "max_guesses", -1),
        ("guess", "shaped", -0.1),
        ("bandit", "arms", 9),
        ("bandit", "rooms", 0),
        ("bandit", "luck", float("nan")),
        ("calculator", "level", True),
        ("calculator", "level", 5),
        ("calculator", "tools", 1),
        ("calculator", "num_train", 0),
        ("frozenlake", "map", "5x5"),
        ("frozenlake", "size", 2),
        ("frozenlake", "frozen", 1.0),
        ("frozenlake", "max_turns", 0),
        ("maze", "size", 1),
        ("maze", "max_turns", 0),
        ("retry", "max_tries", 0),
        ("retry", "discount", 1.5),
        ("retry", "right_at", None),
        ("search", "people", 9),
        ("search", "hops", 3),
        ("search", "num", 0),
        ("search", "max_chars", 99),
        ("sokoban", "size", 9),
        ("sokoban", "boxes", 3),
        ("sokoban", "per_box", -1),
        ("twenty_questions", "max_questions", 0),
        ("wordle", "max_guesses", 0),
    ],
)
def test_an_option_out_of_its_bounds_is_refused(name, option, value):
    with pytest.raises(ConfigError, match=rf"{name}\.{option}"):
        make_world(name, **{option: value})


def rows_of_success():
    """Name, options and the figures of each row of the page's second table."""
    page = (Path(__file__).parents[3] / "docs/guides/worlds.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    for what, *figures in (row for row in rows if row[3][:1].isdigit()):
        name, *options = what.replace("`", "").split(", ")
        yield name, {k: ast.literal_eval(v) for k, v in (o.split("=") for o in options)}, figures


def earned(total):
    """The channel that says whether it was right."""
    return next((total[channel] for channel in ("right", "exact", "reward") if channel in total), 0.0)


def test_the_page_has_a_row_of_success_for_every_world():
    assert {name for name, _, _ in rows_of_success()} == set(NAMES)


@pytest.mark.parametrize(("name", "options", "figures"), rows_of_success(), ids=str)
def test_scripts_and_random_players_come_as_far_as_the_page_says(name, options, figures):
    world = make(name, **options)
    train = world.tasks()[0]
    tasks = [train[i % len(train)] for i in range(200)]
    scripted = [play(world, task, i, by_script) for i, task in enumerate(tasks)]
    by_chance = [play(world, task, i, at_random(name, i)) for i, task in enumerate(tasks)]
    sizes = [len(p.turns) - 1 + len(p.calls) for p in scripted]
    won = [fmean(earned(p.total) for p in some) for some in (scripted, by_chance)]
    assert figures == [f"{fmean(sizes):.1f}, {max(sizes)}", f"{won[0]:.3f}", f"{won[1]:.3f}"]
