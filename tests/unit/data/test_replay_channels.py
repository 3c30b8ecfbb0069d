"""Replay keeps every reward and cost by name, over one step and over several; a view makes one reward of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Header, Segment, Slot, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, Channels, EnvSpec
from runnel.core.trajectories import trajectory_stream, weighted_reward
from runnel.data.replay import ReplayConfig, ReplayStore, replay_stream
from runnel.data.sequences import SequenceStore, sequence_stream
from runnel.envs.channels import ChannelsConfig

CHANNELS = Channels(rewards=("forward",), costs=("hazard",))
NAMES = ("rewards/env", "rewards/forward", "costs/hazard")
SPEC = EnvSpec({"obs": ArraySpec((1,))}, ActionSpec("discrete", num_actions=2), channels=CHANNELS)
SOURCE = trajectory_stream(SPEC, num_steps=6, num_envs=3, logprob=False)


def segment(seed: int) -> Segment:
    """Random numbers in every channel; each observation is a number of its own, and some episodes end."""
    rng, arrays = make_rng(seed, "channels"), SOURCE.allocate()
    arrays["obs"].copy_(1000.0 * seed + torch.arange(21.0).view(7, 3, 1))
    for name in NAMES:
        arrays[name].copy_(torch.from_numpy(rng.normal(size=(6, 3))))
    ends = torch.from_numpy(rng.random((6, 3)))
    arrays["terminated"].copy_(ends < 0.15)
    arrays["truncated"].copy_((ends >= 0.15) & (ends < 0.3))
    index = (ends < 0.3).flatten().nonzero().flatten()
    arrays["final_index"][: len(index)] = index
    used = {"F": len(index)}
    return Segment(0, SOURCE, Header(used=used), trim(SOURCE, arrays, used))


def sums(segment: Segment, name: str, n: int) -> dict[float, float]:
    """What a channel sums up to over n steps, by the observation at which they begin, step by step."""
    a, found = segment.arrays, {}
    for t in range(6):
        for b in range(3):
            total = 0.0
            for k in range(t, min(t + n, 6)):
                total += 0.9 ** (k - t) * a[name][k, b].item()
                if a["terminated"][k, b] or a["truncated"][k, b]:
                    break
            found[a["obs"][t, b, 0].item()] = total
    return found


@pytest.mark.parametrize("n", [1, 3])
def test_transitions_have_every_channel(n: int) -> None:
    store = ReplayStore(ReplayConfig(capacity=36, prioritised=False, n_step=n), SPEC, source=SOURCE, gamma=0.9)
    expected: dict[str, dict[float, float]] = {name: {} for name in NAMES}
    for seed in (1, 2):
        store.insert(segment(seed))
        for name in NAMES:
            expected[name] |= sums(segment(seed), name, n)
    stream = replay_stream(SPEC, batch_size=200)
    slot = Slot(0, stream, Header(), stream.allocate())
    store.sample(slot, make_rng(0))
    obs = slot.arrays["obs"][:, 0].tolist()
    assert len(set(obs)) > 30
    for name in NAMES:
        np.testing.assert_allclose(slot.arrays[name].numpy(), [expected[name][x] for x in obs], rtol=1e-5, atol=1e-6)
    twin = ReplayStore(ReplayConfig(capacity=36, prioritised=False, n_step=n), SPEC, source=SOURCE, gamma=0.9)
    twin.restore(store.snapshot())
    again = Slot(0, stream, Header(), stream.allocate())
    twin.sample(again, make_rng(0))
    assert all(torch.equal(x, again.arrays[k]) for k, x in slot.arrays.items())


def test_sequences_have_every_channel() -> None:
    store = SequenceStore(ReplayConfig(capacity=18, prioritised=False), SPEC, source=SOURCE, gamma=0.9)
    store.insert(segment(1))
    stream = sequence_stream(SOURCE, batch_size=8)
    slot = Slot(0, stream, Header(), stream.allocate())
    store.sample(slot, make_rng(0))
    rows = (slot.arrays["obs"][0, :, 0] - 1000.0).long()
    for name in NAMES:
        assert torch.equal(slot.arrays[name], segment(1).arrays[name][:, rows])


def test_a_view_makes_one_reward_of_the_channels() -> None:
    written = segment(1)
    view = weighted_reward({"rewards/env": 1.0, "rewards/forward": 0.5, "costs/hazard": -2.0})
    assert view is not None
    before, a = written.arrays.map(torch.clone), written.arrays
    seen = view(written).arrays
    expected = a["rewards/env"] + 0.5 * a["rewards/forward"] - 2.0 * a["costs/hazard"]
    torch.testing.assert_close(seen["rewards/env"], expected)
    assert all(torch.equal(x, before[k]) for k, x in a.items()), "rows of a stream are never changed"
    assert view(written).arrays["rewards/env"].data_ptr() == seen["rewards/env"].data_ptr()
    assert weighted_reward({}) is None


def test_what_the_view_carries_is_weighted_likewise() -> None:
    carried = {
        f"carried_{k}": torch.full((3,), x) for k, x in (("return", 2.0), ("rewards/forward", 4.0), ("costs/hazard", 1.0))
    }
    view = weighted_reward({"rewards/env": 1.0, "rewards/forward": 0.5, "costs/hazard": -2.0})
    assert view is not None
    seen = view(Segment(0, SOURCE, Header(), Batch(segment(1).arrays | carried)))
    assert seen.arrays["carried_return"].tolist() == [2.0, 2.0, 2.0]


def test_weights_of_what_there_is_not_are_refused() -> None:
    config = ChannelsConfig(rewards=("forward",), weights={"costs/hazrd": -1.0})
    with pytest.raises(ConfigError, match=r"no channel 'costs/hazrd'; there are rewards/env.*--channels.costs hazrd") as caught:
        config.check_weights(CHANNELS)
    assert caught.value.field == "channels.weights"
    with pytest.raises(ConfigError, match="must be a finite number"):
        ChannelsConfig(weights={"costs/hazard": float("nan")}).check_weights(CHANNELS)
    for wrong in ({"rewards": ("a", "a")}, {"costs": ("",)}, {"rewards": ("env",)}):
        with pytest.raises(ConfigError, match=r"channels\.(rewards|costs)"):
            ChannelsConfig(**wrong).check()
