"""Whole segments of tensor environments: what is in them, that they can be resumed, and what the sampler waits for."""

import pytest
import torch
from fake_streams import FakeClient, FakeWriter, by_noise, continuous

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.device import Acrobot, CartPole, FourRooms, MountainCar, Pendulum, TensorVector
from runnel.envs.device.episodes import SEGMENT_RECORDS, carried, ended_episodes
from runnel.envs.device.sampler import DeviceSampler

ENVS = {"cartpole": CartPole, "pendulum": Pendulum, "acrobot": Acrobot, "car": MountainCar, "rooms": FourRooms}


class InTensors:
    """An environment without its numpy form: its vector works as on a device."""

    def __init__(self, env):
        self.name, self.spec, self.max_steps = env.name, env.spec, env.max_steps
        self.initial, self.transition, self.observe = env.initial, env.transition, env.observe


class Short(CartPole):
    """A CartPole that is truncated every 7 steps."""

    max_steps = 7


def build(env=CartPole, *, in_tensors=True, steps=20, envs=4, seed=0, required=lambda k: -1, device="cpu", capacity=2):
    made = InTensors(env()) if in_tensors else env()
    vector = TensorVector(made, envs, seed=seed, index0=100, device=device)
    sampler = DeviceSampler(vector, routes=[AgentRoute()], noise_size=1, seed=seed, name="a")
    spec = trajectory_stream(made.spec, num_steps=steps, num_envs=envs, device=device, capacity=capacity)
    return sampler, FakeWriter(spec, required)


def drive(sampler, writer, client, num=4):
    while len(writer.committed) < num:
        sampler.step({"policy": client}, {"trajectories": writer})
    return [x for _, x in writer.committed[:num]]


def policy_for(env):
    return continuous if env().spec.action.kind == "continuous" else by_noise


@pytest.mark.parametrize("in_tensors", [False, True])
@pytest.mark.parametrize("name", ENVS)
def test_a_segment_is_what_was_played(name, in_tensors):
    env = ENVS[name]()
    sampler, writer = build(ENVS[name], in_tensors=in_tensors, steps=40)
    assert isinstance(sampler, Sampler)
    client = FakeClient(policy_for(ENVS[name]), direct=True, published=3)
    segments = drive(sampler, writer, client, 6)
    time = torch.zeros(4, dtype=torch.long)
    for k, x in enumerate(segments):
        over = x["terminated"] | x["truncated"]
        assert (x["policy_version"] == 3).all()
        assert x["logprob"].shape == (40, 4)
        if k:
            assert torch.equal(x["obs"][0], segments[k - 1]["obs"][-1])
        final = dict(zip(x["final_index"].tolist(), x["final_obs"], strict=True))
        for t in range(40):
            time += 1
            assert torch.equal(x["truncated"][t], time >= env.max_steps)
            for b in over[t].nonzero()[:, 0].tolist():
                if x["truncated"][t, b] or not in_tensors:
                    assert not torch.equal(final[t * 4 + b], x["obs"][t + 1, b])
            time[over[t]] = 0
    _follows(env, segments)
    header = writer.committed[0][0]
    assert (header.version_min, header.version_max) == (3, 3)


def _follows(env, segments):
    """Where the observation is the state, each one follows from the one before."""
    for x in segments:
        if "state" not in env.initial(1, torch.Generator()):
            continue
        over = x["terminated"] | x["truncated"]
        final = dict(zip(x["final_index"].tolist(), x["final_obs"], strict=True))
        for t in range(len(over)):
            want, reward, terminated = env.transition({"state": x["obs"][t]}, x["action"][t])
            assert torch.equal(terminated, x["terminated"][t])
            assert torch.allclose(reward, x["rewards/env"][t])
            assert torch.allclose(want["state"][~over[t]], x["obs"][t + 1][~over[t]], atol=1e-6)
            for b in x["truncated"][t].nonzero()[:, 0].tolist():
                assert torch.allclose(want["state"][b], final[t * 4 + b], atol=1e-6)


def test_final_observations_in_tensors_are_those_of_truncated_episodes():
    sampler, writer = build(MountainCar, steps=64)
    segments = drive(
        sampler,
        writer,
        FakeClient(lambda rows: Batch(action=by_noise(rows)["action"] * 2, logprob=rows["noise"][:, 0]), direct=True),
    )
    for k, x in enumerate(segments):
        assert writer.committed[k][0].used == {"F": 4}
        cut = x["truncated"].any(0)
        assert cut.all() if k == 3 else not cut.any()  # 200 = 3 * 64 + 8
        place = x["final_index"]
        assert place.tolist() == [(7 if k == 3 else 63) * 4 + b for b in range(4)]
        if k < 3:
            assert torch.equal(x["final_obs"], x["obs"][-1])
    assert [e["return"] for e in sampler.events()] == [-200.0] * 4


def test_several_truncations_in_a_segment_make_it_dense():
    sampler, writer = build(Short, steps=20)
    (x,) = drive(sampler, writer, FakeClient(direct=True), 1)
    assert x["final_index"].tolist() == list(range(80))
    assert x["truncated"].sum(0).max() == 2
    _follows(Short(), [x])


@pytest.mark.parametrize("in_tensors", [False, True])
def test_episodes_of_segments(in_tensors):
    sampler, writer = build(in_tensors=in_tensors, steps=25)
    segments = drive(sampler, writer, FakeClient(direct=True), 5)
    over = torch.cat([x["terminated"] | x["truncated"] for x in segments])
    reward = torch.cat([x["rewards/env"] for x in segments])
    want, total, length = [], [0.0] * 4, [0] * 4
    for t in range(len(over)):
        for b in range(4):
            total[b], length[b] = total[b] + reward[t, b].item(), length[b] + 1
            if over[t, b]:
                want.append({"kind": "episode", "return": total[b], "length": length[b], "env": 100 + b})
                total[b], length[b] = 0.0, 0
    assert len(want) > 5
    assert sampler.events() == want
    assert sampler.events() == []


def test_records_of_a_segment_without_the_host():
    generator = torch.Generator().manual_seed(0)
    reward, over = torch.rand(30, 50, generator=generator), torch.rand(30, 50, generator=generator) < 0.5
    rewards = [reward, 1.0 - reward]  # the second is a cost
    totals, length = [torch.arange(50.0).double(), torch.full((50,), 7.0).double()], torch.arange(50)
    want, sums, steps = [], torch.stack(totals), length.clone()
    for t in range(30):
        sums, steps = sums + torch.stack([x[t] for x in rewards]), steps + 1
        want += [(b, *sums[:, b].tolist(), int(steps[b])) for b in range(50) if over[t, b]]
        sums, steps = sums.masked_fill(over[t], 0.0), steps.masked_fill(over[t], 0)
    columns, count = ended_episodes(rewards, over, totals, length)
    assert int(count) == SEGMENT_RECORDS < len(want)
    for k, (b, r, n, c) in enumerate(columns.T.tolist()):
        row, value, cost, num = want[k * len(want) // SEGMENT_RECORDS]
        assert (int(b), int(n)) == (row, num)
        assert (r, c) == pytest.approx((value, cost))
    ours = carried(rewards, over, totals, length)
    assert torch.allclose(torch.stack(ours[0]), sums)
    assert torch.equal(ours[1], steps)
    columns, count = ended_episodes([x[:2] for x in rewards], over[:2], totals, length)
    assert int(count) == int(over[:2].sum())


@pytest.mark.parametrize("in_tensors", [False, True])
@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("name", ["cartpole", "pendulum", "rooms"])
def test_a_restored_sampler_goes_on_bit_for_bit(name, calls, in_tensors):
    client = FakeClient(policy_for(ENVS[name]), direct=True)
    sampler, writer = build(ENVS[name], in_tensors=in_tensors)
    for _ in range(calls):
        sampler.step({"policy": client}, {"trajectories": writer})
    state, twin_writer = sampler.snapshot(), writer.twin()
    twin, _ = build(ENVS[name], in_tensors=in_tensors, seed=77 if calls else 0)
    twin.restore(state, {"trajectories": twin_writer})
    writer.committed.clear()
    for ours, theirs in zip(drive(sampler, writer, client), drive(twin, twin_writer, client), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert sampler.events() == twin.events()


def test_it_waits_for_room_and_for_versions():
    sampler, writer = build(required=lambda k: k, capacity=1)
    client = FakeClient(direct=True, published=-1)
    streams = {"policy": client}, {"trajectories": writer}
    assert sampler.step(*streams) == 0
    assert sampler.waits_for() == "policy version 0"
    client.published = 0
    assert sampler.step(*streams) == 80
    assert sampler.waits_for() == "nothing"
    assert sampler.step(*streams) == 0
    assert sampler.waits_for() == "policy version 1"
    twin, twin_writer = build(required=lambda k: k, capacity=1)[0], writer.twin()
    twin.restore(sampler.snapshot(), {"trajectories": twin_writer})
    client.published = 1
    assert sampler.step(*streams) == twin.step({"policy": client}, {"trajectories": twin_writer}) == 80
    assert torch.equal(writer.committed[-1][1]["obs"], twin_writer.committed[-1][1]["obs"])
    writer._free.clear()
    assert sampler.step(*streams) == 0
    assert sampler.waits_for() == "room on stream 'trajectories'"


def test_a_policy_elsewhere_is_asked_step_by_step():
    sampler, writer = build()
    client = FakeClient(delay=1)
    assert sampler.step({"policy": client}, {"trajectories": writer}) == 1
    assert "reply" in sampler.waits_for()
    twin, twin_writer, twin_client = build(seed=9)[0], writer.twin(), client.twin()
    twin.restore(sampler.snapshot(), {"trajectories": twin_writer})
    ours, theirs = drive(sampler, writer, client, 3), drive(twin, twin_writer, twin_client, 3)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, theirs, strict=True) for k in a)
    assert sampler.events() == twin.events() != []


class Broken:
    """Its third observation is not a number."""

    name, max_steps = "broken", 10
    spec = EnvSpec({"obs": ArraySpec((1,))}, ActionSpec("discrete", num_actions=2))

    def initial(self, num, generator):
        return Batch(x=torch.zeros(num, 1))

    def transition(self, state, action):
        x = state["x"] + 1.0
        return {"x": torch.where(x > 2.0, torch.nan, x)}, x[:, 0], x[:, 0] > 9.0

    def observe(self, state):
        return {"obs": state["x"]}


def test_bad_numbers_stop_before_the_commit():
    sampler, writer = build(Broken)
    with pytest.raises(NonFiniteError, match="broken"):
        drive(sampler, writer, FakeClient(direct=True), 1)
    assert not writer.committed


def test_rows_of_stream_and_vector_must_agree():
    sampler, _ = build()
    writer = FakeWriter(trajectory_stream(CartPole().spec, num_steps=4, num_envs=3))
    with pytest.raises(ConfigError, match="num_envs = 4"):
        drive(sampler, writer, FakeClient(direct=True), 1)


# --------------------------------------------------------------------------------------------------------------- device
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Weights:
    """A policy with weights of its own, on the device."""

    def __init__(self, spec, device):
        generator = torch.Generator().manual_seed(0)
        self.w = torch.randn(spec.obs["obs"].shape[0], 1, generator=generator).to(device)
        self.discrete = spec.action.kind == "discrete"

    def act(self, rows):
        score = rows["obs"] @ self.w + 4.0 * (rows["noise"] - 0.5)
        action = (score[:, 0] > 0).long() if self.discrete else score
        return Batch(action=action, logprob=score[:, 0])


@cuda
@pytest.mark.cuda
@pytest.mark.parametrize("name", ENVS)
def test_graphs_on_a_device_play_what_plain_calls_play(name):
    runs = []
    for captured in (True, False):
        sampler, writer = build(ENVS[name], envs=256, steps=16, device="cuda")
        client = FakeClient(Weights(ENVS[name]().spec, "cuda").act, direct=True)
        for _ in range(8):
            if not captured and sampler._play is not None:
                sampler._play.forget()
            sampler.step({"policy": client}, {"trajectories": writer})
        if captured:
            assert len(sampler._play._graphs) == 2  # one for each slot
        sampler.snapshot()
        runs.append((writer.committed, sampler.events()))
    for (_, ours), (_, theirs) in zip(runs[0][0], runs[1][0], strict=True):
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert runs[0][1] == runs[1][1]


@cuda
@pytest.mark.cuda
def test_on_a_device_a_restored_sampler_goes_on_bit_for_bit():
    client = FakeClient(Weights(CartPole().spec, "cuda").act, direct=True)
    sampler, writer = build(envs=128, steps=16, device="cuda")
    drive(sampler, writer, client, 5)
    state, twin_writer = sampler.snapshot(), writer.twin()
    sampler.events()
    twin, _ = build(envs=128, steps=16, device="cuda", seed=7)
    twin.restore(state, {"trajectories": twin_writer})
    twin.events()
    writer.committed.clear()
    for ours, theirs in zip(drive(sampler, writer, client), drive(twin, twin_writer, client), strict=True):
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)


@cuda
@pytest.mark.cuda
def test_a_segment_on_a_device_is_played_without_a_wait():
    sampler, writer = build(envs=64, steps=16, device="cuda")
    streams = {"policy": FakeClient(Weights(CartPole().spec, "cuda").act, direct=True)}, {"trajectories": writer}
    for _ in range(5):
        sampler.step(*streams)
    slot = writer.reserve()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler._fill(slot, streams[0]["policy"])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert slot.header.version_min == slot.header.version_max == streams[0]["policy"].version
