"""Segments of made-up data for tests of learners that train on whole segments."""

from dataclasses import replace

import numpy as np
import torch

from runnel.core.records import FieldSpec, Header, Segment, trim
from runnel.core.rng import make_rng
from runnel.core.spaces import ActionSpec, ArraySpec, Channels, EnvSpec
from runnel.core.trajectories import ACTIVE, carried_field, trajectory_stream
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.layers import NetConfig

DISCRETE = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2))
BOX = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("continuous", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2))
COSTLY = EnvSpec({"obs": ArraySpec((3,))}, DISCRETE.action, channels=Channels(costs=("heat", "noise")))
SHARING = EnvSpec({**DISCRETE.obs, "shared/seen": ArraySpec((5,)), "shared/agent": ArraySpec((2,))}, DISCRETE.action)
MASKED = EnvSpec({"obs": ArraySpec((3,))}, ActionSpec("discrete", num_actions=2), has_mask=True)


def make_net(spec=DISCRETE, *, seed=0, normalise_obs=False, hidden=(16,), **net):
    return ActorCritic(spec, build_body(spec, NetConfig(hidden=hidden, **net), seed=seed), normalise_obs=normalise_obs)


def make_segment(seed=0, *, spec=DISCRETE, num_steps=8, num_envs=4, state=None, carried=True):
    """Random data with ends of both kinds; `final_obs` differs from `obs[t + 1]`; `state` adds the state of a core."""
    rng = make_rng(seed, "segment")
    costs = spec.channels.names
    sums = ("rewards/env", *costs) if carried else ()
    stream = trajectory_stream(spec, num_steps=num_steps, num_envs=num_envs, state=state, carried=sums)
    arrays = stream.allocate()
    for channel in sums:
        arrays[carried_field(channel)].copy_(torch.linspace(-1.0, 1.0, num_envs))
    for cost in costs:
        arrays[cost].copy_(torch.from_numpy(make_rng(seed, cost).uniform(size=arrays[cost].shape)))
    arrays["obs"].copy_(torch.from_numpy(rng.normal(size=arrays["obs"].shape)))
    if spec.action.kind == "discrete":
        arrays["action"].copy_(torch.from_numpy(rng.integers(0, 2, size=arrays["action"].shape)))
    else:
        arrays["action"].copy_(torch.from_numpy(rng.normal(size=arrays["action"].shape)))
    if spec.has_mask:
        arrays["action_mask"].fill_(True)
    arrays["rewards/env"].copy_(torch.from_numpy(rng.normal(size=arrays["rewards/env"].shape)))
    arrays["logprob"].copy_(torch.from_numpy(np.log(rng.uniform(0.2, 0.8, size=arrays["logprob"].shape))))
    end = torch.from_numpy(rng.random((num_steps, num_envs)))
    arrays["terminated"].copy_(end < 0.15)
    arrays["truncated"].copy_((end >= 0.15) & (end < 0.3))
    index = (end < 0.3).flatten().nonzero().flatten()
    arrays["final_index"][: len(index)] = index
    arrays["final_obs"][: len(index)] = torch.from_numpy(rng.normal(size=(len(index), 3))).float()
    used = {"F": len(index)}
    return Segment(0, stream, Header(used=used), trim(stream, arrays, used))


def shared_segment(seed=0, *, num_steps=8, num_envs=4):
    """A segment with a global state, in which not every row decides at every step. Rows are two agents of an environment."""
    made, rng = make_segment(seed, spec=SHARING, num_steps=num_steps, num_envs=num_envs), make_rng(seed, "shared")
    spec = replace(made.spec, fields={**made.spec.fields, ACTIVE: FieldSpec(("T1", "B"), torch.bool)}, unit_rows=2)
    arrays = type(made.arrays)(made.arrays)
    for key in ("shared/seen", "final_shared/seen"):
        arrays[key] = torch.from_numpy(rng.normal(size=arrays[key].shape)).float()
    arrays["shared/agent"] = torch.eye(2).repeat(num_envs // 2, 1).expand(num_steps + 1, -1, -1).clone()
    arrays["final_shared/agent"] = torch.eye(2)[arrays["final_index"] % 2]
    arrays[ACTIVE] = torch.from_numpy(rng.random((num_steps + 1, num_envs)) < 0.7)
    return Segment(0, spec, made.header, arrays)


def credit_loop(net, data, *, gamma, lam, rho_bar=None, c_bar=None, weighted=True):
    """Targets and advantages of a segment in plain Python: V-trace with bars, GAE without. `[T, B]` twice

    `weighted` advantages are multiplied by their truncated importance weights, as IMPALA's policy gradient needs them.
    """
    a = data.arrays
    num_steps, num_envs = a["action"].shape[:2]
    with torch.no_grad():
        values, finals = net.value({"obs": a["obs"]}).numpy(), net.value({"obs": a["final_obs"]}).numpy()
        mask = a["action_mask"][:-1] if "action_mask" in a else None
        logprob = net.evaluate({"obs": a["obs"][:-1]}, a["action"], mask)[0]
    ratio = np.exp((logprob - a["logprob"]).numpy()) if rho_bar is not None else np.ones((num_steps, num_envs))
    rho, c = np.minimum(ratio, rho_bar or 1.0), lam * np.minimum(ratio, c_bar or 1.0)
    where = {int(i): f for f, i in enumerate(a["final_index"])}
    targets, advantages = np.zeros((num_steps, num_envs)), np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        error = 0.0
        for t in reversed(range(num_steps)):
            ended = bool(a["terminated"][t, b]) or bool(a["truncated"][t, b])
            following = finals[where[t * num_envs + b]] if ended else values[t + 1, b]
            following = 0.0 if a["terminated"][t, b] else following
            ahead = 0.0 if ended else error
            reward = a["rewards/env"][t, b].item()
            weight = rho[t, b] if weighted else 1.0
            advantages[t, b] = weight * (reward + gamma * (following + lam * ahead) - values[t, b])
            error = rho[t, b] * (reward + gamma * following - values[t, b]) + gamma * c[t, b] * ahead
            targets[t, b] = values[t, b] + error
    return targets, advantages


class Twin:
    """A collective of two ranks that hold the same data."""

    rank, world_size = 0, 2

    def all_reduce(self, x):
        return 2 * x
