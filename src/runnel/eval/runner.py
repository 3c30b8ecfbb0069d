"""Plays episodes to measure a policy: for a run's evaluator (`EnvEvaluation`) and for a user (`evaluate`).

Both play an exact number of episodes. Of several environments, each has its own quota: if the first episodes to end counted,
short ones would be favoured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.evaluation import POLICY, Clients, EvalResult, Policy, Progress
from runnel.core.contracts.inference import InferenceClient
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ArraySpec
from runnel.core.state import Settings
from runnel.core.trajectories import REWARD
from runnel.envs.registry import Target, evaluation_kwargs, make_env
from runnel.envs.spaces import MASK, Action, Info, Obs
from runnel.envs.vector import StepOut, VectorEnv
from runnel.envs.wrapped import EnvWrapper
from runnel.eval.tally import EpisodeOutcome, Tally, incomplete, result_of

if TYPE_CHECKING:
    import gymnasium as gym

MAX_STEPS = 27_000
"""Steps after which an evaluated episode is cut by default: the limit of Atari (108,000 frames, 4 a step), the longest common
one. Some environments (CliffWalking) have no limit of their own, so an episode might never end."""
_DRAIN_EVERY = 8
"""Steps between two readings of the finished episodes, to which an accelerator must be synchronised."""
_MAX_POLLS = 100_000
_SMALLEST_NOISE = 2.0**-25
"""In place of a noise of 0, whose logarithm is infinite."""


class EnvEvaluation:
    """Plays exactly `episodes` episodes with the client's policy. Its seeds are never used in training, and new in every round.

    `make_vector` is called once, at the first round. `noise_size` is as in the sampler (None: what the action needs). The noise
    is seeded; a greedy policy ignores it. `state` describes the policy's recurrent state. An episode is cut after `max_steps`,
    and its return counts up to there. A crashed episode counts as played, and has no return.
    """

    def __init__(
        self,
        make_vector: Callable[[], VectorEnv],
        *,
        episodes: int,
        seed: int,
        noise_size: int | None = None,
        state: Mapping[str, ArraySpec] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        if episodes < 1:
            raise ConfigError("eval.episodes", episodes, "play at least one episode")
        if max_steps < 1:
            raise ConfigError("eval.max_steps", max_steps, "use at least 1")
        self._state_spec, self._max_steps = state or {}, max_steps
        self._make, self._episodes, self._seed, self._noise_size = make_vector, episodes, seed, noise_size
        self._vector: VectorEnv | None = None

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        if self._vector is None:
            self._vector = self._make()
        seed, tally = make_seed(self._seed, "eval", round_index), Tally(self._episodes, self._vector.num_envs)
        rng = make_rng(seed, "noise")
        attempt = 0
        while tally.missing:  # again only if episodes were cut: environments need a reset to leave those
            began = seed if attempt == 0 else make_seed(seed, "again", attempt)
            self._play(self._vector, clients[POLICY], tally, seed=began, rng=rng, progress=progress)
            attempt += 1
        return tally.result()

    def _play(
        self,
        vector: VectorEnv,
        client: InferenceClient,
        tally: Tally,
        *,
        seed: int,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        """Reset, and play until all episodes are counted, or until every environment with a quota left is in a cut episode."""
        size = self._noise_size
        noise = torch.zeros(vector.num_envs, vector.spec.action.noise_size if size is None else size)
        out = vector.reset(seed)
        vector.faults()  # drop those of before: they are reported already
        tally.begin(self._max_steps)
        state = {k: torch.zeros(vector.num_envs, *leaf.shape, dtype=leaf.dtype) for k, leaf in self._state_spec.items()}
        state = {k: x.to(out.reward.device) for k, x in state.items()}
        age = torch.zeros_like(out.reward, dtype=torch.int64)
        sums = {name: torch.zeros_like(out.reward, dtype=torch.float64) for name in (REWARD, *out.channels)}
        clock = 0
        while not tally.settled:
            for _ in range(_DRAIN_EVERY):
                rng.random(dtype=np.float32, out=noise.numpy())
                rows = ask(client, request_rows(out, noise, state))
                vector.step(rows["action"])
                over = out.terminated | out.truncated
                state = {k: torch.where(over.view(-1, *[1] * (x.dim() - 1)), 0.0, rows[k]) for k, x in state.items()}
                age, clock = age + 1, clock + 1
                for name, x in {REWARD: out.reward, **out.channels}.items():
                    sums[name] += x
                if clock >= self._max_steps and bool((late := (age == self._max_steps) & ~over).any()):
                    tally.add(vector)  # first the episodes that ended before this cut: the order of play counts
                    for row in late.nonzero().flatten().tolist():
                        total, *others = (float(x[row]) for x in sums.values())
                        tally.cut(row, total, channels=dict(zip(out.channels, others, strict=True)))
                for now in (age, *sums.values()):
                    now.masked_fill_(over, 0)
                if progress is not None:
                    progress(self._episodes - tally.missing, self._episodes)
            tally.add(vector)
        if progress is not None:
            progress(self._episodes - tally.missing, self._episodes)

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None


def request_rows(out: StepOut, noise: Tensor, state: Mapping[str, Tensor]) -> Batch:
    """What a policy is asked about the present observations. `noise` `[B, n]` is used by one that is not greedy."""
    rows = Batch({**out.obs, **state, "noise": noise.clamp_min(_SMALLEST_NOISE).to(out.reward.device)})
    if out.action_mask is not None:
        rows[MASK] = out.action_mask
    return rows


def ask(client: InferenceClient, rows: Batch) -> Batch:
    """Submit rows and poll the client until it has their reply. Returns the rows of the reply."""
    ticket = client.submit(rows)
    for _ in range(_MAX_POLLS):
        reply = client.ready(ticket)
        if reply is not None:
            return reply.rows
        client.poll()
    raise DataError(f"the policy gave no reply within {_MAX_POLLS} polls; use an inline client")


def evaluate(
    policy: Policy,
    env: Target,
    *,
    episodes: int = 100,
    seed: int = 0,
    kwargs: Settings | None = None,
    frame_stack: int = 0,
    max_steps: int = MAX_STEPS,
    wrappers: Sequence[str | EnvWrapper] = (),
) -> EvalResult:
    """Make an environment, call `evaluate_in` with it, and close it."""
    played = make_env(env, kwargs=evaluation_kwargs(env, kwargs), frame_stack=frame_stack, wrappers=wrappers)
    try:
        return evaluate_in(policy, played, episodes=episodes, seed=seed, max_steps=max_steps)
    finally:
        played.close()


def evaluate_in(policy: Policy, env: gym.Env, *, episodes: int, seed: int, max_steps: int = MAX_STEPS) -> EvalResult:
    """Play `episodes` episodes of the environment `env` with `policy`, greedily. Each episode has a seed of its own. It is cut
    after `max_steps`; then `extra["cut"]` flags it, and a warning says how many were cut."""
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if not isinstance(value, Integral) or value < 1:
            raise ConfigError(name, value, "use a whole number, at least 1")
    if not isinstance(seed, Integral) or seed < 0:
        raise ConfigError("seed", seed, "use a whole number, at least 0")
    result = result_of([_play(policy, env, make_seed(seed, "evaluate", i), max_steps) for i in range(episodes)])
    for text in incomplete(result.extra):
        warnings.warn(text, stacklevel=4)
    return result


def _play(policy: Policy, env: gym.Env, seed: int, max_steps: int) -> EpisodeOutcome:
    policy.reset()
    obs, info = env.reset(seed=seed)
    total, length, over = 0.0, 0, False
    while not over and length < max_steps:
        obs, reward, terminated, truncated, info = env.step(act(policy, obs, info))
        total, length, over = total + float(reward), length + 1, bool(terminated or truncated)
    return EpisodeOutcome(total, length, cut=not over)


class _MaskedPolicy(Protocol):
    """A policy that takes an action mask."""

    def act(self, obs: Obs, *, deterministic: bool, action_mask: object) -> Action: ...


def act(policy: Policy, obs: Obs, info: Info) -> Action:
    """The policy's action. A mask in `info` is passed on. A mask inside the observation reaches the policy with it."""
    if MASK not in info:
        return policy.act(obs, deterministic=True)
    return cast(_MaskedPolicy, policy).act(obs, deterministic=True, action_mask=info[MASK])
