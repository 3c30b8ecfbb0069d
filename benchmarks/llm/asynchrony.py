"""Conversations that go on one by one beside conversations in lockstep, with environments whose steps take very uneven time.

    python -m benchmarks.llm.asynchrony --repeats 3 --out benchmarks/results/llm/asynchrony.json

A step of an environment takes a log-normal time with a median of 0.2 s and a 99th percentile of 5 s, which it sleeps. Both
forms play the same conversations with the same engine (a small model with random weights) and the same `ChatPlayer`, `at_once`
of them at a time:

- one by one: each conversation asks for its next reply as soon as its environment has answered, and a new one begins as soon as
  one has ended, which is how `ChatSampler` plays;
- lockstep: a batch of `at_once` conversations; the engine makes the replies of all of them, then all environments step at the
  same time, and when the last one has answered, the next turn begins; after the last turn, the next batch.

Told are conversations a second, the share of the time in which the engine computes, and the share of the `at_once` environments
that are at work (the mean over time). The ratio is that of one repeat, whose two forms ran one after the other; each repeat has
other conversations. Seeds are equal in both forms, so replies must be, too: the share that is equal is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine
from runnel.core.contracts.chat import Message, Turn
from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.conversation import Conversation
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.task import ChatTask, make_chat_task
from runnel.llm.engines.native import NativeEngine
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.tokenize import CharTokenizer

MEDIAN_S, P99_S = 0.2, 5.0
SIGMA = math.log(P99_S / MEDIAN_S) / statistics.NormalDist().inv_cdf(0.99)
SIZES = {
    "small": ModelConfig(layers=2, width=64, heads=4, kv_heads=2, inner=128, max_positions=2048),
    "large": ModelConfig(layers=8, width=256, heads=8, kv_heads=4, inner=704, max_positions=2048),
}
TURNS, TOLD = 5, 60
WAIT_S = 0.005
Row = dict[str, Any]


class Uneven:
    """Says something of always the same length after a while. What it says and how long it takes follow from its seed."""

    worked_s = 0.0
    """Of all environments, since it was set to 0."""

    async def reset(self, task: Mapping[str, Any], *, seed: int) -> Turn:
        self._rng, self._turn = np.random.default_rng(seed), 0
        return Turn(self._words())

    async def step(self, message: Message) -> Turn:
        self._turn += 1
        took = float(self._rng.lognormal(math.log(MEDIAN_S), SIGMA))
        Uneven.worked_s += took
        await asyncio.sleep(took)
        return Turn(self._words(), terminated=self._turn == TURNS)

    def _words(self) -> str:
        return "".join(map(chr, self._rng.integers(97, 123, TOLD)))


class Client:
    """An engine in this process, and the time that it computes."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine, self.version = engine, 0
        self.busy_s, self._replies, self._number = 0.0, dict[int, Reply](), 0

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        self._number += 1
        self.engine.submit([Request(self._number, rows, version)])
        return self._number

    def poll(self) -> int:
        began = time.perf_counter()
        found = self.engine.step()
        self.busy_s += time.perf_counter() - began
        self._replies |= {reply.id: reply for reply in found}
        return len(found)

    def ready(self, ticket: int) -> Reply | None:
        return self._replies.pop(ticket, None)

    def pending(self) -> int:
        return self.engine.pending()


class Bench:
    """Plays `num` conversations, `at_once` at a time, in one form or the other."""

    def __init__(self, size: str, *, at_once: int, num: int, reply: int, seed: int) -> None:
        self.at_once, self.num, self.reply, self.seed = at_once, num, reply, seed
        self.tokenizer = CharTokenizer()
        self.task: ChatTask = make_chat_task(Uneven, talk=TalkConfig(step_timeout_s=600.0))
        self.context = TURNS * (TOLD + reply + 8) + TOLD
        self.model = build_model(SIZES[size], self.tokenizer.vocab_size, seed=0)

    def play(self, form: str) -> tuple[Row, dict[int, list[int]]]:
        engine = NativeEngine(self.model, num_slots=self.at_once, max_length=self.context, eos_id=self.tokenizer.eos_id)
        engine.load_params(ParamSet(0, model_params(self.model), shared=True))
        client: Any = Client(engine)
        player = ChatPlayer(
            self.task,
            self.tokenizer,
            max_context=self.context,
            max_tokens=self.reply,
            seed=self.seed,
            blocking=form == "lockstep",
        )
        Uneven.worked_s, began = 0.0, time.perf_counter()
        played = self._lockstep(player, client) if form == "lockstep" else self._one_by_one(player, client)
        took = time.perf_counter() - began
        player.close()
        assert all(c.over for c in played), [c.failure for c in played if c.failure][:1]
        row = {
            "seconds": took,
            "conversations_per_s": self.num / took,
            "engine_busy": client.busy_s / took,
            "environments_busy": Uneven.worked_s / took / self.at_once,
        }
        return row, {c.number: c.sides["agent"].said.last for c in played}

    def _begun(self, player: ChatPlayer, number: int) -> Conversation:
        example, seed = self.task.train[number], self.seed * 10**6 + number
        made = player.open(example, number=number, seed=seed, names=(number,), max_turns=TURNS)
        player.begin(made)
        return made

    def _one_by_one(self, player: ChatPlayer, client: Any) -> list[Conversation]:
        going, over = list[Conversation](), list[Conversation]()
        while len(over) < self.num:
            while len(going) < self.at_once and len(going) + len(over) < self.num:
                going.append(self._begun(player, len(going) + len(over)))
            work = player.step(lambda agent: client, going)
            if client.pending():
                client.poll()
            elif not work:
                player.wait(WAIT_S)
            over += [c for c in going if c.over or c.failure]
            going = [c for c in going if not (c.over or c.failure)]
        return over

    def _lockstep(self, player: ChatPlayer, client: Any) -> list[Conversation]:
        over = list[Conversation]()
        for first in range(0, self.num, self.at_once):
            batch = [self._begun(player, n) for n in range(first, min(first + self.at_once, self.num))]
            while not all(c.over or c.failure for c in batch):
                player.step(lambda agent: client, batch)  # environments: it waits for all of them
                while client.pending():
                    client.poll()
            over += batch
        return over


def measure(size: str, *, at_once: int, num: int, reply: int, repeats: int) -> Row:
    rows = []
    for repeat in range(repeats):
        bench = Bench(size, at_once=at_once, num=num, reply=reply, seed=repeat + 1)
        forms = ("lockstep", "one_by_one") if repeat % 2 else ("one_by_one", "lockstep")
        found = {form: bench.play(form) for form in forms}
        (apart, said), (together, same) = found["one_by_one"], found["lockstep"]
        equal = sum(said[n] == same[n] for n in said) / num
        ratio = apart["conversations_per_s"] / together["conversations_per_s"]
        rows.append({"one_by_one": apart, "lockstep": together, "ratio": ratio, "equal": equal})
        print(f"  {repeat}: {ratio:.2f}, equal {equal:.3f}, load {os.getloadavg()[0]:.1f}", flush=True)
    return {"model": size, "at_once": at_once, "conversations": num, "reply": reply, "repeats": rows}


def warm_up(size: str) -> None:
    """Compile what the engine compiles."""
    global MEDIAN_S
    kept, MEDIAN_S = MEDIAN_S, 1e-6
    Bench(size, at_once=4, num=4, reply=4, seed=0).play("one_by_one")
    MEDIAN_S = kept


def told(row: Row) -> str:
    def of(form: str, name: str, percent: bool = False) -> str:
        values = [r[form][name] * (100 if percent else 1) for r in row["repeats"]]
        return f"{statistics.median(values):.{0 if percent else 1}f}{' %' if percent else ''}"

    ratios = [r["ratio"] for r in row["repeats"]]
    cells = [row["model"], row["at_once"], row["reply"]]
    for form in ("one_by_one", "lockstep"):
        cells += [of(form, "conversations_per_s"), of(form, "engine_busy", True), of(form, "environments_busy", True)]
    cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})")
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=4, help="conversations in all, as a multiple of those at once")
    parser.add_argument("--at-once", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--models", nargs="+", default=["small", "large"], choices=list(SIZES))
    parser.add_argument("--reply", type=int, default=32, help="tokens of a reply")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="write the rows as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    about = {"machine": machine.facts(), "load": os.getloadavg(), "turns": TURNS, "told": TOLD, "threads": asked.threads}
    rows = []
    for size in asked.models:
        warm_up(size)
        for at_once in asked.at_once:
            num = at_once * asked.batches
            rows.append(measure(size, at_once=at_once, num=num, reply=asked.reply, repeats=asked.repeats))
            print(told(rows[-1]), flush=True)
            if asked.out is not None:
                asked.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
