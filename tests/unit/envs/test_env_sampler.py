import gymnasium as gym
import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter, by_noise, continuous
from toy_envs import DictGoal

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.core.records import Batch
from runnel.core.spaces import ArraySpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.registry import make_vector
from runnel.envs.sampler import VecEnvSampler
from runnel.envs.toy import BadEnv, Counter, MaskedBandit, PointMass
from runnel.envs.vector import episode_seed

ROUTES = (AgentRoute("other", "x"), AgentRoute(".*", "policy"))


def build(target="CartPole-v1", *, groups=1, steps=16, envs=3, capacity=8, kwargs=None, required=None, seed=5, noise_size=1):
    vectors = [make_vector(target, envs, seed=seed, index0=i * envs, kwargs=kwargs) for i in range(groups)]
    sampler = VecEnvSampler(vectors, routes=ROUTES, noise_size=noise_size, seed=seed, name="actor0")
    spec = trajectory_stream(vectors[0].spec, num_steps=steps, num_envs=envs, capacity=capacity)
    writer = FakeWriter(spec, required) if required else FakeWriter(spec)
    return sampler, writer


def drive(sampler, writer, client, segments, limit=10_000):
    for _ in range(limit):
        if len(writer.committed) >= segments:
            return
        sampler.step({"policy": client}, {"trajectories": writer})
        client.poll()
    raise AssertionError(sampler.waits_for())


def equal(a, b):
    assert len(a) == len(b)
    for (ha, xa), (hb, xb) in zip(a, b, strict=True):
        assert ha == hb
        assert set(xa) == set(xb)
        assert all(torch.equal(xa[k], xb[k]) for k in xa)


def test_a_segment_is_what_the_environments_did():
    sampler, writer = build(steps=40)
    assert isinstance(sampler, Sampler)
    client = FakeClient(published=4)
    assert sampler.step({"policy": client}, {"trajectories": writer}) == 120
    sampler.step({"policy": client}, {"trajectories": writer})
    envs = [gym.make("CartPole-v1") for _ in range(3)]
    episode = [0, 0, 0]
    obs = np.stack([e.reset(seed=episode_seed(5, i, 0))[0] for i, e in enumerate(envs)])
    for header, x in writer.committed:
        assert (header.num_steps, header.version_min, header.version_max) == (120, 4, 4)
        assert x["policy_version"].tolist() == [4] * 40
        finals = dict(zip(x["final_index"].tolist(), x["final_obs"], strict=True))
        assert len(finals) == header.used["F"]
        for t in range(40):
            assert np.array_equal(x["obs"][t].numpy(), obs)
            for i, env in enumerate(envs):
                obs[i], reward, terminated, truncated, _ = env.step(int(x["action"][t, i]))
                assert x["rewards/env"][t, i] == reward
                assert (bool(x["terminated"][t, i]), bool(x["truncated"][t, i])) == (terminated, truncated)
                if terminated or truncated:
                    assert np.array_equal(finals.pop(t * 3 + i).numpy(), obs[i])
                    episode[i] += 1
                    obs[i] = env.reset(seed=episode_seed(5, i, episode[i]))[0]
        assert not finals
        assert np.array_equal(x["obs"][40].numpy(), obs)
    events = sampler.events()
    assert len(events) == sum(h.used["F"] for h, _ in writer.committed) == sum(episode)
    assert events[0]["kind"] == "episode"
    assert events[0]["return"] == events[0]["length"]
    assert sampler.events() == []


def test_actions_and_logprobs_are_the_replies_to_the_recorded_observations():
    sampler, writer = build(target=DictGoal, steps=8)
    sent = []

    def policy(rows: Batch) -> Batch:
        sent.append(rows.map(torch.clone))
        return by_noise(rows)

    drive(sampler, writer, FakeClient(policy), 2)
    for k, (_, x) in enumerate(writer.committed):
        for t in range(8):
            rows = sent[8 * k + t]
            assert torch.equal(rows["obs/place"], x["obs/place"][t])
            answer = by_noise(rows)
            assert torch.equal(answer["action"], x["action"][t])
            assert torch.equal(answer["logprob"], x["logprob"][t])
    noise = torch.stack([rows["noise"] for rows in sent])
    assert noise.shape == (16, 3, 1)
    assert ((noise > 0) & (noise < 1)).all()
    assert noise.unique().numel() > 40


def test_continuous_actions_are_stored_unclipped():
    sampler, writer = build(target=PointMass, steps=12)
    drive(sampler, writer, FakeClient(continuous), 1)
    x = writer.committed[0][1]
    assert (x["action"].abs() > 1).any()
    step = x["obs"][1:] - x["obs"][:-1]
    assert torch.allclose(step, 0.2 * x["action"].clamp(-1, 1), atol=1e-6)


def test_masks_are_recorded_with_the_observation():
    sampler, writer = build(target=MaskedBandit, steps=6)
    drive(sampler, writer, FakeClient(), 1)
    x = writer.committed[0][1]
    assert x["action_mask"].shape == (7, 3, 4)
    assert x["action_mask"][:6].gather(2, x["action"][..., None]).all()
    assert x["terminated"].all()


def test_a_full_stream_and_a_missing_version_are_waited_for():
    sampler, writer = build(steps=4, capacity=2, required=lambda k: 3)
    client = FakeClient(published=2)
    ends = ({"policy": client}, {"trajectories": writer})
    assert sampler.step(*ends) == 0
    assert sampler.waits_for() == "policy version 3"
    assert len(writer.reserved) == 1
    client.published = 5
    assert sampler.step(*ends) == 12
    assert writer.committed[0][0].version_max == 3
    writer._free.clear()
    assert sampler.step(*ends) == 0
    assert sampler.waits_for() == "room on stream 'trajectories'"
    sampler, writer = build()
    assert sampler.step({"policy": FakeClient(published=-1)}, {"trajectories": writer}) == 0
    assert sampler.waits_for() == "a first policy version"


def test_a_change_of_version_inside_a_segment_is_recorded_per_step():
    sampler, writer = build(steps=6)
    client = FakeClient(delay=1, published=1)
    ends = ({"policy": client}, {"trajectories": writer})
    while not writer.committed:
        client.version += 1 if client.version > 0 else 0
        sampler.step(*ends)
    header, x = writer.committed[0]
    versions = x["policy_version"].tolist()
    assert versions == sorted(versions)
    assert (header.version_min, header.version_max) == (versions[0], versions[-1])
    assert versions[0] < versions[-1]


def test_waiting_for_a_reply_lets_the_other_lanes_go_on():
    sampler, writer = build(groups=3, steps=5, capacity=3)
    client = FakeClient(delay=2)
    ends = ({"policy": client}, {"trajectories": writer})
    assert sampler.step(*ends) == 3
    assert client.pending() == 3
    assert sampler.step(*ends) == 0
    assert sampler.waits_for() == "a reply of the policy"
    drive(sampler, writer, client, 6)
    assert [h.sequence for h, _ in writer.committed] == list(range(6))


def test_a_policy_beside_the_sampler_gives_the_same_segments():
    found = []
    for direct in (False, True):
        sampler, writer = build(groups=2, steps=20)
        drive(sampler, writer, FakeClient(published=3, direct=direct), 4)
        found.append(writer.committed)
    equal(*found)


def carries_state(rows: Batch) -> Batch:
    """Counts the steps of an episode in its state, and answers with the count."""
    count = rows["state/h"] + 1.0
    answer = by_noise(rows)
    return Batch(action=answer["action"], logprob=count[:, 0], **{"state/h": count})


@pytest.mark.parametrize("direct", [False, True])
def test_recurrent_state_travels_and_is_zero_where_an_episode_begins(direct):
    vector = make_vector("CartPole-v1", 3, seed=5)
    state = {"state/h": ArraySpec((2,))}
    sampler = VecEnvSampler([vector], routes=ROUTES, noise_size=1, seed=5, name="actor0", state=state)
    writer = FakeWriter(trajectory_stream(vector.spec, num_steps=16, num_envs=3, capacity=8, state=state))
    drive(sampler, writer, FakeClient(carries_state, direct=direct), 3)
    count, num_ends = torch.zeros(3), 0
    for _, x in writer.committed:
        assert torch.equal(x["state/h"], count.unsqueeze(-1).expand(3, 2))
        for t in range(16):
            count = count + 1.0
            assert torch.equal(x["logprob"][t], count)
            over = x["terminated"][t] | x["truncated"][t]
            count, num_ends = count.masked_fill(over, 0.0), num_ends + int(over.sum())
    assert num_ends > 2


def test_lanes_take_their_turn_when_room_is_scarce():
    sampler, writer = build(groups=2, steps=4, capacity=1, target=Counter, kwargs={"length": 1000})
    drive(sampler, writer, FakeClient(), 4)
    starts = [int(x["obs"][0, 0, 0]) for _, x in writer.committed]
    assert starts[:4] == [0, 0, 4, 4]


def test_segments_do_not_depend_on_how_late_replies_come():
    runs = []
    for delay in (0, 1, 3):
        sampler, writer = build(groups=2, steps=7, envs=2)
        drive(sampler, writer, FakeClient(delay=delay), 6)
        runs.append(writer.committed[:6])
    equal(runs[0], runs[1])
    equal(runs[0], runs[2])


@pytest.mark.parametrize("target", ["CartPole-v1", DictGoal, MaskedBandit, "tensor:CartPole-v1"])
@pytest.mark.parametrize("calls", [0, 1, 9, 30])
def test_a_restored_sampler_goes_on_bit_for_bit_in_the_middle_of_a_segment(target, calls):
    sampler, writer = build(target, groups=2, steps=11)
    client = FakeClient(delay=1)
    for _ in range(calls):
        sampler.step({"policy": client}, {"trajectories": writer})
    state, twin_writer, twin_client = sampler.snapshot(), writer.twin(), client.twin()
    twin, _ = build(target, groups=2, steps=11, seed=1234 if calls else 5)  # before the first step there is only the seed
    twin.restore(state, {"trajectories": twin_writer})
    writer.committed.clear()
    drive(sampler, writer, client, 6)
    drive(twin, twin_writer, twin_client, 6)
    equal(writer.committed, twin_writer.committed)
    assert sampler.events() == twin.events()


def test_a_snapshot_between_reserve_and_sync_keeps_the_slot():
    sampler, writer = build(steps=4, required=lambda k: 1)
    client = FakeClient(published=0)
    sampler.step({"policy": client}, {"trajectories": writer})
    twin, twin_writer = build(steps=4)[0], writer.twin()
    twin.restore(sampler.snapshot(), {"trajectories": twin_writer})
    client.published = 1
    drive(sampler, writer, client, 2)
    drive(twin, twin_writer, client.twin(), 2)
    equal(writer.committed, twin_writer.committed)


@pytest.mark.parametrize(("fault", "field", "step"), [("nan_obs", "obs", 3 * 2), ("nan_reward", "rewards/env", 2 * 2)])
def test_bad_numbers_stop_before_the_commit(fault, field, step):
    sampler, writer = build(BadEnv, envs=2, steps=6, kwargs={"fault": fault, "at": 3})
    with pytest.raises(NonFiniteError, match=r"BadEnv' \(index 0\)") as raised:
        drive(sampler, writer, FakeClient(), 1)
    assert (raised.value.tensor, raised.value.step) == (field, step)
    assert not writer.committed


def test_a_bad_final_observation_is_found_too():
    sampler, writer = build(BadEnv, envs=2, steps=6, kwargs={"fault": "nan_obs", "at": 3})
    for copy in sampler._groups[0].vector._copies:
        copy.env.max_steps = 3
    with pytest.raises(NonFiniteError) as raised:
        drive(sampler, writer, FakeClient(), 1)
    assert (raised.value.tensor, raised.value.step) == ("obs", 6)


def test_a_policy_that_breaks_on_nan_is_not_blamed():
    def fragile(rows: Batch) -> Batch:
        if rows["obs"].isnan().any():
            raise ValueError("probabilities contain nan")
        return by_noise(rows)

    sampler, writer = build(BadEnv, envs=2, steps=6, kwargs={"fault": "nan_obs", "at": 3})
    with pytest.raises(NonFiniteError, match="obs is not finite at step 6"):
        drive(sampler, writer, FakeClient(fragile), 1)


def test_other_errors_surface_as_they_are():
    sampler, writer = build(BadEnv, kwargs={"fault": "raise"})
    with pytest.raises(DataError, match="broke"):
        drive(sampler, writer, FakeClient(), 1)
    sampler, writer = build()
    with pytest.raises(DataError, match=r"\['logprob'\]"):
        drive(sampler, writer, FakeClient(lambda rows: Batch(action=by_noise(rows)["action"])), 1)


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="no pattern matches agent"):
        VecEnvSampler([make_vector(Counter, 1, seed=0)], routes=ROUTES[:1], noise_size=1, seed=0, name="a")
    with pytest.raises(ConfigError, match="at least one vector"):
        VecEnvSampler([], routes=ROUTES, noise_size=1, seed=0, name="a")
    sampler, _ = build(envs=3)
    _, writer = build(envs=4)
    with pytest.raises(ConfigError, match="has 4 rows"):
        sampler.step({"policy": FakeClient()}, {"trajectories": writer})
