"""Learning from a recorded run: RLPD beside SAC at equal steps and updates, and clones of a teacher, on Pendulum-v1.

python -m benchmarks.learning.from_data                 # 15 minutes of one core; writes results/learning/from_data
python -m benchmarks.learning.from_data --seeds 1 2 --table

A teacher (SAC, 10,000 steps, settings of the zoo, a seed that no learner has) is trained once, and 20 episodes of it are
recorded with the actions that it draws. All learners have the zoo's settings of SAC for Pendulum (two layers of 256, rates of
1e-3, one update a step from step 1,000 on) and are evaluated on 50 greedy episodes every 1,000 updates. What is written down is
everything that was run: nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.learning.beside import Row, Study, Teacher

import runnel as rl

EVERY = 1_000
RATES: Row = {"actor_lr": 1e-3, "critic_lr": 1e-3}
PLAIN: Row = {"track": (), "checkpoint": {"every": 0}, "progress": False, "env": "Pendulum-v1"}
EVALS: Row = {"every": EVERY, "episodes": 50}
ONLINE: Row = {**PLAIN, "total_steps": 5_000, "min_fill": 1_000, "update_ratio": 1.0, "eval": EVALS}
AS_SAC: Row = {"num_critics": 2, "subset": 2, "layer_norm": False, "actor_every": 1}


def on_data(settings: Row) -> Callable[[rl.data.Dataset], Row]:
    return lambda data: {**settings, "data": str(data.folder)}


STUDY = Study(
    name="from_data",
    teacher=Teacher("sac", {**PLAIN, "total_steps": 10_000}, seed=100, episodes=20, more={}),
    learners={
        "SAC": ("sac", lambda data: {**ONLINE, "sac": RATES}),
        "SAC's critics, half of each batch from the data": ("rlpd", on_data({**ONLINE, "rlpd": {**RATES, **AS_SAC}})),
        "RLPD (10 critics, layer normalisation)": ("rlpd", on_data({**ONLINE, "rlpd": {**RATES, "actor_every": 1}})),
        "behaviour cloning, 4,000 updates": ("bc", on_data({**PLAIN, "total_updates": 4_000, "eval": EVALS})),
    },
    every=EVERY,
)

if __name__ == "__main__":
    STUDY.main()
