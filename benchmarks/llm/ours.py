"""runnel's side: GRPO updates through `rl.train`, decoding by the native engine, optimiser steps of the learner's model."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import runnel as rl

sys.path.insert(0, str(Path(__file__).parent))
import work


def grpo(args: argparse.Namespace) -> None:
    """Whole updates: generate, judge, learn. `seconds` is the median update, `first_s` from process start to the first one;
    `mismatch_kl` and `mismatch_canary_kl` are the largest of any update."""
    prompts = work.make_prompts(args.prompts * (args.updates + 4) + 8, args.prompt_tokens, seed=args.seed)
    times: list[float] = []
    made: list[int] = []
    gaps = {"kl": 0.0, "canary_kl": 0.0}

    def make_task() -> rl.TextTask:
        examples = [rl.Example(p) for p in prompts]

        def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
            return [work.judge(text) for text in completions]

        return rl.TextTask("bench", examples[:-8], examples[-8:], reward, max_tokens=args.tokens)

    def watch(row: dict[str, Any]) -> None:
        work.sync(args.device)
        times.append(time.time())
        made.append(row["tokens"])
        for name in gaps:
            gaps[name] = max(gaps[name], row["metrics"].get(f"mismatch/{name}", 0.0))
        kl = row["metrics"].get("mismatch/kl", 0.0)
        print(f"update {len(times)} after {times[-1] - work.STARTED:.1f} s, mismatch {kl:.2g}", file=sys.stderr, flush=True)
        if args.short and len(times) == args.updates + 2:
            tell()
            os._exit(0)

    def tell() -> None:
        numbers = work.summary(times, made)
        on_device = args.device != "cpu"
        peak = torch.cuda.max_memory_allocated() / 2**30 if on_device else 0.0
        held = torch.cuda.max_memory_reserved() / 2**30 if on_device else 0.0
        most = {f"mismatch_{name}": value for name, value in gaps.items()}
        work.tell(**numbers, first_s=times[0] - work.STARTED, peak_gib=peak, reserved_gib=held, **most)

    settings: dict[str, Any] = {
        "task": make_task,
        "model": work.model_folder(args.shape, half=args.device != "cpu"),
        "data.plain": True,
        "device": args.device,
        "num_prompts": args.prompts,
        "group_size": args.group,
        "max_tokens": args.tokens,
        "total_updates": args.updates + 2,
        "learner.lr": 1e-6,
        "placement.threads": args.threads,
        "track": (),
        "eval.episodes": 0,
        "checkpoint.every": 0,
        "out": "runs",
        **json.loads(args.set),
    }
    rl.train("grpo", on_update=watch, seed=args.seed, **settings)
    tell()


def decode(args: argparse.Namespace) -> None:
    """Completions of `prompts` x `group` requests, all admitted at once."""
    from runnel.llm.engines.native import NativeEngine
    from runnel.llm.engines.requests import generate, make_request

    torch.set_num_threads(args.threads)
    model = work.build_model(args.shape, half=args.device != "cpu", device=args.device)
    count = args.prompts * args.group
    engine = NativeEngine(
        model, num_slots=count, max_length=args.prompt_tokens + args.tokens, eos_id=-1, **json.loads(args.set)
    )
    engine.version = 0
    prompts = [list(p.encode()) for p in work.make_prompts(args.prompts, args.prompt_tokens, seed=args.seed)]

    def run(tokens: int) -> float:
        asked = [make_request(i, prompts[i // args.group], seed=i, max_tokens=tokens) for i in range(count)]
        work.sync(args.device)
        start = time.perf_counter()
        generate(engine, asked)
        work.sync(args.device)
        return time.perf_counter() - start

    warm = run(min(args.tokens, 32 if args.device != "cpu" else 4))
    seconds = min(run(args.tokens) for _ in range(3 if args.device != "cpu" else 1))
    work.tell(seconds=seconds, tokens_per_s=count * args.tokens / seconds, warm_s=warm)


def learn(args: argparse.Namespace) -> None:
    """Optimiser steps on `prompts` rows of `tokens` tokens: cross entropy of every token, clipping, AdamW. Micro-batches hold
    8,192 tokens, as those of the learner do by default."""
    from runnel.core.contracts.learning import SingleProcess
    from runnel.llm.model.attention import PackedRows
    from runnel.llm.model.token_model import TokenModel

    torch.set_num_threads(args.threads)
    options = {"micro_rows": max(1, 8192 // args.tokens), "recompute": "none", **json.loads(args.set)}
    precision: Any = "bfloat16" if args.device != "cpu" else "float32"
    model = TokenModel(
        work.build_model(args.shape, device=args.device),
        device=args.device,
        precision=precision,
        recompute=options["recompute"],
    )
    tokens = torch.randint(0, 250, (args.prompts, args.tokens), device=args.device)

    def step() -> None:
        model.zero_grad()
        for part in tokens.split(options["micro_rows"]):
            rows = PackedRows([args.tokens] * len(part), device=args.device)
            hidden = model.packed_hidden(part.reshape(-1), rows)
            logprob, _ = model.target_logprobs(hidden, part.reshape(-1).roll(-1), temperature=1.0)
            (-logprob.sum() / tokens.numel()).backward()
            model.gather()
        model.step(1e-6, max_grad_norm=1.0, collective=SingleProcess(), name="grad_norm", version=0)

    work.time_steps(args, step, tokens.numel())


if __name__ == "__main__":
    given = work.arguments("grpo", "decode", "learn")
    {"grpo": grpo, "decode": decode, "learn": learn}[given.measure](given)
