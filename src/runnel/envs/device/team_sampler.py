"""The sampler of tensor worlds of several agents: segments of all policies at once, without leaving their device.

Consumes policies in the same process and produces `[T, E * A]` segments of one sample stream for each trained policy. It waits
for room on every stream (unblocked by its reader) and for a version of every policy (unblocked by the trainer). On a CUDA
device the segments of one round are one CUDA graph for each combination of slots, and the CPU runs ahead of the device, as in
`sampler.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import NonFiniteError
from runnel.core.records import Batch, Slot
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec
from runnel.core.state import State, WorkerEvent
from runnel.core.trajectories import REWARD, TASK_RETURN, episode_metric
from runnel.envs.device.episodes import records
from runnel.envs.device.sampler import Report
from runnel.envs.device.team_columns import Playing
from runnel.envs.device.team_engine import TeamEngine, TeamPlayed
from runnel.envs.device.torch_engine import Act
from runnel.envs.segments import SMALLEST_NOISE, CarriedSums, check_rows, reply_fields
from runnel.envs.team.sampler import TeamSampler
from runnel.kernels.graphs import CudaGraphed

Clients = Mapping[str, InferenceClient]
Writers = Mapping[str, SampleWriter]


@dataclass
class _Policy:
    """What is kept of one policy from segment to segment: all of it in fixed memory."""

    name: str
    stream: str
    """What it writes; empty where nothing is learned from it."""
    num_rows: int
    noise_size: int
    generator: torch.Generator
    state: dict[str, Tensor]
    sums: CarriedSums
    totals: CarriedSums
    """Returns so far, without discount, for streams that have them."""
    noise: Tensor
    slot: Slot | None = None

    def prepare(self, num_steps: int) -> None:
        """Memory for the noise of `num_steps` steps. It is made once, so that a graph can be replayed."""
        if len(self.noise) != num_steps:
            self.noise = self.noise.new_zeros(num_steps, self.num_rows, self.noise_size)

    def part(self, arrays: Batch | None, act: Act) -> Playing:
        """What it brings to a segment, with new noise."""
        self.noise.uniform_(generator=self.generator).clamp_(min=SMALLEST_NOISE)
        if arrays is None:
            return Playing(act, self.noise, self.state)
        assert self.slot is not None
        return Playing(act, self.noise, self.state, arrays, reply_fields(self.slot.spec))


class TeamSegmentSampler:
    """Plays the worlds of `engine` with policies in the same process (`InferenceClient.local`). One round of segments a step.

    `noise_sizes`, `gammas` and `states` are as for `TeamSampler`; noise comes from a generator of each policy on the device.

    `by_step` makes what steps worlds on the CPU instead. It plays unless `at_once`, and where a policy is in another process. A
    run goes on as it was begun, wherever it is resumed.
    """

    def __init__(
        self,
        engine: TeamEngine,
        *,
        noise_sizes: Mapping[str, int],
        seed: int,
        name: str,
        by_step: Callable[[], TeamSampler],
        at_once: bool = True,
        gammas: Mapping[str, float] | None = None,
        states: Mapping[str, Mapping[str, ArraySpec]] | None = None,
    ) -> None:
        self.engine, self._make_by_step, self._seed, self._name = engine, by_step, seed, name
        self._by_step: TeamSampler | None = None if at_once else by_step()
        self._policies = {}
        device = engine.device
        for policy, side in engine.sides.items():
            num_rows, gamma = engine.num_envs * len(side.agents), (gammas or {}).get(policy)
            state = {
                key: torch.zeros(num_rows, *leaf.shape, dtype=leaf.dtype, device=device)
                for key, leaf in (states or {}).get(policy, {}).items()
            }
            self._policies[policy] = _Policy(
                policy,
                side.route.samples[0].stream if side.trains else "",
                num_rows,
                noise_sizes[policy],
                torch.Generator(device=device).manual_seed(make_seed(seed, name, "noise", policy)),
                state,
                CarriedSums(num_rows, {} if gamma is None else {REWARD: gamma}, device=device),
                CarriedSums(num_rows, {REWARD: 1.0}, device=device, field=lambda _: TASK_RETURN),
                torch.zeros(0, num_rows, noise_sizes[policy], device=device),
            )
        self._trained = [policy for policy in self._policies.values() if policy.stream]
        self._acts: dict[str, Act] = {}
        self._play: CudaGraphed[TeamPlayed] | None = None
        self._started, self._waits, self._num_steps = False, "nothing", 0
        self._reports: list[Report] = []
        self._events: list[WorkerEvent] = []

    def step(self, clients: Clients, writers: Writers) -> int:
        if not self._started and self._by_step is None:
            self._choose(clients)
        if self._by_step is not None:
            return self._by_step.step(clients, writers)
        if not (self._reserve(writers) and self._sync(clients)):
            return 0
        num_steps = self._fill(clients)
        self._read(keep=1 if self.engine.device.type == "cuda" else 0)
        for k, policy in enumerate(self._trained):
            assert policy.slot is not None
            # a step of a world counts once, on the first stream
            writers[policy.stream].commit(policy.slot, num_steps=0 if k else num_steps)
            policy.slot = None
        self._waits, self._num_steps = "nothing", self._num_steps + num_steps
        return num_steps

    def _choose(self, clients: Clients) -> None:
        """Before the first segment: whether policies are here."""
        if absent := [name for name in self._policies if clients[name].local() is None]:
            self._by_step = self._make_by_step()
            self._tell(f"worlds step on the CPU, because policy {absent[0]!r} answers from another process", "warning")

    def _tell(self, text: str, level: str = "info") -> None:
        if self.engine.device.type != "cpu":
            self._events.append({"kind": "event", "level": level, "text": f"{self.engine.name}: {text}"})

    def _reserve(self, writers: Writers) -> bool:
        """Get the slots that are missing; those that are there are kept."""
        for policy in self._trained:
            if policy.slot is None:
                policy.slot = writers[policy.stream].reserve()
                if policy.slot is None:
                    self._waits = f"room on stream {policy.stream!r}"
                    return False
                check_rows(policy.slot.spec, policy.num_rows)
        return True

    def _sync(self, clients: Clients) -> bool:
        for policy in self._policies.values():
            need = -1 if policy.slot is None else policy.slot.header.required_version
            if not clients[policy.name].sync(need):
                version = f"version {need}" if need >= 0 else "a first version"
                self._waits = f"{version} of policy {policy.name!r}"
                return False
        return True

    # -------------------------------------------------------------------------------------------------------- a segment
    def _fill(self, clients: Clients) -> int:
        if not self._started:
            self.engine.begin()
            self._started = True
            self._tell(f"worlds are on {self.engine.device}, where all policies play a whole segment at once")
        slots = {policy.name: policy.slot for policy in self._trained if policy.slot is not None}
        num_steps = next(iter(slots.values())).spec.sizes["T"]
        for policy in self._policies.values():
            policy.prepare(num_steps)
        with torch.no_grad():
            played = self._player(clients)({name: slot.arrays for name, slot in slots.items()})
        for name, slot in slots.items():
            version = clients[name].version
            slot.arrays["policy_version"].fill_(version)
            slot.header.version_min = slot.header.version_max = version
            slot.header.used = {"F": played.num_final[name]}
        self._reports.append(Report.of(played.records, played.totals))
        return num_steps * self.engine.num_envs

    def _player(self, clients: Clients) -> CudaGraphed[TeamPlayed]:
        """The function that plays a round of segments, made again when the object of a policy changes."""
        found = {name: clients[name].local() for name in self._policies}
        acts = {name: act for name, act in found.items() if act is not None}
        assert len(acts) == len(found), "a policy has left this process"
        if self._play is None or acts != self._acts:
            self._acts = acts
            generators = [*(policy.generator for policy in self._policies.values()), self.engine.generator]
            self._play = CudaGraphed(
                lambda arrays: self._segments(arrays, acts), generators=generators, name="a round of segments"
            )
        return self._play

    def _segments(self, arrays: Mapping[str, Batch], acts: Mapping[str, Act]) -> TeamPlayed:
        """Play a round on the device; `arrays` are those of the slots, by policy."""
        for policy in self._trained:
            policy.sums.begin(arrays[policy.name])
            if TASK_RETURN in arrays[policy.name]:
                policy.totals.begin(arrays[policy.name])
        parts = {name: policy.part(arrays.get(name), acts[name]) for name, policy in self._policies.items()}
        played = self.engine.play(parts)
        for policy in self._trained:
            policy.sums.end(arrays[policy.name])
            if TASK_RETURN in arrays[policy.name]:
                policy.totals.end(arrays[policy.name])
        return played

    # --------------------------------------------------------------------------------------------------- reports
    def _read(self, *, keep: int) -> None:
        """Turn all but the `keep` newest reports into events."""
        policies, statistics = list(self._policies), self.engine.statistics
        while len(self._reports) > keep:
            report = self._reports.pop(0).wait()
            for policy, total in zip(self._trained, report.total.tolist(), strict=True):
                if not math.isfinite(total):
                    what = f"a segment of environment {self.engine.name!r}, policy {policy.name!r}"
                    raise NonFiniteError(f"obs, {REWARD} or an answer of the policy", self._num_steps, what)
            assert report.rows is not None
            assert report.count is not None
            names = [*policies, *map(episode_metric, statistics)]
            for e in records(report.rows[:, : int(report.count)], self.engine.index0, names):
                event = {"kind": "episode", "return": e.total, "length": e.length, "env": e.env}
                event["by_policy"] = {name: e.channels[name] for name in policies}
                if statistics:
                    event["statistics"] = {name: e.channels[episode_metric(name)] for name in statistics}
                self._events.append(event)

    def waits_for(self) -> str:
        return self._waits if self._by_step is None else self._by_step.waits_for()

    def events(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        return events if self._by_step is None else [*events, *self._by_step.events()]

    # ------------------------------------------------------------------------------------------------------------ state
    def snapshot(self) -> State:
        """Waits for the reports of all segments; their events are part of the snapshot. That of a run that is played step by
        step is `TeamSampler`'s."""
        if self._by_step is not None:
            return self._by_step.snapshot()
        self._read(keep=0)
        return {
            "device": self.engine.device.type,
            "started": self._started,
            "engine": self.engine.save() if self._started else None,
            "policies": {name: _save(policy) for name, policy in self._policies.items()},
            "num_steps": self._num_steps,
            "events": [dict(e) for e in self._events],
        }

    def restore(self, state: State, writers: Writers) -> None:
        self._by_step = None
        if "lanes" in state:
            self._by_step = self._make_by_step()
            self._tell("worlds step on the CPU, because this run was begun so")
            return self._by_step.restore(state, writers)
        self._started, self._num_steps = state["started"], state["num_steps"]
        if self._started:
            self.engine.load(state["engine"])
            self._set_generator("tensor_env", self.engine.generator, state["engine"]["generator"], state["device"])
        for name, policy in self._policies.items():
            saved = state["policies"][name]
            self._set_generator(name, policy.generator, saved["generator"], state["device"])
            for key, now in policy.state.items():
                now.copy_(torch.as_tensor(saved["state"][key]))
            policy.sums.load(saved["returns"])
            policy.totals.load(saved["totals"])
            policy.slot = None if saved["slot"] is None else writers[policy.stream].reclaim(saved["slot"])
        self._reports, self._events = [], [dict(e) for e in state["events"]]

    def _set_generator(self, name: str, generator: torch.Generator, saved: State, device: str) -> None:
        """The state of a generator; that of another kind of device means nothing here, so another sequence begins."""
        if device == self.engine.device.type:
            generator.set_state(torch.as_tensor(saved))
        else:
            generator.manual_seed(make_seed(self._seed, self._name, "moved", name, self._num_steps))

    def close(self) -> None:
        if self._by_step is not None:
            self._by_step.close()


def _save(policy: _Policy) -> State:
    return {
        "generator": policy.generator.get_state(),
        "state": {key: x.clone() for key, x in policy.state.items()},
        "returns": policy.sums.save(),
        "totals": policy.totals.save(),
        "slot": None if policy.slot is None else policy.slot.index,
    }
