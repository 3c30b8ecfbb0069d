"""Teams that learn on our tensor worlds and are judged in the environments of others, beside players that do not learn.

python -m benchmarks.learning.teams                                   # all that is missing
python -m benchmarks.learning.teams --only 'spread: mappo' --seeds 1 2 3
python -m benchmarks.learning.teams --table                           # only write the table again

A team trains on `tensor:...`, as many worlds at once as its settings say, and then plays 500 episodes, greedily, in the
environment that the tensor world is a port of. Kitchens are judged as tensor worlds, in 50 episodes that pay soups alone:
tests hold their rules against Overcooked-AI. What a team gets there is held against what players get that do not learn: one
at random, and one by a script. A seed that has a result with the same settings is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.harness import RESULTS
from benchmarks.learning import anchors, cooks, seeds
from benchmarks.learning.anchors import Player
from benchmarks.learning.seeds import How, Row

import runnel as rl
from runnel.envs.device import Kitchen, TeamView
from runnel.envs.device.kitchen.layouts import LAYOUTS
from runnel.eval.statistics import mean_interval

OUT = RESULTS / "learning" / "teams"
EPISODES = 500


@dataclass(frozen=True)
class Judge:
    """How a player is judged: it plays the agents whose names begin with `who`, and `beside` plays the others."""

    name: str = ""
    who: str = ""
    beside: Callable[[], Player] | None = None


@dataclass(frozen=True)
class Task:
    """What teams train on (`env`), and where they are judged: `make` makes the environment of others, in whose `unit` they are
    counted. `anchors` are the players that do not learn, for each judge."""

    name: str
    env: str
    make: Callable[[], Any]
    unit: str
    anchors: dict[str, dict[str, Callable[[], Player]]]
    judges: tuple[Judge, ...] = (Judge(),)
    env_kwargs: Row = field(default_factory=dict)
    episodes: int = EPISODES
    as_theirs: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """From what a policy does, by agent, to actions of the environment of others."""

    def play(self, judge: Judge, player: Player) -> tuple[float, float]:
        """What a player gets before a judge, with half the width of its 95 % interval."""
        beside = None if judge.beside is None else judge.beside()
        returns = anchors.play(self.make, player, episodes=self.episodes, seed=100_000, who=judge.who, beside=beside)
        mean, half = map(float, mean_interval(returns))
        return mean, half


@dataclass(frozen=True)
class Learner:
    """A recipe with its settings on a task, and the return that it is asked to reach there, before each judge; none where it
    only stands beside others of as many steps."""

    task: str
    name: str
    recipe: str
    settings: Row
    goals: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.task}: {self.name}"


def spread() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env()


def spread_of_boxes() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(**BOXES)


def reference() -> Any:
    from mpe2 import simple_reference_v3

    return simple_reference_v3.parallel_env()


def tag() -> Any:
    from mpe2 import simple_tag_v3

    return simple_tag_v3.parallel_env()


def spoken(actions: dict[str, Any]) -> dict[str, Any]:
    """A move and a word as one of fifty actions."""
    return {agent: int(move) + 5 * int(word) for agent, (move, word) in actions.items()}


BOXES = {"continuous_actions": True}
TWO: Row = {"two_choices": True}
FORAGING, COMMON = "lbforaging:Foraging-8x8-2p-2f-coop-v3", {"common_reward": True}


def foraging() -> Any:
    return rl.envs.make_team_env(FORAGING, kwargs=COMMON)


def kitchen(layout: str) -> Callable[[], Any]:
    return lambda: TeamView(Kitchen(layout))


def random_in(make: Callable[[], Any]) -> Callable[[], Player]:
    return lambda: anchors.at_random(make().action_space, seed=1)


def both(make: Callable[[], Any], script: Callable[[], Player]) -> dict[str, Callable[[], Player]]:
    """The two players that do not learn."""
    return {"at random": random_in(make), "by a script": script}


def kitchen_task(layout: str) -> Task:
    """A kitchen; where one cook cannot reach everything, without a script."""
    make = kitchen(layout)
    known = {"": both(make, lambda: cooks.serve(layout))}
    return Task(
        f"kitchen {layout}",
        "tensor:Kitchen",
        make,
        "20 for each soup in 400 steps",
        known if layout != "forced_coordination" else {"": {"at random": random_in(make)}},
        env_kwargs={"layout": layout, "shaping": 1.0},
        episodes=50,
    )


FLEES, STRAYS, CHASED = "hunters, the prey flees", "hunters, the prey strays", "prey, hunters chase"
TASKS = {
    task.name: task
    for task in (
        Task(
            "spread",
            "tensor:Spread",
            spread,
            "mean over three agents of mpe2's own return in 25 steps",
            {"": both(spread, anchors.share_out)},
        ),
        Task(
            "spread of boxes",
            "pettingzoo:mpe2.simple_spread_v3",
            spread_of_boxes,
            "as spread, with continuous pushes: it trains in mpe2 itself",
            {"": both(spread_of_boxes, lambda: anchors.as_boxes(anchors.share_out()))},
            env_kwargs=BOXES,
        ),
        Task(
            "reference",
            "tensor:Reference",
            reference,
            "mean over both agents of mpe2's own return in 25 steps",
            {"": both(reference, anchors.tell_and_walk)},
            env_kwargs=TWO,
            as_theirs=spoken,
        ),
        Task(
            "tag",
            "tensor:Tag",
            tag,
            "mpe2's own return in 25 steps of one hunter (each gets 10 for every catch of any of them), or of the prey",
            {
                FLEES: both(tag, anchors.chase),
                STRAYS: both(tag, anchors.chase),
                CHASED: both(tag, anchors.flee),
            },
            (
                Judge(FLEES, "adversary", anchors.flee),
                Judge(STRAYS, "adversary", random_in(tag)),
                Judge(CHASED, "agent", anchors.chase),
            ),
        ),
        Task(
            "foraging",
            FORAGING,
            foraging,
            "share of the food that is eaten in 50 steps, Foraging-8x8-2p-2f-coop-v3 of lbforaging",
            {"": both(foraging, anchors.forage)},
            env_kwargs=COMMON,
        ),
        *map(kitchen_task, LAYOUTS),
    )
}
STEPS = 10_000_000
NETS: Row = {"hidden": (64, 64), "activation": "tanh"}
ON_POLICY: Row = {"total_steps": STEPS, "num_envs": 128, "num_steps": 25, "net": NETS}
PPO: Row = {"num_epochs": 4, "num_minibatches": 4, "lr": "linear(2e-3, 0)", "max_grad_norm": 0.5, "entropy_coef": 0.01}
REPLAY: Row = {"total_steps": STEPS, "num_envs": 128, "num_steps": 25, "min_fill": 16_000, "update_ratio": 0.005}
REPLAY |= {"log_every": 500, "replay": {"capacity": 128_000}, "net": {"hidden": (128, 128), "activation": "relu"}}
VALUES: Row = {"gamma": 0.9, "lr": "linear(2e-3, 0)", "batch_size": 512, "target_every": 200, "epsilon": "linear(1, 0.05, 0.1)"}
SLOW: Row = {"total_steps": 2_500_000, "num_envs": 32, "num_steps": 50, "net": {"hidden": (128, 128), "activation": "tanh"}}
SLOW |= {"ppo": {**PPO, "lr": "linear(7e-4, 0)"}}
"""For an environment that is stepped in Python, world after world."""
SHORT: Row = {**ON_POLICY, "total_steps": 1_000_000}
CENTRAL: Row = {**PPO, "critic_lr": "linear(2e-3, 0)"}
IN_MPE2: Row = {"total_steps": 100_000, "num_envs": 16, "num_steps": 25}
"""Short runs, in which recipes stand beside each other at equal steps."""
TALK: Row = {**PPO, "gamma": 0.9, "entropy_coef": 0.0}
"""Words that mean nothing yet earn nothing: a bonus for entropy keeps them so."""
TWO_SIDES: Row = {**ON_POLICY, "total_steps": 8_000_000, "num_envs": 512, "ppo": {**PPO, "num_minibatches": 8}}
TWO_SIDES |= {"teams": ("adversary_.*=hunters", "agent_.*=prey")}
COOKS: Row = {"total_steps": 1_500_000, "num_envs": 128, "num_steps": 50, "net": NETS, "ppo": PPO}
LEARNERS = (
    Learner("spread", "mappo", "mappo", {**ON_POLICY, "ppo": PPO}, {"": -9.0}),
    Learner("spread", "ippo", "ippo", {**ON_POLICY, "ppo": PPO}, {"": -9.0}),
    Learner("spread", "vdn", "vdn", {**REPLAY, "qmix": VALUES}, {"": -12.0}),
    Learner("spread", "qmix", "qmix", {**REPLAY, "qmix": VALUES}, {"": -16.0}),
    Learner("spread", "independent_q", "independent_q", {**REPLAY, "qmix": VALUES}, {"": -12.7}),
    Learner("spread", "ippo-1M", "ippo", {**SHORT, "ppo": PPO}),
    Learner("spread", "mappo-1M", "mappo", {**SHORT, "ppo": PPO}),
    Learner("spread", "happo-1M", "happo", {**SHORT, "happo": CENTRAL}),
    Learner("spread", "mat-1M", "mat", {**SHORT, "ppo": {**PPO, "lr": "linear(1e-3, 0)"}}),
    Learner("spread of boxes", "ippo", "ippo", {**IN_MPE2, "net": NETS, "ppo": {**PPO, "entropy_coef": 0.0}}),
    Learner("spread of boxes", "masac", "masac", {**IN_MPE2, "update_ratio": 0.1, "masac": {"gamma": 0.9}}),
    Learner("reference", "mappo", "mappo", {**ON_POLICY, "ppo": TALK}, {"": -11.0}),
    Learner("reference", "ippo", "ippo", {**ON_POLICY, "ppo": TALK}, {"": -11.0}),
    Learner("tag", "mappo", "mappo", TWO_SIDES, {FLEES: 27.0, STRAYS: 62.0, CHASED: -29.0}),
    Learner("tag", "ippo", "ippo", TWO_SIDES, {FLEES: 27.0, STRAYS: 62.0, CHASED: -29.0}),
    Learner("foraging", "mappo", "mappo", SLOW, {"": 0.95}),
    Learner("foraging", "ippo", "ippo", SLOW, {"": 0.95}),
    Learner("kitchen cramped_room", "mappo", "mappo", COOKS, {"": 200.0}),
    Learner("kitchen cramped_room", "ippo", "ippo", COOKS, {"": 200.0}),
    *(
        Learner(f"kitchen {name}", "ippo", "ippo", {**COOKS, "total_steps": 5_000_000})
        for name in LAYOUTS
        if name != "cramped_room"
    ),
)
"""Settings near those of JaxMARL's MAPPO and IPPO, and of its VDN and QMIX (gamma 0.9), on MPE."""


def train(learner: Learner, seed: int, how: How) -> Row:
    """Train one seed, and play it in the environment of others."""
    task = TASKS[learner.task]
    settings = {**learner.settings, "env": task.env, "env_kwargs": task.env_kwargs}
    run, spent = seeds.trained(f"teams/{learner.task.replace(' ', '-')}-{learner.name}", learner.recipe, settings, seed, how)
    policy = rl.load(run.path)
    found = {judge.name: task.play(judge, lambda obs: task.as_theirs(policy.act(obs))) for judge in task.judges}
    return {"returns": found, **spent}


def anchor_rows() -> list[Row]:
    """What players get that do not learn, on the episodes on which learners are judged."""
    return [
        {"key": f"{task.name}: {name}", "returns": {judge.name: task.play(judge, make())}}
        for task in TASKS.values()
        for judge in task.judges
        for name, make in task.anchors[judge.name].items()
    ]


def table(anchor: Sequence[Row], rows: Sequence[Row]) -> str:
    """All that was run: each seed, the mean over seeds with half the width of its 95 % interval, and what was asked for."""
    lines = [
        "| player | seeds | mean over seeds | asked for | steps | minutes of CPU a run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {_named(a['key'], judge)} | | {mean:.2f} ± {half:.2f} | | | |"
        for a in anchor
        for judge, (mean, half) in a["returns"].items()
    ]
    for learner in LEARNERS:
        mine = [row for row in rows if row["key"] == learner.key]
        lines += [_line(learner, mine, judge.name) for judge in TASKS[learner.task].judges if mine]
    units = "\n".join(f"- {task.name}: {task.unit}" for task in TASKS.values())
    return f"{units}\n\n" + "\n".join(lines)


def _line(learner: Learner, rows: Sequence[Row], judge: str) -> str:
    means = np.array([row["returns"][judge][0] for row in rows])
    each = ", ".join(f"{m:.2f}" for m in means)
    mean, half = map(float, mean_interval(means)) if len(rows) > 1 else (means[0], None)
    together = f"{mean:.2f}" if half is None else f"{mean:.2f} ± {half:.2f}"
    minutes = np.mean([row["cpu_s"] for row in rows]) / 60
    goal = f"> {learner.goals[judge]:g}" if learner.goals else ""
    cells = [_named(learner.key, judge), each, together, goal, f"{rows[0]['steps']:,}", f"{minutes:.1f}"]
    return f"| {' | '.join(cells)} |"


def _named(key: str, judge: str) -> str:
    return f"{key} ({judge})" if judge else key


if __name__ == "__main__":
    seeds.main(OUT, LEARNERS, train, table, anchor_rows)
