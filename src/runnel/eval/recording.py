"""Records videos of episodes. These are played beside an evaluation, with other seeds, so they change none of its numbers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runnel.core.contracts.evaluation import Policy, Progress
from runnel.core.contracts.inference import InferenceClient
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec
from runnel.core.state import WorkerEvent
from runnel.core.worker import progressed
from runnel.envs.render import RenderedEnv
from runnel.eval.runner import act, ask

_TELL_EVERY = 32
"""Steps between two reports of progress."""


class FrameSink(Protocol):
    """Encodes frames as a video file: `track/media.py`, which this package may not import."""

    suffix: str
    width: int
    height: int

    def add(self, frame: NDArray[np.uint8]) -> None: ...

    def finish(self) -> bytes:
        """End the video and return the content of its file."""
        ...

    def close(self) -> None:
        """Release its resources, whether the video is finished or not."""
        ...


class ClientNet:
    """A net whose actions come from an inference client."""

    noise_size = 0

    def __init__(self, client: InferenceClient, state: Mapping[str, ArraySpec]) -> None:
        self._client, self.state_spec = client, state

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        return ask(self._client, rows)


@dataclass(frozen=True)
class VideoRecorder:
    """Plays `episodes` episodes greedily and yields each as an event with its video (core `EpisodeRecorder`).

    `make` makes the environment, once for each round. `policy` makes the policy from a net that asks the client. `video` makes
    an encoder for a frame rate. An episode is cut after `max_steps`. `fps` 0: the rate of the environment.
    """

    make: Callable[[], RenderedEnv]
    policy: Callable[[ClientNet], Policy]
    state: Callable[[], Mapping[str, ArraySpec]]
    video: Callable[[float], FrameSink]
    episodes: int
    seed: int
    max_steps: int
    fps: float = 0.0

    def run(self, client: InferenceClient, *, round_index: int, progress: Progress | None = None) -> Iterator[WorkerEvent]:
        """Yield one event for each episode: its numbers, and `data`, the video file in base64."""
        policy, env = self.policy(ClientNet(client, self.state())), self.make()
        try:
            for number in range(self.episodes):
                seed = make_seed(self.seed, "record", round_index, number)

                def tell(number: int = number) -> None:
                    if progress is not None:
                        progress(number, self.episodes)

                yield {"kind": "video", "episode": number, "seed": seed, **self._record(policy, env, seed, tell)}
        finally:
            env.close()

    def _record(self, policy: Policy, env: RenderedEnv, seed: int, tell: Callable[[], None]) -> WorkerEvent:
        fps = self.fps or env.fps
        sink, rewards, over, truncated = self.video(fps), list[float](), False, False
        try:
            policy.reset()
            obs, info = env.reset(seed)
            sink.add(env.frame())
            while not over and len(rewards) < self.max_steps:
                obs, reward, terminated, truncated, info = env.step(act(policy, obs, info))
                sink.add(env.frame())
                progressed()
                rewards.append(reward)
                over = terminated or truncated
                if len(rewards) % _TELL_EVERY == 0:
                    tell()
            data = sink.finish()
        finally:
            sink.close()
        return {
            "return": float(sum(rewards)),
            "length": len(rewards),
            "fps": fps,
            "width": sink.width,
            "height": sink.height,
            "seconds": round((len(rewards) + 1) / fps, 3),
            "rewards": rewards,
            "truncated": truncated or not over,
            "suffix": sink.suffix,
            "data": base64.b64encode(data).decode(),
        }
