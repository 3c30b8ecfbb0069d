"""A config as a command line, and back; settings of a study as they are kept."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runnel import tune
from runnel.cli.arguments import parse
from runnel.cli.main import main
from runnel.cli.train import Options
from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.run import registry
from runnel.tune.command import train_command
from runnel.tune.folder import Book, StudyFolder, read_json
from runnel.tune.job import Talk, work
from runnel.tune.job_pool import JobPool
from runnel.tune.settings import Setup, TuneConfig, check_same, make_setup, read_setup
from runnel.tune.show import View
from runnel.tune.trials import TrialSearch

CHANGES = {
    "total_updates": 5,
    "total_steps": None,
    "seed": 10_000,
    "env": "runnel.envs.toy:PointMass",
    "env_kwargs": {"dims": 2},
    "num_envs": 3,
    "deterministic": True,
    "compiled": "off",
    "net.hidden": [8, 8],
    "ppo.lr": "linear(1e-3, 0)",
    "ppo.target_kl": 0.02,
    "ppo.normalise_advantage": False,
    "ppo.normalise_obs": True,
}


def test_the_command_makes_the_config() -> None:
    recipe = registry.load_recipe("ppo")
    config = registry.configure(recipe, {k: v for k, v in CHANGES.items() if v is not None})
    assert config == override(recipe.Config(), CHANGES)
    words = shlex.split(train_command(recipe, config))
    assert words[:3] == ["runnel", "train", "ppo"]
    parsed = parse(Options, recipe.Config(), words[3:], prog="", about="")[1]
    assert override(parsed, {"total_steps": None}) == config, "naming a budget drops the recipe's own"


def setup(**options: object) -> Setup:
    return make_setup("ppo", {"total_steps": 2048}, override(TuneConfig(), {"search": ["ppo.lr=log(1e-4,1e-2)"], **options}))


def test_settings_are_kept() -> None:
    first = setup(trials=5)
    again = read_setup(first.to_data(), {"trials": 9})
    assert (again.space, again.config, again.options.trials) == (first.space, first.config, 9)
    assert (first.total, first.budget, first.seeds, first.config.track) == (2048, "total_steps", [10_000], ())
    check_same(first.to_data(), setup(trials=7, workers=3), Path("x"))
    with pytest.raises(ConfigError, match=r"sampler = 'random': x was made with 'tpe'"):
        check_same(first.to_data(), setup(sampler="random"), Path("x"))


@pytest.mark.parametrize(
    ("options", "settings", "field"),
    [
        ({"trials": 0}, {}, "trials"),
        ({"test_seeds": 10_000}, {}, "test_seeds"),
        ({"scheduler": "pbt", "members": 1}, {}, "members"),
        ({"scheduler": "pbt", "seeds_per_trial": 2}, {}, "seeds_per_trial"),
        ({"scheduler": "pbt", "search": ["num_envs=2..4"]}, {}, "search"),
        ({"scheduler": "pbt", "search": ["net.hidden={[8],[9]}"]}, {}, "search"),
        ({"summary": "best"}, {}, "summary"),
        ({}, {"eval.episodes": 0}, "metric"),
        ({}, {"seed": 3}, "seed"),
        ({}, {"tags": ["mine"]}, "tags"),
        ({}, {"ppo.lr": 1e-3}, "ppo.lr"),
        ({"search": ["ppo.gamma=0.9..1.5"]}, {}, "ppo.gamma"),
        ({"search": ["ppo.num_minibatches={3, 4}"]}, {}, "ppo.num_minibatches"),
        ({"search": ["ppo.num_minibatches=int(1, 8)"]}, {}, "search"),
    ],
)
def test_refused_before_anything_starts(options: dict[str, object], settings: dict[str, object], field: str) -> None:
    base = {"search": ["ppo.lr=log(1e-4,1e-2)"]}
    with pytest.raises(ConfigError) as caught:
        make_setup("ppo", settings, override(TuneConfig(), {**base, **options}))
    assert caught.value.field == field


def test_numbers_inside_a_range_that_cannot_work_are_named_before_the_study_starts() -> None:
    with pytest.raises(ConfigError) as caught:
        setup(search=["ppo.num_minibatches=int(1, 8)"])
    assert "ppo.num_minibatches cannot be 3, 5, 6, 7" in caught.value.fix
    assert "must divide the batch" in caught.value.fix
    assert caught.value.fix.endswith("search what works: ppo.num_minibatches={1, 2, 4, 8}")
    found = setup(search=["ppo.num_minibatches={1, 2, 4, 8}", "ppo.num_epochs=int(1, 200)"])
    assert list(found.space) == ["ppo.num_minibatches", "ppo.num_epochs"]


class Refusing(JobPool):
    """A pool whose trials with several environments are refused, as settings that cannot stand together are."""

    def __init__(self) -> None:
        super().__init__(host=None, workers=1, interrupted=threading.Event())  # type: ignore[arg-type]

    def start(self, number: int, order: dict[str, Any]) -> None:
        self.handles[number] = order

    def events(self, wait_s: float) -> list[tuple[int, dict[str, Any]]]:
        orders, self.handles = self.handles, {}
        told = []
        for number, order in orders.items():
            if order["runs"][0]["segments"][0]["settings"]["num_envs"] > 2:
                told.append((number, {"kind": "failed", "error": "num_envs = 3: use 2", "refused": True}))
            else:
                told.append((number, {"kind": "done", "status": "finished", "values": [1.0], "at": 9}))
        return told


def test_a_trial_whose_settings_cannot_stand_together_is_pruned_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    settings = setup(search=["num_envs={1, 2, 4, 8}"], sampler="grid", trials=4)
    folder = StudyFolder(tmp_path)
    book = Book(folder, settings)
    search = TrialSearch(settings, folder, Refusing(), book, View("", 4, live=False))
    assert search.run() == "finished"
    by = {t["params"]["num_envs"]: (t["state"], t["error"]) for t in book.trials}
    assert by[1] == by[2] == ("complete", None)
    assert by[4] == by[8] == ("pruned", "num_envs = 3: use 2")


def test_a_job_says_that_its_settings_were_refused(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    run = {
        "path": str(tmp_path / "x"),
        "seed": 1,
        "tags": [],
        "segments": [{"until": 1.0, "settings": {"ppo.num_minibatches": 3}}],
    }
    out = SimpleNamespace(send=told.append)
    work(setup().order([run], log=tmp_path / "log.txt"), Talk(out))
    (message,) = told
    assert (message["kind"], message["refused"]) == ("failed", True)
    assert "must divide the batch" in message["error"]


def test_a_default_population_searches_only_what_members_can_exchange() -> None:
    found = make_setup("dqn", {}, TuneConfig(scheduler="pbt"))
    assert set(found.space) == {"dqn.lr", "dqn.target_every"}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.make()
    with folder.held(), pytest.raises(ConfigError, match="another process is tuning there"), StudyFolder(folder.path).held():
        pass
    (tmp_path / "other" / "thing").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds other things"):
        StudyFolder(tmp_path / "other").make()


def test_what_other_processes_cannot_load_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"put it in a file") as caught:
        tune.search("ppo", env=lambda: None)
    assert caught.value.field == "env"


def test_a_damaged_study_file_is_written_anew(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.make()
    folder.study.write_text('{"kind": "stu')
    book = Book(folder, setup())
    book.write("finished")
    assert read_json(folder.study)["status"] == "finished"
    folder.settings.write_text("[]")
    with pytest.raises(ConfigError, match="must hold a JSON object"):
        tune.resume(folder.path)


def test_the_command_line_says_what_it_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "ppo", "--search", "ppo.lr=log(1e-4,1e-2)", "--dry-run"]) == 0
    assert "20 trials by tpe, total_steps 100000 each, on seeds [10000]" in capsys.readouterr().out
    assert main(["tune", "--help"]) == 0
    assert main(["tune"]) == 2
    assert main(["tune", "--resume", "/nowhere"]) == 2
    assert "holds no study" in capsys.readouterr().err
