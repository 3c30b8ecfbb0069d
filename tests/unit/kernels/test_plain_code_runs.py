"""The update that is read is the update that runs: whatever is patched or overridden takes effect, kernels or not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import runnel as rl
from runnel.agents import a2c, appo, ddpg, dqn, impala, ppo, sac, td3
from runnel.kernels import stock
from runnel.kernels.small.numba.ppo import has_numba

EXAMPLES = Path(__file__).parents[3] / "examples"
TINY: dict[str, Any] = {"eval.episodes": 0, "checkpoint.every": 0, "track": (), "zoo": False, "total_steps": 200_000}
ON_POLICY = {**TINY, "num_envs": 2, "num_steps": 8, "vector.backend": "serial"}
REPLAY = {**TINY, "num_envs": 1, "num_steps": 4, "vector.backend": "serial", "net.hidden": (8, 8), "replay.capacity": 200_000}
FROM_REPLAY = {**REPLAY, "min_fill": 16}
PENDULUM = {**FROM_REPLAY, "env": "Pendulum-v1"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {**ON_POLICY, "ppo.num_minibatches": 2, "ppo.num_epochs": 2}),
    "ppo gru": ("ppo", {**ON_POLICY, "net.core": "gru", "ppo.num_minibatches": 2, "ppo.num_epochs": 1}),
    "appo": ("appo", {**ON_POLICY, "appo.num_minibatches": 2}),
    "a2c": ("a2c", ON_POLICY),
    "impala": ("impala", ON_POLICY),
    "dqn": ("dqn", {**FROM_REPLAY, "dqn.batch_size": 16}),
    "dqn gru": ("dqn", {**FROM_REPLAY, "dqn.batch_size": 4, "net.core": "gru"}),
    "dqn c51": ("dqn", {**FROM_REPLAY, "dqn.batch_size": 16, "dqn.head": "c51"}),
    "dqn hl_gauss": ("dqn", {**FROM_REPLAY, "dqn.batch_size": 16, "dqn.head": "hl_gauss"}),
    "sac": ("sac", {**PENDULUM, "sac.batch_size": 16}),
    "sac discrete": ("sac", {**FROM_REPLAY, "env": "CartPole-v1", "sac.batch_size": 16}),
    "td3": ("td3", {**PENDULUM, "td3.batch_size": 16}),
    "ddpg": ("ddpg", {**PENDULUM, "ddpg.batch_size": 16}),
}
MODULES: dict[str, ModuleType] = {
    "ppo": ppo, "appo": appo, "a2c": a2c, "impala": impala, "dqn": dqn, "sac": sac, "td3": td3, "ddpg": ddpg
}  # fmt: skip
NOT_OF_AN_UPDATE = {
    "params",
    "base_params",
    "start_from",
    "not_taken",
    "reseed",
    "state_dict",
    "load_state_dict",
    "_culprit",
    "_nets",
    "make_batch_of_decisions",  # of teams, which no kernel serves: tests/unit/agents/test_ppo_of_teams.py
}
ELSEWHERE = {"_sequences": "dqn gru", "categorical_td_loss": "dqn c51", "soft_actor_loss_discrete": "sac discrete"} | {
    "approximate_kl": "a2c"  # PPO's own loss says it; a loss of a user's need not
}


def places() -> Iterator[tuple[str, Any, str]]:
    """(case, owner, name) of every method of an update, and of every loss that an agent's page calls."""
    for recipe, module in MODULES.items():
        classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
        (learner,) = (c for c in classes if c.__name__.endswith("Learner"))
        own = {n for n, f in vars(learner).items() if inspect.isfunction(f) and not n.startswith("__")} - NOT_OF_AN_UPDATE
        losses = {n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__.startswith("runnel.losses")}
        for owner, names in ((learner, own), (module, losses - ({"approximate_kl"} if recipe == "ppo" else set()))):
            yield from ((ELSEWHERE.get(name, recipe), owner, name) for name in sorted(names))


def run(case: str, out: Path, **more: Any) -> list[dict[str, Any]]:
    """A few updates of a run that plans 200,000 steps; its rows."""
    recipe, settings = CASES[case]
    return rl.train(
        recipe, out=str(out), progress=False, on_update=lambda row: row["version"] < 3, **{**settings, **more}
    ).rows()


@pytest.mark.parametrize("compiled", ["off", "auto"])
@pytest.mark.parametrize(
    ("case", "owner", "name"), places(), ids=lambda x: x if isinstance(x, str) else x.__name__.split(".")[-1]
)
def test_what_is_made_to_raise_ends_the_run(
    case: str, owner: Any, name: str, compiled: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def boom(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError(f"{name} was called")

    monkeypatch.setattr(owner, name, boom)
    with pytest.raises(Exception, match=f"{name} was called"):
        run(case, tmp_path, compiled=compiled)


def told(found: rl.Run) -> str:
    """What a run said of kernels."""
    (text,) = (row["text"] for row in found.rows("event") if "compiled:" in row["text"])
    return text


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
def test_a_subclass_that_overrides_the_loss_trains_differently(tmp_path: Path) -> None:
    settings = {**CASES["ppo"][1], "out": str(tmp_path), "progress": False, "on_update": lambda row: row["version"] < 3}
    stocked = rl.train("ppo", **settings)
    own = rl.train(str(EXAMPLES / "own_policy_loss.py"), **settings)
    assert told(stocked) == "trainer: compiled: numba, PPO of two layers; off with --compiled off"
    assert told(own) == "trainer: compiled: off, because SPO is your own learner, and kernels are for PPOLearner as it stands"
    plain = rl.train("ppo", compiled="off", **settings)
    kernels, other, by_torch = (r.rows()[0]["metrics"]["loss/policy"] for r in (stocked, own, plain))
    assert kernels == pytest.approx(by_torch, abs=1e-6)
    assert abs(kernels - other) > 2e-5


def test_off_runs_the_plain_code_and_says_so(tmp_path: Path) -> None:
    recipe, settings = CASES["ppo"]
    stops: Callable[[dict[str, Any]], bool] = lambda row: row["version"] < 2  # noqa: E731
    found = rl.train(recipe, out=str(tmp_path), progress=False, on_update=stops, compiled="off", **settings)
    assert told(found) == "trainer: compiled: off, as you said (--compiled off)"
    assert "compiled: off" in (found.path / "report.html").read_text()


@pytest.mark.parametrize(
    ("case", "more", "why"),
    [
        ("sac discrete", {}, "gradients by hand are for continuous actions"),
        ("sac", {"net.activation": "silu"}, "hidden layers of tanh or relu"),
        ("a2c", {}, "no kernels are for A2CLearner"),
        ("ppo", {"ppo.target_kl": 0.1}, "may end early"),
        ("ppo", {"net.hidden": (8, 8, 8)}, r"has \[8, 8, 8\]"),
        ("ppo gru", {}, "not one of separate fully connected layers"),
        ("dqn c51", {}, "not for dueling networks or distributions"),
    ],
)
def test_on_is_refused_where_nothing_serves(case: str, more: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=why) as error:
        run(case, tmp_path, compiled="on", **more)
    assert error.value.field == "compiled"
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing"


def test_a_method_that_an_object_hides_counts() -> None:
    fake = type("Learner", (), {})()
    fake.loss = lambda rows: {}
    assert stock.why_changed(stock.PPO, [fake]) == "Learner.loss was replaced on the object"


def test_fingerprints_are_those_of_the_source() -> None:
    """Who changed one of these changes the kernels with it, and then runs `python -m runnel.kernels.write_fingerprints`."""
    assert stock.all_fingerprints() == stock._known()


def test_an_edited_function_is_not_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stock.why_changed(stock.PPO) == ""
    monkeypatch.setitem(stock._known(), "losses.on_policy.masked_mean", "0" * 12)
    assert stock.why_changed(stock.PPO) == "losses.on_policy.masked_mean was edited"


def test_fingerprints_see_code_and_not_words(tmp_path: Path) -> None:
    texts = {
        "plain": "def f(x):\n    return x + 1\n",
        "words": 'def f(x):\n    """One more."""\n    # a comment\n    return  x + 1  # more\n',
        "other": "def f(x):\n    return x + 2\n",
    }
    found = {}
    for name, text in texts.items():
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        scope: dict[str, Any] = {}
        exec(compile(text, str(file), "exec"), scope)
        found[name] = stock.fingerprint(scope["f"])
    assert found["plain"] == found["words"] != found["other"]
    assert "" not in found.values()
