"""PettingZoo's own tests of an environment, with what they say in plain words."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from runnel.core.user_code import summary
from runnel.testing.env_report import EnvReport

Make = Callable[[], Any]

FINE = (
    "all zeros",
    "render() method",
    "not a NumPy array",
    "probably should be",
    "different shapes",
    "different classes",
    "different number of dimensions",
    "is different between two agents",
    "same space for each agent",
    "single number",
    "different observation space sizes",
    "different action space sizes",
    "Agent's minimum observation space value",
    "Agent's maximum observation space value",
    "graphical observation",
)
"""What PettingZoo warns of and runnel has no trouble with."""
WRONG = (
    (r"Live agent was not given (\w+)", "an agent in `agents` has no {0}: give all five dicts an entry for each of them"),
    (r"Agent was given (\w+) but was dead", "an agent that ended before has a {0}: leave it out of all five dicts"),
    (r"not all possible_agents are terminated", "`agents` is empty, but some agents never got terminated or truncated"),
    (r"contains infinity|contains NaNs", "an observation or a mask has numbers that are not finite"),
)
"""Warnings that are mistakes: a pattern, and what it means."""
PLAIN = (
    (
        r"reward returned by last",
        "last() gives an agent another reward than the steps since its last turn paid it. In step, set "
        "self._cumulative_rewards[agent] = 0 for the agent that decides, and call self._accumulate_rewards() at the end",
    ),
    (r"revived|resurrect", "an agent that has ended is in `agents` again; give one that comes in later a name of its own"),
    (
        r"must delete agents|\{.*\} != \{.*\}",
        "`agents` is not those who have not ended yet; take out exactly the agents that ended",
    ),
    (r"Out of bounds observation", "an observation is outside of its space; clip it, or widen the space"),
    (r"^Incorrect", "two environments with one seed play differently; draw all randomness from the seed of reset"),
    (r"some were skipped over", "an episode was over before every agent was told its end"),
)
"""What failed: a pattern of the message, and what it means."""
SAME_SPACE = (
    "observation_space(agent) or action_space(agent) makes a new space at each call; keep the spaces and give the same object, "
    "so that seeds of a space hold. PettingZoo's test ends there"
)


def run_pettingzoo_tests(make: Make | None, env: Any, report: EnvReport, *, turns: bool, masked: bool, num_steps: int) -> None:
    """Run `api_test` and `seed_test`, or their parallel forms, on `env` and on what `make` makes (None: on `env` alone)."""
    try:
        from pettingzoo.test.api_test import api_test
        from pettingzoo.test.parallel_test import parallel_api_test
        from pettingzoo.test.seed_test import parallel_seed_test, seed_test
    except ModuleNotFoundError as error:
        text = f'PettingZoo\'s own tests were not run: the package {error.name} is missing; pip install "runnel[teams]"'
        report.hint("pettingzoo", text)
        return
    from pettingzoo import AECEnv, ParallelEnv

    base = AECEnv if turns else ParallelEnv
    if not isinstance(env, base):
        text = f"PettingZoo's own tests were not run: they take subclasses of pettingzoo.{base.__name__} alone"
        report.hint("pettingzoo", text)
        return
    name, test = ("api_test", api_test) if turns else ("parallel_api_test", parallel_api_test)
    _run(name, lambda: test(env, num_steps), report)
    if make is not None and turns:
        _run("seed_test", lambda: seed_test(make, num_steps), report)
    elif make is not None and not masked:  # it plays actions without looking at masks
        _run("parallel_seed_test", lambda: parallel_seed_test(make, num_steps), report)


def _run(name: str, test: Callable[[], object], report: EnvReport) -> None:
    """Run one of them; a warning of the test itself counts as much as a failure."""
    with warnings.catch_warnings(record=True) as said, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            test()
        except AssertionError as error:
            _tell_failure(name, str(error), report)
        except Exception as error:  # of the environment, which the test called in a way of its own
            report.error(f"pettingzoo {name}", f"PettingZoo's {name}: the environment raised {summary(error)}")
    for warning in said:
        if "pettingzoo/test/" in warning.filename.replace("\\", "/"):
            _tell_warning(name, str(warning.message), report)


def _tell_failure(name: str, text: str, report: EnvReport) -> None:
    if "exact same space object" in text or "Incorrect action" in text:
        report.warn("pettingzoo spaces", SAME_SPACE)
        return
    words = next((words for pattern, words in PLAIN if re.search(pattern, text)), "")
    said = f"{words} ({_short(text)})" if words else _short(text) or "an assertion without a text"
    report.error(f"pettingzoo {name}", f"PettingZoo's {name} fails: {said}")


def _tell_warning(name: str, text: str, report: EnvReport) -> None:
    if any(part in text for part in FINE):
        return
    for pattern, words in WRONG:
        if found := re.search(pattern, text):
            report.error(f"pettingzoo {words}", f"PettingZoo's {name} warns: {words.format(*found.groups())}")
            return
    report.hint(f"pettingzoo {text}", f"PettingZoo's {name} warns: {_short(text)}")


def _short(text: str) -> str:
    said = " ".join(text.split())
    return said if len(said) <= 200 else said[:200] + " ..."
