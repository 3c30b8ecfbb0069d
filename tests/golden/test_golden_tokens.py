"""Short seeded runs of language models give what they gave, by compiled loops and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_runs import check
from golden_token_cases import TOKENS


@pytest.mark.parametrize("name", list(TOKENS))
def test_a_seeded_run_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    check(name, TOKENS[name], tmp_path)
