import json

import pytest
from made_runs import made_group, made_run

from runnel.core.errors import ConfigError
from runnel.report.collect import collect, find_runs


@pytest.fixture
def tmp_path(tmp_path):
    """Deep enough that a study of another test does not lie beside it."""
    path = tmp_path / "project" / "runs"
    path.mkdir(parents=True)
    return path


def names(found):
    return {group.name: sorted(run.info["seed"] for run in group.runs) for group in found.groups}


def test_runs_are_grouped_by_what_they_learn_with(tmp_path):
    made_group(tmp_path, [1.0, 2.0], ppo={"lr": 1})
    made_group(tmp_path, [1.0, 2.0], ppo={"lr": 2}, first_seed=3)
    made_run(tmp_path, 1.0, recipe="dqn", seed=9, track=["csv"])
    assert names(collect([tmp_path])) == {"ppo (ppo.lr=1)": [1, 2], "ppo (ppo.lr=2)": [3, 4], "dqn": [9]}


def test_two_folders_are_two_groups_even_with_the_same_settings(tmp_path):
    made_group(tmp_path / "before", [1.0, 2.0])
    made_group(tmp_path / "after", [3.0, 4.0])
    assert names(collect([tmp_path / "before", tmp_path / "after"])) == {"before": [1, 2], "after": [1, 2]}
    assert names(collect([tmp_path])) == {"ppo": [1, 2]}  # one folder of all of them: the same seeds, once each


def test_names_globs_and_single_runs(tmp_path):
    made_group(tmp_path, [1.0, 2.0], task="A")
    made_group(tmp_path, [1.0, 2.0], task="B", ppo={"lr": 5})
    found = collect([f"mine={tmp_path}/ppo-*"])  # settings may differ from task to task
    assert names(found) == {"mine": [1, 1, 2, 2]}
    assert list(found.groups[0].by_task()) == ["A", "B"]
    assert list(found.lines()) == ["mine on A", "mine on B"]
    assert names(collect([tmp_path / "ppo-A-1", tmp_path / "ppo-A-2"])) == {"ppo": [1, 2]}
    assert len(collect([tmp_path / "ppo-A-1", f"{tmp_path}/ppo-A-1"]).groups[0].runs) == 1


def test_one_name_for_different_settings_is_refused(tmp_path):
    made_run(tmp_path, 1.0, ppo={"lr": 1})
    made_run(tmp_path, 1.0, ppo={"lr": 2}, seed=2)
    with pytest.raises(ConfigError, match=r"ppo\.lr = 1 and 2"):
        collect([f"mine={tmp_path}"])


def test_the_same_seed_twice_counts_once_by_the_newest(tmp_path):
    made_run(tmp_path, 1.0, name="old", created=1)
    made_run(tmp_path, 5.0, name="new", created=2)
    made_run(tmp_path, 5.0, seed=2)
    found = collect([tmp_path])
    assert sorted(run.name for run in found.groups[0].runs) == ["new", "ppo-CartPole-v1-2"]
    assert found.notices == ["ppo: a seed counts once, by its newest run; left out: old (seed 1)."]


def test_runs_that_did_not_finish_are_named_and_left_out(tmp_path):
    made_run(tmp_path, 1.0)
    made_run(tmp_path, 1.0, seed=2, status="failed")
    made_run(tmp_path, 1.0, seed=3, status="")
    found = collect([tmp_path])
    assert names(found) == {"ppo": [1]}
    assert found.notices == [
        "Left out, as they did not finish: ppo-CartPole-v1-2 (failed), ppo-CartPole-v1-3 (killed). --unfinished keeps them."
    ]
    assert names(collect([tmp_path], unfinished=True)) == {"ppo": [1, 2, 3]}
    with pytest.raises(ConfigError, match="no run is left"):
        collect([tmp_path / "ppo-CartPole-v1-2"])


def test_trials_never_enter(tmp_path):
    made_run(tmp_path, 1.0)
    trial = made_run(tmp_path, 9.0, seed=2, tags=["tuning"])
    found = collect([tmp_path])
    assert names(found) == {"ppo": [1]}
    assert "trials of a tuning study: ppo-CartPole-v1-2" in found.notices[0]
    with pytest.raises(ConfigError, match="train anew with other seeds"):
        collect([trial.path])


def study(folder, **data):
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(data))


def test_seeds_that_were_tuned_on_are_refused(tmp_path):
    study(tmp_path / "study", seeds=[1, 2], recipe="ppo", subject="CartPole-v1")
    made_group(tmp_path / "test", [1.0, 2.0], first_seed=2)
    with pytest.raises(ConfigError, match="chose settings on seed 2") as refused:
        collect([tmp_path / "test"])
    assert "--seed 3" in str(refused.value)
    found = collect([tmp_path / "test"], allow_tuning_seeds=True)
    assert "Tuning seeds allowed: 1 of the runs use seeds (2)" in found.notices[0]
    made_group(tmp_path / "fresh", [1.0], first_seed=7)
    assert collect([tmp_path / "fresh"]).notices == []


@pytest.mark.parametrize("about", [{"recipe": "dqn", "subject": "CartPole-v1"}, {"recipe": "ppo", "subject": "Other"}])
def test_a_study_of_something_else_does_not_matter(tmp_path, about):
    study(tmp_path / "study", seeds=[1], **about)
    made_run(tmp_path / "test", 1.0)
    assert collect([tmp_path / "test"]).notices == []


def test_a_study_that_does_not_say_what_it_is_about_is_asked_through_its_trials(tmp_path):
    study(tmp_path, seeds=[1])
    made_run(tmp_path / "trials", 1.0, recipe="dqn", tags=["tuning"])
    made_run(tmp_path / "test", 1.0)
    assert collect([tmp_path / "test"]).notices == []
    (tmp_path / "study.json").write_text("{")
    assert collect([tmp_path / "test"]).notices == []


@pytest.mark.parametrize("argument", ["nowhere", "no*where", "a=", "=b", "name=nowhere", "empty"])
def test_what_is_no_run_is_refused(tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="runs = "):
        find_runs(argument)


def test_a_path_with_an_equals_sign_is_a_path(tmp_path):
    run = made_run(tmp_path / "lr=1", 1.0)
    assert [source.name for source in find_runs(str(run.path))] == [""]


def test_names_of_groups_differ_where_their_settings_begin_alike(tmp_path):
    long = {f"a_setting_with_a_long_name_{i}": i for i in range(3)}
    for last in (1, 2):
        made_run(tmp_path, 1.0, seed=last, ppo={**{k: v * last for k, v in long.items()}, "z": last})
    first, second = names(collect([tmp_path]))
    assert first.endswith("ppo.z=1)")
    assert second.endswith("ppo.z=2)")
