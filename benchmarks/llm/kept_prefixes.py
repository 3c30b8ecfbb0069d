"""What it saves to keep the prefixes of conversations between their turns: tokens that are prefilled, and time.

    python -m benchmarks.llm.kept_prefixes --rounds 5 --out benchmarks/results/llm/kept-prefixes.json

A conversation has ten turns. In each, the engine is told 40 new tokens and replies with 24. All conversations of a row take
their turns together: the next turns are asked for when the last reply has come, as after a barrier of environments, or
(`apart`) each conversation goes on at once. Models have random weights: speed does not depend on what they say. Both sides are
the same engine, with `keep_prefixes` and without, alternating in one process. Told are the tokens that were prefilled for each
conversation, processor seconds for each (on a GPU: seconds), and the ratio of both (without over with), as the median over
rounds, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.llm.work import build_model
from runnel.core.contracts.params import ParamSet
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import make_request
from runnel.llm.model.causal_lm import model_params
from runnel.llm.model.pack import packed
from runnel.llm.model.token_model import DTYPES

TURNS, TOLD, REPLY = 10, 40, 24
LENGTH = TURNS * (TOLD + REPLY)
ROWS = (
    ("tiny", 1, False),
    ("tiny", 16, False),
    ("tiny", 16, True),
    ("smollm2", 1, False),
    ("smollm2", 16, False),
    ("smollm2", 16, True),
)


def told(session: int, turn: int, vocabulary: int) -> list[int]:
    """The new tokens of a turn. Conversations have no beginning in common, so none is copied from another."""
    return random.Random(f"{session} {turn}").choices(range(3, vocabulary), k=TOLD)


def converse(engine: NativeEngine, num_sessions: int, *, apart: bool, first_id: int) -> tuple[int, float]:
    """Tokens prefilled, and seconds, of all conversations."""
    vocabulary = engine.model.config.vocab_size
    rows = {s: told(s + first_id, 0, vocabulary) for s in range(num_sessions)}
    turns = dict.fromkeys(rows, 0)
    clock = time.perf_counter if engine.model.device.type == "cuda" else time.process_time
    before, start = engine.num_prefilled, clock()

    def say(session: int) -> None:
        id = first_id + session + turns[session] * num_sessions
        asked = make_request(id, rows[session], seed=id, max_tokens=REPLY, session=first_id + session)
        engine.submit([asked])

    ready = list(rows)
    while ready or engine.pending():
        if apart or not engine.pending():
            for session in ready:
                say(session)
            ready = []
        for reply in engine.step():
            session = (reply.id - first_id) % num_sessions
            turns[session] += 1
            if turns[session] < TURNS:
                rows[session] += [*reply.rows["tokens"].tolist(), *told(session + first_id, turns[session], vocabulary)]
                ready.append(session)
    return engine.num_prefilled - before, clock() - start


def engine_of(shape: str, num_slots: int, *, keep: bool, device: str) -> NativeEngine:
    model = build_model(shape, device=device)
    packed(model, dtype=DTYPES["bfloat16" if device == "cuda" else "float32"], device=device)
    engine = NativeEngine(model, num_slots=num_slots, max_length=LENGTH, eos_id=-1, keep_prefixes=keep)
    engine.load_params(ParamSet(0, model_params(model), shared=True))
    return engine


def measure(shape: str, num_sessions: int, *, apart: bool, rounds: int, device: str) -> dict[str, Any]:
    engines = {keep: engine_of(shape, num_sessions, keep=keep, device=device) for keep in (False, True)}
    found: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
    for turn in range(rounds + 1):  # the first compiles
        for keep in (False, True) if turn % 2 else (True, False):
            found[keep].append(converse(engines[keep], num_sessions, apart=apart, first_id=turn * 10**6))
    tokens = {keep: found[keep][1][0] / num_sessions for keep in found}
    seconds = {keep: [s / num_sessions for _, s in found[keep][1:]] for keep in found}
    ratios = [a / b for a, b in zip(seconds[False], seconds[True], strict=True)]
    return {
        "model": shape,
        "conversations": num_sessions,
        "apart": apart,
        "prefilled": {"without": tokens[False], "with": tokens[True], "ratio": tokens[False] / tokens[True]},
        "seconds": {"without": statistics.median(seconds[False]), "with": statistics.median(seconds[True])},
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--out", type=Path, default=None, help="write the rows as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print("| model | conversations | prefilled without | with | ratio | seconds without | with | ratio (least, most) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for shape, num_sessions, apart in ROWS:
        if shape in asked.models and num_sessions in asked.conversations:
            row = measure(shape, num_sessions, apart=apart, rounds=asked.rounds, device=asked.device)
            rows.append(row)
            p, s, r = row["prefilled"], row["seconds"], row["ratio"]
            counts = f"{p['without']:,.0f} | {p['with']:,.0f} | {p['ratio']:.2f}"
            times = f"{s['without']:.3f} | {s['with']:.3f} | {r['median']:.2f} ({r['least']:.2f}, {r['most']:.2f})"
            print(f"| {shape} | {num_sessions}{', apart' if apart else ''} | {counts} | {times} |", flush=True)
    if asked.out is not None:
        about = {
            "device": asked.device,
            "threads": asked.threads,
            "cores": os.cpu_count(),
            "turns": TURNS,
            "told": TOLD,
            "reply": REPLY,
        }
        asked.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
