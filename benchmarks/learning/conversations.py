"""What models learn in conversations of several turns: a tool, a world in words, and credit that finds the turn that mattered.

python -m benchmarks.learning.conversations --only 'bandit: *' --seeds 1 2 3 4 5
python -m benchmarks.learning.conversations --only 'calculator: *small'
python -m benchmarks.learning.conversations --only 'calculator: grpo' 'frozenlake: g*' --device cuda --at-once 5 --minutes 9
python -m benchmarks.learning.conversations --only '*: untrained' '*without the tool' --seeds 1 --device cuda --at-once 4
python -m benchmarks.learning.conversations --table

A model imitates scripted conversations for a few updates, and then learns by reinforcement. What it achieves on held-out tasks
is told without any training, after the imitation, and at the end. A seed that has a result with the same settings is not run
again, and one that was cut goes on. Settings were found on seed 11, which the table leaves out. Players that do not learn (at
random, and by the world's own script) play the same held-out tasks.

The third line is nine runs of SmolLM2-135M on one GPU. Alone, a run of `frozenlake` took 3 to 7 minutes of an H200. `--minutes`
ends a call before the limit of a job, and the same line goes on; the others take minutes (on two processor cores: the first
line 5, the second 8 for each seed).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.harness import RESULTS
from benchmarks.learning import seeds
from benchmarks.learning.seeds import How, Row

import runnel as rl
from runnel.core.rng import make_rng, make_seed
from runnel.eval.statistics import mean_interval
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.games import own
from runnel.llm.chat.task import make_chat_task
from runnel.llm.chat.tools import Toolbox

OUT = RESULTS / "learning" / "conversations"
TUNING = 11
"""The seed on which settings were found."""


@dataclass(frozen=True)
class Learner:
    """A recipe with its settings in a world. `success` is the channel that says what was achieved, where that is not the
    return."""

    world: str
    name: str
    recipe: str
    settings: Row
    success: str = ""

    @property
    def key(self) -> str:
        return f"{self.world}: {self.name}"


SMOLLM2: Row = {
    "model": "smollm2",
    "num_prompts": 32,
    "group_size": 8,
    "demo_rows": 64,
}
CALCULATOR: Row = {
    **SMOLLM2,
    "chat": "calculator",
    "data": {"settings": ("level=1",)},
    "max_turns": 3,
    "max_context": 448,
    "max_tokens": 48,
    "demo_rows": 8,
    "warmup_updates": 6,
    "total_updates": 36,
    "eval": {"every": 6, "episodes": 256, "samples": 2},
    # the rate of the first updates counts: with the default, which lets it rise over 20 updates, six of imitation move nothing.
    # what the model says is spread over many words at first, which bfloat16 rounds differently in engine and learner
    "learner": {"lr": 1e-5, "sft_lr": 2e-5, "warmup_updates": 0, "max_mismatch": 5e-3},
}
SMALL: Row = {
    **CALCULATOR,
    "num_prompts": 8,
    "group_size": 4,
    "total_updates": 18,
    "eval": {"every": 6, "episodes": 32, "samples": 1},
    "learner": {"lr": 2e-5, "sft_lr": 2e-5, "warmup_updates": 0, "precision": "bfloat16", "max_mismatch": 5e-3},
    "engine": {"precision": "bfloat16"},
    "placement": {"threads": 1},
}
"""What two cores of a processor can do."""
LAKE: Row = {
    **SMOLLM2,
    "chat": "frozenlake",
    "max_turns": 12,
    "max_context": 1536,
    "max_tokens": 16,
    "warmup_updates": 10,
    "total_updates": 60,
    "eval": {"every": 10, "episodes": 256},
    "learner": {"lr": 1e-5, "sft_lr": 2e-5, "max_mismatch": 5e-3},
}
BANDIT: Row = {
    "chat": "bandit",
    "lm": {"layers": 2, "width": 64, "heads": 2, "kv_heads": 2, "inner": 128, "max_positions": 64},
    "num_prompts": 8,
    "group_size": 8,
    "max_turns": 2,
    "max_tokens": 2,
    "demo_rows": 32,
    "warmup_updates": 60,
    "total_updates": 200,
    "learner": {"sft_lr": 1e-3, "lr": 3e-4},
    "placement": {"threads": 1},
}


def still(settings: Row, **more: Any) -> Row:
    """The model as it is: one small update at a learning rate of 0, and its evaluation."""
    learner = {k: v for k, v in settings["learner"].items() if k == "precision"} | {"lr": 0.0, "max_mismatch": 1e-2}
    size = {"num_prompts": 1, "group_size": 2, "total_updates": 1, "learner": learner, "eval": {**settings["eval"], "every": 0}}
    return {k: v for k, v in {**settings, **size, **more}.items() if k not in ("demo_rows", "warmup_updates")}


UNTRAINED, ALONE = "untrained", "untrained, without the tool"
LEARNERS = (
    Learner("calculator", UNTRAINED, "grpo", still(CALCULATOR)),
    Learner("calculator", ALONE, "grpo", still(CALCULATOR, data={"settings": ("level=1", "tools=false")})),
    Learner("calculator", "grpo", "grpo", CALCULATOR),
    Learner("calculator", f"{UNTRAINED}, small", "grpo", still(SMALL)),
    Learner("calculator", "grpo, small", "grpo", SMALL),
    Learner("frozenlake", UNTRAINED, "grpo", still(LAKE)),
    Learner("frozenlake", "grpo", "grpo", LAKE),
    Learner("frozenlake", "gigpo", "gigpo", LAKE),
    *(Learner("bandit", name, name, BANDIT, success="right") for name in ("grpo", "gigpo", "turn_ppo", "loop")),
)
"""Learners of one world have the same settings, and so as many conversations."""
PAIRS = (
    ("bandit", "gigpo", "grpo"),
    ("bandit", "turn_ppo", "grpo"),
    ("bandit", "loop", "grpo"),
    ("frozenlake", "gigpo", "grpo"),
)
"""World, a learner, and the one that it is held against."""
KEPT = ("version", "tokens", "mean", "low", "high", "num")
WINDOW = 20
"""What a channel says is read from the sampled conversations of the first and last so many updates on rollouts: a greedy player
says the likeliest letter, however unsure it is."""


def train(learner: Learner, seed: int, how: How) -> Row:
    """One run: its evaluations on held-out tasks, or the success of its sampled conversations."""
    run, spent = seeds.trained(
        f"conversations/{learner.key.replace(': ', '-').replace(', ', '-')}", learner.recipe, learner.settings, seed, how
    )
    found: Row = {"tokens": run.rows("update")[-1]["tokens"]}
    if not learner.success:
        evals = {row["version"]: row for row in run.rows("eval")}
        return found | {"evals": [{k: r[k] for k in KEPT} | {"extra": r["extra"]} for r in evals.values()], **spent}
    name = f"reward/{learner.success}"
    seen = [row["metrics"][name] for row in run.rows("update") if name in row["metrics"]]
    return found | {"first": float(np.mean(seen[:WINDOW])), "last": float(np.mean(seen[-WINDOW:])), **spent}


# --------------------------------------------------------------------------------------------------------------- anchors
def anchor_rows(num: int = 256) -> list[Row]:
    """What a random player and the world's script achieve on the held-out tasks that evaluations play."""
    rows = []
    for learner in {one.world: one for one in reversed(LEARNERS)}.values():
        task = make_chat_task(learner.settings["chat"], talk=TalkConfig(), settings=_options(learner))
        for who in ("at random", "by its script"):
            turns = learner.settings["max_turns"]
            earned = [played(task, i, who, turns)[learner.success or "reward"] for i in range(min(num, len(task.eval)))]
            rows.append({"key": f"{learner.world}: {who}", "mean": float(np.mean(earned)), "num": len(earned)})
    return rows


def _options(learner: Learner) -> dict[str, Any]:
    return dict(rl.llm.DataConfig(settings=learner.settings.get("data", {}).get("settings", ())).parsed_settings())


def played(task: Any, index: int, who: str, max_turns: int) -> dict[str, float]:
    """The rewards of one conversation, by channel."""
    example = task.eval[index]
    game, rng = task.game(example), make_rng(index, "anchors")
    env = own(game)
    turn = env.reset(task.settings(example), seed=make_seed(0, "conversation", index))
    box = Toolbox(env.tools() if hasattr(env, "tools") else [], max_chars=1000)
    total = dict.fromkeys(task.turn_channels, 0.0)
    for _ in range(max_turns):
        if turn.over:
            break
        message = env.script() if who == "by its script" else random_word(turn.heard[-1]["content"], rng)
        if not isinstance(message, str) and message.get("tool_calls"):
            for call in message["tool_calls"]:
                box.target(call)()
            continue
        turn = env.step({"role": "assistant", "content": message if isinstance(message, str) else message["content"]})
        for name, value in turn.earned.items():
            total[name] += value
    return total


def random_word(heard: str, rng: np.random.Generator) -> str:
    """Moves in a grid, letters of a bandit, else a number."""
    if re.search(r"\b(up|down|left|right)\b", heard, re.I) or "ice" in heard.lower():
        return str(rng.choice(["up", "down", "left", "right"]))
    return str(rng.choice(list("abcdefgh"))) if len(heard) < 40 else str(rng.integers(0, 100_000))


# ---------------------------------------------------------------------------------------------------------------- results
GREEDY, SAMPLED = "greedy", "sampled"


def table(anchors: Sequence[Row], rows: Sequence[Row]) -> str:
    """One line a player and way of playing, means over seeds with half the width of their 95 % interval; then what one learner
    is ahead of another, as the mean of differences seed by seed."""
    head = ("player", "plays", "seeds", "after imitation", "at the end", "gain", "tokens")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    lines += [f"| {row['key']} | | | | {row['mean']:.3f} | | |" for row in anchors]
    known = {one.key: {r["seed"]: r for r in rows if r["key"] == one.key and r["seed"] != TUNING} for one in LEARNERS}
    for one in LEARNERS:
        found = {how: _played_so(known[one.key].values(), how) for how in (GREEDY, SAMPLED)}
        lines += [_line(one, how, some) for how, some in found.items() if some]
    ahead = []
    for world, name, other in PAIRS:
        mine, theirs = known[f"{world}: {name}"], known[f"{world}: {other}"]
        how = SAMPLED if world == "bandit" else GREEDY
        if both := sorted(mine.keys() & theirs.keys()):
            less = _shown([_achieved(mine[s], how)[1] - _achieved(theirs[s], how)[1] for s in both])
            ahead.append(f"- {world}, {how}, at the end, `{name}` less `{other}`: {less}")
    cut = [f"- {row['key']}, seed {row['seed']}, was cut: it has not come to its end" for row in rows if row.get("cut")]
    return "\n".join([*lines, *([""] if ahead or cut else []), *ahead, *cut])


def _played_so(rows: Iterable[Row], how: str) -> list[Row]:
    """Results in which conversations were played in this way."""
    if how == GREEDY:
        return [row for row in rows if "evals" in row]
    return [row for row in rows if "first" in row or "pass@1" in row["evals"][-1]["extra"]]


def _line(learner: Learner, how: str, rows: Sequence[Row]) -> str:
    first, last = zip(*(_achieved(row, how) for row in rows), strict=True)
    tokens, learns = np.mean([row["tokens"] for row in rows]), "warmup_updates" in learner.settings
    gain = _shown([b - a for a, b in zip(first, last, strict=True)])
    cells = [_shown(first), _shown(last), gain, f"{tokens:,.0f}"] if learns else ["", _shown(last), "", ""]
    return f"| {learner.key} | {how} | {len(rows)} | {' | '.join(cells)} |"


def _achieved(row: Row, how: str) -> tuple[float, float]:
    """The success after the imitation, and at the end: on held-out tasks, or in the conversations that were trained on."""
    if "first" in row:
        return row["first"], row["last"]
    found = {e["version"]: e["mean"] if how == GREEDY else e["extra"]["pass@1"] for e in row["evals"]}
    return found.get(row["settings"].get("warmup_updates", 0), float("nan")), found[max(found)]


def _shown(values: Sequence[float]) -> str:
    """The mean with its interval, and each seed."""
    each = ", ".join(f"{v:.3f}" for v in values)
    if len(values) < 2:
        return each
    mean, half = map(float, mean_interval(np.array(values)))
    return f"{mean:.3f} ± {half:.3f} ({each})"


if __name__ == "__main__":
    seeds.main(OUT, LEARNERS, train, table, anchor_rows)
