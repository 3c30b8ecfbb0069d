"""Short seeded runs on environments give what they gave, by every form in which they compute."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_cases import CLASSICAL
from golden_runs import check


@pytest.mark.parametrize("name", list(CLASSICAL))
def test_a_seeded_run_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    check(name, CLASSICAL[name], tmp_path)
