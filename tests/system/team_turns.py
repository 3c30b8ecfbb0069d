"""A game of turns: two agents of one kind, one policy."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "envs"))
from team_envs import Turns as Turns
