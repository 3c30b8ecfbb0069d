"""`--trust`: the flag of every command that loads a run."""

from __future__ import annotations

import argparse

TRUST = "run the code that the folder names, though you did not make the run here (docs/reference/cli.md)"


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Give a command the flag."""
    parser.add_argument("--trust", action="store_true", help=TRUST)
