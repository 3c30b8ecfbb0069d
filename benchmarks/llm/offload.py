"""What keeping the reference and the optimiser on the host saves on the device, and what it costs.

A policy of Qwen2.5-0.5B's shape with its reference, 8,192 tokens in rows of 512.

python -m benchmarks.llm.offload                             # needs a CUDA device
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from runnel.core.contracts.learning import SingleProcess
from runnel.llm.model.attention import PackedRows
from runnel.llm.model.token_model import TokenModel

SIDES = {"none": (False, False), "reference": (False, True), "optimiser": (True, False), "both": (True, True)}
"""Whether optimiser and reference are on the host."""


def build(layers: int) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = {"num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": layers}
    sizes = {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 2048}
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **heads, **sizes)).eval()


def measure(name: str, layers: int, repeats: int) -> dict[str, Any]:
    """Memory at rest, and seconds of the last of some updates."""
    optimiser, reference = SIDES[name]
    model = TokenModel(build(layers), device="cuda", precision="bfloat16", recompute="mlp", offload=optimiser)
    frozen = model.frozen_copy(offload=reference)
    tokens, rows = torch.randint(0, 1000, (8192,), device="cuda"), PackedRows([512] * 16, device="cuda")
    seconds: dict[str, float] = {}

    def clock(stage: str, start: float) -> float:
        torch.cuda.synchronize()
        seconds[stage] = round(time.perf_counter() - start, 3)
        return time.perf_counter()

    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with frozen.resident(), torch.no_grad():
            frozen.target_logprobs(frozen.packed_hidden(tokens, rows), tokens, temperature=1.0)
        start = clock("reference_s", start)
        model.zero_grad()
        logprobs, _ = model.target_logprobs(model.packed_hidden(tokens, rows), tokens, temperature=1.0)
        (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]
        model.gather()
        start = clock("passes_s", start)
        model.step(1e-5, max_grad_norm=1.0, collective=SingleProcess(), name="grad_norm", version=0)
        clock("step_s", start)
    return {"offload": name, "at_rest_gib": round(torch.cuda.memory_allocated() / 2**30, 2), **seconds}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=6)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this measures the memory of a CUDA device, and there is none", file=sys.stderr)
        return 1
    for name in SIDES:
        print(json.dumps(measure(name, args.layers, args.repeats)), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
