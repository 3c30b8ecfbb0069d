"""Compiled loops against the same in torch: odd sizes, one row, none, and the same numbers on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

pytest.importorskip("numba")

from runnel.kernels.lm.numba import attention_loops, block_loops, cache_loops
from runnel.kernels.lm.numba.loop_maths import exp, floats, pieces
from runnel.kernels.lm.numba.loops import Loop, loops
from runnel.llm.engines import requests
from runnel.llm.model import attention, blocks, logprobs
from runnel.llm.model import cpu_blocks as block_host
from runnel.llm.model.attention import PackedRows, packed_attention
from runnel.llm.model.weights import Weight

ROWS = [0, 1, 7, 700]
NUMBERS = ("last", "position", "count", "left", "active", "sane", "top_k")
"""The whole numbers of a row of an engine."""
HEADS = [(4, 4, 32), (6, 2, 8), (3, 1, 20), (2, 2, 48)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def in_torch(monkeypatch):
    """A function that runs another without loops."""

    def without(function, *args, **kwargs):
        with monkeypatch.context() as patch:
            for module in (attention, logprobs, requests):
                patch.setattr(module, "loops", lambda *tensors: False)
            return function(*args, **kwargs)

    return without


@Loop
def _exponentials(words):
    x, out = floats(words[4]), floats(words[5])
    for _ in pieces(words):
        for i in range(words[3]):
            out[i] = exp(x[i])


def test_exponentials_are_within_two_units_in_the_last_place():
    x = torch.cat((torch.linspace(-87.2, 87.9, 200_001), torch.linspace(-1e-3, 1e-3, 1001), torch.tensor([0.0])))
    out = torch.empty_like(x)
    _exponentials(1, len(x), x, out)
    exact = np.exp(x.numpy().astype(np.float64))
    assert (np.abs(out.numpy() - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    odd = torch.tensor([-torch.inf, -200.0, torch.nan, 1000.0])
    _exponentials(1, 4, odd, out)
    assert out[:2].tolist() == [0.0, 0.0]
    assert torch.isnan(out[2])
    assert torch.isfinite(out[3])


def test_loops_serve_float32_on_the_host():
    x = torch.zeros(3)
    assert loops(x)
    assert not loops(x.double())
    assert not loops(x, x.bfloat16())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 33, 128])
def test_normalised_rows_and_their_gradients(rows, width):
    x, delta, grad, dtotal = torch.randn(4, rows, width).unbind(0)
    weight, sums = torch.rand(width), (torch.empty_like(x), torch.empty_like(x))
    for add in (None, 0):
        given = [None if add is None else (delta, total) for total in sums]
        out, inverse = block_loops.rms_forward(x, given[0], weight, 1e-5)
        expected = block_host.rms_forward(x, given[1], weight, 1e-5)
        torch.testing.assert_close((out, inverse), expected, atol=1e-5, rtol=1e-5)
        at = x if add is None else sums[0]
        more = None if add is None else dtotal
        found = block_loops.rms_backward(grad, more, at, weight, inverse)
        torch.testing.assert_close(found, block_host.rms_backward(grad, more, at, weight, inverse), atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [2, 6, 32])
def test_rotations_of_some_heads(rows, size):
    x, angle = torch.randn(rows, 7, size), torch.randn(rows, size // 2)
    out, expected = torch.empty(2, rows, 5, size).unbind(0)
    for back in (False, True):
        block_loops.rotate(x[:, :5], angle.cos(), angle.sin(), out, back=back)
        block_host.rotate(x[:, :5], angle.cos(), angle.sin(), expected, back=back)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 37, 512])
def test_gated_units_and_their_gradients(rows, width):
    x, grad = 4 * torch.randn(rows, 2 * width), torch.randn(rows, width)
    torch.testing.assert_close(block_loops.swiglu_forward(x), block_host.swiglu_forward(x), atol=1e-5, rtol=1e-5)
    found, expected = block_loops.swiglu_backward(grad, x), block_host.swiglu_backward(grad, x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 63, 64])
def test_products_of_any_number_of_rows(rows):
    x, weight, bias = torch.randn(rows, 24), torch.randn(40, 24), torch.randn(40)
    for given in (None, bias):
        with torch.no_grad():
            found = blocks.project(x, Weight(weight), None if given is None else Weight(given))
        torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, given), atol=1e-5, rtol=1e-5)
        assert found.is_contiguous()


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_token_attends_to_its_slot(heads, rows):
    h, k, size = heads
    keys, values = torch.randn(2, rows + 1, k, 40, size).unbind(0)
    turned, value = torch.randn(rows, h + k, size), torch.randn(rows, k + 3, size)[:, 3:]
    positions = torch.randint(0, 40, (rows,))
    expected_keys, expected_values, each = keys.clone(), values.clone(), torch.arange(rows)
    expected_keys[each, :, positions], expected_values[each, :, positions] = turned[:, h:], value
    found = cache_loops.decode_attention(turned, value, keys, values, positions, scale=0.3)
    assert torch.equal(keys, expected_keys)
    assert torch.equal(values, expected_values)
    for i, end in enumerate((positions + 1).tolist()):
        k_seen, v_seen = keys[i : i + 1, :, :end], values[i : i + 1, :, :end]
        expected = scaled_dot_product_attention(turned[i, :h][None, :, None], k_seen, v_seen, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(found[i], expected.flatten(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", [[1], [16], [5, 1, 33, 17, 4]])
@pytest.mark.parametrize("families", [False, True])
def test_packed_attention_and_its_gradient(heads, lengths, families, in_torch):
    h, k, size = heads
    rows, total = PackedRows(lengths, families=_in_two(len(lengths)) if families else None), sum(lengths)
    turned, value, grad = torch.randn(total, h + k, size), torch.randn(total, k + 1, size), torch.randn(total, h * size)

    def whole():
        a, b = turned.clone().requires_grad_(), value.clone().requires_grad_()
        out = packed_attention(a, b[:, 1:], rows, scale=size**-0.5)
        return out, *torch.autograd.grad(out, (a, b), grad)

    torch.testing.assert_close(whole(), in_torch(whole), atol=2e-5, rtol=1e-4)


def _in_two(num):
    """Families of three rows and of the rest."""
    return [num] if num < 4 else [3, num - 3]


def drawn(logits, heat, uniform):
    """A token for each row and its log-probability, as an engine draws them."""
    rows = requests.SlotRows(len(logits), 1, device=torch.device("cpu"))
    rows.left[:], rows.active[:], rows.sane[:] = 2, 1, 1
    rows.heat[:], rows.uniforms[:, 0] = heat, uniform
    rows.draw(logits, torch.arange(len(logits)))
    return rows.tokens[:, 0], rows.logprobs[:, 0]


@pytest.mark.parametrize("size", [1, 7, 256, 257, 5000])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_a_draw_is_the_one_of_torch(size, rows, in_torch):
    logits, heat, uniform = 3 * torch.randn(rows, size), torch.rand(rows) + 0.3, torch.rand(rows, dtype=torch.float64)
    heat[::5] = 0.0
    logits[:, 1::3] = -torch.inf
    found = drawn(logits, heat, uniform)
    torch.testing.assert_close(found, in_torch(drawn, logits, heat, uniform), atol=1e-5, rtol=1e-5)


def test_a_draw_at_the_end_has_a_probability_and_broken_logits_show():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, torch.nan, 1.0], [torch.inf, 0.0, 0.0]])
    token, logprob = drawn(logits, torch.ones(3), torch.ones(3, dtype=torch.float64))
    assert int(token[0]) == 1
    assert torch.isnan(logprob).tolist() == [False, True, True]


@pytest.mark.parametrize("limited", [False, True])
def test_recording_tokens(limited, in_torch):
    both = [requests.SlotRows(6, 4, device=torch.device("cpu")) for _ in range(2)]
    for rows in both:
        rows.left[:] = torch.tensor([1, 2, 3, 3, 3, 4])
        rows.active[:5], rows.sane[:] = 1, 1
        rows.active[3] = 0
        rows.stops[2, 1] = 7
    for step in range(3):
        index = torch.tensor([0, 1, 2, 3, 4])
        token, logprob = torch.tensor([7, 7, 7 if step else 3, 7, 7]), torch.randn(5)
        logprob[4] = torch.nan if step == 1 else 0.5
        given = (index, token, logprob, torch.randn(5) if limited else None)
        both[0].record(*given)
        in_torch(both[1].record, *given)
        for name in (*NUMBERS, "tokens", "logprobs", "drawn"):
            assert torch.equal(getattr(both[0], name).nan_to_num(9.0), getattr(both[1], name).nan_to_num(9.0)), name


@pytest.mark.parametrize("size", [7, 600])
def test_drawing_and_recording_in_one(size, in_torch):
    both = [requests.SlotRows(6, 4, device=torch.device("cpu")) for _ in range(2)]
    uniforms = torch.rand(6, 4, dtype=torch.float64)
    for rows in both:
        rows.left[:], rows.active[:], rows.sane[:] = torch.tensor([1, 2, 3, 3, 3, 4]), 1, 1
        rows.active[3], rows.heat[1], rows.uniforms[:] = 0, 0.0, uniforms
    for step in range(3):
        index = torch.tensor([4, 0, 1, 3, 2])
        logits = 3 * torch.randn(5, size)
        logits[4, 2] = torch.nan if step == 1 else 0.5
        both[0].draw(logits, index)
        in_torch(both[1].draw, logits, index)
        for name in (*NUMBERS, "tokens"):
            known = torch.tensor([0, 1, 4, 3, 5] if step else [0, 1, 2, 3, 4, 5])  # a broken row has some token
            assert torch.equal(getattr(both[0], name)[known], getattr(both[1], name)[known]), name
        torch.testing.assert_close(both[0].logprobs, both[1].logprobs, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("size", [1, 50, 3000])
@pytest.mark.parametrize("rows", [0, 1, 37])
def test_logprobs_entropies_and_their_gradients(size, rows, in_torch):
    logits, targets = 3 * torch.randn(rows, size), torch.randint(0, size, (rows,))
    found = logprobs._summarise(logits, targets, 0.7)
    expected = in_torch(logprobs._summarise, logits, targets, 0.7)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    grads = (*torch.randn(2, rows).unbind(0), *expected[1:])
    dlogits = logprobs._differentiate(logits, targets, grads, 0.7, torch.float32)
    slowly = in_torch(logprobs._differentiate, logits, targets, grads, 0.7, torch.float32)
    torch.testing.assert_close(dlogits, slowly, atol=2e-5, rtol=1e-4)


def test_threads_change_nothing():
    x, grad, weight = torch.randn(700, 256), torch.randn(700, 256), torch.rand(256)
    turned, value, rows = torch.randn(90, 6, 32), torch.randn(90, 2, 32), PackedRows([20, 20, 1, 49], families=[3, 1])

    def everything():
        out, inverse = block_loops.rms_forward(x, None, weight, 1e-5)
        seen, logs = attention_loops.forward(turned, value, rows, 0.2)
        more = attention_loops.backward(seen, turned, value, rows, 0.2, logs)
        return out, *block_loops.rms_backward(grad, None, x, weight, inverse), block_loops.swiglu_forward(x), seen, *more

    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(everything())
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
