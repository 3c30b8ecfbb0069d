"""What a replay memory takes, against what its check said before: bytes of its arrays, and pages of the process."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_rows import Player

from runnel.core.errors import ConfigError
from runnel.core.records import Header, Segment, StreamSpec, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream
from runnel.envs.registry import make_vector, probe_env

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are counted in /proc")


def env_of(shape: tuple[int, ...], stack: int = 0) -> EnvSpec:
    return EnvSpec({"obs": ArraySpec(shape, torch.uint8, stack)}, ActionSpec("discrete", num_actions=4))


def source_of(spec: EnvSpec, num_steps: int = 32, num_envs: int = 2) -> StreamSpec:
    return trajectory_stream(spec, num_steps=num_steps, num_envs=num_envs, logprob=False)


def store_of(spec: EnvSpec, source: StreamSpec, num_slots: int, **kwargs: Any) -> ReplayStore:
    config = ReplayConfig(capacity=num_slots * source.sizes["T"] * source.sizes["B"], **kwargs)
    return ReplayStore(config, spec, source=source, gamma=0.9)


def played(name: str, num_segments: int) -> tuple[EnvSpec, StreamSpec, list[Segment]]:
    """Segments of a random policy on an environment."""
    spec, rng = probe_env(name), np.random.default_rng(0)
    source = source_of(spec)
    vector, made = make_vector(name, 2, seed=1), []
    out = vector.reset()
    for _ in range(num_segments):
        arrays, ends = source.allocate(), 0
        for t in range(source.sizes["T"]):
            arrays["obs"][t] = out.obs["obs"]
            out = vector.step(torch.from_numpy(rng.integers(0, spec.action.num_actions, 2)))
            arrays["terminated"][t], arrays["truncated"][t] = out.terminated, out.truncated
            for f, row in enumerate(out.final_rows or []):
                arrays["final_index"][ends], arrays["final_obs"][ends] = t * 2 + row, out.final_obs["obs"][f]
                ends += 1
        arrays["obs"][-1] = out.obs["obs"]
        used = {"F": ends}
        made.append(Segment(0, source, Header(used=used), trim(source, arrays, used)))
    vector.close()
    return spec, source, made


@pytest.mark.parametrize(
    ("name", "needs", "num_segments"), [("atari:Breakout", "ale_py", 6), ("MinAtar/Breakout-v1", "minatar", 16)]
)
def test_games_take_what_was_predicted(name: str, needs: str, num_segments: int) -> None:
    """The random policy, of which episodes are shortest: one of 32 steps on Breakout, of 10 on MinAtar's."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    spec, source, segments = played(name, num_segments)
    store = store_of(spec, source, num_segments // 2)
    for segment in segments:
        store.insert(segment)
    assert store.num_bytes == pytest.approx(store.planned_bytes, rel=0.1)
    raw = sum(x.nbytes for x in (s.arrays["obs"].numpy() for s in segments[: num_segments // 2]))
    assert store.num_bytes < (1.25 * raw / 4 if spec.obs["obs"].stack else 1.25 * raw)


def resident() -> int:
    """Bytes of memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


KINDS = {
    "stack of frames": (env_of((4, 84, 84), 4), 1 / 30),
    "stack of colour frames": (env_of((12, 42, 42), 4), 1 / 30),
    "colour image": (env_of((3, 84, 84)), 1 / 30),
    "planes of a board": (env_of((4, 42, 42)), 1 / 20),
}


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_the_process_grows_by_what_was_predicted(kind: str) -> None:
    """Two and a half times round the ring, over 40 MB; the segments are made before, and used again and again."""
    spec, end_chance = KINDS[kind]
    source = source_of(spec)
    player = Player(spec, source, 0, end_chance=end_chance)
    segments = [player.segment()[0] for _ in range(3)]
    per_slot = source.sizes["T"] * 2 * int(np.prod(spec.obs["obs"].shape)) // (spec.obs["obs"].stack or 1)
    num_slots = (40 << 20) // per_slot
    gc.collect()  # what earlier tests left would go in between
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # freed memory that this process has kept (`kernels/host_memory.py`) would be used again, and not grow it
    stores = []
    for _ in range(2):  # what is free in between blocks that are in use goes to the first one, and the second is measured
        before = resident()
        stores.append(store := store_of(spec, source, num_slots))
        for i in range(5 * num_slots // 2):
            store.insert(segments[i % 3])
    grown = resident() - before
    assert grown == pytest.approx(store.planned_bytes, rel=0.1)
    assert store.num_bytes == pytest.approx(grown, rel=0.1)


def drawn(store: ReplayStore, spec: EnvSpec) -> dict[str, torch.Tensor]:
    from runnel.core.records import Slot

    stream = replay_stream(spec, batch_size=64)
    slot = Slot(0, stream, Header(), stream.allocate())
    store.sample(slot, make_rng(3))
    return dict(slot.arrays.items())


def test_a_ring_that_grows_keeps_what_it_holds() -> None:
    """Episodes become short after the ring has turned: it grows in the middle of a lap, by little, and nothing is lost."""
    spec = env_of((2, 6, 6), 2)
    source = source_of(spec, num_steps=8, num_envs=2)
    store, plain = store_of(spec, source, 20), store_of(spec, source, 20, compress_frames=False)
    player = Player(spec, source, 1, end_chance=0.05)
    sizes = []
    for i in range(90):
        player.end_chance = 0.05 if i < 50 else 0.9
        segment = player.segment()[0]
        for memory in (store, plain):
            memory.insert(segment)
        assert all(torch.equal(a, b) for a, b in zip(drawn(store, spec).values(), drawn(plain, spec).values(), strict=True))
        frames = store._leaves["obs"]._frames  # type: ignore[attr-defined]
        sizes.append(frames.size)
        assert frames.size <= max([*sizes[-2:-1], frames.stop - frames.first]) * 1.05 + 16
    assert sizes[-1] > 1.3 * sizes[40]


def test_episodes_too_short_for_the_plan_are_refused_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan counts an end in 32 steps. At one a step, twice as much is needed; the first segments show it."""
    spec = env_of((3, 20, 20))
    source = source_of(spec, num_steps=4, num_envs=2)
    store = store_of(spec, source, 400, mmap_bytes=1 << 40)
    monkeypatch.setattr("runnel.data.memory.free_memory", lambda: int(1.3 * store.planned_bytes))
    player = Player(spec, source, 0, end_chance=2.0)
    for _ in range(6):
        store.insert(player.segment()[0])
    seventh = player.segment()[0]
    with pytest.raises(ConfigError, match=r"replay\.capacity = 3200: episodes of 1\.\d steps .* GiB.*use at most \d+"):
        store.insert(seventh)


@pytest.mark.parametrize("prioritised", [True, False])
def test_a_checkpoint_that_kept_planes_as_frames_is_read(prioritised: bool) -> None:
    """As replay did before it knew a stack from an image: planes of a board and colours were kept as frames of a stack."""
    known, image = env_of((4, 6, 6), 4), env_of((4, 6, 6))
    source = source_of(image, num_steps=4, num_envs=2)
    old = store_of(known, source, 5, prioritised=prioritised)
    new = store_of(image, source, 5, prioritised=prioritised)
    player = Player(known, source, 0, end_chance=0.4)
    for _ in range(7):
        old.insert(player.segment()[0])
    new.restore(old.snapshot())
    for _ in range(6):
        assert all(torch.equal(a, b) for a, b in zip(drawn(old, known).values(), drawn(new, image).values(), strict=True))
        segment = player.segment()[0]
        old.insert(segment)
        new.insert(segment)


def test_a_checkpoint_of_another_layout_is_refused() -> None:
    """A stack of colour frames was kept as single planes; what was kept whole is no stack either."""
    source = source_of(env_of((6, 6, 6)), num_steps=4, num_envs=2)
    player = Player(env_of((6, 6, 6)), source, 0)
    segment = player.segment()[0]
    for old_stack in (0, 6):
        old, new = (store_of(env_of((6, 6, 6), k), source, 5) for k in (old_stack, 2))
        old.insert(segment)
        with pytest.raises(ConfigError, match=r"replay\.compress_frames = True: .*'obs'.*compress_frames=false"):
            new.restore(old.snapshot())
