"""The work that all sides are given: models with random weights of stated shapes, prompts, and a reward. Needs transformers.

Imported by the scripts in every virtual environment. A model is written to a folder once, tokenizer included, so that every
side loads the same weights the way its users do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

STARTED = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - 0.01 * int(Path("/proc/self/stat").read_text().split()[21]))
"""When this process was started, by the system's clock."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "width": 128, "heads": 4, "kv_heads": 4, "inner": 512, "vocab": 260},
    "smollm2": {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "inner": 1536, "vocab": 49152},
    "skewed-0.4b": {"layers": 24, "width": 896, "heads": 14, "kv_heads": 2, "inner": 4864, "vocab": 320, "bias": True},
    "qwen2-0.5b": {"layers": 24, "width": 896, "heads": 14, "kv_heads": 2, "inner": 4864, "vocab": 151936, "bias": True},
    "qwen2-7b": {
        **{"layers": 28, "width": 3584, "heads": 28, "kv_heads": 4, "inner": 18944, "vocab": 152064, "bias": True},
        "tied": False,
    },
}


def arguments(*measures: str) -> argparse.Namespace:
    """What to measure, on which model, and how much of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=measures)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--updates", type=int, default=6, help="updates that are timed, after two that are not")
    parser.add_argument("--short", action="store_true", help="end with the last update, without checkpoint and model folder")
    parser.add_argument("--set", default="{}", help="JSON of more settings (runnel alone)")
    return parser.parse_args()


def model_folder(shape: str, *, half: bool = False) -> str:
    """A folder with a model of `shape` (float32, or bfloat16) and a tokenizer of bytes; made when first asked for."""
    sizes = SHAPES[shape]
    name = f"runnel-bench-{shape}-{'half' if half else 'full'}-{hashlib.sha1(json.dumps(sizes).encode()).hexdigest()[:8]}"
    folder = Path(os.environ.get("RUNNEL_BENCH_MODELS", tempfile.gettempdir())) / name
    if not (folder / "complete").exists():
        build_model(shape, half=half, device="cuda" if half else "cpu").save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        (folder / "complete").touch()
    return str(folder)


def build_model(shape: str, *, half: bool = False, device: str = "cpu") -> Any:
    """The model alone."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    s = SHAPES[shape]
    kinds: Any = (Qwen2Config, Qwen2ForCausalLM) if s.get("bias") else (LlamaConfig, LlamaForCausalLM)
    config = kinds[0](
        vocab_size=s["vocab"],
        hidden_size=s["width"],
        intermediate_size=s["inner"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        max_position_embeddings=2048,
        tie_word_embeddings=s.get("tied", True),
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=257,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if half and "tied" in s else before)  # what is large is never there in float32
    try:
        with torch.device(device):
            model = kinds[1](config)
    finally:
        torch.set_default_dtype(before)
    return model.to(torch.bfloat16) if half else model


def build_tokenizer() -> Any:
    """One token a byte, eos 256, pad 257: any text fits, and prompts have as many tokens as letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")


def make_prompts(count: int, size: int, *, seed: int) -> list[str]:
    """Different prompts of `size` letters."""
    rng = random.Random(seed)
    return ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(size - 1)) + ":" for _ in range(count)]


def judge(text: str) -> float:
    """A reward that differs between completions and costs nothing: the share of vowels, and a little of the text's own."""
    vowels = sum(letter in "aeiou" for letter in text) / max(len(text), 1)
    return vowels + (int(hashlib.md5(text.encode()).hexdigest(), 16) % 97) / 97


def sync(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def summary(times: list[float], made: list[int]) -> dict[str, Any]:
    """Of the moments at which updates ended, and the tokens trained on by then: the median update, and tokens a second, after
    the first two."""
    gaps = sorted(b - a for a, b in pairwise(times[1:]))
    rate = (made[-1] - made[1]) / (times[-1] - times[1])
    return {"seconds": gaps[len(gaps) // 2], "tokens_per_s": rate, "steps": gaps}


def time_steps(args: argparse.Namespace, step: Callable[[], None], tokens: int) -> None:
    """Tell the mean of `updates` steps of `tokens` tokens each, after two that are not timed, and the peak memory."""
    import torch

    for _ in range(2):
        step()
    sync(args.device)
    start = time.perf_counter()
    for _ in range(args.updates):
        step()
    sync(args.device)
    seconds = (time.perf_counter() - start) / args.updates
    peak = torch.cuda.max_memory_allocated() / 2**30 if args.device != "cpu" else 0.0
    tell(seconds=seconds, tokens_per_s=tokens / seconds, peak_gib=peak)


def tell(**numbers: Any) -> None:
    """The answer: one JSON line."""
    print(json.dumps(numbers), flush=True)
