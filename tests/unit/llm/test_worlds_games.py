"""Rules of the games among the built-in worlds, against definitions written another way."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world_players import as_message, by_script, play

from runnel.core.errors import DataError
from runnel.llm.worlds import make_world
from runnel.llm.worlds.maze import made, moved
from runnel.llm.worlds.sokoban_levels import MOVES, drawn, pushed, read, solution
from runnel.llm.worlds.things import ATTRIBUTES, THINGS
from runnel.llm.worlds.twenty_questions import asked
from runnel.llm.worlds.wordle import marked
from runnel.llm.worlds.words import WORDS


# ------------------------------------------------------------------------------------------------------------------ wordle
def marks_by_definition(guess, secret):
    """Each letter by itself: its marks are as many as the word has it, the right places first, then from left to right."""
    out = ["-"] * 5
    for letter in set(guess):
        places = [i for i in range(5) if guess[i] == letter]
        places.sort(key=lambda i: (secret[i] != letter, i))
        for i in places[: secret.count(letter)]:
            out[i] = "G" if secret[i] == letter else "Y"
    return "".join(out)


def test_marks_of_all_words_of_three_letters_five_long():
    words = ["".join(w) for w in itertools.product("abc", repeat=5)]
    for guess, secret in itertools.product(words[::2], words[::5]):
        assert marked(guess, secret) == marks_by_definition(guess, secret)


@given(st.sampled_from(WORDS), st.sampled_from(WORDS))
@settings(max_examples=100, deadline=None)
def test_marks_of_real_words(guess, secret):
    assert marked(guess, secret) == marks_by_definition(guess, secret)


def test_the_words_are_words_of_five_letters_each_once():
    assert len(WORDS) == len(set(WORDS)) > 300
    assert all(len(w) == 5 and w.isascii() and w.islower() and w.isalpha() for w in WORDS)
    assert list(WORDS) == sorted(WORDS)


def test_wordle_reads_the_last_word_of_five_letters_and_ends_with_the_last_guess():
    world = make_world("wordle", max_guesses=3)
    world.reset({"secret": "stone"}, seed=0)
    assert world.step(as_message("After crane I try Notes, ok")).messages[0]["content"] == "notes: YYYYY\nGuesses left: 2."
    assert "no word of five letters" in world.step(as_message("ab")).messages[0]["content"]
    last = world.step(as_message("storms stony"))
    assert (last.terminated, last.rewards) == (True, {"reward": 0.0})
    assert "it is stone" in last.messages[0]["content"]
    own = make_world("wordle")  # a secret that is on no list is found too
    assert play(own, {"secret": "zzzzz"}, 0, by_script).total == {"reward": 1.0}
    for secret in ("four", "Stone", "st0ne"):
        with pytest.raises(DataError, match="five letters"):
            own.reset({"secret": secret}, seed=0)


# -------------------------------------------------------------------------------------------------------------------- maze
@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_a_maze_has_one_way_between_any_two_cells(size):
    """A connected graph whose doors are one fewer than its cells is a tree."""
    for number in range(5):
        doors, exit_cell = made(number, size)
        assert len(doors) == size * size
        pairs = {frozenset((cell, moved(cell, move))) for cell, moves in doors.items() for move in moves}
        assert all(pair <= set(doors) for pair in pairs)
        assert all(len(doors[cell]) == sum(cell in pair for pair in pairs) for cell in doors)
        assert len(pairs) == size * size - 1
        far = {(0, 0): 0}
        for _ in doors:
            for a, b in map(tuple, pairs):
                for one, other in ((a, b), (b, a)):
                    if one in far:
                        far.setdefault(other, far[one] + 1)
        assert len(far) == size * size
        assert far[exit_cell] == max(far.values())


def test_a_walk_in_a_maze_tells_what_is_seen_and_walls_stop_it():
    world = make_world("maze", size=3)
    task = world.tasks()[0][0]
    doors, exit_cell = made(task["maze"], 3)
    start = world.reset(task, seed=0)
    for move in ("north", "east", "south", "west"):
        assert (f"{move} " in start.messages[0]["content"].split("Free cells:")[1]) == (move in doors[0, 0])
    wall = world.step(as_message("go north"))
    assert "There is a wall" in wall.messages[0]["content"]
    assert wall.key == "0,0"
    played = play(world, task, 0, by_script)
    cells = [turn.key for turn in played.turns]
    assert len(set(cells)) == len(cells)  # a shortest way comes to no cell twice
    assert cells[-1] == f"{exit_cell[0]},{exit_cell[1]}"
    assert any("the exit is" in m["content"] for t in played.turns for m in t.messages)
    short = make_world("maze", max_turns=2)
    turns = play(short, task, 0, lambda _: "north").turns
    assert [(t.terminated, t.truncated) for t in turns[1:]] == [(False, False), (False, True)]


# ----------------------------------------------------------------------------------------------------------------- sokoban
def solvable(grid):
    """Length of a shortest solution by another way: sets of all places after n moves, on letters of the grid as text."""
    width, flat = len(grid[0]), "".join(grid)
    goals = frozenset(i for i, x in enumerate(flat) if x in ".*+")
    walls = frozenset(i for i, x in enumerate(flat) if x == "#")
    places = {(next(i for i, x in enumerate(flat) if x in "@+"), frozenset(i for i, x in enumerate(flat) if x in "$*"))}
    seen, moves = set(places), 0
    while places:
        if any(boxes == goals for _, boxes in places):
            return moves
        after = set()
        for player, boxes in places:
            for step in (1, -1, width, -width):
                to, beyond = player + step, player + 2 * step
                if to in walls or (to in boxes and (beyond in walls or beyond in boxes)):
                    continue
                after.add((to, boxes ^ {to, beyond} if to in boxes else boxes))
        places, moves = after - seen, moves + 1
        seen |= after
    return None


@pytest.mark.parametrize(("size", "boxes"), [(6, 1), (6, 2), (5, 1), (8, 1)])
def test_levels_can_be_solved_and_the_script_needs_no_move_too_many(size, boxes):
    world = make_world("sokoban", size=size, boxes=boxes, max_turns=200)
    for task in world.tasks()[0][:8]:
        flat = "".join(task["grid"])
        assert (len(task["grid"]), flat.count("$"), flat.count("*")) == (size, boxes, 0)
        shortest = solvable(task["grid"])
        assert shortest is not None
        played = play(world, task, 0, by_script)
        assert played.total == {"reward": 1.0}
        assert len(played.turns) - 1 == shortest


def test_moves_of_sokoban_by_hand():
    grid = ["######", "#@$-.#", "#----#", "######"]
    world = make_world("sokoban", per_box=0.5, max_turns=6)
    assert world.rewards == {"reward": 1.0, "boxes": 0.5}
    world.reset({"grid": grid}, seed=0)
    assert world.step(as_message("up")).messages[0]["content"].startswith("That way is blocked.")
    assert world.step(as_message("down or right? right")).key == "######\n#-@$.#\n#----#\n######"
    last = world.step(as_message("RIGHT"))
    assert (last.terminated, last.rewards, last.key) == (True, {"reward": 1.0, "boxes": 1.0}, "######\n#--@*#\n#----#\n######")
    world.reset({"grid": ["######", "#@*$.#", "#----#", "######"]}, seed=0)
    assert world.step(as_message("right")).messages[0]["content"].startswith("That way")  # two boxes in a row
    world.reset({"grid": ["#######", "#@*-$.#", "#-----#", "#######"]}, seed=0)
    off = world.step(as_message("right"))
    assert (off.rewards, off.key.splitlines()[1]) == ({"reward": 0.0, "boxes": -1.0}, "#-+$$.#")
    for _ in range(4):
        assert not world.step(as_message("?")).over
    assert world.step(as_message("left")).truncated


def test_a_level_that_is_lost_has_no_solution_and_the_script_still_says_something():
    grid = ("#####", "#$--#", "#@.-#", "#####")
    level = read(grid)
    assert solution(level, level.start) is None
    world = make_world("sokoban")
    world.reset({"grid": list(grid)}, seed=0)
    assert world.script() in MOVES
    assert pushed(level, level.start, "up") is None
    assert tuple(drawn(level, level.start)) == grid


NO_LEVELS = [
    [],
    [""],
    [3],
    ["####", "#@$#", "####"],
    ["#####", "#@*-#", "#####"],
    ["#####", "#@$.-", "#####"],
    ["#@$.#"],
    ["#####", "#@$.#", "####"],
]


@pytest.mark.parametrize("grid", NO_LEVELS)
def test_a_grid_that_is_no_level_is_refused(grid):
    with pytest.raises(DataError, match="grid"):
        make_world("sokoban").reset({"grid": grid}, seed=0)


# -------------------------------------------------------------------------------------------------------- twenty questions
def test_the_table_tells_all_things_apart_and_its_words_mean_one_thing():
    rows = Counter(tuple(thing in true for _, true in ATTRIBUTES.values()) for thing in THINGS)
    assert max(rows.values()) == 1
    assert (len(THINGS), len(set(THINGS))) == (60, 60)
    keywords = [w for words, _ in ATTRIBUTES.values() for w in words]
    assert len(keywords) == len(set(keywords))
    assert not set(keywords) & set(THINGS)
    assert all(true and true < set(THINGS) for _, true in ATTRIBUTES.values())
    assert all(asked(f"Is it {word}?") == name for name, (words, _) in ATTRIBUTES.items() for word in words)


def test_questions_are_answered_from_the_table_and_guesses_end_it():
    for thing in THINGS:
        world = make_world("twenty_questions", max_questions=100)
        world.reset({"thing": thing}, seed=0)
        for name, (words, true) in ATTRIBUTES.items():
            said = world.step(as_message(f"{sorted(words)[-1]}?")).messages[0]["content"]
            assert said.startswith("Yes." if thing in true else "No."), (thing, name)
        assert world.get_state()["possible"] == [thing]
        assert world.step(as_message(f"It is a {thing.upper()}.")).rewards == {"reward": 1.0}


def test_the_script_needs_few_questions_for_every_thing():
    asked_of = [len(play(make_world("twenty_questions"), {"thing": t}, 0, by_script).turns) - 1 for t in THINGS]
    assert max(asked_of) <= 12
    assert sum(asked_of) / 60 >= math.log2(60)  # nobody can do better than this, on average


def test_wrong_guesses_and_questions_about_nothing_count():
    world = make_world("twenty_questions", max_questions=3)
    world.reset({"thing": "dog"}, seed=0)
    assert world.step(as_message("a cat")).messages[0]["content"] == "No, it is not cat. Questions left: 2."
    assert "I can answer about: alive," in world.step(as_message("hm")).messages[0]["content"]
    last = world.step(as_message("Is it a dog or a cow?"))
    assert (last.terminated, last.rewards) == (True, {"reward": 0.0})
    with pytest.raises(DataError, match="not in the table"):
        world.reset({"thing": "wolf"}, seed=0)
