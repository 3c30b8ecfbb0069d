"""Plays whole segments of a tensor environment without leaving its device.

Consumes a policy in the same process and produces `[T, B]` segments (sample stream). It waits for room on the stream (unblocked
by the reader) and for a policy version (unblocked by the trainer). On a CUDA device a segment is one CUDA graph for each slot,
and the CPU runs ahead of the device: it reads the report of a segment (its episodes, whether all was finite) after it has
started the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.contracts.inference import InferenceClient, RowPolicy
from runnel.core.contracts.samples import SampleWriter
from runnel.core.contracts.tasks import TaskSource
from runnel.core.errors import NonFiniteError
from runnel.core.records import Batch, Slot, StreamSpec
from runnel.core.rng import make_seed
from runnel.core.routes import only_stream, route
from runnel.core.spaces import ArraySpec
from runnel.core.state import State, WorkerEvent
from runnel.core.trajectories import REWARD
from runnel.envs.device.episodes import records
from runnel.envs.device.torch_engine import Act, Played
from runnel.envs.device.vector import TensorVector
from runnel.envs.sampler import AGENT, VecEnvSampler, episode_event, give_tasks
from runnel.envs.segments import SMALLEST_NOISE, CarriedSums, check_rows, task_returns
from runnel.kernels.graphs import CudaGraphed


@dataclass
class Report:
    """The report of a segment, on its way from the device to the CPU: records of episodes, and their number (None: they are in
    a log), and a number or several that are finite if all is."""

    rows: Tensor | None
    count: Tensor | None
    total: Tensor
    arrived: torch.cuda.Event | None
    """Waits until the copies have arrived; None where nothing is copied."""

    @staticmethod
    def of(found: tuple[Tensor, Tensor] | None, total: Tensor) -> Report:
        """Start the copy of a segment's numbers to the CPU."""
        rows, count = found if found is not None else (None, None)
        if total.device.type != "cuda":
            return Report(rows, count, total, None)
        # to pinned memory and without waiting; the event says when the copies have arrived
        sent = [None if x is None else _to_cpu(x) for x in (rows, count, total)]
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        assert sent[2] is not None
        return Report(sent[0], sent[1], sent[2], arrived)

    def wait(self) -> Report:
        """Itself, once its numbers have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self


class DeviceSampler:
    """Plays a `TensorVector` with a policy in the same process (`InferenceClient.local`). One segment a step.

    Noise (`[T, B, noise_size]`, uniform) comes from a generator on the device. On a device, only truncated episodes have final
    observations (see `TorchEngine`). A policy in another process, or a recurrent one (its `state` travels with requests), is
    asked step by step by a `VecEnvSampler`.
    """

    def __init__(
        self,
        vector: TensorVector,
        *,
        routes: Sequence[AgentRoute],
        noise_size: int,
        seed: int,
        name: str,
        state: Mapping[str, ArraySpec] | None = None,
        carried: Mapping[str, float] | None = None,
        source: TaskSource | None = None,
    ) -> None:
        found = route(routes, AGENT)
        self._inference, self._stream = found.inference, only_stream(found)
        self.vector, self._noise_size = vector, noise_size
        self._by_step = VecEnvSampler(
            [vector], routes=routes, noise_size=noise_size, seed=seed, name=name, state=state, carried=carried, source=source
        )
        self._source = source
        self._sums = CarriedSums(vector.num_envs, carried or {}, device=vector.device)
        self._task_returns = task_returns(vector.num_envs, source, device=vector.device)
        self._one_by_one = bool(state)
        self._generator = torch.Generator(device=vector.device)
        self._generator.manual_seed(make_seed(seed, name, "noise"))
        self._noise = torch.zeros(0)
        self._act: Act | None = None
        self._play: CudaGraphed[Played] | None = None
        self._slot: Slot | None = None
        self._started = False
        self._waits = "nothing"
        self._num_steps = 0
        self._reports: list[Report] = []
        self._events: list[WorkerEvent] = []

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        client, writer = clients[self._inference], writers[self._stream]
        if not self._started:
            self._one_by_one = self._one_by_one or client.local() is None
        if self._one_by_one:
            return self._by_step.step(clients, writers)
        if self._slot is None:
            self._slot = writer.reserve()
        if self._slot is None:
            self._waits = f"room on stream {writer.spec.name!r}"
            return 0
        need = self._slot.header.required_version
        if not client.sync(need):
            self._waits = f"policy version {need}" if need >= 0 else "a first policy version"
            return 0
        if self._source is not None:
            history = client.constants(need)
            if history is None:
                self._waits = f"the history of tasks of version {max(need, 0)}"
                return 0
            give_tasks(self.vector.out, self._source, self._slot.header.sequence, history)
        self._fill(self._slot, client)
        self._read(keep=1 if self.vector.device.type == "cuda" else 0)
        num_steps = self._slot.spec.sizes["T"] * self.vector.num_envs
        writer.commit(self._slot, num_steps=num_steps)
        self._slot, self._waits = None, "nothing"
        self._num_steps += num_steps
        return num_steps

    def _player(self, client: InferenceClient) -> CudaGraphed[Played]:
        """The function that plays a segment, made again when the policy object changes."""
        act = client.local()
        assert act is not None, "the policy has left this process"
        if self._play is None or act != self._act:
            generators = [self._generator, self.vector.generator]
            self._act = act
            self._play = CudaGraphed(
                lambda arrays: self._segment(arrays, act, client.row_policy()), generators=generators, name="a segment"
            )
        return self._play

    # -------------------------------------------------------------------------------------------------------- a segment
    def _fill(self, slot: Slot, client: InferenceClient) -> None:
        if not self._started:
            self.vector.reset()
            self._started = True
        self._check(slot.spec)
        with torch.no_grad():
            played = self._player(client)(slot.arrays)
        slot.arrays["policy_version"].fill_(client.version)
        slot.header.version_min = slot.header.version_max = client.version
        slot.header.used = {"F": played.num_final}
        self._reports.append(Report.of(played.records, played.total))

    def _segment(self, arrays: Batch, act: Act, rows: RowPolicy | None) -> Played:
        """Play a segment on the device. The noise is in fixed memory, so that requests can be made once."""
        self._noise.uniform_(generator=self._generator).clamp_(min=SMALLEST_NOISE)
        self._sums.begin(arrays)
        self._task_returns.begin(arrays)
        played = self.vector.play(arrays, act, self._noise, rows)
        self._sums.end(arrays)
        self._task_returns.end(arrays)
        return played

    def _check(self, spec: StreamSpec) -> None:
        if self._noise.numel():
            return
        check_rows(spec, self.vector.num_envs)
        self._noise = torch.zeros(spec.sizes["T"], self.vector.num_envs, self._noise_size, device=self.vector.device)

    # --------------------------------------------------------------------------------------------------- reports
    def _read(self, *, keep: int) -> None:
        """Turn all but the `keep` newest reports into events."""
        while len(self._reports) > keep:
            report = self._reports.pop(0).wait()
            if not math.isfinite(report.total.item()):
                names = " or ".join(("obs", REWARD, *self.vector.spec.channels.names))
                raise NonFiniteError(names, self._num_steps, f"a segment of environment {self.vector.name!r}")
            if report.rows is None or report.count is None:
                episodes = self.vector.episodes()
            else:
                episodes = records(report.rows[:, : int(report.count)], self.vector.index0, self.vector.spec.channels.names)
            for e in episodes:
                self._events.append(episode_event(e))

    def waits_for(self) -> str:
        return self._by_step.waits_for() if self._one_by_one else self._waits

    def events(self) -> list[WorkerEvent]:
        if self._one_by_one:
            return self._by_step.events()
        events, self._events = self._events, []
        return events

    def snapshot(self) -> State:
        """Waits for the reports of all segments; their events are part of the snapshot."""
        if self._one_by_one:
            return {"by_step": self._by_step.snapshot()}
        self._read(keep=0)
        return {
            "by_step": None,
            "started": self._started,
            "vector": self.vector.snapshot() if self._started else None,
            "generator": self._generator.get_state(),
            "returns": self._sums.save(),
            "task_returns": self._task_returns.save(),
            "slot": None if self._slot is None else self._slot.index,
            "num_steps": self._num_steps,
            "events": [dict(e) for e in self._events],
        }

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self._one_by_one = state["by_step"] is not None
        if self._one_by_one:
            return self._by_step.restore(state["by_step"], writers)
        self._started, self._num_steps = state["started"], state["num_steps"]
        if self._started:
            self.vector.restore(state["vector"])
        self._generator.set_state(state["generator"])
        self._sums.load(state.get("returns"))
        self._task_returns.load(state.get("task_returns"))
        self._slot = None if state["slot"] is None else writers[self._stream].reclaim(state["slot"])
        self._reports, self._events = [], [dict(e) for e in state["events"]]

    def close(self) -> None:
        self.vector.close()


def _to_cpu(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
