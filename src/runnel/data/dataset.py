"""A data set: whole episodes as columns in a folder, which are mapped and never read as a whole.

Each column is a plain `.npy` file, in the order of episodes; `dataset.json` says what they are, where they come from, and what
their checksums are. An episode of T steps has T + 1 observations (and masks): the next observation of a step is the following
one, and the last is the observation that ended the episode. So a truncated episode can be bootstrapped from, and no
observation is stored twice.

A folder is written once (`DatasetWriter`) and never changes; `digest` names its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Self, overload

import numpy as np
import torch

from runnel.core.config import to_data
from runnel.core.disk import told_if_refused
from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.state import Array, JsonObject
from runnel.core.state_columns import STATE_BYTES, STATE_END, STATE_STEP
from runnel.core.worker import progressed

MANIFEST = "dataset.json"
FORMAT = 1
MASK = "action_mask"
LENGTH = "length"
_CHUNK = 1 << 22
"""Bytes that are read at once where a whole column is read."""
_DIGITS = 16
_AGAIN = "copy the data set again, or record it anew"

Unit = Literal["observation", "step", "episode", "state", "byte"]


@dataclass(frozen=True)
class Column:
    """What a column holds: one entry a step, a step and one more an episode (`observation`), an episode, a start state, or a
    byte of one."""

    unit: Unit
    spec: ArraySpec


def columns_of(spec: EnvSpec, *, states: bool = False) -> dict[str, Column]:
    """The columns of a data set of an environment; with `states`, some of its steps have a state to begin an episode at: the
    number of the step, where the state's bytes end, and all their bytes.

    >>> from runnel.core.spaces import ActionSpec
    >>> spec = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))
    >>> [name for name, column in columns_of(spec).items() if column.unit == "step"]
    ['action', 'rewards/env', 'terminated', 'truncated']
    """
    found = {key: Column("observation", leaf) for key, leaf in spec.obs.items()}
    if spec.has_mask:
        found[MASK] = Column("observation", ArraySpec((spec.action.mask_size,), torch.bool))
    found["action"] = Column("step", ArraySpec(spec.action.shape, spec.action.dtype))
    found["rewards/env"] = Column("step", ArraySpec(()))
    found |= {flag: Column("step", ArraySpec((), torch.bool)) for flag in ("terminated", "truncated")}
    if states:
        found |= {name: Column("state", ArraySpec((), torch.int64)) for name in (STATE_STEP, STATE_END)}
        found[STATE_BYTES] = Column("byte", ArraySpec((), torch.uint8))
    return found | {LENGTH: Column("episode", ArraySpec((), torch.int64))}


def spec_as_data(spec: EnvSpec) -> JsonObject:
    """An environment's spec as plain data, equal for equal spaces."""
    leaves = {k: {"shape": list(x.shape), "dtype": _type_name(x)} for k, x in sorted(spec.obs.items())}
    found: JsonObject = json.loads(json.dumps({"obs": leaves, "action": to_data(spec.action), "has_mask": spec.has_mask}))
    return found


def _type_name(spec: ArraySpec) -> str:
    return str(spec.dtype).removeprefix("torch.")


def _file_name(column: str) -> str:
    """The file of a column. Names are joined by dots, so that none leads out of the folder."""
    return column.replace("/", ".") + ".npy"


@dataclass(frozen=True)
class Source:
    """The environment that a data set was played in, as settings name it; a run must play the same one."""

    env: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()

    def as_data(self) -> JsonObject:
        """Plain data. Code in a file counts by the name of the file, wherever it lies."""
        names = [_without_folder(name) for name in (self.env, *self.wrappers)]
        found: JsonObject = json.loads(
            json.dumps({"env": names[0], "env_kwargs": dict(self.env_kwargs), "wrappers": names[1:]}, default=str)
        )
        return found


def _without_folder(name: str) -> str:
    """
    >>> _without_folder("/a/b/my_env.py:MyEnv"), _without_folder("ALE/Pong-v5"), _without_folder("tensor:CartPole-v1")
    ('my_env.py:MyEnv', 'ALE/Pong-v5', 'CartPole-v1')
    """
    path, _, own = name.removeprefix("tensor:").rpartition(":")
    return f"{Path(path).name}:{own}" if path.endswith(".py") else name.removeprefix("tensor:")


class Dataset:
    """The columns of a folder, mapped. `setting` is the setting that names the folder, for errors."""

    def __init__(self, folder: Path, manifest: JsonObject, columns: Mapping[str, Array], setting: str) -> None:
        self.folder, self.manifest, self.columns, self.setting = folder, manifest, columns, setting
        self.lengths: Array = np.asarray(columns[LENGTH])
        self._ends: Array = self.lengths.cumsum()

    @property
    def digest(self) -> str:
        """A name made from the content."""
        return str(self.manifest["digest"])

    @property
    def num_episodes(self) -> int:
        return len(self.lengths)

    @property
    def num_steps(self) -> int:
        return int(self._ends[-1])

    def returns(self) -> Array:
        """The sum of the rewards of each episode. `[E]`"""
        found: Array = np.add.reduceat(self.columns["rewards/env"].astype(np.float64), self._ends - self.lengths)
        return found

    def episode_of(self, steps: Array) -> Array:
        """The number of the episode that each step belongs to. `[n] -> [n]`"""
        return np.searchsorted(self._ends, steps, side="right")

    def ends_of(self, episodes: Array) -> Array:
        """The last step of each episode. `[n] -> [n]`"""
        ends: Array = self._ends[episodes] - 1
        return ends

    @property
    def states(self) -> StartStates:
        """The states that episodes may begin at, in the order of their steps."""
        return StartStates(self)

    def __str__(self) -> str:
        states = f"{len(self.states):,} start states, " if STATE_END in self.columns else ""
        return f"{self.folder}: {self.num_episodes:,} episodes, {self.num_steps:,} steps, {states}digest {self.digest}"

    # ------------------------------------------------------------------------------------------------------------ opening
    @classmethod
    def open(cls, folder: str | Path, *, setting: str = "data", digest: str = "") -> Self:
        """Map the columns of `folder`. Sizes are checked, contents are not (`verify`). With `digest`, it must be that one."""
        folder = Path(folder)
        manifest = _read_manifest(folder, setting)
        if digest and manifest["digest"] != digest:
            fix = f"is another data set (digest {manifest['digest']}); this run is of the one with digest {digest}"
            raise ConfigError(setting, str(folder), f"{fix}: give its folder, or start a new run")
        columns = {name: _map(folder, name, about, setting) for name, about in manifest["columns"].items()}
        if not len(columns[LENGTH]):
            raise ConfigError(setting, str(folder), "has no episodes; record some")
        found = cls(folder, manifest, columns, setting)
        found._check_sizes()
        return found

    def _check_sizes(self) -> None:
        steps, episodes = int(self._ends[-1]), len(self.lengths)
        due: dict[Unit, int] = {"observation": steps + episodes, "step": steps, "episode": episodes}
        if STATE_END in self.columns:
            ends = self.columns[STATE_END]
            due |= {"state": len(ends), "byte": int(ends[-1]) if len(ends) else 0}
        for name, about in self.manifest["columns"].items():
            if len(self.columns[name]) != due.get(about["unit"], -1):
                raise self._refusal(name, f"has {len(self.columns[name])} entries, and its episodes have {steps} steps")
        if int(self.lengths.min()) < 1:
            raise self._refusal(LENGTH, "has an episode without a step")

    def check_env(self, source: Source, spec: EnvSpec) -> None:
        """Refuse a run on another environment than the one that was recorded."""
        for own, given in ((self.manifest["source"], source.as_data()), (self.manifest["spec"], spec_as_data(spec))):
            for name in given:
                if own.get(name) != given[name]:
                    there = f"was recorded with {name} = {own.get(name)!r}, and this run has {given[name]!r}"
                    raise ConfigError(self.setting, str(self.folder), f"{there}; give that environment, or other data")

    def verify(self) -> None:
        """Read every column once: its checksum, that numbers are finite, that actions exist and that episodes end where they
        say."""
        for name, about in self.manifest["columns"].items():
            if _checksum(self.folder / _file_name(name)) != about["sha256"]:
                raise self._refusal(name, "is damaged: its checksum is not that of dataset.json")
            for part in _parts(self.columns[name]):
                if np.issubdtype(part.dtype, np.floating) and not np.isfinite(part).all():
                    raise self._refusal(name, "holds NaN or infinity", fix="record again, or leave out those episodes")
                progressed()
        self._verify_flags()
        self._verify_actions()
        self._verify_states()

    def _verify_states(self) -> None:
        if STATE_END not in self.columns:
            return
        steps, ends = self.columns[STATE_STEP], self.columns[STATE_END]
        if len(steps) and (steps[0] < 0 or steps[-1] >= self.num_steps or (np.diff(steps) < 1).any()):
            raise self._refusal(STATE_STEP, "names steps that are not there, or not in their order")
        if (np.diff(ends, prepend=0) < 1).any():
            raise self._refusal(STATE_END, "has states without a byte")

    def _verify_flags(self) -> None:
        over = self.columns["terminated"] | self.columns["truncated"]
        if not np.array_equal(np.flatnonzero(over), self._ends - 1):
            raise self._refusal("terminated", "and truncated do not mark the last step of each episode, and no other")

    def _verify_actions(self) -> None:
        action = self.manifest["spec"]["action"]
        if action["kind"] != "discrete":
            return
        for part in _parts(self.columns["action"]):
            if part.min() < 0 or part.max() >= action["num_actions"]:
                raise self._refusal(
                    "action", f"names actions that are not among the {action['num_actions']} of the environment"
                )

    def _refusal(self, column: str, what: str, *, fix: str = _AGAIN) -> ConfigError:
        return ConfigError(self.setting, str(self.folder), f"column {_file_name(column)} {what}; {fix}")


class StartStates(Sequence[bytes]):
    """The start states of a data set, as they were recorded; each is read when it is asked for."""

    def __init__(self, data: Dataset) -> None:
        self._data = data
        none = np.zeros(0, np.int64)
        self.steps: Array = np.asarray(data.columns.get(STATE_STEP, none))
        """The step of the data set that each was recorded before. `[n]`"""
        self._ends: Array = np.asarray(data.columns.get(STATE_END, none))

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, i: int) -> bytes: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[bytes]: ...

    def __getitem__(self, i: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        start = int(self._ends[i - 1]) if i % len(self) else 0
        return self._data.columns[STATE_BYTES][start : int(self._ends[i])].tobytes()

    @property
    def entries(self) -> Array:
        """The entry of each in the columns of observations, of which an episode has one more than steps. `[n]`"""
        found: Array = self.steps + self._data.episode_of(self.steps)
        return found


def _read_manifest(folder: Path, setting: str) -> JsonObject:
    path = folder / MANIFEST
    if not path.is_file():
        fix = f"holds no {MANIFEST}, so it is no data set; `runnel data record RUN FOLDER` makes one"
        raise ConfigError(setting, str(folder), fix if folder.is_dir() else "there is no such folder")
    try:
        found = json.loads(path.read_text("utf-8"))
        newer = found["format"] != FORMAT
        whole = newer or found["digest"] == _digest(found)
        wanted = newer or {LENGTH, "action", "rewards/env", "terminated", "truncated"} <= found["columns"].keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(setting, str(folder), f"its {MANIFEST} is damaged ({error!r}); {_AGAIN}") from error
    if newer:
        raise ConfigError(
            setting, str(folder), f"has format {found['format']!r}, and this version reads {FORMAT}; update runnel"
        )
    if not (whole and wanted):
        raise ConfigError(setting, str(folder), f"its {MANIFEST} was changed: digest and content differ; {_AGAIN}")
    return dict(found)


def _digest(manifest: JsonObject) -> str:
    """Of all that a learner could notice: columns, spec and environment, but not where the data come from."""
    said = {name: manifest[name] for name in ("format", "source", "spec", "columns")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _map(folder: Path, name: str, about: JsonObject, setting: str) -> Array:
    path = folder / _file_name(name)
    try:
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise ConfigError(setting, str(folder), f"column {path.name} {why}; {_AGAIN}") from error
    if [str(found.dtype), list(found.shape[1:])] != [about["dtype"], about["shape"]]:
        there = f"is {found.dtype} {list(found.shape[1:])}, and {MANIFEST} says {about['dtype']} {about['shape']}"
        raise ConfigError(setting, str(folder), f"column {path.name} {there}; {_AGAIN}")
    return found


def _parts(column: Array) -> Iterator[Array]:
    """A column in pieces of a few megabytes."""
    rows = max(1, _CHUNK // max(column[:1].nbytes, 1))
    for start in range(0, len(column), rows):
        yield column[start : start + rows]


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------------------- writing
class DatasetWriter:
    """Writes episodes one by one, with memory for one. The folder gets its name when all is written (`finish`): what is
    interrupted leaves nothing that looks like a data set. Use it in a `with` block."""

    def __init__(
        self, folder: str | Path, spec: EnvSpec, source: Source, *, setting: str = "folder", states: bool = False
    ) -> None:
        self.folder, self._spec, self._source = Path(folder), spec, source
        self._setting = setting
        if os.path.lexists(self.folder):
            raise self._exists()
        self._columns = columns_of(spec, states=states)
        self._counts = dict.fromkeys(self._columns, 0)
        self._files: dict[str, IO[bytes]] = {}
        try:
            with told_if_refused(self.folder.parent):
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                self._own = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=self.folder.parent))
        except OSError as error:  # its parent is a file, say, or the name is too long
            raise ConfigError(setting, str(folder), f"cannot be made ({error.strerror}); give another place") from error
        with told_if_refused(self.folder.parent):
            self._own.chmod(0o755)
            for name in self._columns:
                self._files[name] = (self._own / _file_name(name)).open("wb")
                self._write_header(name)

    def _exists(self) -> ConfigError:
        return ConfigError(self._setting, str(self.folder), "exists already, and a data set never changes; give another name")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        shutil.rmtree(self._own, ignore_errors=True)

    @property
    def num_episodes(self) -> int:
        return self._counts[LENGTH]

    def add(self, episode: Mapping[str, Array]) -> None:
        """Append an episode: its columns (`columns_of`) but `length`; with states, also those of `state_columns`. Raises a
        `DataError` for what breaks their contract."""
        if {*episode} != {*self._columns} - {LENGTH}:
            due = ", ".join(sorted({*self._columns} - {LENGTH}))
            raise DataError(f"episode {self.num_episodes} has the columns {', '.join(sorted(episode))}; give {due}")
        arrays = {**episode, LENGTH: np.array([len(episode["action"])])}
        rows: dict[Unit, int] = {"observation": len(arrays["action"]) + 1, "step": len(arrays["action"]), "episode": 1}
        if STATE_END in self._columns:
            rows |= {"state": len(arrays[STATE_END]), "byte": len(arrays[STATE_BYTES])}
            self._check_states(np.asarray(arrays[STATE_STEP]), np.asarray(arrays[STATE_END]), rows)
            arrays[STATE_STEP] = np.asarray(arrays[STATE_STEP]) + self._counts["action"]
            arrays[STATE_END] = np.asarray(arrays[STATE_END]) + self._counts[STATE_BYTES]
        for name, column in self._columns.items():
            arrays[name] = self._checked(name, column, np.asarray(arrays[name]), rows[column.unit])
        over = arrays["terminated"] | arrays["truncated"]
        if not over[-1] or over[:-1].any():
            raise DataError(
                f"episode {self.num_episodes}: terminated or truncated must be true at its last step, and there only"
            )
        with told_if_refused(self.folder.parent, what="the data set was not written"):
            for name, array in arrays.items():
                self._files[name].write(np.ascontiguousarray(array).tobytes())
                self._counts[name] += len(array)

    def _check_states(self, steps: Array, ends: Array, rows: Mapping[Unit, int]) -> None:
        inside = all(0 <= t < rows["step"] for t in steps) and (np.diff(steps) > 0).all()
        if not inside or (np.diff(ends, prepend=0) < 1).any() or rows["byte"] != (ends[-1] if len(ends) else 0):
            told = f"their steps rise from 0 to {rows['step'] - 1} at most, and their ends to the number of all bytes"
            raise DataError(f"episode {self.num_episodes}, its states: {told} (rl.data.state_columns makes the columns)")

    def _checked(self, name: str, column: Column, array: Array, rows: int) -> Array:
        kind = _type_name(column.spec)
        where = f"episode {self.num_episodes}, column {name!r}"
        empty = column.unit == "step" and not rows
        if array.shape != (rows, *column.spec.shape) or empty:
            raise DataError(f"{where} is {list(array.shape)}; expected {[rows, *column.spec.shape]}, and at least one step")
        if not np.can_cast(array.dtype, kind, casting="same_kind"):
            raise DataError(f"{where} is of type {array.dtype}; give it as {kind}")
        with np.errstate(over="ignore"):  # what is too large for its type is not finite
            array = array.astype(kind, copy=False)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            step = int(np.argwhere(~np.isfinite(array))[0][0])
            raise DataError(f"{where} is not finite at entry {step}; a learner would break on it")
        return array

    def finish(self, **about: object) -> Dataset:
        """Complete the folder; `about` says where the data come from (run, version, seed, ...)."""
        if not self.num_episodes:
            raise DataError("a data set needs at least one episode; add one")
        with told_if_refused(self.folder.parent, what="the data set was not written"):
            for name, file in self._files.items():
                self._write_header(name)
                file.flush()
                os.fsync(file.fileno())
                file.close()
            columns = {name: self._about(name, column) for name, column in self._columns.items()}
            found: JsonObject = {"format": FORMAT, "source": self._source.as_data(), "spec": spec_as_data(self._spec)}
            found = json.loads(json.dumps(found | {"columns": columns}))
            told = {"episodes": self.num_episodes, "steps": self._counts["action"], "about": about}
            text = json.dumps({"digest": _digest(found), **told, **found}, indent=2)
            (self._own / MANIFEST).write_text(text + "\n", "utf-8")
            if os.path.lexists(self.folder):  # somebody else has made it meanwhile
                raise self._exists()
            self._own.rename(self.folder)
        return Dataset.open(self.folder)

    def _about(self, name: str, column: Column) -> JsonObject:
        shape, kind = list(column.spec.shape), _type_name(column.spec)
        return {"unit": column.unit, "dtype": kind, "shape": shape, "sha256": _checksum(self._own / _file_name(name))}

    def _write_header(self, name: str) -> None:
        """Write the head of a column. numpy leaves room in it for a longer first dimension, so it can be written again."""
        file, column = self._files[name], self._columns[name].spec
        file.seek(0)
        kind = np.lib.format.dtype_to_descr(np.dtype(_type_name(self._columns[name].spec)))
        head = {"descr": kind, "fortran_order": False, "shape": (self._counts[name], *column.shape)}
        np.lib.format.write_array_header_1_0(file, head)
