"""Plays whole episodes with a policy and gives back every step: what a data set is recorded from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.action_codec import env_action
from runnel.core.contracts.evaluation import Progress
from runnel.core.contracts.inference import InferenceClient
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ActionSpec, ArraySpec
from runnel.core.state import Array
from runnel.core.state_columns import state_columns
from runnel.envs.spaces import MASK
from runnel.envs.starts import SavesStates
from runnel.envs.vector import StepOut, VectorEnv
from runnel.eval.runner import ask, request_rows


@dataclass(frozen=True)
class _Step:
    """One step of all environments. Observations `[B, ...]` are those that the actions `[B, ...]` answer; `states` are those of
    the environments before it, by row, where they were saved."""

    obs: Mapping[str, Array]
    action: Array
    outcome: Mapping[str, Array]
    states: Mapping[int, bytes]


@dataclass
class EpisodePlayer:
    """Plays exactly `episodes` episodes with a client's policy, and yields the columns of each as it ends.

    `obs`, and `action_mask` where there is one, have T + 1 entries, the last of which ended the episode; `action`,
    `rewards/env`, `terminated` and `truncated` have T. With `states_every`, `state/step`, `state/end` and `state/bytes` hold
    the states that were saved. Actions are those that were executed (a box clips). Each environment has a quota of its own, so
    that short episodes are not favoured. An episode is cut after `max_steps`: it is then truncated. One that crashes is left
    out and played anew.
    """

    make_vector: Callable[[], VectorEnv]
    episodes: int
    seed: int
    noise_size: int
    state: Mapping[str, ArraySpec]
    max_steps: int
    states_every: int = 0
    """Save the environment's state before every so many steps of an episode, for episodes that begin there; 0: never."""
    crashed: int = 0
    """Episodes that were left out because their environment failed."""

    def run(self, client: InferenceClient, *, progress: Progress | None = None) -> Iterator[Mapping[str, Array]]:
        vector = self.make_vector()
        try:
            base, more = divmod(self.episodes, vector.num_envs)
            left = [base + (row < more) for row in range(vector.num_envs)]
            attempt = 0
            while any(left):  # again only where episodes were cut: their environments need a reset to leave them
                for row, columns in self._play(vector, client, left, make_seed(self.seed, "record", attempt)):
                    left[row] -= 1
                    yield columns
                    if progress is not None:
                        progress(self.episodes - sum(left), self.episodes)
                attempt += 1
        finally:
            vector.close()

    def _play(
        self, vector: VectorEnv, client: InferenceClient, left: list[int], seed: int
    ) -> Iterator[tuple[int, Mapping[str, Array]]]:
        """Reset, and play until every environment has played its quota or is in an episode that was cut."""
        out, rng = vector.reset(seed), make_rng(seed, "noise")
        vector.faults()  # those of before
        noise = torch.zeros(vector.num_envs, self.noise_size)
        state = {k: torch.zeros(vector.num_envs, *leaf.shape, dtype=leaf.dtype) for k, leaf in self.state.items()}
        state = {k: x.to(out.reward.device) for k, x in state.items()}
        steps: list[list[_Step]] = [[] for _ in left]
        resting: set[int] = set()
        """Environments whose episode was cut: what it still does is not recorded."""
        while any(num and row not in resting for row, num in enumerate(left)):
            rng.random(dtype=np.float32, out=noise.numpy())
            seen = _observed(out)
            states = self._states(vector, {row: len(some) for row, some in enumerate(steps) if row not in resting})
            rows = ask(client, request_rows(out, noise, state))
            action = _executed(rows["action"], vector.spec.action)
            vector.step(rows["action"])
            over = out.terminated | out.truncated
            state = {k: torch.where(over.view(-1, *[1] * (x.dim() - 1)), 0.0, rows[k]) for k, x in state.items()}
            step = _Step(seen, action, _outcome(out), states)
            failed = {fault["env"] - vector.index0 for fault in vector.faults()}
            self.crashed += len(failed)
            for row, ended in enumerate(over.tolist()):
                if row not in resting:
                    steps[row].append(step)
                if ended or row in failed:
                    if row not in resting and row not in failed and left[row]:
                        yield row, self._columns(row, steps[row], _final(out, row))
                    resting.discard(row)
                    steps[row] = []
                elif len(steps[row]) == self.max_steps:
                    if left[row]:
                        yield row, self._columns(row, steps[row], {k: x[row] for k, x in _observed(out).items()}, cut=True)
                    resting.add(row)
                    steps[row] = []

    def _states(self, vector: VectorEnv, played: Mapping[int, int]) -> dict[int, bytes]:
        """The states of those rows that are due after so many steps of their episodes."""
        if not self.states_every:
            return {}
        assert isinstance(vector, SavesStates), "who asks for states makes such a vector"
        return {row: vector.save_state(row) for row, steps in played.items() if steps % self.states_every == 0}

    def _columns(self, row: int, steps: list[_Step], final: Mapping[str, Array], *, cut: bool = False) -> dict[str, Array]:
        """An episode of one environment, as columns."""
        found = {k: np.stack([*(s.obs[k][row] for s in steps), last]) for k, last in final.items()}
        found["action"] = np.stack([s.action[row] for s in steps])
        found |= {k: np.stack([s.outcome[k][row] for s in steps]) for k in steps[0].outcome}
        if cut:
            found["truncated"][-1] = True
        if self.states_every:
            found |= state_columns({t: s.states[row] for t, s in enumerate(steps) if row in s.states})
        return found


def _observed(out: StepOut) -> dict[str, Array]:
    """Copies of the present observations and masks, by column."""
    found: dict[str, Tensor] = dict(out.obs) if out.action_mask is None else {**out.obs, MASK: out.action_mask}
    return {k: x.cpu().numpy().copy() for k, x in found.items()}


def _outcome(out: StepOut) -> dict[str, Array]:
    found = {"rewards/env": out.reward, "terminated": out.terminated, "truncated": out.truncated}
    return {k: x.cpu().numpy().copy() for k, x in found.items()}


def _final(out: StepOut, row: int) -> dict[str, Array]:
    """What ended the episode of `row`."""
    place = row if out.final_rows is None else out.final_rows.index(row)
    return {k: x[place].cpu().numpy().copy() for k, x in out.final_obs.items()}


def _executed(action: Tensor, spec: ActionSpec) -> Array:
    """Actions as the environment executes them: those of a box within its bounds."""
    found: Array = action.cpu().numpy().copy()
    return found if spec.kind != "continuous" else np.asarray(env_action(spec)(found), np.float32)
