"""Every setting counts or is refused: the smallest run of a recipe with one setting changed, beside the same run without.

A run is made in process and without files. A setting has to change what its workers say, or the weights (`heard`). Settings
that by their nature move no number (time limits, memory) have to arrive in the objects that are built (`wired`), settings of
placement in the graph (`placed`). What none of these can show is named by the tests, with where it is shown.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runnel.core.clock import ManualClock
from runnel.core.config import hints_of, override
from runnel.core.errors import ConfigError, RunnelError, UnusedSettingError
from runnel.graphs.experiment import Experiment, describe
from runnel.graphs.run_config import one_budget
from runnel.run import registry
from runnel.run.group import ProcessGroup
from runnel.run.wiring import place, wire

ROUNDS = 2_000
DEPTH = 9
TESTS = Path(__file__).parents[2]


@dataclass(frozen=True)
class Try:
    """How a setting is shown to count: another value (None: one that is obvious from its type), beside other settings, seen in
    what is `heard`, `wired` or `placed`."""

    value: Any = None
    given: Mapping[str, Any] = field(default_factory=dict)
    seen: typing.Literal["heard", "wired", "placed"] = "heard"


@dataclass(frozen=True)
class Outcome:
    """What a run was made of and said; or how it was refused."""

    heard: str = ""
    wired: Mapping[str, str] = field(default_factory=dict)
    placed: str = ""
    refused: ConfigError | None = None


def check_field(recipe: str, path: str, base: Mapping[str, Any], tries: Mapping[str, Try], refused: Mapping[str, str]) -> None:
    """One setting of a recipe, changed, counts or is refused by name. `refused` names settings that have a refusal of their
    own; otherwise only an `UnusedSettingError` is one, so that a value that merely cannot work proves nothing."""
    how = tries.get(path, Try())
    settings = {**base, **how.given}
    config = override(registry.load_recipe(recipe).Config(), settings)
    hint, now = next((hint, value) for name, _, hint, value in fields_of(config) if name == path)
    value = changed(hint, now) if how.value is None else how.value
    assert value != now, f"{path} is {value!r} already"
    before = outcome(recipe, how.seen, **settings)
    after = outcome(recipe, how.seen, **{**settings, path: value})
    assert before.refused is None, before.refused
    if after.refused is not None:
        kind = ConfigError if path in refused else UnusedSettingError
        assert isinstance(after.refused, kind), f"not refused as unused, but: {after.refused}"
        assert after.refused.field == path
        return
    assert getattr(after, how.seen) != getattr(before, how.seen), f"{path} = {value!r} (was {now!r}) changes nothing"


def fields_of(config: Any, path: str = "") -> Iterator[tuple[str, type, Any, Any]]:
    """Dotted name, owning class, annotation and value of every setting, depth first."""
    hints = hints_of(type(config))
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from fields_of(value, f"{path}{f.name}.")
        else:
            yield f"{path}{f.name}", type(config), hints[f.name], value


def names_of(recipe: str) -> list[str]:
    """The settings of a recipe."""
    return [name for name, *_ in fields_of(registry.load_recipe(recipe).Config())]


def check_shown(elsewhere: Mapping[str, str]) -> None:
    """Each setting that is said to be shown by a test elsewhere is spoken of there."""
    for path, test in elsewhere.items():
        assert path.rpartition(".")[2] in (TESTS / test).read_text(), f"{test} says nothing of {path}"


def changed(hint: Any, value: Any) -> Any:
    """Another value of the same type, where there is an obvious one; what has none is in the tables of the tests."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return next(v for v in typing.get_args(hint) if v != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 if value else 0.5
    if origin in (typing.Union, types.UnionType) and value is None and float in typing.get_args(hint):
        return 0.5
    raise LookupError(f"no other value is obvious for {hint}; say one in the table of the test")


def outcome(recipe: str, seen: str, **settings: Any) -> Outcome:
    """The run of `recipe` with `settings` (dotted names), as far as it is looked at."""
    return _outcome(recipe, seen, repr(sorted(settings.items())), _Settings(settings))


class _Settings(dict[str, Any]):
    """Settings that are known by their text, beside them."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


@functools.lru_cache(maxsize=64)
def _outcome(recipe: str, seen: str, text: str, settings: _Settings) -> Outcome:
    try:
        config = one_budget(override(registry.load_recipe(recipe).Config(), settings), settings)
        experiment = registry.build(recipe, config)
    except ConfigError as error:
        return Outcome(refused=error)
    if seen == "placed":
        return Outcome(placed=describe(experiment, place(experiment)))
    group = wire(experiment, {"main": experiment.worker_names()}, "main", clock=ManualClock())
    try:
        if seen == "wired":
            return Outcome(wired=dict(built([*group.workers, *experiment.policy()])))
        return Outcome(heard=play(experiment, group))
    finally:
        group.close()


def play(experiment: Experiment, group: ProcessGroup, states: Mapping[str, Any] | None = None) -> str:
    """A digest of all that the workers of a whole run say, or of its rest from a saved moment on, and of the weights at its
    end."""
    trainer = group.trainer
    assert trainer is not None
    digest = hashlib.sha256()
    try:
        group.start(states, epoch=0 if states is None else 1)
        for _ in range(ROUNDS):
            group.round()
            _add(digest, group)
            if trainer.progress >= 1.0:
                break
        else:
            raise AssertionError("the run does not end")
        group.evaluate()
        _add(digest, group)
        params = trainer.learner.params()
        for name in sorted(params):
            digest.update(name.encode() + params[name].detach().to(torch.float32).numpy().tobytes())
    except RunnelError as error:  # a bound that stops the run is a setting that counts
        digest.update(type(error).__name__.encode())
    return digest.hexdigest()


def _add(digest: Any, group: ProcessGroup) -> None:
    for event in group.collect():
        digest.update(_plain(event).encode())


def _plain(value: Any) -> str:
    """An event without what time touches, as text."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_plain(v)}" for k, v in sorted(value.items()) if "time" not in k and "_s" not in k) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_plain, value)) + "]"
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return repr(value)


def built(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, str]]:
    """Plain values that objects of ours hold, by where they hold them. A config that is merely kept is not looked into: that
    it is there says nothing of its use."""
    seen = set() if seen is None else seen
    if isinstance(value, bool | int | float | str | torch.device | torch.dtype | None):
        yield path, repr(value)
        return
    if id(value) in seen or path.count(".") > DEPTH or isinstance(value, types.FunctionType | types.MethodType):
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from built(item, f"{path}.{i}", seen)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str | int):
                yield from built(item, f"{path}.{key}", seen)
    elif type(value).__module__.startswith("runnel") and not type(value).__name__.endswith("Config"):
        yield f"{path}:", type(value).__name__
        names = list(getattr(value, "__dict__", {})) + [s for c in type(value).__mro__ for s in getattr(c, "__slots__", ())]
        for name in names:
            if "config" not in name and hasattr(value, name):
                yield from built(getattr(value, name), f"{path}.{name}", seen)
