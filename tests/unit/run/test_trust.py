"""A run's folder from somebody else: nothing that it names is run, unless the user says so, and the error says what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.board.library import Library
from runnel.cli.main import main
from runnel.core.config import override, to_data
from runnel.run import api, registry, trust
from runnel.run.pipeline import Stage, run_pipeline
from runnel.track.folder import RunFolder
from runnel.tune.study import resume as resume_study

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 2,
    "eval.episodes": 1,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
    "ppo.lr": 1e-3,
}
EVIL = """
from pathlib import Path
import gymnasium as gym
import runnel as rl
from runnel.recipes.ppo import Config, build
Path(__file__).with_name("canary").touch()
def run(*args, **kwargs):
    return gym.make("CartPole-v1")
def network(spec, seed):
    return rl.nets.build_body(spec, rl.NetConfig(hidden=(4,)), seed=seed)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rl.train("ppo", out=str(tmp_path_factory.mktemp("runs")), **TINY).path


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    path = tmp_path / "evil.py"
    path.write_text(EVIL)
    return path


@pytest.fixture(autouse=True)
def canary(tmp_path: Path) -> Iterator[Path]:
    """No test may leave it, but for those that trust."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists()


def changed(path: Path, file: str, **settings: Any) -> None:
    """A JSON file of a folder with some values changed, dotted ones in their place."""
    data = json.loads((path / file).read_text())
    for name, value in settings.items():
        inner = data
        *groups, last = name.split("__")
        for group in groups:
            inner = inner[group]
        inner[last] = value
    (path / file).write_text(json.dumps(data))


def received(made: Path, folder: Path, **settings: Any) -> Path:
    shutil.copytree(made, folder)
    recipe = settings.pop("recipe", None)
    changed(folder, "config.json", **settings)
    if recipe:
        changed(folder, "run.json", recipe=recipe)
    return folder


def named_only(folder: Path, recipe: str, **settings: Any) -> Path:
    """The folder of a run of which nothing is there but what it names."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_data(registry.load_recipe(recipe).Config())))
    (folder / "run.json").write_text(json.dumps({"recipe": recipe}))
    (folder / "metrics.jsonl").touch()
    changed(folder, "config.json", **settings)
    return folder


# --------------------------------------------------------------------------------------------------------------- entry points
LOADS: dict[str, Callable[[Path], Any]] = {
    "load": rl.load,
    "resume": lambda run: rl.resume(run, total_updates=3),
    "evaluate_run": lambda run: api.evaluate_run(run, episodes=1),
    "record": lambda run: api.record(run),
    "export": lambda run: rl.export(run, run.parent / "exported"),
}
COMMANDS: dict[str, list[str]] = {
    "eval": ["eval", "RUN", "--episodes", "1"],
    "resume": ["resume", "RUN", "--total-updates", "3"],
    "record": ["record", "RUN"],
    "export": ["export", "RUN", "OUT"],
}


@pytest.mark.parametrize("use", LOADS)
def test_functions_refuse_code_of_a_folder_and_say_what_it_is(made: Path, tmp_path: Path, evil: Path, use: str) -> None:
    run = received(made, tmp_path / "run", env=f"{evil}:run")
    with pytest.raises(rl.ConfigError, match=rf"env = '{evil}:run': would run the file {evil} and use its run, .* --trust"):
        LOADS[use](run)
    own = received(made, tmp_path / "own", recipe=str(evil))
    with pytest.raises(rl.ConfigError, match=rf"recipe = '{evil}': would run the file {evil}, .* --trust"):
        LOADS[use](own)


@pytest.mark.parametrize("use", COMMANDS)
def test_commands_refuse_code_of_a_folder_and_say_what_it_is(
    made: Path, tmp_path: Path, canary: Path, use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = {"env": "subprocess:getoutput", "env_kwargs": {"cmd": f"touch {canary}"}}
    words = {"RUN": str(received(made, tmp_path / "run", **shell)), "OUT": str(tmp_path / "out")}
    assert main([words.get(word, word) for word in COMMANDS[use]]) == 2
    assert "env = 'subprocess:getoutput': would import the module subprocess and use its getoutput" in capsys.readouterr().err


def test_a_card_is_written_without_running_the_recipe(
    made: Path, tmp_path: Path, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = received(made, tmp_path / "run", recipe=str(evil))
    assert main(["card", str(run)]) == 0
    assert f"recipe = '{evil}': would run the file {evil}" in capsys.readouterr().err
    assert (run / "README.md").is_file()


def test_what_only_reads_asks_for_nothing(made: Path, tmp_path: Path, evil: Path) -> None:
    run = received(made, tmp_path / "runs" / "run", env=f"{evil}:run", recipe=str(evil))
    assert main(["report", str(run)]) == 0
    assert main(["ps", str(run.parent)]) == 0
    assert main(["logs", str(run)]) == 0
    assert main(["trace", str(run)]) != 0  # nothing was traced
    library = Library(run.parent, num_processes=1)
    library.refresh()
    library.close()
    assert len(library.runs) == 1


def test_parameters_of_a_folder_run_nothing(made: Path, tmp_path: Path, evil: Path) -> None:
    source = received(made, tmp_path / "run", env=f"{evil}:run", network=f"{evil}:network", recipe=str(evil))
    done = rl.train("ppo", out=str(tmp_path / "out"), init_from=str(source), **TINY)
    assert done.status == "finished"


def test_a_model_that_brings_code_is_refused(tmp_path: Path, evil: Path) -> None:
    pytest.importorskip("transformers")
    model = tmp_path / "run" / "model"
    named_only(tmp_path / "run", "grpo", model=str(model))
    model.mkdir()
    shutil.copy(evil, model / "evil.py")
    auto = {name: f"evil.{name}" for name in ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")}
    (model / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    (model / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.A", None]}}))
    with pytest.raises(rl.ConfigError, match="model = "):
        api.evaluate_run(tmp_path / "run", episodes=1)
    assert not (model / "canary").exists()


# -------------------------------------------------------------------------------------------------------------------- fields
@pytest.mark.parametrize(
    ("recipe", "name", "value"),
    [
        ("ppo", "env", "tensor:evil.py:run"),
        ("ppo", "env", "evil:CartPole-v1"),
        ("ppo", "env", "runnel.core.resolve:load_module"),
        ("ppo", "env", "runnel.run.api:shutil.rmtree"),
        ("ppo", "env", "runnel.envs.toy:np.load"),
        ("ppo", "env", "ale_py:os.system"),
        ("ppo", "env_kwargs", {"env_id": "evil:CartPole-v1"}),
        ("ppo", "network", "evil:net-work"),
        ("ppo", "track", ["tensorboard", "live:track"]),
        ("grpo", "task", "evil.py:make_task"),
        ("grpo", "data__reward", ["exact", "evil.py:run=0.5"]),
        ("grpo", "data__options", ["verl.compute_score=evil:run"]),
        ("grpo", "data__options", ["judge.base_url=http://10.0.0.1/v1"]),
        ("grpo", "engine__vllm__python", "/tmp/python"),
        ("ppo", "cluster__address", "10.0.0.1:6379"),
        ("make_pairs", "pairs_out", "/home/ann/.bashrc"),
    ],
)
def test_every_way_to_name_code_is_found(tmp_path: Path, recipe: str, name: str, value: Any) -> None:
    run = named_only(tmp_path / "run", recipe, **{name: value})
    with pytest.raises(trust.UntrustedError, match="would") as refused:
        rl.resume(run)
    assert refused.value.field.startswith(name.replace("__", "."))


@pytest.mark.parametrize(
    ("recipe", "name", "value"),
    [
        ("ppo", "env", "ALE/Pong-v5"),
        ("ppo", "env", "ale_py:ALE/Pong-v5"),
        ("ppo", "env", "atari:Breakout"),
        ("ppo", "env", "envpool:HalfCheetah-v4"),
        ("ppo", "env", "tensor:CartPole-v1"),
        ("ppo", "env", "runnel.envs.toy:Recall"),
        ("ppo", "env", "live:env"),
        ("ppo", "device", "cuda:1"),
        ("ppo", "cluster__place", ["trainer*:gpu"]),
        ("grpo", "task", "reasoning_gym:leg_counting"),
        ("grpo", "data__extract", "tag:answer"),
        ("grpo", "data__options", ["exact.extract=tag:answer", "regex.pattern=(?:a)"]),
        ("grpo", "data__system", "Answer:now"),
    ],
)
def test_what_is_no_code_is_not_asked_about(tmp_path: Path, recipe: str, name: str, value: Any) -> None:
    run = named_only(tmp_path / "run", recipe, **{name: value})
    folder = RunFolder(run)
    assert trust.check_code(run, trust.recipe_of(folder), folder.read_config(), training=True)


def leaves(data: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def put(data: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    head, _, rest = name.partition(".")
    return {**data, head: put(data[head], rest, value) if rest else value}


@pytest.mark.parametrize("recipe", registry.RECIPES)
def test_every_field_of_every_recipe_is_looked_at(recipe: str) -> None:
    """A new field is covered as soon as it is there: only those of `PLAIN` are not, each for a reason."""
    data = to_data(registry.load_recipe(recipe).Config())
    assert not trust.code_in(recipe, data)
    for name, value in leaves(data):
        forms = {str: "evil:run", list: ["evil:run"], dict: {"x": ["evil:run"]}, type(None): "evil:run"}
        if type(value) in forms and name not in trust.PLAIN:
            (found,) = trust.code_in(recipe, put(data, name, forms[type(value)]))
            assert (found.field.startswith(name), found.value) == (True, "evil:run")


@pytest.mark.parametrize("name", trust.PLAIN)
def test_plain_fields_run_nothing(name: str, evil: Path) -> None:
    recipes = {n: to_data(registry.load_recipe(n).Config()) for n in ("ppo", "ippo", "dqn", "bc", "grpo", "dpo", "make_pairs")}
    recipe, data = next((n, d) for n, d in recipes.items() if name in dict(leaves(d)))
    before = dict(leaves(data))[name]
    config = put(data, name, [f"{evil}:run"] if isinstance(before, list) else f"{evil}:run")
    with suppress(rl.RunnelError, RuntimeError, OSError):
        registry.build(recipe, override(registry.load_recipe(recipe).Config(), config))


def test_wrappers_of_gymnasium_are_known_and_others_are_not() -> None:
    named = ["gymnasium.wrappers:ClipReward", "live:wrappers[1]", "gymnasium.wrappers:np.load", "my.py:Wrap"]
    assert [code.field for code in trust.code_in("ppo", {"wrappers": named})] == ["wrappers[2]", "wrappers[3]"]
    assert len(trust.code_in("ppo", {"track": ["live:track[0]"]})) == 1


def test_names_with_dashes_and_dots_are_read_as_settings_are(tmp_path: Path) -> None:
    for odd in ({"env-kwargs": {"a": "evil:run"}}, {"data.reward": ["evil:run"]}, {"engine.vllm.python": "/tmp/x"}):
        assert len(trust.code_in("grpo", odd)) == 1


# --------------------------------------------------------------------------------------------------------------- made here
def test_runs_of_ones_own_are_loaded_as_ever_and_moved_ones_ask(tmp_path: Path, evil: Path, canary: Path) -> None:
    plain = {name: value for name, value in TINY.items() if name != "net.hidden"}
    run = rl.train("ppo", out=str(tmp_path / "runs"), env=f"{evil}:run", network=f"{evil}:network", **plain).path
    trust._made.clear()  # as another process would find it
    assert rl.load(run)
    assert rl.resume(run, total_updates=3).version == 3
    trust._made.clear()
    assert rl.load(run)
    moved = run.rename(tmp_path / "moved")
    with pytest.raises(trust.UntrustedError, match=r"env = .* \(and network = .*evil.py:network' would run the file"):
        rl.load(moved)
    with pytest.raises(trust.UntrustedError, match=r"'network|network = "):
        rl.load(moved, env="CartPole-v1")
    assert rl.load(moved, env=f"{evil}:run", network=f"{evil}:network")
    assert rl.load(moved, trust=True)
    assert rl.resume(moved, total_updates=4, trust=True).version == 4
    with pytest.raises(trust.UntrustedError):  # to trust once is not to have made it
        rl.load(moved)
    canary.unlink()


def test_a_changed_config_and_code_in_the_folder_itself_ask(tmp_path: Path, evil: Path, canary: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path / "runs"), env=f"{evil}:run", **TINY).path
    canary.unlink()
    before = (run / "config.json").read_bytes()
    changed(run, "config.json", env_kwargs={"command": "rm"})
    with pytest.raises(trust.UntrustedError):
        rl.load(run)
    (run / "config.json").write_bytes(before)
    assert rl.load(run)
    inside = run / "env.py"
    inside.write_text(EVIL)
    config = {"env": f"{inside}:run"}
    trust.remember(run, "ppo", config)
    assert not trust.is_made_here(run, "ppo", config)


def test_where_nothing_can_be_noted_the_run_goes_on_and_says_so(
    tmp_path: Path, evil: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(evil / "state"))  # below a file
    run = rl.train("ppo", out=str(tmp_path / "runs"), env=f"{evil}:run", **TINY)
    assert any("could not be noted" in row["text"] for row in run.rows("event"))
    assert run.policy()  # in this process it is known
    canary.unlink()


def test_own_code_is_noted_in_the_state_folder_and_other_runs_are_not(
    tmp_path: Path, evil: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rl.train("ppo", out=str(tmp_path / "runs"), **TINY)
    assert not (tmp_path / "state").exists()
    run = rl.train("ppo", out=str(tmp_path / "runs"), env=f"{evil}:run", **TINY)
    (note,) = (tmp_path / "state" / "runnel" / "made").iterdir()
    assert json.loads(note.read_text()) == {"folder": str(run.path)}
    canary.unlink()


# ------------------------------------------------------------------------------------------------------- studies, pipelines
def study(folder: Path, **settings: Any) -> Path:
    folder.mkdir()
    config = to_data(registry.configure(registry.load_recipe("ppo"), {"total_updates": 2}))
    data = {"recipe": "ppo", "subject": "CartPole-v1", "config": config, "options": {}, "space": {}}
    (folder / "tune.json").write_text(json.dumps(data))
    changed(folder, "tune.json", **settings)
    return folder


def test_a_study_of_somebody_else_is_asked_about(tmp_path: Path, evil: Path) -> None:
    choices = {"network": {"kind": "choice", "low": 0.0, "high": 0.0, "choices": [f"{evil}:network"]}}
    for i, named in enumerate(({"recipe": str(evil)}, {"config__env": f"{evil}:run"}, {"space": choices})):
        folder = study(tmp_path / f"study-{i}", **named)
        with pytest.raises(trust.UntrustedError, match="would run the file"):
            resume_study(folder)
        assert main(["tune", "--resume", str(folder)]) == 2


def test_a_trial_runs_what_its_study_names_and_nothing_else(tmp_path: Path, evil: Path, made: Path) -> None:
    from runnel.tune.job import TrialSession

    config = to_data(registry.configure(registry.load_recipe("ppo"), TINY))
    order = {"recipe": "ppo", "config": config, "space": {}, "total": 2, "metric": "eval", "after": 0}
    run = {"path": str(tmp_path / "trial"), "seed": 1, "tags": []}
    talk: Any = None
    with pytest.raises(trust.UntrustedError, match=r"env = .* tune.json does not name it"):
        TrialSession(order, run, {"settings": {"env": f"{evil}:run"}, "until": 1.0}, talk, before=[])
    received(made, tmp_path / "trial", env=f"{evil}:run")
    assert not TrialSession(order, run, {"settings": {}, "until": 1.0}, talk, before=[])._trust


def test_a_stage_that_lies_there_runs_only_what_the_pipeline_names(tmp_path: Path, evil: Path, made: Path) -> None:
    folder = received(made, tmp_path / "01-first", recipe=str(evil), total_updates=3, out=str(tmp_path), name="01-first")
    rows = [row for row in (folder / "metrics.jsonl").read_text().splitlines() if '"kind": "end"' not in row]
    (folder / "metrics.jsonl").write_text("\n".join(row for row in rows if json.loads(row)["kind"] != "end") + "\n")
    stage = Stage("first", "ppo", {**{k: v for k, v in TINY.items() if k != "name"}, "total_updates": 3})
    with pytest.raises(trust.UntrustedError, match="recipe = "):
        run_pipeline([stage], out=tmp_path)
