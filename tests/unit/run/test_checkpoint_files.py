from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runnel.core.codec import decode, encode
from runnel.core.errors import CheckpointError
from runnel.core.rng import make_rng, rng_state
from runnel.run.checkpoint import Checkpoints, read_params, read_part, read_parts, verify, write_parts


def through_files(folder: Path, state: Any) -> Any:
    folder.mkdir(exist_ok=True, parents=True)
    write_parts(folder, {"part": {"state": state}})
    return read_part(folder, "part")["state"]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all() | (a != a).all())
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and [type(k) for k in a] == [type(k) for k in b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


# --------------------------------------------------------------------------------------------------------------- codec
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        1 << 70,
        0.1,
        float("inf"),
        'text \u2713 \n "quoted"',
        [],
        {},
        [1, [2.5, None, "x"], {"a": []}],
        {"a": {"b": {"c": [1]}}},
        {0: "zero", 7: {"x": 1}, -1: None},
        {"$tensor": "not a tensor", "$items": 3},
        {"a/b.c": 1, "": 2},
        rng_state(make_rng(3, "x")),
    ],
    ids=repr,
)
def test_plain_data_comes_back(value: Any, tmp_path: Path) -> None:
    assert same(value, through_files(tmp_path, value))


DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_tensors_come_back(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = (torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 100).to(getattr(torch, dtype))
    assert same({"x": [x]}, through_files(tmp_path, {"x": [x]}))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "int32", "uint32", "uint64"])
@pytest.mark.parametrize("shape", [(), (0, 2), (4, 3)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.asarray(np.random.default_rng(0).integers(0, 100, shape)).astype(dtype)
    assert same({"x": x}, through_files(tmp_path, {"x": x}))


def test_views_parts_and_shared_storage_come_back(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    array = np.arange(12).reshape(3, 4)
    state = {
        "base": base,
        "again": base,
        "view": base[1:3],
        "transposed": base.t(),
        "column": base[:, 2],
        "flat": base.view(-1)[5:7],
        "expanded": torch.ones(1).expand(5),
        "reversed": array[::-1],
        "fortran": np.asfortranarray(array),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "scalar": np.float32(0.25),
        "count": np.int64(3),
    }
    found = through_files(tmp_path, state)
    for key, value in state.items():
        if isinstance(value, Tensor):
            assert same(value.detach(), found[key]), key
        elif isinstance(value, np.ndarray):
            assert (found[key] == value).all(), key
    assert (found["scalar"], found["count"]) == (0.25, 3)
    assert not found["parameter"].requires_grad
    found["base"].zero_()
    assert found["again"].sum() == base.sum()


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    found = through_files(tmp_path, {"a": float("nan"), "b": torch.tensor([float("nan"), 1.0])})
    assert np.isnan(found["a"])
    assert found["b"].isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", lambda: 1, torch.float32, Path("x"), 1j], ids=lambda value: type(value).__name__
)
def test_what_is_not_data_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"holds data only; {type(value).__name__} is not"):
        encode({"deep": [{"x": value}]}, {})


def test_arrays_of_objects_and_texts_are_refused() -> None:
    for value in (np.array(["a", "b"]), np.array([object()])):
        with pytest.raises(CheckpointError, match="data only"):
            encode(value, {})


def test_tuples_come_back_as_lists() -> None:
    tensors: dict[str, Tensor] = {}
    assert decode(json.loads(json.dumps(encode({"a": (1, (2,))}, tensors))), tensors) == {"a": [1, [2]]}


def test_optimiser_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(0.3)
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    def step(net: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad()
        (net(torch.ones(1, 3)) ** 2).sum().backward()
        optimiser.step()

    net, optimiser = make()
    step(net, optimiser)
    found = through_files(tmp_path, {"net": net.state_dict(), "optimiser": optimiser.state_dict()})
    again, other = make()
    again.load_state_dict(found["net"])
    other.load_state_dict(found["optimiser"])
    for _ in range(3):
        step(net, optimiser)
        step(again, other)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


# --------------------------------------------------------------------------------------------------------------- files
def save(checkpoints: Checkpoints, version: int, value: float | None = None) -> Path:
    path = checkpoints.begin(version)
    x = torch.full((4,), float(version) if value is None else value)
    files = write_parts(path, {"worker-a": {"x": x, "n": version}, "empty": {"n": 1}, "params": {"w.weight": x, "w.tied": x}})
    return checkpoints.finish(path, {"version": version, "steps": 0, "tokens": 0, "epoch": 0, "left_out": [], "files": files})


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = save(Checkpoints(tmp_path), 3)
    assert sorted(p.name for p in path.iterdir()) == [
        "empty.json",
        "manifest.json",
        "params.safetensors",
        "worker-a.json",
        "worker-a.safetensors",
    ]
    parts = read_parts(path)
    assert set(parts) == {"worker-a", "empty"}
    assert parts["worker-a"]["x"].tolist() == [3.0] * 4
    assert {k: v.tolist() for k, v in read_params(path).items()} == {"w.weight": [3.0] * 4, "w.tied": [3.0] * 4}
    assert verify(path)["version"] == 3


def test_the_newest_is_found_and_the_last_k_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for version in (9, 10, 99, 100, 1000):
        save(checkpoints, version)
    assert [p.name for p in checkpoints.finished()] == ["000000099", "000000100", "000001000"]
    path, manifest, problems = checkpoints.newest()
    assert (path.name, manifest["version"], problems) == ("000001000", 1000, [])


def test_saving_a_version_again_is_the_newer_one_and_never_leaves_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 3, 1.0)
    save(checkpoints, 3, 2.0)
    assert [p.name for p in checkpoints.finished()] == ["000000003", "000000003-1"]
    assert read_part(checkpoints.newest()[0], "worker-a")["x"].tolist() == [2.0] * 4


def test_before_finish_nothing_is_visible(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="the run ended before its first checkpoint"):
        checkpoints.newest()
    save(checkpoints, 1)
    write_parts(checkpoints.begin(2), {"worker-a": {"x": torch.ones(2)}})
    assert checkpoints.newest()[0].name == "000000001"
    write_parts(checkpoints.begin(2), {"worker-b": {"x": torch.ones(2)}})
    assert not (checkpoints.begin(2) / "worker-a.json").exists()


KILLED = """
import os, shutil, sys
from pathlib import Path
import torch
from runnel.run.checkpoint import Checkpoints, write_parts

def save(version):
    path = checkpoints.begin(version)
    files = write_parts(path, {"a": {"x": torch.ones(3) * version}, "params": {"w": torch.ones(2)}})
    checkpoints.finish(path, {"version": version, "steps": 0, "tokens": 0, "epoch": 0, "left_out": [], "files": files})

def counted(function):
    def call(*arguments, **settings):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return function(*arguments, **settings)
    return call

left = 10**9
os.fsync, shutil.rmtree = counted(os.fsync), counted(shutil.rmtree)
Path.mkdir, Path.rename = counted(Path.mkdir), counted(Path.rename)
for keep in (1, 3):
    for n in range(100):
        checkpoints = Checkpoints(Path(sys.argv[1]) / f"{keep}-{n}", keep=keep)
        if os.fork() == 0:
            save(1)
            left = n
            save(2)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
            print(n)
            break
"""


def test_a_kill_at_any_file_operation_leaves_a_usable_checkpoint(tmp_path: Path) -> None:
    """Save version 1, then die before the n-th operation of saving version 2, for every n."""
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for keep, num in zip((1, 3), map(int, result.stdout.split()), strict=True):
        assert num >= 6
        for n in range(num + 1):
            path, manifest, problems = Checkpoints(tmp_path / f"{keep}-{n}").newest()
            assert problems == []
            assert read_part(path, "a")["x"].tolist() == [float(manifest["version"])] * 3


@pytest.mark.parametrize("name", ["worker-a.safetensors", "worker-a.json", "params.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "emptied"])
def test_a_damaged_newest_falls_back_to_the_one_before(name: str, damage: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    newest = save(checkpoints, 2)
    file = newest / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        if damage == "flipped":
            data[len(data) // 2] ^= 1
        file.write_bytes(data if damage == "flipped" else data[: len(data) // 2 if damage == "truncated" else 0])
    path, manifest, problems = checkpoints.newest()
    assert (path.name, manifest["version"]) == ("000000001", 1)
    if name == "manifest.json" and damage == "missing":
        return  # without its manifest a folder is no checkpoint at all
    (problem,) = problems
    assert str(newest) in problem
    expected = "manifest" if name == "manifest.json" else name
    assert expected in problem


def test_any_flipped_bit_of_the_manifest_is_noticed(tmp_path: Path) -> None:
    path = save(Checkpoints(tmp_path), 12)
    file = path / "manifest.json"
    good, wanted = file.read_bytes(), verify(path)
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 1
        file.write_bytes(data)
        try:
            found = verify(path)
        except CheckpointError:
            continue
        assert found == wanted, f"byte {at} of the manifest changed, and nobody noticed"


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"files": 3}', '{"files": ["a"]}', '{"files": {"a": 1}}', "\x00"])
def test_a_manifest_that_makes_no_sense_is_a_checkpoint_error(text: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = save(checkpoints, 1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="no usable checkpoint in"):
        checkpoints.newest()


def test_all_damaged_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for version in (1, 2):
        (save(checkpoints, version) / "worker-a.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"000000002 is damaged: worker-a.json.*; .*000000001 is damaged"):
        checkpoints.newest()


@pytest.mark.parametrize("keep", [1, 2])
def test_what_is_written_after_a_fall_back_is_the_newest(keep: int, tmp_path: Path) -> None:
    """A damaged later checkpoint must not push out, or hide, those that the resumed run writes."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 5)
    (save(checkpoints, 9) / "worker-a.json").write_text("{}")
    assert checkpoints.newest()[0].name == "000000005"
    resumed = Checkpoints(tmp_path, keep=keep)
    for version in (6, 7):
        save(resumed, version)
        path, _, problems = resumed.newest()
        assert (path.name, problems) == (f"{version:09d}", [])


def test_large_files_are_digested_in_pieces_and_every_byte_counts(tmp_path, monkeypatch):
    from runnel.run import checkpoint

    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 40)
    small = checkpoint.digest_of(path)
    monkeypatch.setattr(checkpoint, "PIECE", 4096)
    monkeypatch.setattr(checkpoint, "BLOCK", 1024)
    found = checkpoint.digest_of(path)
    assert found.startswith("pieces-")
    assert found != small
    for place in (0, 4095, 4096, 10239):
        data = bytearray(bytes(range(256)) * 40)
        data[place] ^= 1
        path.write_bytes(data)
        assert checkpoint.digest_of(path) != found


def test_a_kill_while_an_old_checkpoint_goes_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1)

    def killed(path: Path, **more: Any) -> None:
        (Path(path) / "params.safetensors").unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("runnel.run.checkpoint.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 2)
    assert [p.name for p in checkpoints.finished()] == ["000000002"]
    assert [p.name for p in tmp_path.glob("0*")] == ["000000002"], "nothing that looks like a checkpoint is one by half"
    save(checkpoints, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["000000003"], "the next one clears away what was left"
