# mypy: ignore-errors
"""A whole decode step of a small Llama-like model as one compiled loop, for float32 on the CPU.

A piece is a tile of 32 rows, which one thread takes through all layers: between two products there is no dispatch, and threads
meet once a step instead of some nine times a layer. That pays while the weights fit into a processor's cache, since every tile
reads them all. What lies in a tile is `[feature, row]`: a line of 32 rows is two vectors. The formulas are those of
`llm/model/decoder.py`; tests hold a step against it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from runnel.kernels.jit import forget_older
from runnel.kernels.lm.numba import cache_loops, loop_maths, loop_tiles
from runnel.kernels.lm.numba.cache_loops import F0, F1, attend
from runnel.kernels.lm.numba.loop_maths import (
    LANES,
    add,
    enter,
    exp,
    fill,
    floats,
    fused,
    integers,
    jit,
    load,
    number,
    over,
    pieces,
    store,
)
from runnel.kernels.lm.numba.loop_tiles import to_lanes, to_rows, wide_products
from runnel.kernels.lm.numba.loops import Loop

forget_older(__file__, loop_maths.__file__, loop_tiles.__file__, cache_loops.__file__)

TILE = 2 * LANES


@jit
def _norm(memory, x, y, weight, width, eps):
    """`y = x / size(x) * weight` of a tile; `y` has room for one more line."""
    end = y + width * TILE
    for half in range(0, TILE, LANES):
        square = fill(F0)
        for d in range(width):
            line = load(memory, x + d * TILE + half)
            square = fused(line, line, square)
        store(memory, end + half, square)
    for i in range(TILE):
        memory[end + i] = np.float32(1.0 / math.sqrt(memory[end + i] / width + eps))
    for half in range(0, TILE, LANES):
        inverse = load(memory, end + half)
        for d in range(width):
            at = d * TILE + half
            store(memory, y + at, fused(load(memory, x + at), add(fill(F0), weight[d], inverse), fill(F0)))


@jit
def _apply(memory, to, source, weight, bias, has_bias, num_out, num_in):
    """`to = weight source + bias` of a tile."""
    wide_products(memory, to, weight, memory, source, num_out, num_in)
    if has_bias:
        for a in range(num_out):
            for half in range(0, TILE, LANES):
                at = to + a * TILE + half
                store(memory, at, add(load(memory, at), F1, fill(bias[a])))


@jit
def _add(memory, x, y, width):
    """`x += y` of a tile."""
    for at in range(0, width * TILE, LANES):
        store(memory, x + at, add(load(memory, x + at), F1, load(memory, y + at)))


@jit
def _gate(memory, gate, width):
    """`silu(gate) * up` of a tile, in place of the gates."""
    for at in range(gate, gate + width * TILE, LANES):
        g, up = load(memory, at), load(memory, at + width * TILE)
        share = over(g, add(fill(F1), F1, exp(add(fill(F0), -F1, g))))
        store(memory, at, fused(share, up, fill(F0)))


@jit
def _norm_head(memory, at, weight, size, eps):
    """A head of one row, normalised in place."""
    square = F0
    for d in range(size):
        square += memory[at + d] * memory[at + d]
    inverse = np.float32(1.0 / math.sqrt(square / size + eps))
    for d in range(size):
        memory[at + d] = memory[at + d] * inverse * weight[d]


@jit
def _turn_head(memory, at, cos, sin, angle, half):
    """A head of one row, turned in place."""
    for j in range(half):
        a, b, c, s = memory[at + j], memory[at + half + j], cos[angle + j], sin[angle + j]
        memory[at + j] = a * c - b * s
        memory[at + half + j] = b * c + a * s


@Loop
def _step(words):
    """Words: rows, layers, width, heads, key-value heads, head size, inner width, longest; addresses of weights (10 a layer,
    then embedding and last norm), cos, sin; cache, strides of layer, keys to values, slot, head; tokens, positions, out; eps,
    scale; memory of a thread, its size; output embedding (0: hidden states go out), its rows."""
    rows, layers, width, inner = words[3], words[4], words[5], words[9]
    heads, kv_heads, size = words[6], words[7], words[8]
    weights, cos, sin = integers(words[11]), floats(words[12]), floats(words[13])
    cache, layer_step, values_step, slot_step, head_step = floats(words[14]), words[15], words[16], words[17], words[18]
    tokens, positions, out = integers(words[19]), integers(words[20]), floats(words[21])
    eps, scale = number(words[22]), np.float32(number(words[23]))
    memory, x, vocab = floats(words[24]), enter(words) * words[25], words[27]
    every, seen_width, group = (heads + 2 * kv_heads) * size, heads * size, heads // kv_heads
    y = x + width * TILE
    wide = y + (width + 1) * TILE
    own = wide + max(2 * inner, every, seen_width) * TILE
    seen = own + every * TILE
    scores = seen + seen_width * TILE
    embed, last = floats(weights[10 * layers]), floats(weights[10 * layers + 1])
    for piece in pieces(words):
        first = piece * TILE
        num = min(TILE, rows - first)
        for i in range(TILE):
            for d in range(width):
                memory[x + d * TILE + i] = embed[tokens[first + i] * width + d] if i < num else F0
        _norm(memory, x, y, floats(weights[0]), width, eps)
        for layer in range(layers):
            w = 10 * layer
            _apply(memory, wide, y, floats(weights[w + 1]), floats(weights[w + 2]), weights[w + 2] != 0, every, width)
            to_rows(memory, own, every, memory, wide, TILE, num, every)
            for i in range(num):
                row, position = own + i * every, positions[first + i]
                for head in range(heads + kv_heads):
                    if weights[w + 3] != 0:
                        _norm_head(memory, row + head * size, floats(weights[w + (3 if head < heads else 4)]), size, eps)
                    _turn_head(memory, row + head * size, cos, sin, position * (size // 2), size // 2)
                for kv in range(kv_heads):
                    keys = layer * layer_step + (first + i) * slot_step + kv * head_step
                    for d in range(size):
                        cache[keys + position * size + d] = memory[row + (heads + kv) * size + d]
                        cache[keys + values_step + position * size + d] = memory[row + (heads + kv_heads + kv) * size + d]
                    for head in range(kv * group, (kv + 1) * group):
                        q, to = row + head * size, seen + i * seen_width + head * size
                        attend(
                            memory, q, cache, keys, keys + values_step, position + 1, size, memory, scores, scale, memory, to
                        )
            to_lanes(memory, wide, TILE, memory, seen, seen_width, num, seen_width)
            _apply(memory, y, wide, floats(weights[w + 5]), floats(weights[w + 6]), weights[w + 6] != 0, width, seen_width)
            _add(memory, x, y, width)
            _norm(memory, x, y, floats(weights[w + 7]), width, eps)
            _apply(memory, wide, y, floats(weights[w + 8]), last, False, 2 * inner, width)
            _gate(memory, wide, inner)
            _apply(memory, y, wide, floats(weights[w + 9]), last, False, width, inner)
            _add(memory, x, y, width)
            _norm(memory, x, y, floats(weights[w + 10]) if layer < layers - 1 else last, width, eps)
        if words[26] == 0:
            to_rows(out, first * width, width, memory, y, TILE, num, width)
        else:
            for a in range(0, vocab, 2 * inner):
                count = min(2 * inner, vocab - a)
                wide_products(memory, wide, floats(words[26] + 4 * a * width), memory, y, count, width)
                to_rows(out, first * vocab + a, vocab, memory, wide, TILE, num, count)


class DecodeStep:
    """Decode steps of a model over a cache `[layers, 2, slots, kv_heads, length, head_dim]`.

    `layers` are the weights of each layer in the order of `llm.model.decoder.Layer` (None: it has none), `sizes` are heads,
    key-value heads and inner width, `numbers` are eps and the scale of scores.
    """

    def __init__(self, layers, embed, norm_out, head, angles, cache, sizes, numbers):
        self._kept, self._head = [w for layer in layers for w in layer] + [embed, norm_out], head
        self._weights = torch.tensor([0 if w is None else w.data_ptr() for w in self._kept])
        self._angles, self._cache, self._numbers = angles, cache, numbers
        self._width = embed.shape[1]
        heads, kv_heads, inner = sizes
        size, longest = cache.shape[5], cache.shape[4]
        self._shape = (len(layers), self._width, heads, kv_heads, size, inner, longest)
        every = (heads + 2 * kv_heads) * size
        lines = 2 * self._width + 1 + max(2 * inner, every) + every + heads * size
        self._memory_size = lines * TILE + -(-longest // LANES) * LANES
        self._memory = cache.new_zeros(0)

    def __call__(self, tokens, positions):
        """One token in each of the slots `0 ... n - 1`: last hidden states, normalised. `[n], [n] -> [n, width]`"""
        return self._run(tokens, positions, self._width, 0)

    def logits(self, tokens, positions):
        """The same step up to the scores of the tokens that come next. `[n], [n] -> [n, vocabulary]`"""
        return self._run(tokens, positions, self._head.shape[0], self._head)

    def _run(self, tokens, positions, size, head):
        rows = tokens.shape[0]
        if self._memory.numel() < self._memory_size * torch.get_num_threads():
            self._memory = self._cache.new_zeros(self._memory_size * torch.get_num_threads())
        out = self._cache.new_empty((rows, size))
        steps = [self._cache.stride(i) for i in range(4)]
        given = (tokens.contiguous(), positions.contiguous(), out, *self._numbers, self._memory, self._memory_size, head, size)
        _step(-(-rows // TILE), rows, *self._shape, self._weights, *self._angles, self._cache, *steps, *given)
        return out
