"""Playing episodes to measure a policy: for a run's evaluator (`EnvEvaluation`) and for a user (`evaluate`).

Both play an exact number of episodes. With several environments each has its own quota: counting whichever episodes end
first would favour short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError
from runnel.core.protocols import EvalResult, InferenceClient, Policy, Progress, Reply
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ArraySpec
from runnel.envs.registry import Target, evaluation_kwargs, make_env
from runnel.envs.spaces import MASK
from runnel.envs.vector import Episode, StepOut, VectorEnv

_DRAIN_EVERY = 8
_MAX_POLLS = 100_000
_SMALLEST_NOISE = 2.0**-25


class EnvEvaluation:
    """Plays exactly `episodes` episodes with the client's policy, on seeds that training never uses, new ones every round.

    `make_vector` is called once, at the first round. `noise_size` is as in the sampler (None: what the action needs); a
    greedy policy ignores the noise, any other gets seeded noise. `state` names the policy's recurrent state.
    """

    def __init__(
        self,
        make_vector: Callable[[], VectorEnv],
        *,
        episodes: int,
        seed: int,
        noise_size: int | None = None,
        state: Mapping[str, ArraySpec] | None = None,
    ) -> None:
        if episodes < 1:
            raise ConfigError("eval.episodes", episodes, "play at least one episode")
        self._state_spec = state or {}
        self._make, self._episodes, self._seed, self._noise_size = make_vector, episodes, seed, noise_size
        self._vector: VectorEnv | None = None

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        if self._vector is None:
            self._vector = self._make()
        vector, seed = self._vector, make_seed(self._seed, "eval", round_index)
        rng, size = make_rng(seed, "noise"), self._noise_size
        noise = torch.zeros(vector.num_envs, vector.spec.action.noise_size if size is None else size)
        tally = _Tally(self._episodes, vector.num_envs)
        out = vector.reset(seed)
        state = {k: torch.zeros(vector.num_envs, *leaf.shape, dtype=leaf.dtype) for k, leaf in self._state_spec.items()}
        state = {k: x.to(out.reward.device) for k, x in state.items()}
        while tally.missing:
            for _ in range(_DRAIN_EVERY):
                rng.random(dtype=np.float32, out=noise.numpy())
                rows = _ask(client, out, noise, state).rows
                vector.step(rows["action"])
                over = out.terminated | out.truncated
                state = {k: torch.where(over.view(-1, *[1] * (x.dim() - 1)), 0.0, rows[k]) for k, x in state.items()}
            for e in vector.episodes():
                tally.add(e.env - vector.index0, e)
            if progress is not None:
                progress(self._episodes - tally.missing, self._episodes)
        episodes = tally.counted()
        return EvalResult([e.total for e in episodes], {"length": [float(e.length) for e in episodes]})

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None


class _Tally:
    """The first episodes of each environment, up to its quota."""

    def __init__(self, episodes: int, num_envs: int) -> None:
        base, more = divmod(episodes, num_envs)
        self._quota = [base + (row < more) for row in range(num_envs)]
        self._found: list[list[Episode]] = [[] for _ in range(num_envs)]
        self.missing = episodes

    def add(self, row: int, episode: Episode) -> None:
        if len(self._found[row]) < self._quota[row]:
            self._found[row].append(episode)
            self.missing -= 1

    def counted(self) -> list[Episode]:
        """By environment, then in the order they were played."""
        return [episode for found in self._found for episode in found]


def _ask(client: InferenceClient, out: StepOut, noise: Tensor, state: Mapping[str, Tensor]) -> Reply:
    rows = Batch({**out.obs, **state, "noise": noise.clamp_min(_SMALLEST_NOISE).to(out.reward.device)})
    if out.action_mask is not None:
        rows[MASK] = out.action_mask
    ticket = client.submit(rows)
    for _ in range(_MAX_POLLS):
        reply = client.ready(ticket)
        if reply is not None:
            return reply
        client.poll()
    raise DataError(f"the policy gave no answer within {_MAX_POLLS} polls; evaluate with an inline client")


def evaluate(
    policy: Policy,
    env: Target,
    *,
    episodes: int = 100,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    frame_stack: int = 0,
) -> EvalResult:
    """Play `episodes` episodes of `env` with `policy`, greedily; episode i is reset with a seed of its own."""
    if episodes < 1:
        raise ConfigError("episodes", episodes, "play at least one episode")
    played = make_env(env, kwargs=evaluation_kwargs(env, kwargs), frame_stack=frame_stack)
    try:
        scores = [_play(policy, played, make_seed(seed, "evaluate", i)) for i in range(episodes)]
    finally:
        played.close()
    return EvalResult([total for total, _ in scores], {"length": [float(length) for _, length in scores]})


def _play(policy: Policy, env: Any, seed: int) -> tuple[float, int]:
    policy.reset()
    obs, info = env.reset(seed=seed)
    total, length, over = 0.0, 0, False
    while not over:
        obs, reward, terminated, truncated, info = env.step(act(policy, obs, info))
        total, length, over = total + float(reward), length + 1, terminated or truncated
    return total, length


class _MaskedPolicy(Protocol):
    """A policy that can be told which actions are open."""

    def act(self, obs: Any, *, deterministic: bool, action_mask: Any) -> Any: ...


def act(policy: Policy, obs: Any, info: Mapping[str, Any]) -> Any:
    """A mask inside the observation reaches the policy with it; one in `info` is handed over here."""
    if MASK not in info:
        return policy.act(obs, deterministic=True)
    return cast(_MaskedPolicy, policy).act(obs, deterministic=True, action_mask=info[MASK])
