"""Data sets: what was written is read back, and what is damaged, changed or of another environment is refused by name."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sets import MASKED, SOURCE, SPEC, episode, make_set

from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.state_columns import state_columns
from runnel.data.dataset import Dataset, DatasetWriter, Source


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), masked=st.booleans())
def test_what_was_written_is_read_back(lengths: list[int], masked: bool) -> None:
    spec = MASKED if masked else SPEC
    with tempfile.TemporaryDirectory() as folder:
        found = make_set(Path(folder) / "set", lengths, spec=spec)
        found.verify()
        found.check_env(SOURCE, spec)
        assert (found.num_episodes, found.num_steps) == (len(lengths), sum(lengths))
        first = 0
        for i, length in enumerate(lengths):
            due = episode(i, length, terminated=i % 2 == 0, spec=spec)
            for name, array in due.items():
                more = i if len(array) > length else 0
                part = found.columns[name][first + more : first + more + len(array)]
                np.testing.assert_array_equal(part, array)
            assert found.returns()[i] == due["rewards/env"].sum()
            np.testing.assert_array_equal(found.episode_of(np.arange(first, first + length)), i)
            first += length


def test_columns_are_plain_files_that_are_mapped(tmp_path: Path) -> None:
    found = make_set(tmp_path / "set")
    assert {p.name for p in found.folder.iterdir()} == {
        *("dataset.json", "obs.npy", "action.npy", "rewards.env.npy", "terminated.npy", "truncated.npy", "length.npy")
    }
    assert all(isinstance(column, np.memmap) for column in found.columns.values())
    np.testing.assert_array_equal(np.load(tmp_path / "set" / "length.npy"), [3, 1, 4])
    assert found.manifest["about"] == {"run": "made"}


def test_equal_content_has_one_digest_wherever_it_lies(tmp_path: Path) -> None:
    one, same, other = (make_set(tmp_path / name, lengths) for name, lengths in (("a", (2, 3)), ("b", (2, 3)), ("c", (3, 2))))
    assert one.digest == same.digest != other.digest
    assert Dataset.open(tmp_path / "b", digest=one.digest).digest == one.digest
    with pytest.raises(ConfigError, match=rf"data = .*is another data set \(digest {other.digest}\).*digest {one.digest}"):
        Dataset.open(tmp_path / "c", digest=one.digest)


def test_what_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with DatasetWriter(tmp_path / "set", SPEC, SOURCE) as writer:
            writer.add(episode(0, 3, terminated=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_never_written_to(tmp_path: Path) -> None:
    found = make_set(tmp_path / "set")
    before = {p.name: p.read_bytes() for p in found.folder.iterdir()}
    with pytest.raises(ConfigError, match=r"folder = .*set'?: exists already"):
        make_set(tmp_path / "set")
    assert {p.name: p.read_bytes() for p in found.folder.iterdir()} == before


def spoiled(change: Callable[[dict], None]) -> dict:
    found = episode(0, 3, terminated=True)
    change(found)
    return found


BROKEN = {
    "nan": (lambda e: e["obs"].__setitem__((2, 1), np.nan), r"episode 0, column 'obs' is not finite at entry 2"),
    "no last observation": (lambda e: e.update(obs=e["obs"][:-1]), r"'obs' is \[3, 2\]; expected \[4, 2\]"),
    "shape": (lambda e: e.update(action=e["action"][:, None]), r"'action' is \[3, 1\]; expected \[3\]"),
    "no end": (lambda e: e.update(terminated=np.zeros(3, bool)), "must be true at its last step, and there only"),
    "two ends": (lambda e: e["truncated"].__setitem__(0, True), "must be true at its last step, and there only"),
    "a column too few": (lambda e: e.pop("truncated"), "has the columns action, obs, .*; give action, obs, .*truncated"),
    "a column too many": (lambda e: e.update({"costs/x": e["rewards/env"]}), "has the columns .*costs/x.*; give action"),
    "flags as numbers": (lambda e: e.update(terminated=e["terminated"] * 1), "'terminated' is of type int64; give it as bool"),
    "actions as floats": (lambda e: e.update(action=e["action"] * 1.0), "'action' is of type float64; give it as int64"),
    "too large": (lambda e: e.update({"rewards/env": np.full(3, 1e300)}), "'rewards/env' is not finite at entry 0"),
    "no step": (lambda e: e.update(episode(0, 0, terminated=True)), "at least one step"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_episodes_that_break_the_contract_are_refused(case: str, tmp_path: Path) -> None:
    change, match = BROKEN[case]
    with DatasetWriter(tmp_path / "set", SPEC, SOURCE) as writer, pytest.raises(DataError, match=match):
        writer.add(spoiled(change))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("steps", "ends", "size"),
    [([0, 3], [2, 4], 4), ([1, 0], [2, 4], 4), ([0, 0], [2, 4], 4), ([0, 1], [2, 2], 2), ([0, 1], [2, 4], 5), ([0], [2, 4], 4)],
)
def test_states_that_are_not_of_their_episode_are_refused(steps: list[int], ends: list[int], size: int, tmp_path: Path) -> None:
    states = {"state/step": np.array(steps), "state/end": np.array(ends), "state/bytes": np.zeros(size, np.uint8)}
    with DatasetWriter(tmp_path / "set", SPEC, SOURCE, states=True) as writer:
        writer.add({**episode(0, 3, terminated=True), **state_columns({0: b"ab", 2: b"cd"})})
        writer.add({**episode(0, 3, terminated=True), **state_columns({})})
        with pytest.raises(DataError, match=r"episode 2"):
            writer.add({**episode(0, 3, terminated=True), **states})


def test_a_place_where_none_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below", "x" * 260):
        with pytest.raises(ConfigError, match=r"folder = .*; give another"):
            DatasetWriter(tmp_path / name, SPEC, SOURCE)
    with DatasetWriter(tmp_path / "set", SPEC, SOURCE) as writer:
        writer.add(episode(0, 3, terminated=True))
        make_set(tmp_path / "set")
        with pytest.raises(ConfigError, match=r"folder = .*exists already"):
            writer.finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "set"]


def test_a_set_without_an_episode_is_no_set(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", SPEC, SOURCE) as writer, pytest.raises(DataError, match="at least one episode"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def edit(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "dataset.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def rewrite(folder: Path, name: str, change: Callable[[np.ndarray], object]) -> None:
    """A column that somebody changed, with checksums and digest that fit it."""
    from runnel.data import dataset

    array = np.load(folder / name)
    change(array)
    np.save(folder / name, array)
    column = next(c for c in ("obs", "action", "rewards/env", "terminated") if dataset._file_name(c) == name)
    edit(folder, lambda d: d["columns"][column].update(sha256=dataset._checksum(folder / name)))
    edit(folder, lambda d: d.update(digest=dataset._digest(d)))


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda f: f.rename(f.parent / "gone"), "there is no such folder"),
    "no manifest": (lambda f: (f / "dataset.json").unlink(), r"holds no dataset.json.*runnel data record"),
    "half a manifest": (lambda f: (f / "dataset.json").write_text('{"format": 1'), r"dataset.json is damaged"),
    "a list": (lambda f: (f / "dataset.json").write_text("[]"), r"dataset.json is damaged"),
    "newer": (lambda f: edit(f, lambda d: d.update(format=2)), r"has format 2, and this version reads 1"),
    "edited": (lambda f: edit(f, lambda d: d["source"].update(env="Other-v0")), "digest and content differ"),
    "no column": (lambda f: (f / "obs.npy").unlink(), r"column obs.npy is missing"),
    "half a column": (lambda f: (f / "obs.npy").write_bytes((f / "obs.npy").read_bytes()[:140]), r"column obs.npy is damaged"),
    "a longer column": (lambda f: np.save(f / "action.npy", np.zeros(9, np.int64)), r"column action.npy has 9 entries"),
    "other numbers": (lambda f: np.save(f / "action.npy", np.zeros(8, np.float32)), r"action.npy is float32 \[\], and dataset"),
    "one bit": (lambda f: flip(f / "rewards.env.npy"), r"column rewards.env.npy is damaged: its checksum"),
    "nan": (lambda f: rewrite(f, "obs.npy", lambda x: x.__setitem__((1, 0), np.inf)), r"column obs.npy holds NaN or inf"),
    "action": (lambda f: rewrite(f, "action.npy", lambda x: x.__setitem__(1, 3)), r"action.npy names actions.*among the 3"),
    "flags": (lambda f: rewrite(f, "terminated.npy", lambda x: x.__setitem__(0, True)), "do not mark the last step of each"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_damaged_is_refused_with_the_field_and_the_fix(case: str, tmp_path: Path) -> None:
    damage, match = DAMAGED[case]
    damage(make_set(tmp_path / "set").folder)
    with pytest.raises(ConfigError, match=rf"data = .*{match}"):
        Dataset.open(tmp_path / "set").verify()


OTHERS = {
    "env": (Source("Other-v0"), SPEC),
    "env_kwargs": (Source("Counter-v0", {"g": 5.0}), SPEC),
    "wrappers": (Source("Counter-v0", {}, ("a.py:W",)), SPEC),
    "obs": (SOURCE, EnvSpec({"obs": ArraySpec((3,))}, SPEC.action)),
    "action": (SOURCE, EnvSpec(SPEC.obs, ActionSpec("discrete", num_actions=4))),
    "has_mask": (SOURCE, MASKED),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_environment_is_refused(name: str, tmp_path: Path) -> None:
    found = make_set(tmp_path / "set")
    with pytest.raises(ConfigError, match=rf"data = .*was recorded with {name} = .*give that environment, or other data"):
        found.check_env(*OTHERS[name])


def test_code_in_a_file_is_known_by_the_file_wherever_it_lies(tmp_path: Path) -> None:
    found = make_set(tmp_path / "set", source=Source("/a/b/env.py:Env", {"n": 1}, ("/a/w.py:W",)))
    found.check_env(Source("/c/env.py:Env", {"n": 1}, ("w.py:W",)), SPEC)
