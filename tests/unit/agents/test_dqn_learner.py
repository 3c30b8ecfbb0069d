"""DQNLearner: targets of every head by hand and by numpy, sequences by single steps, target network, exact resume."""

import math

import numpy as np
import pytest
import torch

from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.core.contracts.learning import Learner
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Header, Segment
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import replay_stream
from runnel.data.sequences import sequence_stream
from runnel.nets.layers import NetConfig

SPEC = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))
MASKED = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2), has_mask=True)
NET = NetConfig(hidden=(16,), activation="relu")
ATOMS = {"num_atoms": 5, "v_min": -2.0, "v_max": 2.0}


def make(seed=0, spec=SPEC, net=NET, **kwargs):
    config = DQNConfig(**kwargs)
    return DQNLearner(config, config.network(spec, net, seed=seed))


def segment(seed=0, num=8, spec=SPEC):
    stream = replay_stream(spec, batch_size=num)
    arrays, rng = stream.allocate(), make_rng(seed, "dqn")
    for key in ("obs", "next_obs", "rewards/env"):
        arrays[key].copy_(torch.from_numpy(rng.normal(size=arrays[key].shape)))
    arrays["action"].copy_(torch.from_numpy(rng.integers(0, 2, size=num)))
    arrays["discount"].copy_(torch.from_numpy(0.9 * (rng.random(num) < 0.7)))
    arrays["weight"].copy_(torch.from_numpy(rng.uniform(0.5, 1.0, num)))
    arrays["index"].copy_(torch.arange(num) + 100 * seed)
    if spec.has_mask:
        arrays["next_action_mask"][:, 1] = True
    return Segment(0, stream, Header(), arrays)


def step(learner, *data, progress=0.0):
    return learner.update(learner.prepare({"replay": list(data)}, progress=progress))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_step(learner, a):
    """Loss, priorities and mean Q of a batch, from the networks' raw outputs on."""
    c, rows = learner.config, np.arange(len(a["action"]))
    out, online, target = (
        n.scores({"obs": a[k]}).detach().double().numpy()
        for n, k in ((learner.net, "obs"), (learner.net, "next_obs"), (learner.target_net, "next_obs"))
    )
    z = np.linspace(c.v_min, c.v_max, c.num_atoms)
    mean = (lambda s: s[..., 0]) if c.head == "value" else (lambda s: softmax(s) @ z)
    best = mean(online if c.double else target).argmax(-1)
    out, after = out[rows, a["action"].numpy()], target[rows, best]
    reward, discount, weight = (a[k].double().numpy() for k in ("rewards/env", "discount", "weight"))
    y = reward + discount * mean(after)
    if c.head == "value":
        e = np.abs(out[:, 0] - y)
        far = np.inf if c.huber is None else c.huber
        return (weight * np.where(e <= far, e**2 / 2, e - 0.5)).mean(), e, out[:, 0].mean()
    wanted, width = np.zeros_like(out), z[1] - z[0]
    for i in rows:
        if c.head == "c51":
            for j in range(c.num_atoms):
                moved = np.clip(reward[i] + discount[i] * z[j], c.v_min, c.v_max)
                wanted[i] += softmax(after)[i, j] * np.clip(1 - np.abs(moved - z) / width, 0, 1)
        else:
            edges = np.append(z - width / 2, z[-1] + width / 2)
            phi = [math.erf((e - np.clip(y[i], c.v_min, c.v_max)) / (c.sigma * width * 2**0.5)) for e in edges]
            wanted[i] = np.diff(phi) / (phi[-1] - phi[0])
    cross = -(wanted * np.log(softmax(out))).sum(-1)
    kl = cross + (wanted * np.log(np.maximum(wanted, 1e-300))).sum(-1)
    return (weight * cross).mean(), kl if c.head == "c51" else np.abs(mean(out) - y), mean(out).mean()


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize(("head", "huber"), [("value", None), ("value", 1.0), ("c51", None), ("hl_gauss", None)])
def test_an_update_is_that_of_an_independent_computation(head, huber, dueling, double):
    learner = make(double=double, dueling=dueling, head=head, huber=huber, target_every=1000, lr=0.05, **ATOMS)
    step(learner, segment(5))
    data = segment(0)
    loss, priority, q = numpy_step(learner, data.arrays)
    update = step(learner, data)
    (word,) = update.feedback["replay"]
    np.testing.assert_allclose(word["priority"].numpy(), priority, atol=1e-5)
    assert update.metrics["loss/td"] == pytest.approx(loss, rel=1e-4)
    assert update.metrics["q"] == pytest.approx(q, abs=1e-5)
    assert update.metrics["td_error"] == pytest.approx(priority.mean(), rel=1e-4)
    assert torch.equal(word["index"], data.arrays["index"])
    assert isinstance(learner, Learner)


def test_a_masked_action_is_never_bootstrapped_from():
    learner, data = make(spec=MASKED), segment(spec=MASKED)
    a = data.arrays
    value = learner.target_net.q({"obs": a["next_obs"]})[:, 1]
    q = learner.net.q(a).gather(1, a["action"][:, None]).squeeze(1)
    expected = (q - a["rewards/env"] - a["discount"] * value).abs().detach()
    torch.testing.assert_close(step(learner, data).feedback["replay"][0]["priority"], expected)


# ------------------------------------------------------------------------------------------------------------ sequences
def sequence(learner, seed=0, num=3, steps=6, spec=MASKED, n_step=1):
    """A batch as the store makes it, with ends at random places."""
    source = trajectory_stream(spec, num_steps=steps, num_envs=2, logprob=False, state=learner.net.state_spec)
    stream = sequence_stream(source, batch_size=num)
    arrays, rng = stream.allocate(), make_rng(seed, "sequence")
    ended = rng.random((steps, num)) < 0.3
    final = np.flatnonzero(ended)
    arrays["ended"].copy_(torch.from_numpy(ended))
    arrays["final_index"][: len(final)] = torch.from_numpy(final)
    for key in arrays:
        if key in ("obs", "final_obs", "rewards/env") or key.startswith("state/"):
            arrays[key].copy_(torch.from_numpy(rng.normal(size=arrays[key].shape)))
    arrays["action"].copy_(torch.from_numpy(rng.integers(0, 2, size=(steps, num))))
    arrays["discount"].copy_(torch.from_numpy(0.9 * (rng.random((steps, num)) < 0.8)))
    for key in ("action_mask", "final_action_mask"):
        arrays[key].copy_(torch.from_numpy(rng.random(arrays[key].shape) < 0.5))
        arrays[key][..., 1] = True
    last = np.zeros((steps, num), dtype=np.int64)
    for b in range(num):
        for t in range(steps):
            last[t, b] = next((k for k in range(t, steps) if ended[k, b] or k == steps - 1 or k - t == n_step - 1), t)
    arrays["last"].copy_(torch.from_numpy(last))
    arrays["weight"].copy_(torch.from_numpy(rng.uniform(0.5, 1.0, num)))
    arrays["index"].copy_(torch.arange(num))
    used = {"F": len(final)}
    return Segment(
        0,
        stream,
        Header(used=used),
        type(arrays)({k: x[: len(final)] if k.startswith("final") else x for k, x in arrays.items()}),
    )


def by_single_steps(learner, a, *, burn_in):
    """Errors `[T - burn_in, B]`, walking each row on its own, one observation at a time."""
    steps, num = a["action"].shape
    finals = {int(i): f for f, i in enumerate(a["final_index"])}
    errors = np.zeros((steps - burn_in, num))
    for b in range(num):
        q, after = {}, {}
        for name, net in (("online", learner.net), ("target", learner.target_net)):
            state = {k: a[k][b : b + 1] for k in net.state_spec}
            q[name], after[name] = [], []
            for t in range(steps + 1):
                out, state = net.step({"obs": a["obs"][t, b : b + 1]}, state)
                q[name].append(out[0, :, 0].tolist())
                if t < steps:
                    f = finals.get(t * num + b)
                    if f is not None:
                        after[name].append(net.step({"obs": a["final_obs"][f : f + 1]}, state)[0][0, :, 0].tolist())
                        state = {k: torch.zeros_like(x) for k, x in state.items()}
                    else:
                        after[name].append(None)
            after[name] = [q[name][t + 1] if x is None else x for t, x in enumerate(after[name])]
        for t in range(burn_in, steps):
            end = int(a["last"][t, b])
            f = finals.get(end * num + b)
            mask = a["action_mask"][end + 1, b] if f is None else a["final_action_mask"][f]
            scores = [v if m else -1e9 for v, m in zip(after["online"][end], mask.tolist(), strict=True)]
            y = a["rewards/env"][t, b].item() + a["discount"][t, b].item() * after["target"][end][int(np.argmax(scores))]
            errors[t - burn_in, b] = abs(q["online"][t][int(a["action"][t, b])] - y)
    return errors


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("n_step", [1, 3])
def test_sequences_are_what_single_steps_give(core, burn_in, n_step):
    learner = make(
        spec=MASKED, net=NetConfig(hidden=(8,), core=core, core_size=4), burn_in=burn_in, eta=0.7, lr=0.02, target_every=99
    )
    step(learner, sequence(learner, 1))
    data = sequence(learner, 2, n_step=n_step)
    with torch.no_grad():
        errors = by_single_steps(learner, data.arrays, burn_in=burn_in)
    update = step(learner, data)
    assert update.metrics["td_error"] == pytest.approx(errors.mean(), rel=1e-4)
    expected = 0.7 * errors.max(0) + 0.3 * errors.mean(0)
    np.testing.assert_allclose(update.feedback["replay"][0]["priority"].numpy(), expected, atol=1e-5)


def test_burn_in_gives_no_gradient():
    """What happened in the burn-in moves the state, and so the outputs, but it is not learned from."""
    learner = make(spec=MASKED, net=NetConfig(hidden=(8,), core="gru", core_size=4), burn_in=3)
    data = sequence(learner, 4).arrays
    data["obs"].requires_grad_()
    scores, following, _ = learner.net.unroll_batch(data, burn_in=3)
    (grad,) = torch.autograd.grad(scores.sum(), data["obs"])
    assert not grad[:3].any()
    assert grad[3:-1].abs().sum(-1).all()
    assert not grad[-1].any()
    assert not following.requires_grad


# -------------------------------------------------------------------------------------------------------------- the rest
def test_feedback_has_one_mapping_per_segment():
    learner = make()
    update = learner.update(learner.prepare({"a": [segment(1)], "b": [segment(2), segment(3)]}, progress=0.0))
    assert [len(v) for v in update.feedback.values()] == [1, 2]
    assert update.feedback["b"][1]["index"][0].item() == 300


def test_target_network_moves_on_schedule():
    learner = make(target_every=2, target_tau=0.5)
    old = [p.clone() for p in learner.target_net.parameters()]
    for i in range(2):
        assert all(torch.equal(a, b) for a, b in zip(old, learner.target_net.parameters(), strict=True))
        step(learner, segment(i))
    for before, now, online in zip(old, learner.target_net.parameters(), learner.net.parameters(), strict=True):
        torch.testing.assert_close(now, (before + online) / 2)


def test_epsilon_is_published_and_follows_its_schedule():
    learner = make(epsilon="linear(1, 0)")
    assert learner.params()["epsilon"].item() == 1.0
    learner.prepare({"replay": [segment()]}, progress=0.75)
    assert learner.params()["epsilon"].item() == pytest.approx(0.25)


@pytest.mark.parametrize("head", ["value", "c51", "hl_gauss"])
def test_it_fits_a_fixed_batch(head):
    learner, data = make(lr=1e-2, head=head, num_atoms=51, v_min=-4.0, v_max=4.0), segment()
    data.arrays["discount"].zero_()
    for _ in range(200):
        update = step(learner, data)
    a = data.arrays
    q = learner.net.q(a).gather(1, a["action"][:, None]).squeeze(1)
    torch.testing.assert_close(q, a["rewards/env"], atol=0.1, rtol=0)
    assert update.metrics["td_error"] < 0.1


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_resume_is_bit_identical(core):
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    first, second = (make(seed, spec=MASKED, net=net, target_every=3, head="c51", dueling=True) for seed in (0, 4))
    data = [segment(i, spec=MASKED) if core == "none" else sequence(first, i) for i in range(8)]
    for i in range(4):
        step(first, data[i])
    second.load_state_dict(first.state_dict())
    for i in range(4, 8):
        one, two = (step(learner, data[i], progress=0.5) for learner in (first, second))
        assert one.metrics == two.metrics
        assert torch.equal(one.feedback["replay"][0]["priority"], two.feedback["replay"][0]["priority"])
    assert all(torch.equal(v, second.params()[k]) for k, v in first.params().items())


def test_bad_numbers_and_settings_are_refused():
    learner, data = make(), segment()
    data.arrays["next_obs"][0, 0] = float("nan")
    data.arrays["discount"].fill_(1.0)
    with pytest.raises(NonFiniteError, match="next_obs"):
        step(learner, data)
    bad = (
        {"target_tau": 0.0},
        {"batch_size": 0},
        {"epsilon": "linear(1)"},
        {"v_max": -200.0},
        {"num_atoms": 1},
        {"burn_in": -1},
    )
    for settings in (*bad, {"sigma": 0.0}, {"eta": 1.5}):
        with pytest.raises(ConfigError, match=rf"dqn\.{next(iter(settings))}"):
            DQNConfig(**settings).check()
