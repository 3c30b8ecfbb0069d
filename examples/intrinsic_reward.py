"""A reward from what the environment says: a second trainer learns it while the policy trains (ONI, Zheng et al. 2024,
arXiv:2410.23022, in small).

    runnel train examples/intrinsic_reward.py
    runnel train examples/intrinsic_reward.py --bonus 0          # the sparse reward alone
    runnel train examples/intrinsic_reward.py --launcher local   # the labels and the second trainer in processes of their own

The house pays 1 at its exit and nothing before, but it speaks: "you take the key". A transform reads what the actors play, asks
a judge which of these messages sound like progress, and writes labels. The trainer `taste` learns from them a network that
judges an observation. The policy's learner loads each version of that network and adds what it says to the reward. All three go
at their own pace: the transform is a lossy reader, so the policy never waits for a label.
"""

from dataclasses import dataclass, field, replace

import gymnasium as gym
import numpy as np
import torch

import runnel as rl

MESSAGES = ("nothing happens", "you bump into a wall", "you take the key", "the door swings open", "you are out")


class House(gym.Env):
    """Rooms in a row, each of `size` x `size` cells. Find the key of a room to open the door to the next one; the last room has
    the exit in its place, which pays 1."""

    def __init__(self, rooms: int = 5, size: int = 5) -> None:
        self.rooms, self.size, self.max_steps = rooms, size, 6 * rooms * size
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (6 + len(MESSAGES),), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.steps, self.message = -1, 0, 0
        self.enter(self.np_random.integers(self.size, size=2))
        return self.observe(), {}

    def enter(self, place) -> None:
        self.room, self.place, self.has_key = self.room + 1, place, False
        self.key = self.np_random.integers(self.size, size=2)

    def step(self, action):
        to, self.message, self.steps = self.place + ((-1, 0), (1, 0), (0, -1), (0, 1))[action], 0, self.steps + 1
        if self.has_key and tuple(to) == (self.size, self.size // 2):
            self.enter(to * [0, 1])
            self.message = 3
        elif to.min() >= 0 and to.max() < self.size:
            self.place = to
        else:
            self.message = 1
        out = False
        if not self.has_key and (self.place == self.key).all():
            out = self.room == self.rooms - 1
            self.has_key, self.message = True, 4 if out else 2
        return self.observe(), float(out), out, self.steps >= self.max_steps, {}

    def observe(self) -> np.ndarray:
        places = 2.0 * np.concatenate([self.place, self.key]) / (self.size - 1) - 1.0
        return np.concatenate([places, [self.has_key, self.room / self.rooms], np.eye(len(MESSAGES))[self.message]]).astype(
            np.float32
        )


def judge(rows: rl.Batch) -> rl.Batch:
    """Which messages sound like progress? Here a rule answers; a language model or a service would be asked in this place."""
    said = [MESSAGES[i] for i in rows["message"].tolist()]
    return rl.Batch(good=torch.tensor([float(any(word in text for word in ("take", "open", "out"))) for text in said]))


class Labels(rl.flow.StatelessTransform):
    """Reads `trajectories`, asks `judge`, writes `labels`: all good observations of a segment, and others to fill the rest."""

    waiting = "experience to label, or room for labels"

    def step(self, readers, clients, writers, *, timer):
        reader, client, writer = readers["trajectories"], clients["judge"], writers["labels"]
        slot = writer.reserve() if client.sync() and reader.available() else None
        if slot is None:
            return 0
        for segment in reader.take(1):
            seen = segment.arrays["obs"][1:].flatten(0, 1)
            with timer.stage("ask"):
                good = client.ready(client.submit(rl.Batch(message=seen[:, -len(MESSAGES) :].argmax(1)))).rows["good"]
            order = torch.from_numpy(rl.core.make_rng(segment.header.sequence, "labels").permutation(len(good)))
            rows = order[good[order].argsort(descending=True, stable=True)][: slot.spec.num_rows]
            slot.arrays["obs"].copy_(seen[rows])
            slot.arrays["good"].copy_(good[rows])
            slot.arrays["parent"].fill_(segment.header.sample_id)
            slot.header.version_min = slot.header.version_max = -1  # no policy made these rows, so they do not grow stale
            writer.commit(slot, num_steps=len(rows))
            reader.release([segment])
            return 1
        writer.cancel(slot, "other")  # the actors were faster, and the segment is gone
        return 0


def taste(obs_size: int) -> torch.nn.Sequential:
    """The network that judges an observation: the log-odds that it is good."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(obs_size, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))


class TasteLearner:
    """Learns the judge's answers by cross-entropy; its versions are the channel `taste`."""

    def __init__(self, net):
        self.net, self.optimiser = net, torch.optim.Adam(net.parameters(), lr=1e-2)

    def prepare(self, segments, *, progress):
        return rl.Batch.cat([segment.arrays for segment in segments["labels"]])

    def update(self, batch):
        said = self.net(batch["obs"])[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(said, batch["good"])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        right = ((said > 0) == (batch["good"] > 0.5)).float().mean()
        return rl.Update({"loss": loss.item(), "accuracy": right.item()})

    def params(self):
        return self.net.state_dict()

    def state_dict(self):
        return {
            "net": {k: v.clone() for k, v in self.net.state_dict().items()},
            "optimiser": [{k: v.clone() for k, v in state.items()} for state in self.optimiser.state.values()],
        }

    def load_state_dict(self, state):
        self.net.load_state_dict(state["net"])
        self.optimiser.state.update(zip(self.net.parameters(), state["optimiser"], strict=False))


class Guided(rl.agents.PPOLearner):
    """PPO on the reward of the environment and a bonus where the observation is to its taste."""

    bonus = 0.0

    def load_params(self, channel, params):
        self.taste.load_state_dict(params.params)

    def make_batch(self, data):
        after = data["obs"][1:].flatten(0, 1).index_copy(0, data["final_index"], data["final_obs"])
        good = (self.taste(after)[:, 0] > 0).float().view_as(data["rewards/env"])
        return super().make_batch(rl.Batch({**data, "rewards/env": data["rewards/env"] + self.bonus * good}))

    def state_dict(self):
        return {**super().state_dict(), "taste": {k: v.clone() for k, v in self.taste.state_dict().items()}}

    def load_state_dict(self, state):
        super().load_state_dict({k: v for k, v in state.items() if k != "taste"})
        self.taste.load_state_dict(state["taste"])


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """PPO in a house that speaks, with a reward learned from what it says."""

    env: str = f"{__file__}:House"
    num_envs: int = 16
    """Environments of each actor."""
    num_steps: int = 64
    """Steps of each environment in one update."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment."""
    bonus: float = 0.5
    """What an observation to the learner's taste is worth; 0: nothing."""
    label_rows: int = 64
    """Observations that are labelled in each segment."""
    ppo: rl.agents.PPOConfig = field(default_factory=lambda: rl.agents.PPOConfig(lr="linear(1e-3, 1e-4)", entropy_coef=0.01))


def build(c):
    """The graph of PPO, and beside it: a lossy reader that labels, a judge that it asks, a trainer for what the judge says."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    (size,) = task.spec.obs["obs"].shape

    def network():
        return rl.nets.ActorCritic(task.spec, rl.nets.build_body(task.spec, c.net, seed=c.seed))

    def learner(ranks):
        made = Guided(c.ppo, network(), seed=c.seed, collective=ranks)
        made.taste, made.bonus = taste(size), c.bonus
        return made

    e = rl.on_policy_graph(c, task, network=network, learner=learner)
    (trajectories,), (leader,) = e.streams, e.trainers
    labels = rl.core.StreamSpec(
        "labels",
        {
            "obs": rl.core.FieldSpec(("N", size)),
            "good": rl.core.FieldSpec(("N",)),
            "parent": rl.core.FieldSpec(("N",), torch.int64),
        },
        {"N": c.label_rows},
        rows="N",
        readers=("taste",),
    )
    beside = rl.graphs.TrainerSpec(
        lambda ranks: TasteLearner(taste(size)), (rl.flow.Phase({"labels": 1}),), name="taste", channel="taste"
    )
    asked = rl.graphs.InferenceStream(lambda: rl.flow.FunctionInferencer(judge), name="judge", params="")
    labelling = rl.graphs.TransformSpec(
        "labels", lambda incarnation: Labels(), reads=("trajectories",), writes=("labels",), asks=("judge",)
    )
    return replace(
        e,
        streams=(replace(trajectories, lossy_readers=("labels",)), labels),
        staleness={**e.staleness, "labels": rl.flow.LagRule(lag=1, batch=1, exact=False)},
        inference=(*e.inference, asked),
        transforms=(labelling,),
        trainers=(replace(leader, loads=("taste",)), beside),
    )
