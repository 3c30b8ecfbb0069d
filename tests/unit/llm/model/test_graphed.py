"""Recorded passes over packed rows: shapes and stages everywhere, graphs against plain passes on CUDA."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.llm.model.attention import PackedRows
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.graphed import GraphedDecoder, GraphStage, Shape
from runnel.llm.model.token_model import TokenModel

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SIZES = ModelConfig(layers=2, width=64, heads=4, kv_heads=2, inner=96, max_positions=1024)
BATCHES = [[5, 9, 1, 3], [200, 300, 17], [5, 9, 1, 3], [7, 8], [256], [200, 300, 17], [1] * 40, [2] * 39]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=60))
def test_a_shape_holds_its_rows_and_little_more(lengths):
    shape, size = Shape.of(lengths), sum(lengths)
    assert size <= shape.tokens <= max(size * 1.25, size + 256)
    assert max(lengths) <= shape.longest < max(lengths) * 4 + 128
    stage = GraphStage.of(shape, torch.device("cpu"))
    stage.put(torch.arange(1, size + 1), lengths)
    gaps = stage.bounds.diff()
    assert gaps[: len(lengths)].tolist() == lengths
    assert int(stage.bounds[0]) == 0
    assert int(stage.bounds[-1]) == shape.tokens
    assert int(gaps.min()) >= 0
    assert int(gaps.max()) <= shape.longest
    expected = torch.cat([torch.arange(length) for length in lengths])
    assert torch.equal(stage.positions[:size], expected)
    assert int(stage.positions.max()) < max(lengths), "no model is asked for a position that its rows do not have"
    assert torch.equal(stage.tokens[:size], torch.arange(1, size + 1))
    assert int(stage.tokens[size:].sum()) == 0


def passes(model: TokenModel, *, record: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Loss and gradient of each of some batches."""
    if not record:
        model._graphed = None
    out = []
    for i, lengths in enumerate(BATCHES):
        generator = torch.Generator().manual_seed(i)
        tokens = torch.randint(0, 40, (sum(lengths),), generator=generator).cuda()
        weight = torch.randn(len(tokens), generator=generator).cuda()
        model.zero_grad()
        hidden = model.packed_hidden(tokens, PackedRows(lengths, device="cuda"))
        logprob, _ = model.target_logprobs(hidden, tokens.roll(-1), temperature=1.0)
        (logprob * weight).sum().backward()
        out.append((logprob.detach().clone(), model._grad.clone()))
    return out


def half(recompute="none") -> TokenModel:
    return TokenModel(build_model(SIZES, 40, seed=3), device="cuda", precision="bfloat16", recompute=recompute)


@CUDA
@pytest.mark.cuda
@pytest.mark.parametrize("recompute", ["none", "mlp", "block"])
def test_replayed_passes_are_the_plain_ones(recompute):
    for found, expected in zip(passes(half(recompute), record=True), passes(half(), record=False), strict=True):
        torch.testing.assert_close(found[0], expected[0], atol=2e-2, rtol=0)
        gap = float((found[1] - expected[1]).norm() / expected[1].norm())
        assert gap < 0.02, "rounding of bfloat16 and no more"


@CUDA
@pytest.mark.cuda
def test_passes_without_gradients_are_the_plain_ones():
    model = half()
    tokens = torch.arange(30, device="cuda")
    with torch.no_grad():
        first, second, third = (model.packed_hidden(tokens, PackedRows([10, 20], device="cuda")) for _ in range(3))
        other = model.packed_hidden(tokens.flip(0), PackedRows([10, 20], device="cuda"))
    torch.testing.assert_close(first, second, atol=1e-2, rtol=1e-2)
    assert torch.equal(second, third)
    assert not torch.equal(third, other)


@CUDA
@pytest.mark.cuda
def test_a_backward_pass_that_comes_too_late_raises():
    model = half()
    recorded = model._graphed
    assert isinstance(recorded, GraphedDecoder)
    tokens = torch.arange(30, device="cuda")
    for _ in range(2):
        recorded(tokens, [30]).sum().backward()
    late = recorded(tokens, [30])
    recorded(tokens, [30])
    with pytest.raises(RuntimeError, match="another forward pass"):
        late.sum().backward()
