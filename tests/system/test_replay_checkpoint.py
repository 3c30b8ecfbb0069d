"""A run with a replay memory in frozen pieces, saved to files and restored, goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.run import registry
from runnel.run.checkpoint import Checkpoints, read_parts, verify, write_parts
from runnel.run.group import ProcessGroup
from runnel.run.wiring import place, wire

ENV = f"{Path(__file__).parents[1] / 'learning' / 'pixel_env.py'}:Bright"
CORE = {"net": {"hidden": (8,), "core": "gru", "core_size": 4}, "dqn": {"batch_size": 4, "burn_in": 2}}


def make(out: Path, **settings: Any) -> ProcessGroup:
    fixed = {"env": ENV, "num_steps": 8, "min_fill": 64, "total_steps": 2_000, "update_ratio": 0.125, "eval": {"episodes": 0}}
    small = {"replay": {"capacity": 200, "n_step": 2}, "net": {"hidden": (8,)}, "dqn": {"batch_size": 8}}
    config = registry.configure(registry.load_recipe("dqn"), {**fixed, **small, **settings, "out": str(out)})
    experiment = registry.build("dqn", config)
    return wire(experiment, place(experiment), "main", clock=ManualClock())


def play(group: ProcessGroup, version: int) -> list[torch.Tensor]:
    assert group.trainer is not None
    while group.trainer.version < version:
        group.round()
    return [x.clone() for x in group.trainer.learner.params().values()]


@pytest.mark.parametrize("settings", [{}, CORE], ids=["transitions", "sequences"])
def test_pieces_go_through_files(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.data.store.PIECE_BYTES", 4_000)
    checkpoints, first, second = Checkpoints(tmp_path / "checkpoints"), make(tmp_path, **settings), make(tmp_path, **settings)
    first.start()
    linked = 0
    for version in (20, 24, 45):
        play(first, version)
        path = checkpoints.begin(version)
        path = checkpoints.finish(path, {"version": version, "files": write_parts(path, first.snapshot())})
        linked += sum(file.stat().st_nlink > 1 for file in path.glob("worker-buffer.*.safetensors"))
    assert linked
    verify(path)
    expected = play(first, 60)
    second.start(read_parts(path))
    found = play(second, 60)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    first.close()
    second.close()


def test_one_flipped_bit_in_a_shared_piece_costs_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.data.store.PIECE_BYTES", 4_000)
    small = {"num_envs": 1, "num_steps": 8, "min_fill": 64, "total_updates": 60, "update_ratio": 0.125, "eval.episodes": 0}
    rest = {"replay.capacity": 2_000, "net.hidden": (8,), "dqn.batch_size": 8, "vector.backend": "serial", "track": ()}
    saving = {"checkpoint.every": 20, "checkpoint.keep": 3, "log_every": 1, "out": str(tmp_path)}
    run = rl.train("dqn", env="CartPole-v1", **small, **rest, **saving)
    *_, newest = Checkpoints(run.path / "checkpoints").finished()
    shared = next(file for file in newest.glob("worker-buffer.*.safetensors") if file.stat().st_nlink > 1)
    data = bytearray(shared.read_bytes())
    data[-1] ^= 1
    shared.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match=r"fell back to checkpoint 000000040: .*worker-buffer.*is not what was written"):
        longer = rl.resume(run.path, total_updates=80)
    assert [row["version"] for row in longer.rows()] == list(range(1, 81))
    for path in Checkpoints(run.path / "checkpoints").finished():
        verify(path)
