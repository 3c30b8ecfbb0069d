"""RLPD: SAC on batches that are half of a data set, half of what is played; for a box of continuous actions.

runnel data record runs/some-sac data/some --episodes 50
runnel train rlpd --env Pendulum-v1 --data data/some
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.ReplayEnvConfig, rl.graphs.DataEnvConfig):
    """RLPD (agents/rlpd.py): uniformly random actions until `min_fill` steps, then `update_ratio` updates for each step."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("mix", why="batches of those sizes are on their way")

    recurrent: ClassVar[bool] = False
    env: str = "HalfCheetah-v5"
    """The environment: a Gymnasium id, module:Class, or path/to/file.py:factory."""
    mix: tuple[str, ...] = ("offline=0.5",)
    """The share of each batch that comes from the data set."""
    num_steps: int = 8
    """Steps of each environment in one segment."""
    update_ratio: float = rl.core.bounded(20.0, above=0, finite=True)
    """Number of updates for each environment step. Actors or learner wait to keep this ratio, on every launcher."""
    min_fill: int = 5_000
    """Environment steps in the buffer before the first update; until then actions are uniformly random."""
    total_steps: int | None = 250_000
    """Budget in steps of the environment."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(256, 256), activation="relu"))
    rlpd: rl.agents.RLPDConfig = field(default_factory=lambda: rl.agents.RLPDConfig(critic_lr=3e-4))
    replay: rl.ReplayConfig = field(default_factory=lambda: rl.ReplayConfig(capacity=1_000_000, prioritised=False))
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(episodes=10))
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=100_000, keep=1))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused() | {"rlpd.entropy_share": "is of discrete actions; set rlpd.target_entropy"}
        if not self.rlpd.auto_temperature:
            found["rlpd.target_entropy"] = "is what an automatic temperature holds; set rlpd.auto_temperature"
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.rlpd.check()
        if not 0 < self.data_rows < self.rlpd.batch_size:
            fix = f"a batch of {self.rlpd.batch_size} needs rows of both; give the share of the data, such as offline=0.5"
            raise rl.ConfigError("mix", self.mix, fix)

    @property
    def data_rows(self) -> int:
        """Rows of the data set in a batch."""
        return round(rl.graphs.share_of(self.mix, "offline") * self.rlpd.batch_size)


def build(c: Config, learner: type[rl.agents.RLPDLearner] = rl.agents.RLPDLearner) -> rl.Experiment:
    """As for SAC, and another actor that reads the data set: a batch is one segment of `replay` and one of `offline`."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    r = c.rlpd

    def network() -> rl.nets.SquashedGaussianActor:
        return rl.nets.SquashedGaussianActor(task.spec, c.net, seed=c.seed)

    def single(ranks: rl.Collective) -> rl.agents.RLPDLearner:
        critic = rl.nets.QEnsemble(task.spec, c.net, copies=r.num_critics, layer_norm=r.layer_norm, seed=c.seed)
        return learner(r, network(), critic, seed=c.seed, collective=ranks, device=c.device)

    played = r.batch_size - c.data_rows
    experiment = rl.replay_graph(c, task, network=network, learner=single, batch_size=played, gamma=r.gamma)
    return rl.graphs.beside_data(experiment, c, task, batch_size=c.data_rows, gamma=r.gamma, n_step=c.replay.n_step)
