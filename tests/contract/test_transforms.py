"""Every transform keeps the same promises, and the check finds those that do not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path += [str(Path(__file__).parents[1] / "unit" / folder) for folder in ("flow", "run")]
from fakes_flow import FakeStore
from fakes_plural import Archive, Label, judge

import runnel as rl
from runnel.core.records import FieldSpec, Slot, StreamSpec
from runnel.core.resolve import load_module
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream
from runnel.flow.staleness import ReplayRatioRule
from runnel.flow.workers.buffer import ReplayBuffer
from runnel.flow.workers.transform import StatelessTransform
from runnel.testing.transforms import check_transform

EXAMPLES = Path(__file__).parents[2] / "examples"
RATIO = ReplayRatioRule(ratio=0.25, min_fill=10, segment_steps=10)
PLAY = StreamSpec("play", {"y": FieldSpec(("T",))}, {"T": 2, "B": 1}, readers=("trainer", "me"), capacity=4)


def fill(slot: Slot, rng: np.random.Generator) -> int:
    """Plausible values for every field: random numbers, zeros for indices."""
    for x in slot.arrays.values():
        x.copy_(torch.from_numpy(rng.random(tuple(x.shape))).to(x.dtype))
    slot.header.used = dict.fromkeys(slot.spec.variable, 0)
    return 10


def fake_replay() -> list[str]:
    read = StreamSpec("trajectories", {"x": FieldSpec(("B",))}, {"B": 2}, readers=("me",))
    feedback = {"priority": FieldSpec(("B",))}
    written = StreamSpec("replay", {"x": FieldSpec(("B",))}, {"B": 2}, feedback=feedback)

    def make() -> ReplayBuffer:
        return ReplayBuffer(store=FakeStore(capacity=3), policy=RATIO, rng=make_rng(1, "buffer"))

    return check_transform(make, reads={"trajectories": fill}, streams=[read, written], writes=["replay"], name="me")


def real_replay() -> list[str]:
    env = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))
    read = trajectory_stream(env, num_steps=10, num_envs=2, logprob=False, reader="me")

    def make() -> ReplayBuffer:
        store = ReplayStore(ReplayConfig(capacity=100), env, source=read, gamma=0.9)
        return ReplayBuffer(store=store, policy=RATIO, rng=make_rng(1, "buffer"))

    streams = [read, replay_stream(env, batch_size=4)]
    return check_transform(make, reads={"trajectories": fill}, streams=streams, writes=["replay"], name="me")


def label() -> list[str]:
    fields = {"worth": FieldSpec(("B",)), "parent": FieldSpec(("B",), torch.int64)}
    labels = StreamSpec("labels", fields, {"B": 1}, readers=("critic",), capacity=3)
    asks = {"judge": judge}
    return check_transform(Label, reads={"play": fill}, streams=[PLAY, labels], writes=["labels"], asks=asks, name="me")


def archive(*, lossy: bool = False, make: Callable[[], Any] = Archive) -> list[str]:
    spec = StreamSpec("play", PLAY.fields, PLAY.sizes, readers=("trainer",), lossy_readers=("me",)) if lossy else PLAY
    return check_transform(make, reads={"play": fill}, streams=[spec], name="me")


def example() -> list[str]:
    module = load_module(str(EXAMPLES / "intrinsic_reward.py"), "example")
    e = module.build(module.Config(num_envs=2, num_steps=4, label_rows=6))
    asks = {"judge": lambda: rl.flow.FunctionInferencer(module.judge)}
    reads = {"trajectories": fill}
    return check_transform(module.Labels, reads=reads, streams=e.streams, writes=["labels"], asks=asks, name="labels")


TRANSFORMS: Mapping[str, Callable[[], list[str]]] = {
    "replay of fake rows": fake_replay,
    "replay": real_replay,
    "labels": label,
    "archive": archive,
    "lossy archive": lambda: archive(lossy=True),
    "the example": example,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_keeps_its_promises(name: str) -> None:
    assert TRANSFORMS[name]() == []


# ------------------------------------------------------------------------------------------ the check finds what is wrong
class Forgets(Archive):
    """Takes segments, and says that it holds nothing."""

    def held(self) -> Mapping[str, int]:
        return {}


class KeepsNoState(Archive):
    """Has a state that it does not save."""

    def snapshot(self) -> dict[str, Any]:
        return {"total": 0.0, "seen": [], "rows": 0}


class Silent(Archive):
    waiting = ""


class Endless(StatelessTransform):
    def step(self, readers: Any, clients: Any, writers: Any, *, timer: Any) -> int:
        return 1


@pytest.mark.parametrize(
    ("make", "broken"),
    [
        (Forgets, "rows_add_up: 'me' holds 0 rows of stream 'play', but its account says 1"),
        (KeepsNoState, "a_snapshot_goes_on"),
        (Silent, "it_waits_in_words: waits_for() is empty"),
        (Endless, "it_waits_in_words: step() still returned work after 1000 steps"),
    ],
)
def test_the_check_finds_what_is_broken(make: Callable[[], Any], broken: str) -> None:
    assert any(text.startswith(broken) for text in archive(make=make)), archive(make=make)
