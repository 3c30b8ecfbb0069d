"""How many files of the package one training iteration enters: whoever reads along has to open them all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.path.iteration import profile

LIMITS = {"ppo": 25, "reverse": 41}


@pytest.mark.parametrize("recipe", LIMITS)
def test_an_iteration_enters_few_files(recipe: str) -> None:
    found = profile(recipe).iteration
    model = "nets/optim.py" if recipe == "ppo" else "llm/model/token_model.py"
    assert {"flow/workers/actor.py", "flow/workers/trainer.py", model} <= found.keys()  # the whole way, and not a part of it
    assert len(found) <= LIMITS[recipe], "\n".join(f"{file}: {', '.join(names)}" for file, names in found.items())
