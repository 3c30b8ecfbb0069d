"""Checksums of parameters, of host memory and (as sums of words) of device memory; copies that lie side by side."""

from __future__ import annotations

import pytest
import torch

from runnel.flow import params as channel
from runnel.flow.params import ChannelSubscriber, LocalChannel, checksum, copies, word_sums

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def sums(memory: torch.Tensor) -> list[int]:
    return torch.cat(word_sums(memory)).tolist()


@pytest.mark.parametrize("size", [1, 7, 8, 64, 203])
def test_a_changed_byte_anywhere_changes_the_sums(size, monkeypatch):
    monkeypatch.setattr(channel, "WORDS", 3)
    memory = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = sums(memory)
    assert sums(memory.clone()) == before
    for at in range(size):
        damaged = memory.clone()
        damaged[at] ^= 1 << at % 8
        assert sums(damaged) != before


def test_words_that_change_places_change_the_sums():
    memory = torch.arange(64, dtype=torch.int64)
    swapped = memory.clone()
    swapped[[3, 40]] = memory[[40, 3]]
    assert sums(memory.view(torch.uint8)) != sums(swapped.view(torch.uint8))


def test_copies_have_the_names_order_and_values_of_what_they_copy():
    params = {"b": torch.ones(2, 3), "a": torch.zeros(4, dtype=torch.int32)}
    made = copies(params)
    params["b"].zero_()
    assert list(made) == ["b", "a"]
    assert made["b"].tolist() == [[1.0] * 3] * 2


@CUDA
@pytest.mark.cuda
def test_versions_on_a_device_are_copied_side_by_side_and_damage_is_refused():
    params = {"w": torch.randn(3, 5).cuda().bfloat16(), "v": torch.randn(7).cuda().bfloat16(), "n": torch.arange(3).cuda()}
    local = LocalChannel("policy", shared=False, depth=2)
    local.publish(0, params)
    kept = local._versions[0][0]
    assert kept["w"].untyped_storage().data_ptr() == kept["v"].untyped_storage().data_ptr() != params["w"].data_ptr()
    assert checksum(kept) == checksum(copies(params))
    found = ChannelSubscriber(local).poll()
    assert found is not None
    assert all(torch.equal(found.params[name], value) for name, value in params.items())
    kept["v"][2] += 1
    reader = ChannelSubscriber(local)
    assert reader.poll() is None
    assert reader.num_refused == 1
