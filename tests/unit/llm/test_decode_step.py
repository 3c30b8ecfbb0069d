"""A whole decode step as one compiled loop, against the decoder with torch's attention: families, odd sizes, several tiles."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numba")

from runnel.llm.engines import runners
from runnel.llm.model.decoder import Decoder

VOCAB = 231
"""More than a tile's widest line, and not a multiple of it."""


def model_of(family):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 3, "max_position_embeddings": 64, "bos_token_id": None}
    sizes |= {"eos_token_id": None, "pad_token_id": None}
    small = {"hidden_size": 36, "intermediate_size": 50, "num_attention_heads": 6, "num_key_value_heads": 2}
    even = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 2}
    kinds = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes, **small)),
        "llama, wide heads": lambda: LlamaForCausalLM(LlamaConfig(**sizes, **even, attention_bias=True)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**sizes, **small)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**sizes, **small, head_dim=16)),
    }
    model = kinds[family]()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("family", ["llama", "llama, wide heads", "qwen2", "qwen3"])
@pytest.mark.parametrize("rows", [1, 33])
@torch.no_grad()
def test_a_step_is_the_one_of_the_decoder(family, rows, monkeypatch):
    torch.manual_seed(0)
    decoder = Decoder.of(model_of(family))
    ours, plain = (runners.DecoderRunner(decoder, num_slots=rows, max_length=24) for _ in range(2))
    assert ours._whole_step() is not None
    start = torch.randint(0, 4, (rows,))
    for step in range(20):
        tokens, positions = torch.randint(0, 40, (rows,)), (start + step).clamp(max=23)
        found = ours.decode(tokens, positions, 24)
        with monkeypatch.context() as patch:
            patch.setattr(runners, "loops", lambda *tensors: False)
            expected = plain.decode(tokens, positions, 24)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        logits = ours.next_logits(tokens, positions, 24)  # the same step once more
        torch.testing.assert_close(logits, decoder.logits(expected), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.cache, plain.cache, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_a_step_reads_weights_where_they_lie_and_does_not_depend_on_threads():
    torch.manual_seed(0)
    decoder = Decoder.of(model_of("llama"))
    runner = runners.DecoderRunner(decoder, num_slots=70, max_length=24)
    tokens, positions = torch.randint(0, 40, (70,)), torch.zeros(70, dtype=torch.int64)
    threads, found = torch.get_num_threads(), []
    for count in (1, 3):
        torch.set_num_threads(count)
        found.append(runner.decode(tokens, positions, 24))
    torch.set_num_threads(threads)
    assert torch.equal(*found)
    decoder.layers[0].qkv.value.zero_()
    assert not torch.equal(runner.decode(tokens, positions, 24), found[0])
