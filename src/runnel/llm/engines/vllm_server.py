"""The other side of the `vllm` engine: vLLM in a process of its own, one step for each step that it is asked for.

Run by path in vLLM's interpreter, which need not have runnel: it loads two modules of ours by their paths, and vLLM only when
it runs. It consumes messages from the engine's socket and waits for nothing else; it ends when that socket closes, or with its
parent. Weights come through a shared file that the parent writes, with a checksum.

Tokens are drawn here as every engine draws them (one uniform number a token, of the request's own stream), in a logits
processor: so a completion goes on with its own numbers when its keys and values are computed anew, whoever runs beside it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
import os
import signal
import socket
import sys
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from vllm import LLMEngine
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

Message = dict[str, Any]
NOT_FINITE = -1e30
"""Stands for a log-probability that is NaN while it passes through vLLM."""


def by_path(name: str) -> ModuleType:
    """A module of `runnel.core` from its file."""
    file = Path(__file__).resolve().parents[2] / "core" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"runnel_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING or __package__:
    from runnel.core import framing, process
else:  # run by path: this interpreter need not have runnel, and these two modules import nothing of ours
    framing, process = by_path("framing"), by_path("process")


# ------------------------------------------------------------------------------------------------------------- sampling
def draw(logits: Tensor, rows: list[Message]) -> tuple[Tensor, Tensor, Tensor]:
    """A token for each row, its log-probability, and that in the distribution it was drawn from. `[n, V] -> 3 x [n]`

    A row has `heat`, `uniform`, `top_k`, `top_p`, `min_p`. Limits are applied in this order, each to what the last one left. A
    row with `force` gets that token: its log-probability is asked for.
    """
    import torch

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([row[name] for row in rows], dtype=dtype, device=logits.device)[:, None]

    heat = column("heat", torch.float32)
    logp = torch.log_softmax(logits.float() / heat.where(heat > 0, 1.0), dim=-1)
    allowed = logp
    if any(r["top_k"] > 0 or r["top_p"] < 1 or r["min_p"] > 0 for r in rows):
        limits = column("top_k", torch.int64), column("top_p", torch.float32), column("min_p", torch.float32)
        allowed = truncated(logp, *limits)
    cdf = allowed.double().exp().cumsum(dim=-1)
    token = torch.searchsorted(cdf, column("uniform", torch.float64) * cdf[:, -1:], right=True)
    places = torch.arange(logits.shape[1], device=logits.device)
    token = token.minimum(places.where(allowed > -torch.inf, 0).amax(dim=-1, keepdim=True))
    token = token.where(heat > 0, allowed.argmax(dim=-1, keepdim=True))
    if any("force" in r for r in rows):
        force = torch.tensor([[r.get("force", -1)] for r in rows], device=logits.device)
        token = force.where(force >= 0, token)
    sampled = allowed.gather(1, token).where(heat > 0, 0.0)
    return token[:, 0], logp.gather(1, token)[:, 0], sampled[:, 0]


def truncated(logp: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Log-probabilities inside top-k, top-p and min-p, normalised; the likeliest token always stays. `[n, V] -> [n, V]`"""
    import torch

    ranked, order = logp.sort(dim=-1, descending=True, stable=True)
    keep = (top_k <= 0) | (torch.arange(logp.shape[1], device=logp.device) < top_k)
    p = torch.softmax(ranked.masked_fill(~keep, -torch.inf), dim=-1)
    keep = keep & ((p.cumsum(dim=-1) - p < top_p) | (top_p >= 1)) & (p >= min_p * p[:, :1])
    keep[:, 0] = True
    kept = torch.zeros_like(keep).scatter(1, order, keep)
    return torch.log_softmax(logp.masked_fill(~kept, -torch.inf), dim=-1)


def make_processor() -> type:
    """The logits processor class: vLLM's greedy choice over what it returns is the token that we drew.

    It returns minus infinity everywhere but at two tokens: the drawn one, with its `sampling_logprob`, and the next one, with
    its `logprob` less 1 (so never the larger). vLLM hands both back with the token, as "processed logits".
    """
    import numpy as np
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

    class Drawn(LogitsProcessor):  # type: ignore[misc]
        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
            self._rows: dict[int, Message] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            if batch_update is None:
                return
            for index in batch_update.removed:
                self._rows.pop(index, None)
            for index, params, _, output in batch_update.added:
                given = params.extra_args["draw"]
                stream = np.random.Generator(np.random.Philox(key=given["seed"])).random(given["max_tokens"])
                self._rows[index] = {**given, "stream": stream, "output": output}
            for source, target, way in batch_update.moved:
                row, other = self._rows.pop(source, None), self._rows.pop(target, None)
                if row is not None:
                    self._rows[target] = row
                if other is not None and way == MoveDirectionality.SWAP:
                    self._rows[source] = other

        def apply(self, logits: Tensor) -> Tensor:
            index = [i for i in range(logits.shape[0]) if i in self._rows]
            if not index:
                return logits
            rows = [self._rows[i] for i in index]
            for row in rows:
                row["uniform"] = float(row["stream"][min(row["skip"] + len(row["output"]), row["max_tokens"] - 1)])
            token, logprob, sampled = draw(logits[index], rows)
            drawn = torch.full_like(logits[index], -torch.inf)
            carrier = (token + 1) % logits.shape[1]
            drawn.scatter_(1, carrier[:, None], (logprob - 1.0).nan_to_num(nan=NOT_FINITE)[:, None])
            drawn.scatter_(1, token[:, None], sampled.nan_to_num(nan=0.0)[:, None])
            logits[index] = drawn
            return logits

    return Drawn


# --------------------------------------------------------------------------------------------------------------- weights
def checksum(memory: mmap.mmap, size: int) -> int:
    """CRC-32 of the first `size` bytes."""
    with memoryview(memory) as view:
        return zlib.crc32(view[:size])


def tensors(memory: mmap.mmap, manifest: list[list[Any]]) -> Iterator[tuple[str, Tensor]]:
    """Named tensors that lie in `memory`, as `[name, dtype, shape, offset]`."""
    import torch

    for name, dtype, shape, offset in manifest:
        flat = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=math.prod(shape), offset=offset)
        yield name, flat.view(shape)


def put_weights(worker: Any, weights: dict[str, Tensor]) -> None:
    """Load new values into the model of vLLM's worker.

    On CPUs, vLLM 0.32 keeps a packed copy of a tied output head and does not update it; it is packed again here.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    worker.model_runner.reload_weights(weights_iterator=iter(weights.items()))
    model = worker.model_runner.get_model()
    tables = [m for m in model.modules() if isinstance(m, VocabParallelEmbedding) and not isinstance(m, ParallelLMHead)]
    for head in model.modules():
        if isinstance(head, ParallelLMHead) and "lm_head.weight" not in weights and len(tables) == 1:
            head.weight = tables[0].weight
            head.quant_method.process_weights_after_loading(head)


# ---------------------------------------------------------------------------------------------------------------- server
class VLLMServer:
    """Answers one message at a time."""

    def __init__(self, orders: Message) -> None:
        self._memory_fd: int = orders["memory"]
        self._memory: mmap.mmap | None = None
        self._engine = make_vllm(orders)

    def answer(self, message: Message) -> Message:
        if message["op"] == "load":
            return self._load(message)
        return self._step(message["add"], message["abort"])

    def _step(self, add: list[Message], abort: list[str]) -> Message:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if abort:
            self._engine.abort_request(abort)
        for request in add:
            params = SamplingParams(
                temperature=0.0,
                max_tokens=request["left"],
                logprobs=2,
                detokenize=False,
                ignore_eos=True,
                output_kind=RequestOutputKind.DELTA,
                extra_args={"draw": request["draw"]},
            )
            self._engine.add_request(request["key"], {"prompt_token_ids": request["tokens"]}, params)
        made = []
        for output in self._engine.step() if self._engine.has_unfinished_requests() else []:
            part, reused = output.outputs[0], max(output.num_cached_tokens or 0, 0)
            for token, found in zip(part.token_ids, part.logprobs or [], strict=True):
                carried = next(value.logprob for key, value in found.items() if key != token)
                made.append([output.request_id, token, carried + 1.0, found[token].logprob, reused])
        return {"made": made}

    def _load(self, message: Message) -> Message:
        if self._memory is None:
            self._memory = mmap.mmap(self._memory_fd, 0)
        if len(self._memory) < message["size"] or checksum(self._memory, message["size"]) != message["checksum"]:
            return {"refused": "the weights do not have the checksum that they were sent with"}
        weights = dict(tensors(self._memory, message["manifest"]))
        self._engine.collective_rpc(put_weights, args=(weights,))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM still holds keys and values of the old weights")
        return {"loaded": message["version"]}


def make_vllm(orders: Message) -> LLMEngine:
    """vLLM's engine, in this process."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0", VLLM_NO_USAGE_STATS="1")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if orders["cpu_cache_gib"]:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(orders["cpu_cache_gib"])
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    precision = orders["precision"]
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=orders["folder"],
            skip_tokenizer_init=True,
            dtype=precision if precision != "auto" else "float32" if current_platform.is_cpu() else "bfloat16",
            max_model_len=orders["max_length"],
            max_num_seqs=orders["num_slots"],
            gpu_memory_utilization=orders["memory_share"],
            enforce_eager=orders["eager"],
            enable_prefix_caching=True,
            async_scheduling=False,
            logprobs_mode="processed_logits",
            logits_processors=[make_processor()],
            disable_log_stats=True,
        )
    )


def main() -> int:
    """Entry point: the orders are the first argument, as JSON."""
    orders = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.die_with_parent(orders["parent"])
    line = framing.MessageSocket(socket.socket(fileno=orders["socket"]))
    try:
        server = VLLMServer(orders)
        line.send({"ready": True})
        while (message := line.next_message()) is not None:
            line.send(server.answer(message))
    except Exception as error:  # whatever it is: the engine is told it, before vLLM writes its last lines
        traceback.print_exc()
        line.send({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
