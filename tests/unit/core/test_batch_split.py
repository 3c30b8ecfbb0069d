"""Parts of a batch: together they are the batch, whatever its rows are made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.agents.base import merge_segments
from runnel.core.errors import ConfigError
from runnel.core.records import FieldSpec, Header, Segment, StreamSpec, trim
from runnel.core.sharding.batch_split import check_shares, cut, deal, share_of
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import trajectory_stream

ENV = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=2))


def played(num_steps: int = 3, num_envs: int = 4) -> Segment:
    """Every number says where it is; three episodes end."""
    spec = trajectory_stream(ENV, num_steps=num_steps, num_envs=num_envs)
    arrays = spec.allocate()
    for value in arrays.values():
        value.copy_(torch.arange(value.numel()).view(value.shape) % 2 if value.dtype is torch.bool else
                    torch.arange(value.numel()).view(value.shape))  # fmt: skip
    ends = torch.tensor([1, 4, 11])
    arrays["final_index"][:3] = ends
    return Segment(0, spec, Header(num_steps=num_steps * num_envs, used={"F": 3}), trim(spec, arrays, {"F": 3}))


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_trajectory_side_by_side_are_the_trajectory(parts: int) -> None:
    whole = played()
    merged = merge_segments([cut(whole, i, parts) for i in range(parts)])
    order = merged["final_index"].argsort()
    for name, value in whole.arrays.items():
        found = merged[name][order] if name.startswith("final") else merged[name]
        expected = value if name != "policy_version" else torch.cat([value] * parts)
        assert torch.equal(found, expected), name


def test_a_part_knows_its_rows_and_what_it_uses() -> None:
    part = cut(played(), 1, 2)
    assert part.num_rows == 2
    assert part.header.used == {"F": 1}
    assert part.arrays["final_index"].tolist() == [5], "step 2, row 3 of 4: row 1 of the second half"
    assert part.arrays["action"].data_ptr() != 0


def test_tokens_go_with_their_rows() -> None:
    sizes = {"N": 20, "B": 4}
    fields = {"tokens": FieldSpec(("N",), torch.int64), "reward": FieldSpec(("B",))}
    fields |= {name: FieldSpec(("B",), torch.int64) for name in ("row_start", "row_length")}
    spec = StreamSpec("s", fields, sizes, variable=("N",))
    arrays = spec.allocate()
    arrays["tokens"][:10] = torch.arange(10)
    arrays["row_start"][:], arrays["row_length"][:] = torch.tensor([0, 3, 4, 8]), torch.tensor([3, 1, 4, 2])
    arrays["reward"][:] = torch.arange(4.0)
    whole = Segment(0, spec, Header(used={"N": 10}), trim(spec, arrays, {"N": 10}))
    first, second = cut(whole, 0, 2), cut(whole, 1, 2)
    assert first.arrays["tokens"].tolist() == [0, 1, 2, 3]
    assert second.arrays["tokens"].tolist() == [4, 5, 6, 7, 8, 9]
    assert second.arrays["row_start"].tolist() == [0, 4]
    assert second.arrays["reward"].tolist() == [2.0, 3.0]
    assert (first.header.used, second.header.used) == ({"N": 4}, {"N": 6})


def test_whole_segments_are_shared_where_their_number_divides() -> None:
    segments = [played() for _ in range(4)]
    assert share_of(segments, 1, 2) == segments[2:]
    assert [s.num_rows for s in share_of(segments[:3], 0, 2)] == [2, 2, 2]


def test_a_batch_that_cannot_be_shared_evenly_is_refused_with_a_number_that_can() -> None:
    spec = played().spec
    check_shares(spec, 1, 4)
    with pytest.raises(ConfigError, match=r"placement\.trainers = 3: a batch is 1 segments of 4 .*use 2"):
        check_shares(spec, 1, 3)
    grouped = StreamSpec("groups", {"x": FieldSpec(("B",))}, {"B": 4}, unit_rows=4)
    check_shares(grouped, 6, 3)
    with pytest.raises(ConfigError, match="use 3"):
        check_shares(grouped, 3, 4)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=24), st.integers(1, 4))
def test_dealing_gives_every_rank_equally_many_and_about_equal_sums(sizes: list[int], ranks: int) -> None:
    sizes = sizes * ranks  # a number that divides
    owners = deal(sizes, ranks)
    sums = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert [owners.count(rank) for rank in range(ranks)] == [len(sizes) // ranks] * ranks
    assert max(sums) - min(sums) <= max(sizes), "no more apart than the largest item"
    assert owners == deal(sizes, ranks)


def test_ranks_of_token_rows_get_about_equal_tokens() -> None:
    """Groups of eight, lengths spread geometrically: the slowest of four ranks has 1 % more than the mean, and not 13 %."""
    rng = np.random.default_rng(0)
    apart: dict[str, list[float]] = {"neighbours": [], "dealt": []}
    for _ in range(200):
        sizes = np.minimum(rng.geometric(1 / 256, size=(32, 8)), 1024).sum(axis=1).tolist()
        for name, owners in (("neighbours", [i // 8 for i in range(32)]), ("dealt", deal(sizes, 4))):
            sums = np.bincount(owners, weights=sizes, minlength=4)
            apart[name].append(sums.max() / sums.mean())
    assert np.mean(apart["dealt"]) < 1.01
    assert np.mean(apart["neighbours"]) > 1.1
