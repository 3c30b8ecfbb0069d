"""Stands in for vLLM: our own server file with a Llama in plain numpy, in a process that starts at once and can be killed.

Run as an interpreter would be: `fake_vllm.py -P -u vllm_server.py ORDERS`.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np


def stand_in(folder: Path) -> str:
    """A file to give as vLLM's interpreter."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
    path.chmod(0o755)
    return str(path)


class Llama:
    """The log-probabilities of the next token, of a model whose head is its embedding; one forward pass over all tokens."""

    def __init__(self, folder: Path) -> None:
        self.c = json.loads((folder / "config.json").read_text())
        self.w: dict[str, Any] = {}

    def __call__(self, tokens: list[int]) -> Any:
        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.c["num_hidden_layers"]):
            x = x + self._attend(self._norm(x, f"model.layers.{i}.input_layernorm"), f"model.layers.{i}.self_attn")
            y, name = self._norm(x, f"model.layers.{i}.post_attention_layernorm"), f"model.layers.{i}.mlp"
            gate = self._times(y, f"{name}.gate_proj")
            x = x + self._times(gate / (1 + np.exp(-gate)) * self._times(y, f"{name}.up_proj"), f"{name}.down_proj")
        return _log_softmax(self._norm(x[-1:], "model.norm") @ self.w["model.embed_tokens.weight"].T)[0]

    def _times(self, x: Any, name: str) -> Any:
        return x @ self.w[f"{name}.weight"].T

    def _norm(self, x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w[f"{name}.weight"]

    def _attend(self, x: Any, name: str) -> Any:
        n, size = len(x), self.c["head_dim"]
        q, k, v = (self._times(x, f"{name}.{part}_proj").reshape(n, -1, size) for part in "qkv")
        k, v = (np.repeat(part, self.c["num_attention_heads"] // part.shape[1], axis=1) for part in (k, v))
        q, k = self._turn(q), self._turn(k)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + np.triu(np.full((n, n), -np.inf), 1)
        mixed = np.einsum("hqk,khd->qhd", np.exp(_log_softmax(scores)), v)
        return self._times(mixed.reshape(n, -1), f"{name}.o_proj")

    def _turn(self, x: Any) -> Any:
        half, theta = x.shape[-1] // 2, self.c["rope_parameters"]["rope_theta"]
        angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def _log_softmax(x: Any) -> Any:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Server:
    """Answers as the real one does: a token for each request a step, drawn at temperature 1 without limits."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._memory_fd, self._model = orders["memory"], Llama(Path(orders["folder"]))
        self._running: dict[str, dict[str, Any]] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "load":
            memory = mmap.mmap(self._memory_fd, 0)
            for name, dtype, shape, offset in message["manifest"]:
                count = int(np.prod(shape))
                self._model.w[name] = np.frombuffer(memory, dtype, count, offset).reshape(shape).astype(np.float64)
            return {"loaded": message["version"]}
        for key in message["abort"]:
            self._running.pop(key, None)
        self._running |= {request["key"]: {**request, "made": 0} for request in message["add"]}
        return {"made": [self._step(key) for key in list(self._running)]}

    def _step(self, key: str) -> list[Any]:
        request = self._running[key]
        given, at = request["draw"], request["draw"]["skip"] + request["made"]
        stream = np.random.Generator(np.random.Philox(key=given["seed"])).random(given["max_tokens"])
        logprobs = self._model(request["tokens"])
        drawn = int(np.searchsorted(np.exp(logprobs).cumsum(), stream[min(at, given["max_tokens"] - 1)], side="right"))
        token = given.get("force", min(drawn, len(logprobs) - 1))
        request["tokens"].append(token)
        request["made"] += 1
        if request["made"] == request["left"]:
            del self._running[key]
        return [key, token, float(logprobs[token]), float(logprobs[token]), 0]


def main() -> int:
    spec = importlib.util.spec_from_file_location("vllm_server", sys.argv[3])
    assert spec is not None
    assert spec.loader is not None
    server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(server)
    server.VLLMServer, sys.argv = Server, sys.argv[3:]  # type: ignore[attr-defined]
    code: int = server.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
