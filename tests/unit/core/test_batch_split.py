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
    fields["row_start"] = FieldSpec(("B",), torch.int64)
    fields["row_length"] = FieldSpec(("B",), torch.int64, length_of="N")
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


CONVERSATIONS = StreamSpec(
    "conversations",
    {
        "reward": FieldSpec(("B",)),
        "parent": FieldSpec(("B",), torch.int64, index_of=("B",)),
        "row_owner": FieldSpec(("R",), torch.int64, index_of=("B",)),
        "row_start": FieldSpec(("R",), torch.int64),
        "row_length": FieldSpec(("R",), torch.int64, length_of="N"),
        "turn_row": FieldSpec(("U",), torch.int64, index_of=("R",)),
        "turn_reward": FieldSpec(("U",)),
        "tokens": FieldSpec(("N",), torch.int64),
        "of_all": FieldSpec((3,)),
    },
    {"B": 4, "R": 16, "U": 32, "N": 200},
    variable=("N", "U", "R"),
)


def conversations(rows: list[int], lengths: list[int], turns: list[int]) -> Segment:
    """Four trajectories of `rows` rows each; rows of `lengths` tokens and `turns` turns. Numbers say whose they are."""
    spec, arrays = CONVERSATIONS, CONVERSATIONS.allocate()
    used = {"R": sum(rows), "N": sum(lengths), "U": sum(turns)}
    arrays = trim(spec, arrays, used)
    arrays["reward"][:] = torch.arange(4.0)
    arrays["parent"][:] = torch.tensor([-1, 0, -1, 2])
    arrays["row_owner"][:] = torch.repeat_interleave(torch.arange(4), torch.tensor(rows))
    arrays["row_length"][:] = torch.tensor(lengths)
    arrays["row_start"][:] = arrays["row_length"].cumsum(0) - arrays["row_length"]
    arrays["turn_row"][:] = torch.repeat_interleave(torch.arange(len(turns)), torch.tensor(turns, dtype=torch.int64))
    arrays["turn_reward"][:] = arrays["row_owner"][arrays["turn_row"]].float()
    arrays["tokens"][:] = torch.repeat_interleave(arrays["row_owner"], arrays["row_length"])
    return Segment(0, spec, Header(used=used), arrays)


def test_the_stream_says_what_belongs_to_what() -> None:
    assert CONVERSATIONS.owners == {"R": "row_owner", "N": "row_length", "U": "turn_row"}
    assert CONVERSATIONS.ragged == "N"
    assert played().spec.owners == {"F": "final_index"}
    assert played().spec.ragged == ""


@given(st.data())
def test_rows_and_turns_go_with_their_trajectory(data: st.DataObject) -> None:
    """Against a loop in Python; trajectories without rows and rows without tokens or turns are there, too."""
    rows = data.draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=sum(rows), max_size=sum(rows)))
    turns = data.draw(st.lists(st.integers(0, 2), min_size=sum(rows), max_size=sum(rows)))
    whole = conversations(rows, lengths, turns)
    parts = data.draw(st.sampled_from([1, 2, 4]))
    size, first = 4 // parts, 0
    for i, part in enumerate(cut(whole, i, parts) for i in range(parts)):
        mine = range(i * size, (i + 1) * size)
        num = sum(rows[b] for b in mine)
        assert part.arrays["reward"].tolist() == [float(b) for b in mine]
        assert part.arrays["parent"].tolist() == [p - i * size if p in mine else -1 for p in ([-1, 0, -1, 2][b] for b in mine)]
        assert part.arrays["row_owner"].tolist() == [b - i * size for b in mine for _ in range(rows[b])]
        assert part.arrays["row_length"].tolist() == lengths[first : first + num]
        assert part.arrays["row_start"].tolist() == [sum(lengths[first : first + r]) for r in range(num)]
        assert (
            part.arrays["tokens"].tolist()
            == whole.arrays["tokens"][sum(lengths[:first]) :][: sum(part.arrays["row_length"])].tolist()
        )
        assert part.arrays["turn_row"].tolist() == [r for r in range(num) for _ in range(turns[first + r])]
        assert set(part.arrays["turn_reward"].tolist()) <= {float(b) for b in mine}
        assert part.arrays["of_all"].shape == (3,)
        assert part.header.used == {
            "R": num,
            "N": sum(lengths[first : first + num]),
            "U": sum(turns[first : first + num]),
        }
        first += num


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
