"""Generated Python against unit tests, in the sandbox (`llm/sandbox/run.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.llm.rewards.extract import extract as find
from runnel.llm.sandbox.run import SandboxConfig, run_python


def python_tests(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    tests: Sequence[Any] | None = None,
    cases: Sequence[Any] | None = None,
    partial: bool = False,
    extract: str = "code",
    sandbox: Mapping[str, Any] | None = None,
    **columns: Any,
) -> list[float | None]:
    """1 for code that passes all its tests (with `partial`, the share that it passes); 0 for a completion without code.

    The column `tests` has statements that raise if they fail (a string, or a list of strings), run after the code and in its
    names. The column `cases` has programs' `{"input": ..., "output": ...}`, compared outside of the sandbox, where no code can
    tamper with them. An example with neither: None. `sandbox` sets limits (`SandboxConfig`).
    """
    config = SandboxConfig(**(sandbox or {}))
    count = len(completions)
    given = zip(tests or [None] * count, cases or [None] * count, strict=True)
    scores = [
        _score(find(completion, extract), _listed(statements), programs, config)
        for completion, (statements, programs) in zip(completions, given, strict=True)
    ]
    return [s if s is None or partial else float(s == 1.0) for s in scores]


def _listed(statements: Any) -> tuple[str, ...]:
    if statements is None:
        return ()
    return (statements,) if isinstance(statements, str) else tuple(statements)


def _score(code: str | None, statements: tuple[str, ...], programs: Any, config: SandboxConfig) -> float | None:
    """The share of tests that pass; None without tests."""
    if not statements and not programs:
        return None
    if code is None:
        return 0.0
    passed: list[bool] = []
    if statements:
        passed += run_python(code, checks=statements, config=config).checks
    for program in programs or []:
        result = run_python(code, stdin=str(program["input"]), config=config)
        passed.append(result.status == "ok" and _same(result.stdout, str(program["output"])))
    return sum(passed) / len(passed)


def _same(found: str, expected: str) -> bool:
    """Equal but for space at the ends of lines."""
    lines = [line.rstrip() for line in found.rstrip().splitlines()]
    return lines == [line.rstrip() for line in expected.rstrip().splitlines()]
