"""What models learn in conversations of several turns: a tool, a world in words, and credit that finds the turn that mattered.

python -m benchmarks.learning.conversations run calculator --seed 1 --device cuda
python -m benchmarks.learning.conversations run bandit/gigpo --seed 1
python -m benchmarks.learning.conversations table

A run writes one file, `benchmarks/results/learning/conversations/ENTRY-SEED.json`; `table` reads them all. Players that do not
learn (at random, and by the world's own script) are played by `anchors`, on the same held-out tasks.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

import runnel as rl
from runnel.core.rng import make_rng, make_seed
from runnel.eval.statistics import mean_interval
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.games import own
from runnel.llm.chat.task import make_chat_task
from runnel.llm.chat.tools import Toolbox

RESULTS = Path("benchmarks/results/learning/conversations")
SMOLLM2: dict[str, Any] = {
    "model": "smollm2",
    "num_prompts": 32,
    "group_size": 8,
    "demo_rows": 64,
    "learner.lr": 1e-5,
    "learner.sft_lr": 2e-5,
    "eval.episodes": 256,
    "checkpoint.every": 0,
}
CALCULATOR: dict[str, Any] = {
    **SMOLLM2,
    "chat": "calculator",
    "data.settings": ("level=2",),
    "max_turns": 3,
    "max_context": 640,
    "max_tokens": 64,
    "warmup_updates": 6,
    "eval.every": 6,
    "total_updates": 60,
}
LAKE: dict[str, Any] = {
    **SMOLLM2,
    "chat": "frozenlake",
    "max_turns": 12,
    "max_context": 1536,
    "max_tokens": 16,
    "warmup_updates": 10,
    "eval.every": 10,
    "total_updates": 80,
}
BANDIT: dict[str, Any] = {
    "chat": "bandit",
    "lm.layers": 2,
    "lm.width": 64,
    "lm.heads": 2,
    "lm.kv_heads": 2,
    "lm.inner": 128,
    "lm.max_positions": 64,
    "num_prompts": 8,
    "group_size": 8,
    "max_turns": 2,
    "max_tokens": 2,
    "demo_rows": 32,
    "warmup_updates": 60,
    "learner.sft_lr": 1e-3,
    "learner.lr": 3e-4,
    "eval.every": 40,
    "eval.episodes": 64,
    "total_updates": 200,
    "checkpoint.every": 0,
}
ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "calculator": ("grpo", CALCULATOR),
    "frozenlake/grpo": ("grpo", LAKE),
    "frozenlake/gigpo": ("gigpo", LAKE),
    "bandit/grpo": ("grpo", BANDIT),
    "bandit/gigpo": ("gigpo", BANDIT),
    "bandit/turn_ppo": ("turn_ppo", BANDIT),
    "bandit/loop": ("loop", BANDIT),
}
"""By name, the recipe and its settings. Entries of one world have the same settings, and so as many conversations."""
KEPT = ("version", "tokens", "mean", "low", "high", "num")
SUCCESS = {"bandit": "right"}
"""The channel that says what was achieved, where that is not the return. It is read from the sampled conversations of the first
and last `WINDOW` updates on rollouts: a greedy player says the likeliest letter, however unsure it is."""
WINDOW = 20


def trained(entry: str, seed: int, *, device: str, out: str, **more: Any) -> dict[str, Any]:
    """One run: its evaluations on held-out tasks."""
    recipe, settings = ENTRIES[entry]
    start = time.time()
    given = {**settings, "device": device, "seed": seed, "out": out, "track": (), **more}
    run = rl.train(recipe, name=f"{entry.replace('/', '-')}-{seed}", **given)
    evals = {row["version"]: row for row in run.rows("eval")}
    kept = [{k: row[k] for k in KEPT} | {"extra": row["extra"]} for row in evals.values()]
    if channel := SUCCESS.get(settings["chat"]):
        name = f"reward/{channel}"
        seen = [row["metrics"][name] for row in run.rows("update") if name in row["metrics"]]
        more["sampled"] = {"first": float(np.mean(seen[:WINDOW])), "last": float(np.mean(seen[-WINDOW:]))}
    return {
        "entry": entry,
        "recipe": recipe,
        "seed": seed,
        "settings": settings | more,
        "evals": kept,
        "seconds": time.time() - start,
    }


def untrained(entry: str, *, device: str, out: str, **more: Any) -> dict[str, Any]:
    """The evaluation of the model as it is: one small update at a learning rate of 0."""
    still = {"num_prompts": 1, "group_size": 2, "learner.lr": 0.0, "warmup_updates": 0, "eval.every": 0, "total_updates": 1}
    given = {k: v for k, v in {**ENTRIES[entry][1], **still, **more}.items() if k not in ("demo_rows", "learner.sft_lr")}
    run = rl.train("grpo", seed=1, device=device, out=out, track=(), name=f"untrained-{time.time_ns()}", **given)
    return {k: run.eval[k] for k in ("mean", "low", "high", "num")} | {"extra": run.eval["extra"], "settings": more}


# --------------------------------------------------------------------------------------------------------------- anchors
def anchors(entry: str, *, num: int = 256) -> dict[str, Any]:
    """What a random player and the world's script achieve on the held-out tasks that evaluations play."""
    settings = ENTRIES[entry][1]
    options = rl.llm.DataConfig(settings=settings.get("data.settings", ())).parsed_settings()
    task = make_chat_task(settings["chat"], talk=TalkConfig(), settings=options)
    channel = SUCCESS.get(settings["chat"], "reward")
    found = {}
    for who in ("random", "script"):
        earned = [played(task, i, who, settings["max_turns"])[channel] for i in range(min(num, len(task.eval)))]
        found[who] = {"mean": float(np.mean(earned)), "num": len(earned)}
    return found


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
        message = env.script() if who == "script" else random_word(turn.heard[-1]["content"], rng)
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
def table(folder: Path) -> str:
    """One line an entry: untrained, after the imitation of scripts, at the end, with 95 % intervals over seeds."""
    by_entry: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "evals" in result:
            by_entry.setdefault(result["entry"], []).append(result)
    lines = ["| entry | seeds | after imitation | at the end | tokens |", "| --- | --- | --- | --- | --- |"]
    for entry, results in by_entry.items():
        first = [success(r, r["settings"]["warmup_updates"]) for r in results]
        last = [success(r, r["evals"][-1]["version"]) for r in results]
        tokens = np.mean([r["evals"][-1]["tokens"] for r in results])
        lines.append(f"| {entry} | {len(results)} | {shown(first)} | {shown(last)} | {tokens:,.0f} |")
    return "\n".join(lines)


def success(result: dict[str, Any], version: int) -> float:
    """What was achieved: on held-out tasks at the first evaluation from `version` on, or in sampled conversations."""
    if sampled := result["settings"].get("sampled"):
        return float(sampled["first" if version < result["evals"][-1]["version"] else "last"])
    return float(next(row for row in result["evals"] if row["version"] >= version)["mean"])


def shown(values: list[float]) -> str:
    """The mean with its interval, and each seed."""
    mean, half = mean_interval(np.array(values))
    each = ", ".join(f"{v:.3f}" for v in values)
    return f"{mean:.3f} ± {half:.3f} ({each})" if len(values) > 2 else each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "untrained", "anchors", "table"))
    parser.add_argument("entry", nargs="?", choices=list(ENTRIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="runs/conversations")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--set", nargs="*", default=[], help="other settings, as name=JSON")
    args = parser.parse_args()
    more = {name: json.loads(value) for name, _, value in (text.partition("=") for text in args.set)}
    if args.what == "table":
        print(table(args.results))
        return
    where = {"device": args.device, "out": args.out}
    if args.what == "run":
        result = trained(args.entry, args.seed, **where, **more)
    else:
        result = untrained(args.entry, **where, **more) if args.what == "untrained" else anchors(args.entry)
    args.results.mkdir(parents=True, exist_ok=True)
    name = f"{args.entry.replace('/', '-')}-{args.seed if args.what == 'run' else args.what}"
    (args.results / f"{name}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result if args.what != "run" else {**result, "evals": result["evals"][-1]}), flush=True)


if __name__ == "__main__":
    main()
