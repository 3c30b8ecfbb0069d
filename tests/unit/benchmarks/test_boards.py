"""The judge of board games: what it plays as at each point of a curve, and who won from which seat."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspiel")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.learning import boards

import runnel as rl


def first_free(seed):
    return lambda state: state.legal_actions()[0]


def last_free(seed):
    return lambda state: state.legal_actions()[-1]


def test_both_seats_are_counted_apart():
    """Who begins and takes cells from the front wins by the row in the middle; who begins from the back does as well."""
    for mine, other in ((first_free(0), last_free(0)), (last_free(0), first_free(0))):
        found = boards.play(boards.TIC_TAC_TOE, mine, other, games=6, opening=0, seed=1)
        assert found == {"first": [3, 0, 0], "second": [0, 0, 3]}


def test_a_curve_plays_as_each_checkpoint_did(tmp_path):
    """Its last point is what the run's newest policy wins; an earlier one is what that version wins, not the newest."""
    settings = {"env": boards.TIC_TAC_TOE.env, "num_envs": 16, "num_steps": 16, "net": {"hidden": (16,)}, "ppo": {"lr": 0.02}}
    entry = boards.Entry("toy", boards.TIC_TAC_TOE, settings, {"at random": (boards.at_random, 0, 0)}, curve_games=200)
    quiet = {"track": (), "progress": False, "eval": {"episodes": 0}, "checkpoint": {"every": 4, "keep": 10}}
    run = rl.train("selfplay", total_updates=12, out=str(tmp_path), seed=1, **settings, **quiet)
    policy = rl.load(run.path)
    found = boards.curve(entry, run, policy)
    assert [point["steps"] for point in found] == [4 * 256, 8 * 256, 12 * 256]

    def won(policy):
        mine, other = boards.learned(boards.TIC_TAC_TOE, policy), boards.at_random(8)
        games = boards.play(boards.TIC_TAC_TOE, mine, other, games=200, opening=0, seed=200_000)
        return sum(wins for wins, _, _ in games.values()) / 200

    assert found[-1]["won"]["at random"] == won(rl.load(run.path))
    early = rl.load(run.path)
    early["player_0"].net.load_state_dict(rl.run.stored_params(f"run:{run.path}@4"))
    assert found[0]["won"]["at random"] == won(early)
    assert len(np.unique([point["won"]["at random"] for point in found])) > 1
