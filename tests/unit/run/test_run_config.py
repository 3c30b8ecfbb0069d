from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.core.records import Header, Segment, Slot, trim
from runnel.core.rng import make_rng
from runnel.flow.staleness import LagRule
from runnel.graphs.run_config import RunConfig
from runnel.run.registry import build, configure, load_recipe

GOOD = RunConfig(total_steps=100)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"total_steps": None}, "total_steps = None: a run needs a budget; set total_steps, total_updates or total_tokens"),
        ({"total_steps": 0}, "total_steps = 0: must be at least 1, or None"),
        ({"total_updates": -1}, "total_updates = -1: must be at least 1, or None"),
        ({"total_tokens": 0}, "total_tokens = 0: must be at least 1, or None"),
        ({"num_actors": 0}, "num_actors = 0: must be at least 1"),
        ({"placement.threads": 0}, "placement.threads = 0: must be at least 1"),
        ({"placement.policy_workers": -1}, "placement.policy_workers = -1: must be at least 0"),
        ({"eval.every": -1}, "eval.every = -1: must be at least 0"),
        ({"eval.episodes": -1}, "eval.episodes = -1: must be at least 0"),
        ({"checkpoint.every": -1}, "checkpoint.every = -1: must be at least 0"),
        ({"checkpoint.keep": 0}, "checkpoint.keep = 0: must be at least 1"),
        ({"staleness": {"mode": "window", "max_lag": 0}}, "staleness.max_lag = 0: a window needs at least 1"),
        ({"staleness.max_concurrent": -1}, "staleness.max_concurrent = -1: must be at least 0"),
        ({"staleness.balance": "auto"}, "staleness.balance = 'auto': is of a window; set staleness.mode window"),
        (
            {"staleness": {"mode": "window", "balance": "auto"}, "launcher": "local"},
            "staleness.balance = 'auto': there is room for no other number of workers",
        ),
        (
            {"staleness": {"mode": "window", "balance": "auto"}, "placement.max_actors": 4, "launcher": "inproc"},
            "launcher = 'inproc': one process cannot grow",
        ),
        (
            {"staleness.mode": "window", "deterministic": True, "launcher": "local"},
            "staleness.mode = 'window': across processes a window depends on timing",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        override(GOOD, changes).check()
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"staleness.mode": "window", "deterministic": True},
        {"staleness.mode": "one_step", "deterministic": True, "launcher": "local"},
        {"total_steps": None, "total_tokens": 5},
        {"eval.episodes": 0, "checkpoint.every": 0},
        {"device": "cuda", "launcher": "ray", "placement.trainers": 64},  # GPUs are where the nodes are
    ],
)
def test_what_works_is_let_through(changes: dict[str, Any]) -> None:
    config = override(GOOD, changes)
    config.check()
    assert all(attrgetter(name)(config) == value for name, value in changes.items())


def test_a_wrong_launcher_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="launcher = 'ray2': expected one of 'inproc', 'local'"):
        override(GOOD, {"launcher": "ray2"})


@pytest.mark.parametrize(
    ("config", "settings", "wanted"),
    [
        (RunConfig(total_steps=100), {"batch_steps": 32}, LagRule(0, 2, True, stop=4)),
        (RunConfig(total_steps=96), {"batch_steps": 32}, LagRule(0, 2, True, stop=3)),
        (RunConfig(total_steps=96), {}, LagRule(0, 2, True)),
        (RunConfig(total_steps=96, total_updates=2), {"batch_steps": 32}, LagRule(0, 2, True, stop=2)),
        (RunConfig(total_steps=96), {"batch_steps": 32, "start": 5}, LagRule(0, 2, True, start=5, stop=8)),
        (RunConfig(total_updates=9), {"stop": 5}, LagRule(0, 2, True, stop=5)),
        (RunConfig(total_tokens=64, total_steps=1), {"batch_steps": 32, "tokens": True}, LagRule(0, 2, True, stop=2)),
    ],
)
def test_no_more_batches_are_started_than_the_budget_pays_for(config: RunConfig, settings: Any, wanted: LagRule) -> None:
    assert config.lag_rule(2, **settings) == wanted


def test_modes_become_policies() -> None:
    config = RunConfig(total_updates=5)
    window = override(config, {"staleness": {"mode": "window", "max_lag": 3, "max_concurrent": 7}})
    assert window.lag_rule(4) == LagRule(3, 4, exact=False, stop=5, max_concurrent=7)
    assert override(config, {"staleness.mode": "one_step"}).lag_rule(4) == LagRule(1, 4, exact=True, stop=5)
    assert replace(config).lag_rule(4).lag == 0


@pytest.mark.parametrize("recipe", ["dqn", "sac", "td3", "ddpg"])
def test_a_return_that_no_segment_can_hold_is_refused(recipe: str) -> None:
    settings = {"num_steps": 4, "replay": {"n_step": 5}}
    with pytest.raises(ConfigError, match=r"replay.n_step = 5: a return ends with its segment, which has num_steps = 4"):
        configure(load_recipe(recipe), settings).check()
    configure(load_recipe(recipe), settings | {"num_steps": 5}).check()


@pytest.mark.parametrize(("budget", "beta"), [({"total_updates": 4}, 0.5), ({"total_steps": 1024}, 1 / 32)])
def test_the_exponent_of_replay_weights_moves_with_the_budget_that_is_set(budget: dict[str, int], beta: float) -> None:
    """One segment of 32 steps, and two draws."""
    settings = {
        "replay": {"prioritised": True, "beta": "linear(0, 1)"},
        "vector": {"backend": "serial"},
        "num_steps": 32,
        "total_steps": None,
        **budget,
    }
    experiment = build("dqn", configure(load_recipe("dqn"), settings))
    (buffer,) = experiment.transforms
    store: Any = buffer.make(0)._store
    source, replay = experiment.streams
    store.insert(Segment(0, source, Header(), trim(source, source.allocate(), {"F": 0})))
    for _ in range(2):
        store.sample(Slot(0, replay, Header(), replay.allocate()), make_rng(0))
    assert store._beta() == pytest.approx(beta)
