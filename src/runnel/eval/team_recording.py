"""Records videos of worlds with several agents that draw themselves: all policies play, and one world is looked at."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from runnel.core.contracts.evaluation import Progress
from runnel.core.contracts.inference import InferenceClient
from runnel.core.rng import make_rng, make_seed
from runnel.core.routes import Side
from runnel.core.spaces import ArraySpec
from runnel.core.state import State, WorkerEvent
from runnel.core.worker import progressed
from runnel.envs.device import TensorTeam
from runnel.envs.vector.contract import Episode, Fault, StepOut
from runnel.eval.recording import FrameSink
from runnel.eval.runner import ask
from runnel.eval.tally import Tally
from runnel.eval.teams import TeamPlay


class Filmed:
    """One world as a `TeamVector`, whose picture goes into `sink` before each step. The end of an episode is not seen: the next
    one has begun by then."""

    def __init__(self, vector: TensorTeam, sink: FrameSink) -> None:
        self._vector, self._sink = vector, sink
        self.name, self.num_envs, self.index0 = vector.name, vector.num_envs, vector.index0
        self.sides: Mapping[str, Side] = vector.sides
        self.outs: Mapping[str, StepOut] = vector.outs
        self.rewards: list[float] = []
        """What the trained agents were paid at each step, on average."""

    def reset(self, seed: int | None = None) -> None:
        self._vector.reset(seed)

    def send(self, actions: Mapping[str, Tensor]) -> None:
        self._sink.add(self._vector.frame(0))
        self._vector.send(actions)
        progressed()
        paid = [self.outs[policy].reward.numpy() for policy, side in self.sides.items() if side.trains]
        self.rewards.append(float(np.concatenate(paid).mean()))

    def ready(self) -> bool:
        return self._vector.ready()

    def recv(self) -> None:
        self._vector.recv()

    def episodes(self) -> list[Episode]:
        return self._vector.episodes()

    def faults(self) -> list[Fault]:
        return self._vector.faults()

    def snapshot(self) -> State:
        return self._vector.snapshot()

    def restore(self, state: State) -> None:
        self._vector.restore(state)

    def close(self) -> None:
        self._vector.close()


@dataclass(frozen=True)
class TeamVideoRecorder:
    """As `VideoRecorder`, for teams: each episode is an event with its video, with the mean return of the trained agents.

    `make` makes one world. The client serves all policies at once, as in an evaluation, and takes their best actions.
    """

    make: Callable[[], TensorTeam]
    noise_sizes: Mapping[str, int]
    states: Mapping[str, Mapping[str, ArraySpec]]
    video: Callable[[float], FrameSink]
    episodes: int
    seed: int
    max_steps: int
    fps: float

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> Iterator[WorkerEvent]:
        """Yield one event for each episode: its numbers, and `data`, the video file in base64."""
        vector = self.make()
        try:
            for number in range(self.episodes):
                seed = make_seed(self.seed, "record", round_index, number)
                if progress is not None:
                    progress(number, self.episodes)
                yield {"kind": "video", "episode": number, "seed": seed, **self._record(vector, client, seed)}
        finally:
            vector.close()

    def _record(self, vector: TensorTeam, client: InferenceClient, seed: int) -> WorkerEvent:
        sink, tally = self.video(self.fps), Tally(1, 1)
        try:
            filmed = Filmed(vector, sink)
            filmed.reset(seed)
            team = TeamPlay(filmed, noise_sizes=self.noise_sizes, states=self.states, max_steps=self.max_steps)
            team.play(lambda rows: ask(client, rows), tally, rng=make_rng(seed, "noise"))
            data = sink.finish()
        finally:
            sink.close()
        cut = bool(tally.result().extra.get("cut"))
        (out, *_) = vector.outs.values()
        return {
            "return": float(sum(filmed.rewards)),
            "length": len(filmed.rewards),
            "fps": self.fps,
            "width": sink.width,
            "height": sink.height,
            "seconds": round(len(filmed.rewards) / self.fps, 3),
            "rewards": filmed.rewards,
            "truncated": cut or bool(out.truncated.any()),
            "suffix": sink.suffix,
            "data": base64.b64encode(data).decode(),
        }
