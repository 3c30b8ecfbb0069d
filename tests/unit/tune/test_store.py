"""Optuna's journal after a kill, grids, and shares of importance."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from runnel.core.errors import ConfigError
from runnel.tune.settings import Setup, TuneConfig, make_setup
from runnel.tune.store import importance, open_study, sampler, suggest


def setup(sampler: str = "tpe", trials: int = 20, **options: object) -> Setup:
    words = ("ppo.lr=log(1e-4,1e-2)", "ppo.clip_range={0.1,0.2}")
    return make_setup("ppo", {}, TuneConfig(search=words, sampler=sampler, trials=trials, **options))  # type: ignore[arg-type]


def test_a_journal_that_was_cut_off_is_mended(tmp_path: Path) -> None:
    """A killed writer leaves a lock and half a line; neither may cost a trial, or hold the next one up."""
    journal = tmp_path / "journal.log"
    study = open_study(journal, setup())
    for value in (1.0, 2.0):
        trial = study.ask()
        suggest(trial, setup().space)
        study.tell(trial, value)
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker_id"')
    (tmp_path / "journal.log.lock").symlink_to(journal)
    again = open_study(journal, setup())
    assert [t.value for t in again.trials] == [1.0, 2.0]
    again.tell(again.ask(), 3.0)
    assert [t.value for t in open_study(journal, setup()).trials] == [1.0, 2.0, 3.0]
    assert journal.read_bytes().startswith(whole)


def test_a_journal_that_is_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    study = open_study(journal, setup())
    study.tell(study.ask(), 1.0)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"rubbish\n" + b"".join(lines[1:]))
    with pytest.raises(ConfigError, match="this file is damaged"):
        open_study(journal, setup())


def test_a_grid_is_all_of_its_points_once(tmp_path: Path) -> None:
    grid = setup("grid", grid_points=3)
    for _ in range(2):  # opening it again adds nothing
        study = open_study(tmp_path / "journal.log", grid)
    points = [tuple(t.system_attrs["fixed_params"].values()) for t in study.trials]
    assert points == [(1e-4, 0.1), (1e-4, 0.2), (1e-3, 0.1), (1e-3, 0.2), (1e-2, 0.1), (1e-2, 0.2)]
    assert len(open_study(tmp_path / "few.log", setup("grid", trials=4)).trials) == 4


def test_each_proposal_has_chances_of_its_own() -> None:
    def first(number: int, seed: int = 0) -> float:
        study = optuna.create_study(sampler=sampler(setup("random", search_seed=seed), number))
        return study.ask().suggest_float("x", 0, 1)

    assert first(3) == first(3)
    assert len({first(0), first(1), first(2), first(0, seed=1)}) == 4


def test_importance_needs_ten_trials(tmp_path: Path) -> None:
    chosen = setup("random")
    study = open_study(tmp_path / "journal.log", chosen)
    for number in range(12):
        study.sampler = sampler(chosen, number)
        trial = study.ask()
        suggest(trial, chosen.space)
        study.tell(trial, trial.params["ppo.lr"])
        assert (importance(study, chosen.space) is None) == (number < 9)
    found = importance(study, chosen.space)
    assert found is not None
    assert found["ppo.lr"] > 0.9
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("pruner", ["none", "median", "hyperband"])
def test_pruners_end_bad_trials_and_let_good_ones_go_on(pruner: str, tmp_path: Path) -> None:
    """Twelve runs whose level is known from the start: the best is never ended, of the others some are."""
    chosen = setup("random", pruner=pruner)
    study = open_study(tmp_path / "journal.log", chosen)
    ended: list[int] = []
    levels = [6, 3, 9, 1, 12, 7, 2, 10, 5, 11, 4, 8]
    for level in levels:
        trial = study.ask()
        for step in range(5_000, 100_001, 5_000):
            trial.report(float(level), step)
            if trial.should_prune():
                ended.append(level)
                assert step >= 10_000, "not before a run can have learned something"
                break
        study.tell(trial, float(level)) if level not in ended else study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    assert bool(ended) == (pruner != "none")
    assert 12 not in ended
