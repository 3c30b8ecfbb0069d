"""Rows that begin alike are kept once, and everything that is asked about is found again with its own past."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.llm.model.attention import FAMILY, fold


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_every_state_that_is_asked_for_keeps_its_past(seed, num_rows):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=num_rows).tolist()
    tokens = torch.tensor(rng.integers(0, 2, size=sum(lengths)))
    asked = np.flatnonzero(rng.random(sum(lengths)) < 0.4)
    asked = asked if len(asked) else np.array([0])
    row = np.repeat(np.arange(num_rows), lengths)
    starts = np.cumsum(lengths) - lengths
    found = fold(tokens, lengths, torch.tensor(row[asked]), torch.tensor(asked))
    places, kept = found.rows.padded[found.rows.rows], tokens[found.kept]
    for old, new in zip(asked, found.position.tolist(), strict=True):
        depth = int(found.rows.positions[new]) + 1
        assert kept[places[new, :depth]].tolist() == tokens[starts[row[old]] : old + 1].tolist()
    assert max(found.rows.families) <= FAMILY + 1
    assert len(found.kept) <= len(tokens)


def test_a_group_has_its_prompt_once_and_nothing_behind_its_last_state():
    tokens = torch.tensor([1, 2, 3, 4] * 10)
    position = torch.arange(40).view(10, 4)[:, 1:3].reshape(-1)
    found = fold(tokens, [4] * 10, torch.arange(10).repeat_interleave(2), position)
    assert found.rows.families == [9, 3]
    assert found.rows.lengths == [2, *[1] * 8, 2, 1, 1]
