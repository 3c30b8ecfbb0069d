"""TRL: `GRPOTrainer` with plain `generate`, the same model folder, prompts, group, length and reward."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import work


def main() -> None:
    """Whole updates, timed by a callback."""
    args = work.arguments("grpo")
    torch.set_num_threads(args.threads)
    from datasets import arrow_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    # a name for the cache of data sets, which is not used here; making it pickles a type that Python 3.12 cannot pickle
    arrow_dataset.generate_fingerprint = lambda dataset: "benchmark"  # type: ignore[assignment]
    times: list[float] = []

    class Watch(TrainerCallback):
        def on_step_end(self, *given: Any, **more: Any) -> None:
            work.sync(args.device)
            times.append(time.time())

    def reward(completions: Any, **columns: Any) -> list[float]:
        return [work.judge(text) for text in completions]

    half = args.device != "cpu"
    folder = work.model_folder(args.shape, half=half)
    rows = args.prompts * args.group
    micro = min(rows, 32) if half else rows
    config = GRPOConfig(
        output_dir="out",
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // micro,
        num_generations=args.group,
        max_completion_length=args.tokens,
        max_steps=args.updates + 2,
        learning_rate=1e-6,
        temperature=1.0,
        beta=0.0,
        bf16=half,
        gradient_checkpointing=False,
        use_cpu=not half,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        generation_kwargs={"min_new_tokens": args.tokens},
        seed=args.seed,
    )
    prompts = work.make_prompts(args.prompts * (args.updates + 4), args.prompt_tokens, seed=args.seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if half else torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward,
        args=config,
        train_dataset=arrow_dataset.Dataset.from_dict({"prompt": prompts}),
        callbacks=[Watch()],
    )
    trainer.train()
    numbers = work.summary(times, [rows * args.tokens * i for i in range(len(times))])
    peak = torch.cuda.max_memory_allocated() / 2**30 if half else 0.0
    work.tell(**numbers, first_s=times[0] - work.STARTED, peak_gib=peak)


if __name__ == "__main__":
    main()
