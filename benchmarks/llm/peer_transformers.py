"""Plain transformers: `generate` with its dynamic cache, and a training step as its users write it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import work


def decode(args: argparse.Namespace) -> None:
    """`generate` by sampling, all requests in one batch."""
    torch.set_num_threads(args.threads)
    model = work.build_model(args.shape, half=args.device != "cpu", device=args.device).eval()
    prompts = work.make_prompts(args.prompts, args.prompt_tokens, seed=args.seed)
    tokens = torch.tensor([list(p.encode()) for p in prompts for _ in range(args.group)], device=args.device)

    def run(count: int) -> float:
        work.sync(args.device)
        start = time.perf_counter()
        with torch.no_grad():
            model.generate(tokens, max_new_tokens=count, min_new_tokens=count, do_sample=True, top_k=0, pad_token_id=0)
        work.sync(args.device)
        return time.perf_counter() - start

    warm = run(4)
    seconds = run(args.tokens)
    work.tell(seconds=seconds, tokens_per_s=tokens.shape[0] * args.tokens / seconds, warm_s=warm)


def learn(args: argparse.Namespace) -> None:
    """Forward with labels, backward, clipping, fused AdamW; all in bfloat16 on an accelerator."""
    torch.set_num_threads(args.threads)
    model = work.build_model(args.shape, half=args.device != "cpu", device=args.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    tokens = torch.randint(0, 250, (args.prompts, args.tokens), device=args.device)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    work.time_steps(args, step, tokens.numel())


if __name__ == "__main__":
    given = work.arguments("decode", "learn")
    {"decode": decode, "learn": learn}[given.measure](given)
