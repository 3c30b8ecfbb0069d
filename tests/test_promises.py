"""docs/evidence/what-goes-wrong.md names a test for each thing that goes wrong elsewhere: the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_promise_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "docs/evidence/what-goes-wrong.md").read_text().splitlines() if line.startswith("| **")]
    assert len(rows) == 15
    for row in rows:
        named = NAMED.findall(row)
        assert named, f"no test in: {row[:60]}"
        for file, name in named:
            text = (ROOT / file).read_text()
            assert re.search(rf"^(?:async )?def {name}\(", text, re.M), f"{file} has no {name}"
