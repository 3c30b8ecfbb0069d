"""What is said of code that does not pass its tests, for whoever tries again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.extract import extract
from runnel.llm.sandbox.run import SandboxConfig, run_python
from runnel.llm.tasks.text import Example

LONGEST = 600
"""Letters that are shown of an error, from its end: there Python says what it is."""


def code_feedback(part: RewardComponent, example: Example, reply: str) -> str:
    """How many tests of `python_tests` hold, and why the first of the others does not; nothing for any other reward.

    The tests themselves are not shown. The code runs again for this, in the same sandbox.
    """
    if part.fn != "python_tests":
        return ""
    options: Mapping[str, Any] = part.options
    code, config = extract(reply, options.get("extract", "code")), SandboxConfig(**options.get("sandbox") or {})
    if code is None:
        return "I see no code in your message."
    columns = example.columns
    if tests := columns.get("tests"):
        return _of_tests(code, tests, config)
    return _of_programs(code, columns.get("cases"), config)


def _of_tests(code: str, tests: object, config: SandboxConfig) -> str:
    statements = [tests] if isinstance(tests, str) else _listed(tests)
    result = run_python(code, checks=tuple(map(str, statements)), config=config)
    # where the code itself failed, its error says more than the reasons, which then are one and the same
    reasons = [r for r in result.reasons if r] if result.status == "ok" else [result.stderr.strip() or result.status]
    first = f" The first that does not:\n{reasons[0][-LONGEST:]}" if reasons else ""
    return f"{sum(result.checks)} of {len(statements)} tests hold.{first}"


def _of_programs(code: str, cases: object, config: SandboxConfig) -> str:
    """The first case in which the program fails; the cases behind it are not run."""
    for case in _listed(cases):
        result = run_python(code, stdin=str(case["input"]), config=config)
        if result.status != "ok":
            return f"The program fails:\n{(result.stderr.strip() or result.status)[-LONGEST:]}"
    return "The program ends well, and prints something else than expected."


def _listed(values: object) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else []
