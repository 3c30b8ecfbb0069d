"""A run that is killed with SIGKILL at random moments and resumed gives, in process, what the uninterrupted run gives, bit
for bit: parameters, metrics and sample ids."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_slices import GUIDED, IN_PARTS, ON_DATA, PRICED, SLICES, content, obey

import runnel as rl
from lent_fork_servers import Programs
from runnel.run.launchers.local import EARLY, EARLY_FOR_TEXT


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Train or resume a slice."""
    log = tmp_path_factory.mktemp("programs") / "log.txt"
    made = Programs("tiny_slices:obey", log, early=(*EARLY, *EARLY_FOR_TEXT))
    yield made
    made.close()


def versions(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count('"kind": "update"') if path.exists() else 0


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("0*"))


def kill_when(programs: Programs, order: dict[str, object], ready: Callable[[], bool], delay_s: float) -> bool:
    """Start, wait until `ready`, wait a little more, SIGKILL. False if the run was over before."""
    program = programs.start(order)
    deadline = time.monotonic() + 90
    while not program.ended() and not ready():
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.002)
    time.sleep(delay_s)
    program.signal(signal.SIGKILL)
    assert program.wait(30.0)
    return program.code == -signal.SIGKILL


@pytest.mark.parametrize("mode", ["sync", "window"])
@pytest.mark.parametrize("name", [*SLICES, *GUIDED, *PRICED, *IN_PARTS, *ON_DATA])
def test_killed_and_resumed_is_bit_identical(name: str, mode: str, programs: Programs, tmp_path: Path) -> None:
    if name in ("dqn", "rlpd") and mode == "window":
        mode = "one_step"
    chance = random.Random(f"{name}-{mode}")
    extra = {"staleness": {"mode": mode, **({"max_lag": 2} if mode == "window" else {})}}
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    obey({"slice": name, "out": str(whole.parent), "settings": extra})
    expected = content(whole)
    total = expected[0][-1]["version"]
    first = {"slice": name, "out": str(broken.parent), "settings": extra}
    every = {**SLICES, **GUIDED, **PRICED, **IN_PARTS, **ON_DATA}[name][1]["checkpoint"]["every"]
    victim = chance.randint(every + 1, total - 1)
    killed = kill_when(programs, first, lambda: versions(broken) >= victim, chance.uniform(0.0, 0.02))
    if killed and chance.random() < 0.5:
        second = chance.randint(total - 2, total)
        kill_when(programs, {"resume": str(broken)}, lambda: versions(broken) >= second, chance.uniform(0.0, 0.02))
    saved = max((int(path.name) for path in checkpoints(broken)), default=0)
    ended = json.loads((broken / "metrics.jsonl").read_text().splitlines()[-1])["kind"] == "end"
    if not ended and saved < total:  # killed behind its last checkpoint it has spent its budget, and a resume is refused
        obey({"resume": str(broken)})
    rows, params = content(broken)
    assert params == expected[1]
    assert rows == expected[0]


@pytest.mark.parametrize("name", list(SLICES))
def test_local_resume_loses_nothing_that_was_finished(name: str, programs: Programs, tmp_path: Path) -> None:
    """Across processes: the resumed run goes on from its checkpoint, and every row is accounted for."""
    run = tmp_path / "out" / "run"
    longer = {"total_steps": 2_000} if name == "dqn" else {"total_updates": 60 if name == "ppo" else 20}
    extra = {"launcher": "local", "staleness": {"mode": "one_step"}, **longer}
    order = {"slice": name, "out": str(run.parent), "settings": extra}
    assert kill_when(programs, order, lambda: len(checkpoints(run)) >= 2, 0.01), "the run ended before it could be killed"
    version = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["version"]
    obey({"resume": str(run)})
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [r for r in rows if r["kind"] == "update"]
    assert [r["version"] for r in updates] == list(range(1, updates[-1]["version"] + 1))
    assert updates[-1]["version"] > version
    seen = [i for r in updates for group in r["sample_ids"].values() for i in group]
    if name == "ppo":
        assert len(seen) == len(set(seen)), "a sample was trained on twice"
    for account in rows[-1]["streams"].values():
        settled = account["consumed"] + sum(account["dropped"].values()) + sum(account["cancelled"].values())
        assert account["dispatched"] == settled + account["in_flight"]
        assert account["consumed"] > 0


def test_damaged_newest_checkpoint_falls_back_loudly(tmp_path: Path) -> None:
    obey({"slice": "ppo", "out": str(tmp_path)})
    run = tmp_path / "run"
    newest = checkpoints(run)[-1]
    file = newest / "params.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="fell back to checkpoint"):
        resumed = rl.resume(run, total_updates=16)
    assert resumed.version == 16
    events = [r["text"] for r in resumed.rows("event")]
    assert any("params.safetensors" in text and "fell back" in text for text in events)


def test_resume_extends_and_refuses_a_spent_budget(tmp_path: Path) -> None:
    recipe, tiny = "ppo", SLICES["ppo"][1]
    run = rl.train(recipe, out=str(tmp_path), track=(), **{**tiny, "total_updates": 4})
    with pytest.raises(rl.ConfigError, match=r"total_updates = 4.*larger"):
        rl.resume(run.path)
    longer = rl.resume(run.path, total_updates=6)
    assert (longer.version, longer.status) == (6, "finished")
    assert [r["version"] for r in longer.rows()] == [1, 2, 3, 4, 5, 6]
