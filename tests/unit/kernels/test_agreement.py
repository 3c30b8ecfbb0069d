"""Accelerated learners agree with plain ones over random settings: the same weights, the same data, one update.

Kernels do the plain learner's arithmetic in another order, with a tanh that is within 4e-7 of the true one. So gradients agree
to float32 rounding. What an update makes of a gradient does not always: Adam divides each entry by its own size, and an entry
that is rounding alone moves a weight by as much as a sure one. Hence weights are compared as a whole, by the distance between
the two against the way that the plain learner went. Over 6,000 random settings that was at most 1.3e-4 for PPO and 2.6e-4 for
DQN; one setting that was found later (a layer of width 1) reached 2.5e-3. No weight differed by more than 1.5e-5.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from runnel.agents.ddpg import DDPGConfig, DDPGLearner
from runnel.agents.dqn import DQNConfig, DQNLearner
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.agents.sac import SACConfig, SACLearner
from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.contracts.learning import Update
from runnel.core.records import Batch, Header, Segment, trim
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream
from runnel.data.replay import replay_stream
from runnel.kernels.select import Accelerator
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.continuous import DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import NetConfig

METRICS = {"rel": 2e-4, "abs": 2e-5}
"""Tolerance of every metric."""
GRADIENT = 2e-4
"""Distance between the moments of both optimisers, as a share of their length."""
WAY = 1e-2
"""Distance between the weights of both learners, as a share of the way that the plain one went."""
SETTINGS = settings(max_examples=600, deadline=None, derandomize=True, database=None)

widths = st.tuples(st.sampled_from((1, 3, 8, 24, 64)), st.sampled_from((1, 2, 16, 32, 64)))
activations = st.sampled_from(("tanh", "relu"))
shares = st.floats(0.0, 1.0, width=32)
seeds = st.integers(0, 2**31)


def maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.one_of(st.none(), strategy)


def env_spec(kind: str, num_actions: int, width: int) -> EnvSpec:
    if kind == "continuous":
        action = ActionSpec("continuous", (num_actions,), (-1.0,) * num_actions, (1.0,) * num_actions)
        return EnvSpec({"obs": ArraySpec((width,))}, action)
    obs = {"obs/a": ArraySpec((2, 2)), "obs/b": ArraySpec((width,))} if kind == "leaves" else {"obs": ArraySpec((width,))}
    return EnvSpec(obs, ActionSpec("discrete", num_actions=num_actions), has_mask=kind == "masked")


specs = st.builds(
    env_spec, st.sampled_from(("discrete", "masked", "continuous", "leaves")), st.integers(2, 6), st.integers(1, 7)
)


def random_masks(shape: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
    """Each leaves an action open."""
    mask = torch.rand(shape, generator=g) > 0.4
    return mask.scatter(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=g), True)


def shaken(net: Any, g: torch.Generator) -> Any:
    """Heads start near 0, and biases at 0: both would hide mistakes."""
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=g))
        for buffer in net.buffers():
            if buffer.dim() and buffer.is_floating_point():
                buffer.add_(0.3 * torch.rand(buffer.shape, generator=g))
    return net


# ------------------------------------------------------------------------------------------------------------------- PPO
configs = st.builds(
    PPOConfig,
    lr=st.sampled_from((1e-3, "linear(1e-3, 1e-4)", "linear(3e-3, 0)")),
    gamma=st.sampled_from((0.9, 0.99)),
    gae_lambda=st.sampled_from((0.0, 0.8, 0.95)),
    clip_range=st.sampled_from((0.05, 0.2, 0.5)),
    num_epochs=st.integers(1, 3),
    num_minibatches=st.sampled_from((1, 2, 4)),
    entropy_coef=st.sampled_from((0.0, 0.01, 0.1)),
    value_coef=st.sampled_from((0.25, 0.5, 1.0)),
    value_clip=maybe(st.sampled_from((0.05, 0.3))),
    max_grad_norm=st.sampled_from((0.05, 0.5, 100.0)),
    normalise_advantage=st.booleans(),
    normalise_obs=st.booleans(),
    normalise_reward=st.booleans(),
    dual_clip=maybe(st.sampled_from((1.1, 2.0))),
)


def segment_for(net: ActorCritic, *, num_steps: int, num_envs: int, g: torch.Generator) -> Segment:
    """Random observations and rewards; actions of a policy that was not far from `net`, ends of both kinds."""
    spec = net.env_spec
    stream = trajectory_stream(spec, num_steps=num_steps, num_envs=num_envs, carried=("rewards/env",))
    arrays = stream.allocate()
    for key in (*spec.obs, *("final_" + k for k in spec.obs), "rewards/env", "carried_return"):
        arrays[key].copy_(torch.randn(arrays[key].shape, generator=g))
    if spec.has_mask:
        arrays["action_mask"].copy_(random_masks(arrays["action_mask"].shape, g))
    rows = Batch({k: arrays[k][:num_steps].flatten(0, 1) for k in spec.obs})
    rows["noise"] = torch.rand(num_steps * num_envs, net.noise_size, generator=g).clamp(1e-4, 1.0 - 1e-4)
    if spec.has_mask:
        rows["action_mask"] = arrays["action_mask"][:num_steps].flatten(0, 1)
    with torch.no_grad():
        answer = net.act(rows)
    arrays["action"].copy_(answer["action"].view(arrays["action"].shape))
    drift = 0.3 * torch.randn(arrays["logprob"].shape, generator=g)
    arrays["logprob"].copy_(answer["logprob"].view(arrays["logprob"].shape) + drift)
    end = torch.rand(num_steps, num_envs, generator=g)
    arrays["terminated"].copy_(end < 0.15)
    arrays["truncated"].copy_((end >= 0.15) & (end < 0.3))
    index = (end < 0.3).flatten().nonzero().flatten()
    arrays["final_index"][: len(index)] = index
    return Segment(0, stream, Header(used={"F": len(index)}), trim(stream, arrays, {"F": len(index)}))


@SETTINGS
@given(config=configs, spec=specs, hidden=widths, activation=activations, progress=shares, seed=seeds)
def test_ppo(config: PPOConfig, spec: EnvSpec, hidden: tuple[int, int], activation: Any, progress: float, seed: int) -> None:
    def learner() -> PPOLearner:
        body = build_body(spec, NetConfig(hidden=hidden, activation=activation), seed=3)
        net = ActorCritic(spec, body, normalise_obs=config.normalise_obs)
        return PPOLearner(config, shaken(net, torch.Generator().manual_seed(seed)), seed=seed)

    plain, ours = learner(), learner()
    made = Accelerator("on").learner(ours)
    assert made.on, made.text
    segment = segment_for(plain.net, num_steps=8, num_envs=4, g=torch.Generator().manual_seed(seed + 1))
    before = weights(plain)
    batches = [x.prepare({"trajectories": [segment]}, progress=progress) for x in (plain, ours)]
    assert batches[0].keys() == batches[1].keys()
    for key, x in batches[0].items():
        torch.testing.assert_close(batches[1][key], x, atol=2e-5, rtol=2e-4, msg=lambda text, key=key: f"{key}: {text}")
    told = [x.update(batch) for x, batch in zip((plain, ours), batches, strict=True)]
    compare((plain, ours), told, before)
    for a, b in zip(plain.net.buffers(), ours.net.buffers(), strict=True):
        torch.testing.assert_close(b, a)


# ------------------------------------------------------------------------------------------------------------------- DQN
q_configs = st.builds(
    DQNConfig,
    lr=st.sampled_from((1e-3, "linear(1e-3, 1e-4)")),
    double=st.booleans(),
    huber=maybe(st.sampled_from((0.1, 1.0))),
    max_grad_norm=st.sampled_from((0.05, 10.0)),
    target_every=st.sampled_from((1, 5)),
    target_tau=st.sampled_from((0.1, 1.0)),
)
q_specs = st.builds(env_spec, st.sampled_from(("discrete", "masked")), st.integers(2, 6), st.integers(1, 7))


def transitions_for(spec: EnvSpec, *, num: int, g: torch.Generator) -> Segment:
    stream = replay_stream(spec, batch_size=num)
    arrays = stream.allocate()
    for key in ("obs", "next_obs", "rewards/env"):
        arrays[key].copy_(torch.randn(arrays[key].shape, generator=g))
    arrays["action"].copy_(torch.randint(spec.action.num_actions, (num,), generator=g))
    arrays["discount"].copy_(0.99 * (torch.rand(num, generator=g) > 0.3))
    arrays["weight"].copy_(0.5 + 0.5 * torch.rand(num, generator=g))
    arrays["index"].copy_(torch.arange(num))
    if spec.has_mask:
        for key in ("action_mask", "next_action_mask"):
            arrays[key].copy_(random_masks(arrays[key].shape, g))
        arrays["next_action_mask"][arrays["discount"] == 0.0] = False  # nothing is open where an episode is over
    return Segment(0, stream, Header(), arrays)


@SETTINGS
@given(config=q_configs, spec=q_specs, hidden=widths, activation=activations, progress=shares, seed=seeds)
def test_dqn(config: DQNConfig, spec: EnvSpec, hidden: tuple[int, int], activation: Any, progress: float, seed: int) -> None:
    def learner() -> DQNLearner:
        net = config.network(spec, NetConfig(hidden=hidden, activation=activation), seed=3)
        made = DQNLearner(config, shaken(net, torch.Generator().manual_seed(seed)))
        shaken(made.target_net, torch.Generator().manual_seed(seed + 2))
        return made

    plain, ours = learner(), learner()
    made = Accelerator("on").learner(ours)
    assert made.on, made.text
    segment = transitions_for(spec, num=32, g=torch.Generator().manual_seed(seed + 1))
    before = weights(plain)
    told = [x.update(x.prepare({"replay": [segment]}, progress=progress)) for x in (plain, ours)]
    compare((plain, ours), told, before)
    for a, b in zip(plain.target_net.parameters(), ours.target_net.parameters(), strict=True):
        torch.testing.assert_close(b, a, atol=2e-4, rtol=1e-3)
    (words,) = zip(*(update.feedback["replay"] for update in told), strict=True)
    torch.testing.assert_close(words[1]["priority"], words[0]["priority"], atol=2e-5, rtol=2e-4)


# ------------------------------------------------------------------------------------------------------------ comparing
def weights(learner: Any) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in learner.net.parameters()])


def compare(pair: tuple[Any, Any], told: list[Update], before: torch.Tensor) -> None:
    """Metrics, gradients (as Adam's moments hold them), and weights."""
    plain, ours = pair
    assert told[0].metrics.keys() == told[1].metrics.keys()
    for key, value in told[0].metrics.items():
        assert told[1].metrics[key] == pytest.approx(value, **METRICS), key
        assert math.isfinite(value), key
    for moment in ("mean", "square"):
        a, b = (x.optimiser.state_dict()[moment] for x in pair)
        assert (a - b).norm() <= GRADIENT * a.norm() + 1e-9, moment
    assert plain.optimiser.num_steps == ours.optimiser.num_steps
    assert (weights(ours) - weights(plain)).norm() <= WAY * (weights(plain) - before).norm() + 1e-7
    torch.testing.assert_close(weights(ours), weights(plain), atol=2e-5, rtol=1e-4)


# --------------------------------------------------------------------------------------------------------- SAC and TD3
def replay_learners(recipe: str, hidden: tuple[int, ...], activation: str, num: int, **config: Any) -> list[Any]:
    """The plain learner and the accelerated one, from the same weights."""
    action = ActionSpec("continuous", (num,), low=(-2.0,) * num, high=(1.0,) * num)
    spec, found = EnvSpec({"obs": ArraySpec((5,))}, action), []
    net = NetConfig(hidden=hidden, activation=activation)  # type: ignore[arg-type]
    for mode in ("off", "on"):
        if recipe == "sac":
            critic = QEnsemble(spec, net, copies=2, seed=1)
            learner: Any = SACLearner(SACConfig(**config), SquashedGaussianActor(spec, net, seed=1), critic, seed=3)
        elif recipe == "td3":
            critic = QEnsemble(spec, net, copies=2, seed=1)
            learner = TD3Learner(TD3Config(**config), DeterministicActor(spec, net, seed=1), critic, seed=3)
        else:
            critic = QEnsemble(spec, net, copies=1, seed=1)
            learner = DDPGLearner(DDPGConfig(**config), DeterministicActor(spec, net, seed=1), critic, seed=3)
        made = Accelerator(mode).learner(learner)  # type: ignore[arg-type]
        assert made.on == (mode == "on"), made.text
        found.append(made.learner)
    return found


@settings(SETTINGS, max_examples=150)
@given(
    recipe=st.sampled_from(("sac", "td3", "ddpg")),
    hidden=st.lists(st.sampled_from((1, 3, 16, 32)), min_size=1, max_size=3).map(tuple),
    activation=activations,
    num=st.integers(1, 4),
    rows=st.sampled_from((1, 2, 16, 33)),
    tau=st.floats(0.001, 1.0),
    own=st.fixed_dictionaries(
        {"auto_temperature": st.booleans(), "target_noise": st.sampled_from((0.0, 0.2)), "actor_delay": st.integers(1, 2)}
    ),
    seed=seeds,
)
def test_gradients_written_out_are_those_of_autograd(
    recipe: str, hidden: tuple[int, ...], activation: str, num: int, rows: int, tau: float, own: dict[str, Any], seed: int
) -> None:
    names = {"sac": ("auto_temperature",), "td3": ("target_noise", "actor_delay"), "ddpg": ()}[recipe]
    config = {"tau": tau, "batch_size": rows, **{name: own[name] for name in names}}
    plain, fast = replay_learners(recipe, hidden, activation, num, **config)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(2):  # the second update goes from where the first has led, and moves a delayed actor
        batch = Batch(
            obs=torch.randn(rows, 5, generator=draw),
            next_obs=torch.randn(rows, 5, generator=draw),
            action=2.0 * torch.rand(rows, num, generator=draw) - 1.0,
            discount=0.99 * torch.randint(0, 2, (rows,), generator=draw),
            weight=torch.rand(rows, generator=draw) + 0.5,
            index=torch.arange(rows),
        )
        batch["rewards/env"] = torch.randn(rows, generator=draw)
        told = []
        for learner in (plain, fast):
            learner._sizes = {"replay": [rows]}
            told.append(learner.update(batch))
        assert told[0].metrics.keys() == told[1].metrics.keys()
        for name, value in told[0].metrics.items():
            assert told[1].metrics[name] == pytest.approx(value, **METRICS), name
        mine, theirs = (u.feedback["replay"][0]["priority"] for u in told)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for name in ("_actor_adam", "_critic_adam"):
        ours, others = (getattr(learner, name).state_dict() for learner in (plain, fast))
        for moment in ("mean", "square"):
            assert (ours[moment] - others[moment]).norm() <= GRADIENT * ours[moment].norm() + 1e-7, (name, moment)
