"""What crosses processes fits into the mailboxes that a recipe asks for, however long completions may be."""

from __future__ import annotations

from runnel.flow.inference.codec import packed
from runnel.llm.engines.requests import reply_rows, request_rows
from runnel.llm.model.causal_lm import ModelConfig
from runnel.recipes.grpo import Config, build


def test_the_longest_request_and_reply_fit() -> None:
    config = Config(max_tokens=9000, lm=ModelConfig(max_positions=12_000), stop=("END" * 20,) * 50)
    (stream,) = build(config).inference
    reply = reply_rows([1] * 9000, [0.0] * 9000, [0] * 9000, terminated=True, sampling_logprobs=[0.0] * 9000)
    request = request_rows([1] * 100, seed=1, max_tokens=9000, sampling=config.sampling)
    assert stream.max_bytes > 1 << 16
    for rows in (reply, request):
        packed(rows, stream.max_bytes, stream.name)
