"""vLLM: decoding by its offline `LLM`, from the same model folder. On a CPU it runs eagerly."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import work

CACHE_GIB = "2"
"""Memory for keys and values on a CPU; far more than the rows need."""


def main() -> None:
    """Completions of `prompts` x `group` requests, all admitted at once."""
    args = work.arguments("decode")
    half = args.device != "cpu"
    folder = work.model_folder(args.shape, half=half)
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    os.environ.update(OMP_NUM_THREADS=str(args.threads), VLLM_CPU_KVCACHE_SPACE=CACHE_GIB)
    from vllm import LLM, SamplingParams

    count = args.prompts * args.group
    engine: Any = LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="bfloat16" if half else "float32",
        max_model_len=args.prompt_tokens + args.tokens,
        max_num_seqs=count,
        enforce_eager=not half,
        enable_prefix_caching=args.group > 1,
        disable_log_stats=True,
    )
    prompts = work.make_prompts(args.prompts, args.prompt_tokens, seed=args.seed)
    asked = [{"prompt_token_ids": list(p.encode())} for p in prompts for _ in range(args.group)]

    def run(tokens: int) -> float:
        how = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        engine.generate(asked, how, use_tqdm=False)
        return time.perf_counter() - start

    warm = run(4)
    seconds = run(args.tokens)
    work.tell(seconds=seconds, tokens_per_s=count * args.tokens / seconds, warm_s=warm)


if __name__ == "__main__":
    main()
