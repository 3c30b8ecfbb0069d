"""`runnel board`: a page in the browser over a folder of runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def board(args: list[str]) -> int:
    """Serve the board until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="runnel board", description="A page in the browser over a folder of runs, live and finished."
    )
    parser.add_argument("folder", nargs="?", default="runs", help="folder that holds runs, at any depth (default: runs)")
    parser.add_argument("--port", type=int, default=8420, help="0 takes any that is free (default: 8420)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; beyond this machine the board asks for a token, which it prints, and speaks plain HTTP",
    )
    parsed = parser.parse_args(args)
    from runnel.board.server import serve

    serve(Path(parsed.folder), host=parsed.host, port=parsed.port)
    return 0
