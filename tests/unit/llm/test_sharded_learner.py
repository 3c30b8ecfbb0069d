"""The token learner over ranks that keep a part of the model each (FSDP2): the step of one, any number of ranks on resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_tokens import demos, pairs
from ranks_apart import Peak, apart, channel_of, numbers, sharded
from test_token_algorithms import segments_of

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError
from runnel.core.sharding.batch_split import share_of
from runnel.core.sharding.param_shards import join_pieces
from runnel.flow.transports.shm import ShmChannel, anonymous_file
from runnel.llm.learning.learner import TokenLearnerConfig
from runnel.llm.learning.sharded import learner_class
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.sharded_model import ShardedModel
from runnel.run.checkpoint import read_part, write_parts

NAMES = ("grpo", "ppo", "sft", "dpo")


def batches(name: str, updates: int) -> tuple[str, list[Any]]:
    """Six groups of rows of other lengths for each update, so that ranks have other numbers of micro-batches."""
    rng, found = np.random.default_rng(7), []
    for _ in range(updates):
        made = {"dpo": lambda: {"pairs": [pairs(rng, 6)]}, "sft": lambda: {"demos": [demos(rng, 6)]}}
        ((reader, segments),) = made.get(name, lambda: segments_of(name, rng, 6))().items()
        found.append(segments)
    return reader, found


def train(ranks: Any, names: tuple[str, ...], saved: str = "", first: int = 0, changes: Any = None) -> dict[str, Any]:
    """One update of each algorithm, from a state that was `saved` by any number of ranks; metrics and the new state."""
    out = {}
    for name in names:
        reader, made = batches(name, first + 1)
        learner = sharded(ranks, name, reader, **(changes or {"micro_batch_tokens": 24}))
        if saved:
            states = [read_part(Path(saved), f"{name}-{i}") for i in range(len(list(Path(saved).glob(f"{name}-*.json"))))]
            learner.load_state_dict(join_pieces(states))
        mine = share_of(made[first], ranks.rank, ranks.world_size)
        metrics = learner.update(learner.prepare({reader: mine}, progress=0.0)).metrics
        out[name] = {"metrics": metrics, "state": _plain(learner.state_dict())}
    return out


def _plain(state: Any) -> Any:
    """A state whose tensors can go to another process."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.numpy().copy() if isinstance(state, torch.Tensor) else state


def _tensors(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    return torch.from_numpy(state) if isinstance(state, np.ndarray) else state


def weights(found: list[dict[str, Any]], name: str, kind: str = "model") -> torch.Tensor:
    """All weights (or moments) of all models that the ranks' states hold."""
    state = join_pieces([_tensors(one[name]["state"]) for one in found])
    models = [state[key] for key in ("policy", "critic", "reference") if state[key] is not None]
    return torch.cat([value[:].flatten() for model in models if kind in model for value in model[kind].values()])


def test_ranks_that_keep_parts_take_the_step_of_one_and_go_on_in_any_number(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone = [train(SingleProcess(), NAMES)]
    two = apart(2, train, NAMES)
    for name in NAMES:
        torch.testing.assert_close(weights(two, name), weights(alone, name), rtol=1e-6, atol=1e-8, msg=name)
        for key, value in alone[0][name]["metrics"].items():
            if key == "grad_norm" or key.startswith("loss/"):
                # a loss is a sum of float32 terms of both signs, and ranks add up other rows first: 1e-7 is their rounding
                assert two[1][name]["metrics"][key] == pytest.approx(value, rel=1e-5, abs=1e-7), (name, key)
        for rank, found in enumerate(two):
            write_parts(tmp_path, {f"{name}-{rank}": _tensors(found[name]["state"])})
    one_on = [train(SingleProcess(), NAMES, str(tmp_path), 1)]
    three_on = apart(3, train, NAMES, str(tmp_path), 1)
    for name in NAMES:
        for kind in ("model", "mean", "square"):
            torch.testing.assert_close(
                weights(three_on, name, kind), weights(one_on, name, kind), rtol=1e-5, atol=1e-8, msg=name
            )
        assert not torch.equal(weights(one_on, name), weights(two, name)), "it was trained further"


def test_ranks_that_would_share_a_gpu_are_refused() -> None:
    class Two(SingleProcess):
        world_size = 2

    with pytest.raises(ConfigError, match=r"device = 'cuda:0': with learner\.shard each rank has a GPU of its own; use cuda"):
        learner_class(TokenLearnerConfig(shard=True), Two(), "cuda:0")


PLACES = {"one node": (True, True, True), "a rank elsewhere": (True, False, True)}
"""Whether each rank shares the channel's memory; a rank that does not sends its rows to the leader."""


def publish(ranks: Any, pid: int, fds: tuple[int, ...]) -> list[Any]:
    """What each rank publishes and keeps, for each of `PLACES` into memory of its own."""
    return [_publish(ranks, channel_of(pid, fd), here) for fd, here in zip(fds, PLACES.values(), strict=True)]


def _publish(ranks: Any, channel: ShmChannel, here: tuple[bool, ...]) -> Any:
    """Two updates, each published by all ranks, in one memory or through the leader; what each kept, and the weight_check."""
    from runnel.core.clock import WallClock
    from runnel.core.worker import StageTimer
    from runnel.flow.workers.ranks import Ranks

    reader, made = batches("grpo", 2)
    learner = sharded(ranks, "grpo", reader, precision="float32", recompute="block", offload=("optimiser", "reference"))
    meeting, kept = Ranks(ranks, StageTimer(WallClock()), "trainer"), {}
    for version, segments in enumerate(made, start=1):
        learner.update(learner.prepare({reader: share_of(segments, ranks.rank, ranks.world_size)}, progress=0.0))
        meeting.write(learner, channel, version, here=here[ranks.rank])
        ranks.gather([1.0])
        if ranks.rank == 0:
            channel.commit(version)
        kept[version] = numbers(learner.pieces())
    return kept


@pytest.fixture(scope="module")
def published() -> dict[str, tuple[ShmChannel, list[Any]]]:
    """By place, the channel and what each of three ranks kept; the ranks are started once for all places."""
    fds = tuple(anonymous_file(f"params-{i}") for i in range(len(PLACES)))
    kept = apart(3, publish, os.getpid(), fds)
    channels = [channel_of(os.getpid(), fd) for fd in fds]
    return {place: (channels[i], [one[i] for one in kept]) for i, place in enumerate(PLACES)}


@pytest.mark.parametrize("place", PLACES)
def test_every_rank_writes_its_rows_where_engines_read_them(
    place: str, published: dict[str, tuple[ShmChannel, list[Any]]]
) -> None:
    channel, found = published[place]
    for version in (1, 2):
        params = channel.get(version)
        assert params is not None, "its checksum holds"
        whole = join_pieces([_tensors(one[version]) for one in found])
        for name, rows in whole.items():
            torch.testing.assert_close(params.params[name], rows[:], rtol=0, atol=0)
    assert params.params["proof/sizes"].min() > 0, "what the leader says of some tokens is published too"
    assert not torch.equal(channel.views(1)["model.norm.weight"], channel.views(2)["model.norm.weight"])


SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=24)
LARGE = ModelConfig(layers=4, width=512, heads=4, kv_heads=4, inner=1408)
"""Some 52 MB in float32."""


def model_of(ranks: Any, seed: int) -> ShardedModel:
    """A large model of this rank's rows."""
    model = ShardedModel(build_model(LARGE, 64, seed=seed), mesh=ranks.mesh)
    assert model.root is not None
    return model


def give(ranks: Any, pid: int, fd: int) -> Any:
    """Publish a version that no rank has the whole of; bytes of the largest growth."""
    model, channel = model_of(ranks, 3), channel_of(pid, fd)
    if ranks.rank == 0:
        channel.open(1, model.param_shards())
    ranks.gather([1.0])
    with Peak() as peak:
        channel.write(1, model.param_shards())
    ranks.gather([1.0])
    return peak.bytes


def take(ranks: Any, pid: int, fd: int) -> Any:
    """Take this rank's rows of the version; bytes of the largest growth, and a sum over the rows."""
    model, channel = model_of(ranks, 4), channel_of(pid, fd)
    params = channel.views(1)
    with Peak() as peak:
        model.start_from(params)
    return peak.bytes, sum(float(piece.value.double().sum()) for piece in model.param_shards().values())


def test_weights_go_from_two_ranks_to_three_without_a_full_copy_on_any() -> None:
    """Each touches its own rows of the published version, and little else."""
    fd = anonymous_file("params")
    whole = build_model(LARGE, 64, seed=3).requires_grad_(False)
    size = sum(p.numel() * 4 for p in whole.parameters())
    given = apart(2, give, os.getpid(), fd)
    channel = channel_of(os.getpid(), fd)
    channel.commit(1)
    taken = apart(3, take, os.getpid(), fd)
    assert size > 50e6
    for grown in given:
        assert grown < 0.5 * size + 4e6, f"{grown / 1e6:.0f} MB of {size / 1e6:.0f}"
    for grown, _ in taken:
        assert grown < 0.34 * size + 4e6, f"{grown / 1e6:.0f} MB of {size / 1e6:.0f}"
    assert sum(found for _, found in taken) == pytest.approx(sum(float(p.double().sum()) for p in whole.parameters()), rel=1e-9)


def follow(ranks: Any) -> Any:
    """A moving average of a model in half precision, after 50 steps of 1 %: where it began, the model, and where it is."""
    model = ShardedModel(build_model(SIZES, 40, seed=1), mesh=ranks.mesh, precision="bfloat16")
    average = model.frozen_copy(moves=True)
    assert model.root is not None
    assert average.root is not None, "from here on it has values"
    start = numbers(average.param_shards())
    with torch.no_grad():
        for parameter in model.root.parameters():
            parameter.add_(0.2)
    for _ in range(50):
        average.move_towards(model, 0.01)
    return start, numbers(model.param_shards()), numbers(average.param_shards())


def test_a_moving_average_in_half_precision_is_the_one_that_numpy_makes() -> None:
    ((start, model, found),) = apart(1, follow)
    for name, begun in start.items():
        share = 1.0 - 0.99**50
        expected = begun["piece"] + share * (model[name]["piece"] - begun["piece"])
        np.testing.assert_allclose(found[name]["piece"], expected, atol=1e-5)
        assert found[name]["piece"].dtype == np.float32
