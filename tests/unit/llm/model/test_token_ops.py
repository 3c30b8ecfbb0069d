"""Packed attention, drawing, chunked log-probabilities and the parts of a block, against plain torch; on CUDA too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from runnel.llm.model import blocks
from runnel.llm.model.attention import PackedRows, packed_attention
from runnel.llm.model.logprobs import draw, head_logprobs, logprobs_from_logits, token_logprobs
from runnel.llm.model.weights import Weight

CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_packed_rows_attend_to_themselves_alone(device, heads):
    h, k = heads
    rows = PackedRows([5, 1, 9], device=device)
    turned, value = torch.randn(15, h + k, 8, device=device), torch.randn(15, k, 8, device=device)
    found = packed_attention(turned, value, rows, scale=0.3)
    start = 0
    for size in rows.lengths:
        part = slice(start, start + size)
        q, key, v = (x[part].transpose(0, 1)[None] for x in (turned[:, :h], turned[:, h:], value))
        expected = scaled_dot_product_attention(q, key, v, is_causal=True, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(found[part], expected[0].transpose(0, 1).reshape(size, -1), atol=1e-5, rtol=1e-5)
        start += size
    assert rows.positions.tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_rows_of_a_family_attend_as_if_each_had_the_whole_beginning():
    rows, lengths = PackedRows([3, 2, 4, 5, 1], families=[3, 1, 1]), [3, 5, 7, 5, 1]
    places = [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 5, 6, 7, 8], [9, 10, 11, 12, 13], [14]]
    turned, value = torch.randn(15, 6, 8, dtype=torch.float64), torch.randn(15, 2, 8, dtype=torch.float64)
    each = torch.tensor([place for row in places for place in row])
    alone = packed_attention(turned[each], value[each], PackedRows(lengths), scale=0.3)
    found = packed_attention(turned, value, rows, scale=0.3)
    torch.testing.assert_close(found[each], alone)
    assert rows.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [7, 256, 5000])
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(device, size):
    logits = 3 * torch.randn(64, size)
    heat, uniform = torch.rand(64) + 0.3, torch.rand(64, dtype=torch.float64)
    heat[:8] = 0.0
    token, logprob = (x.cpu() for x in draw(logits.to(device), heat=heat.to(device), uniform=uniform.to(device)))
    for i in range(64):
        scale = float(heat[i]) or 1.0
        p = torch.softmax(logits[i].double() / scale, dim=0).numpy()
        exact = int(np.argmax(p)) if i < 8 else int(np.searchsorted(np.cumsum(p), float(uniform[i]), side="right"))
        near = {exact} if device == "cpu" else {exact - 1, exact, exact + 1}
        assert int(token[i]) in near
        assert float(logprob[i]) == pytest.approx(np.log(p[int(token[i])]), abs=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [3, 16, 100])
def test_chunked_logprobs_and_entropies_have_the_gradients_of_whole_ones(device, chunk):
    hidden, weight = torch.randn(37, 16, device=device), torch.randn(50, 16, device=device)
    targets = torch.randint(0, 50, (37,), device=device)
    a, b = torch.randn(37, device=device), torch.randn(37, device=device)

    def gradients(function):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logprob, entropy = function(h, w)
        return logprob, entropy, *torch.autograd.grad((a * logprob + b * entropy).sum(), (h, w))

    whole = gradients(lambda h, w: logprobs_from_logits(h @ w.t(), targets, temperature=0.7))
    leaf, sink = hidden.clone().requires_grad_(), torch.zeros_like(weight)
    logprob, entropy = token_logprobs(leaf, targets, Weight(weight, sink), temperature=0.7, chunk_size=chunk)
    (a * logprob + b * entropy).sum().backward()
    parts = logprob, entropy, leaf.grad, sink
    through = gradients(lambda h, w: head_logprobs(h, targets, lambda x: x @ w.t(), temperature=0.7, chunk_size=chunk))
    for x, y, z in zip(whole, parts, through, strict=True):
        torch.testing.assert_close(y, x, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(z, x, atol=1e-5, rtol=1e-5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("part", ["norm", "add_norm", "rotate", "rotate_some", "mlp", "mlp_again", "project", "embed"])
def test_parts_of_a_block_on_cuda_are_those_of_the_cpu(part):
    """Values, gradients of inputs, and gradients of weights in their sinks."""
    x, other = torch.randn(11, 24), torch.randn(11, 24)
    weights = {"norm": torch.rand(24), "up": torch.randn(64, 24), "down": torch.randn(24, 32), "bias": torch.randn(64)}
    angles = torch.randn(11, 3)
    tokens = torch.randint(0, 64, (11,))

    def run(device):
        leaves = {k: v.to(device).clone() for k, v in weights.items()}
        sinks = {k: torch.zeros_like(v) for k, v in leaves.items()}
        made = {name: Weight(leaf, sinks[name]) for name, leaf in leaves.items()}
        a, b = x.to(device).requires_grad_(), other.to(device).requires_grad_()
        cos, sin = angles.to(device).cos(), angles.to(device).sin()
        heads = a.view(11, 4, 6)
        out = {
            "norm": lambda: blocks.rms_norm(a, made["norm"], eps=1e-5),
            "add_norm": lambda: torch.stack(blocks.add_rms_norm(a, b, made["norm"], eps=1e-5)),
            "rotate": lambda: blocks.rotate(heads, cos, sin, 4)[0],
            "rotate_some": lambda: torch.cat(blocks.rotate(heads, cos, sin, 3), dim=1),
            "mlp": lambda: blocks.gated_mlp(a, made["up"], made["down"]),
            "mlp_again": lambda: blocks.gated_mlp(a, made["up"], made["down"], recompute=True),
            "project": lambda: blocks.project(a, made["up"], made["bias"]),
            "embed": lambda: blocks.embed(tokens.to(device), made["up"], trains=True),
        }[part]()
        torch.manual_seed(1)
        (out * torch.randn(out.shape).to(device)).sum().backward()
        grads = [g.cpu() for g in (a.grad, b.grad) if g is not None]
        return [out.detach().cpu(), *grads, *(s.cpu() for s in sinks.values())]

    for found, expected in zip(run("cuda"), run("cpu"), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
