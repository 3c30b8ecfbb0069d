"""The small data sets of the tests, in `data_sets/`: random actions in CartPole-v1 and Pendulum-v1; one with start states.

They are files of the repository, so that every test also reads what an earlier version wrote. `python made_data.py FOLDER`
makes them as they were made.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from runnel.core.contracts.inference import Reply
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec
from runnel.data.dataset import Dataset, DatasetWriter, Source
from runnel.envs.registry import make_vector
from runnel.envs.starts import Starts
from runnel.eval.episodes import EpisodePlayer

HERE = Path(__file__).with_name("data_sets")
CARTPOLE, PENDULUM, STARTED = (str(HERE / name) for name in ("cartpole", "pendulum", "started"))


class Anything:
    """An inline client that plays uniformly random actions, by the noise of the request."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action

    def submit(self, rows: Batch, *, version: int = -1) -> int:
        noise = rows["noise"]
        if self.action.kind == "discrete":
            found = (noise.squeeze(-1) * self.action.num_actions).long()
        else:
            found = torch.lerp(torch.tensor(self.action.low), torch.tensor(self.action.high), noise)
        self._reply = Reply(0, Batch(action=found), 0)
        return 0

    def ready(self, ticket: int) -> Reply:
        return self._reply

    def poll(self) -> int:
        return 0


def play_anything(env: str, folder: Path, *, episodes: int, seed: int = 0, states_every: int = 0) -> Dataset:
    """A data set of random actions."""
    vector = make_vector(env, min(episodes, 4), seed=seed, starts=Starts() if states_every else None)
    player = EpisodePlayer(lambda: vector, episodes, seed, vector.spec.action.noise_size, {}, 1_000, states_every)
    with DatasetWriter(folder, vector.spec, Source(env), states=states_every > 0) as writer:
        for episode in player.run(Anything(vector.spec.action)):
            writer.add(episode)
        return writer.finish(actions="uniformly random", seed=seed)


if __name__ == "__main__":
    for name, episodes in (("CartPole-v1", 12), ("Pendulum-v1", 2)):
        print(play_anything(name, Path(sys.argv[1]) / name.partition("-")[0].lower(), episodes=episodes))
    print(play_anything("CartPole-v1", Path(sys.argv[1]) / "started", episodes=4, states_every=5))
