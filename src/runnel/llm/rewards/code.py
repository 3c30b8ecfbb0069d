"""Runs generated Python against unit tests, in the sandbox (`llm/sandbox/run.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from runnel.llm.rewards.extract import extract as find
from runnel.llm.sandbox.run import SandboxConfig, run_python

SLACK_KB = 64
"""How much more than the expected output a program may print before it is stopped."""


def python_tests(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    tests: Sequence[str | Sequence[str]] | None = None,
    cases: Sequence[Sequence[Mapping[str, object]]] | None = None,
    partial: bool = False,
    extract: str = "code",
    sandbox: Mapping[str, Any] | None = None,
    **columns: object,
) -> list[float | None]:
    """1 for code that passes all its tests (with `partial`, the share that it passes); 0 for a completion without code.

    The column `tests` has statements that raise if they fail (a string, or a list of strings) and that use the code's names.
    They run in a process that never runs the code, and compare plain data. The column `cases` has a program's input and output
    as `{"input": ..., "output": ...}`, which are compared outside of the sandbox. An example with neither: None. `sandbox` sets
    limits (`SandboxConfig`).
    """
    config, count = SandboxConfig(**(sandbox or {})), len(completions)

    def score(i: int) -> float | None:
        given: str | Sequence[str] = tests[i] if tests else ()
        statements = (given,) if isinstance(given, str) else tuple(given or ())
        return _score(find(completions[i], extract), statements, cases[i] if cases else (), config, partial=partial)

    with ThreadPoolExecutor(max_workers=min(count, os.cpu_count() or 1)) as pool:
        return list(pool.map(score, range(count)))


def _score(
    code: str | None,
    statements: tuple[str, ...],
    programs: Sequence[Mapping[str, object]],
    config: SandboxConfig,
    *,
    partial: bool,
) -> float | None:
    """1 or 0, or the share of tests that pass; None without tests."""
    if not statements and not programs:
        return None
    if code is None:
        return 0.0
    passed: list[bool] = []
    if statements:
        passed += run_python(code, checks=statements, config=config).checks
    for program in programs or ():  # a column may have None
        if not partial and not all(passed):
            return 0.0
        room = replace(config, output_kb=max(config.output_kb, len(str(program["output"]).encode()) // 1024 + SLACK_KB))
        result = run_python(code, stdin=str(program["input"]), config=room)
        passed.append(result.status == "ok" and _same(result.stdout, str(program["output"])))
    return sum(passed) / len(passed) if partial else float(all(passed))


def _same(found: str, expected: str) -> bool:
    """Whether both are equal, except for space at the ends of lines and of the text."""
    lines = [line.rstrip() for line in found.rstrip().splitlines()]
    return lines == [line.rstrip() for line in expected.rstrip().splitlines()]
