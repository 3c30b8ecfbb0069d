"""A data set as a source: batches of its transitions on a stream, from an actor that asks no policy.

Batch k is drawn from (seed, k) alone, so the sampler has no state that could be lost: a resumed run draws what it would have
drawn, wherever the sampler lives and however often it was started. Nothing of it counts as a step of an environment.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec, Slot, StreamSpec
from runnel.core.rng import make_rng
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array, State, WorkerEvent
from runnel.data.dataset import MASK, Dataset

OFFLINE = "offline"
"""The stream of a data set."""


def imitation_stream(env: EnvSpec, *, batch_size: int, name: str = OFFLINE, capacity: int = 2) -> StreamSpec:
    """A stream of observations and the actions that were taken there: `batch_size` rows a segment."""
    fields = {key: FieldSpec(("B", *leaf.shape), leaf.dtype) for key, leaf in env.obs.items()}
    fields["action"] = FieldSpec(("B", *env.action.shape), env.action.dtype)
    if env.has_mask:
        fields[MASK] = FieldSpec(("B", env.action.mask_size), torch.bool)
    return StreamSpec(name, fields, {"B": batch_size}, capacity=capacity)


class OfflineSampler:
    """A core `Sampler` without inference: each segment has rows of `data`, drawn uniformly with replacement.

    It fills the fields that the stream has: those of `imitation_stream`, or of `replay_stream`. There `rewards/env` and
    `discount` are over up to `n_step` steps of an episode with discount `gamma`. A row whose steps end in a truncated episode
    bootstraps from the observation that ended it.
    """

    def __init__(self, data: Dataset, *, seed: int, gamma: float = 0.0, n_step: int = 1, stream: str = OFFLINE) -> None:
        self._data, self._seed, self._gamma, self._n_step, self._stream = data, seed, gamma, n_step, stream

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        writer = writers[self._stream]
        writer.feedback()  # errors that a learner sends back: every row is as likely as any other
        slot = writer.reserve()
        if slot is None:
            return 0
        rng = make_rng(self._seed, self._stream, slot.header.sequence)
        self.fill(slot, rng.integers(0, self._data.num_steps, slot.spec.num_rows))
        slot.header.version_min = slot.header.version_max = -1
        writer.commit(slot, num_steps=0)
        return slot.spec.num_rows

    def fill(self, slot: Slot, steps: Array) -> None:
        """Write the transitions that begin at `steps` `[B]` into the fields of a slot."""
        columns, names = self._data.columns, slot.spec.fields.keys()
        episodes = self._data.episode_of(steps)
        out = {"action": columns["action"].take(steps, axis=0)}
        out |= {key: columns[key].take(steps + episodes, axis=0) for key in _observed(columns) & names}
        if "discount" in names:
            last = np.minimum(steps + self._n_step - 1, self._data.ends_of(episodes))
            out["rewards/env"], out["discount"] = self._returns(steps, last)
            out |= {f"next_{key}": columns[key].take(last + episodes + 1, axis=0) for key in _observed(columns)}
            out |= {"weight": np.ones(len(steps), np.float32), "index": steps}
        for key, array in out.items():
            slot.arrays[key].copy_(torch.from_numpy(array))

    def _returns(self, steps: Array, last: Array) -> tuple[Array, Array]:
        """Sums of discounted rewards from each step to its `last` one, and the discount behind them. `[B]` each

        R = sum_{k = 0}^{m - 1} gamma^k r_{t + k},  d = gamma^m, or 0 where the last step terminated;  m = last - t + 1
        """
        rewards, total = self._data.columns["rewards/env"], np.zeros(len(steps), np.float32)
        for k in range(self._n_step):
            inside = steps + k <= last
            total += np.float32(self._gamma**k) * rewards.take(np.minimum(steps + k, last)) * inside
        discount = np.float32(self._gamma) ** (last - steps + 1) * ~self._data.columns["terminated"].take(last)
        return total, discount.astype(np.float32)

    def waits_for(self) -> str:
        return f"a free segment of stream {self._stream!r}"

    def events(self) -> list[WorkerEvent]:
        return []

    def snapshot(self) -> State:
        return {"digest": self._data.digest}

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        if state["digest"] != self._data.digest:
            fix = f"has digest {self._data.digest}, and the checkpoint is of a data set with {state['digest']}; give that one"
            raise ConfigError(self._data.setting, str(self._data.folder), fix)

    def close(self) -> None:
        """Nothing is held that has to be given back: columns are unmapped with this object."""


def _observed(columns: Mapping[str, Array]) -> set[str]:
    """The columns with an entry for each observation."""
    return {key for key in columns if key == MASK or key == "obs" or key.startswith("obs/")}
