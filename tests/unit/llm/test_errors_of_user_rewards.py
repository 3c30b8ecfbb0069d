"""A reward that raises is told with the lines of its own file and the prompt, wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.components import RewardComponent, as_components
from runnel.llm.rewards.judging import RewardJob, RewardPool, Verdict
from runnel.testing.rewards import check_reward

SOURCE = """
def reward(prompts, completions, **columns):
    return [share(c) for c in completions]


def share(completion):
    return 1 / len(completion)


def other(prompts):
    return []
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


def verdict(part: RewardComponent) -> Verdict:
    pool = RewardPool([part])
    pool.submit(RewardJob(0, ["p"], [""], {}))
    (found,) = pool.collect(block=True)
    pool.close()
    return found


@pytest.mark.parametrize("run", ["inline", "thread", "process"])
def test_the_lines_of_a_reward_come_with_its_failure(file: Path, run: Any) -> None:
    found = verdict(RewardComponent("r", f"{file}:reward", run=run))
    assert found.failure == "ZeroDivisionError: division by zero"
    places = [line for line in found.lines.splitlines() if line.startswith("  mine.py")]
    assert places[0] == "  mine.py:3, in reward"
    assert places[-1] == "  mine.py:7, in share"
    assert found.lines.endswith("\n    return 1 / len(completion)")
    if run == "process":
        assert verdict(RewardComponent("r", f"{file}:other", run=run)).lines == "\n  mine.py:10"


def test_no_reward_at_all_is_told_with_the_prompt() -> None:
    pool = RewardPool(as_components(lambda prompts, completions: ["1"]))
    pool.submit(RewardJob(0, ["a prompt"], [""], {}))
    with pytest.raises(DataError, match=r"expected one finite number \(prompt 'a prompt'\); see check_reward"):
        pool.collect(block=True)
    pool.close()


def test_the_check_raises_an_error_of_ours_with_the_lines(file: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)failed with ZeroDivisionError: .*mine.py:7, in share\n    return 1 / len"):
        check_reward(f"{file}:reward")


def test_what_is_no_reward_is_refused_in_words() -> None:
    for wrong in (5, None, [lambda p, c: [0.0]]):
        with pytest.raises(ConfigError, match=r"task\.reward = .*(give a function|give a dict)"):
            as_components(wrong)  # type: ignore[arg-type]
