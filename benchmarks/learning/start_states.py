"""Episodes that begin at states of a teacher (SnapshotRL): SAC beside itself at equal steps and updates, on Hopper-v5.

python -m benchmarks.learning.start_states              # 15 minutes of one core; writes results/learning/start_states
python -m benchmarks.learning.start_states --seeds 1 2 --table

A teacher (SAC, 30,000 steps, a seed that no learner has) is trained once, and 20 episodes of it are recorded with the actions
that it draws, and with the state before every fifth step. Learners are SAC with its defaults, for 10,000 steps, evaluated from
the environment's own starts on 20 greedy episodes every 2,000 updates.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.learning.beside import Row, Study, Teacher

import runnel as rl

EVERY = 2_000
PLAIN: Row = {"track": (), "checkpoint": {"every": 0}, "progress": False, "env": "Hopper-v5"}
ONLINE: Row = {**PLAIN, "total_steps": 10_000, "min_fill": 1_000, "update_ratio": 1.0, "eval": {"every": EVERY, "episodes": 20}}


def from_states(**settings: object) -> Callable[[rl.data.Dataset], Row]:
    return lambda data: {**ONLINE, "curriculum": {"kind": "states", "states": str(data.folder), **settings}}


STUDY = Study(
    name="start_states",
    teacher=Teacher("sac", {**PLAIN, "total_steps": 30_000}, seed=100, episodes=20, more={"states_every": 5}),
    learners={
        "SAC": ("sac", lambda data: ONLINE),
        "SAC, half of the episodes from states, in the first half": ("sac", from_states()),
        "the same, such episodes cut after 100 steps": ("sac", from_states(cut=100)),
    },
    every=EVERY,
)

if __name__ == "__main__":
    STUDY.main()
