"""A vLLM server that is killed costs its owner a start, and the run nothing else."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from fake_vllm import stand_in

import runnel as rl
from runnel.run.launchers.guard import children, descendants

SMALL: dict[str, Any] = {
    "total_updates": 1_000_000,
    "checkpoint": {"every": 0},
    "num_prompts": 2,
    "group_size": 2,
    "max_tokens": 4,
    "warmup_updates": 0,
    "lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32},
    "eval": {"episodes": 0},
    "placement": {"threads": 1},
    "track": (),
}


def servers() -> set[int]:
    """The stand-ins for vLLM that were started from here."""
    found = set()
    for pid in descendants(children(os.getpid())):
        with suppress(OSError):
            if b"fake_vllm.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def test_who_owns_a_killed_server_is_started_again(tmp_path: Path) -> None:
    killed: set[int] = set()

    def on_update(row: dict[str, Any]) -> bool:
        if not killed:
            killed.update(servers())
            os.kill(next(iter(killed)), signal.SIGKILL)
        return not servers() - killed  # with another one, it has come back

    engine = {"kind": "vllm", "vllm": {"python": stand_in(tmp_path)}}
    run = rl.train("grpo", out=str(tmp_path), launcher="local", on_update=on_update, engine=engine, **SMALL)
    assert len(killed) == 1
    assert [row["version"] for row in run.rows()] == list(range(1, run.version + 1))
    lost, back = [row["text"] for row in run.rows("event") if row["what"] in ("worker_lost", "restart")]
    assert lost.startswith(
        "worker 'actor-0' has lost its engine: worker 'vllm' was killed by signal SIGKILL: if memory ran out"
    )
    assert lost.endswith("starting it again")
    assert "worker 'actor-0' is back after" in back
    assert not servers()
