"""The parameter channel: published versions, checksummed, applied in order.

In one process and synchronously, the learner's own tensors are shared (`shared=True`). The update and the publication are one
poll, so no reader can see an unfinished version, and no checksum is needed. In all other cases `publish` copies into one of
several buffers, so an optimiser that writes in place never changes a version that an actor has loaded.

A language model's parameters carry a weight check (core/weight_check.py): a subscriber splits it off, and `load` runs it.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from runnel.core import weight_check as weight_check
from runnel.core.contracts.inference import ChecksWeights, Inferencer
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.core.state import State, WorkerEvent

Kept = Mapping[str, Collection[int]]
"""For each channel, the versions that a checkpoint contains."""
WORDS = 1 << 22
"""Number of eight-byte words that are summed at once on a device."""


def checksum(params: Mapping[str, Tensor]) -> int:
    """CRC-32 over names and bytes of the values; for values on a device, over sums that are computed there.

    >>> checksum({"w": torch.ones(2)}) == checksum({"w": torch.ones(2)}) != checksum({"w": torch.zeros(2)})
    True
    """
    crc, sums = 0, list[Tensor]()
    seen: set[int] = set()
    for name in sorted(params):
        value = params[name].detach()
        crc = zlib.crc32(name.encode(), crc)
        if value.is_cuda:
            memory = value.untyped_storage()
            place = (value.storage_offset(), *value.shape)
            crc = zlib.crc32(repr(place).encode(), crc)
            # Many parameters may be views of one memory (see `copies`): sum it once.
            if memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                sums += word_sums(torch.empty(0, dtype=torch.uint8, device=value.device).set_(memory))
            continue
        flat = value.contiguous().reshape(-1)
        if flat.numel():
            crc = zlib.crc32(flat.view(torch.uint8).numpy().data, crc)
    if sums:
        crc = zlib.crc32(torch.cat(sums).cpu().numpy().tobytes(), crc)
    return crc


def word_sums(memory: Tensor) -> list[Tensor]:
    """Weighted sums of the words of a memory, modulo 2^64, and its last bytes unchanged. `[bytes] uint8 -> int64 each`"""
    # Each word has its own odd weight. An odd weight is invertible modulo 2^64, so a change of one word changes the sum;
    # different weights make two words that change places visible.
    end = memory.numel() // 8 * 8
    words = memory[:end].view(torch.int64)
    odd = torch.arange(min(WORDS, len(words)), device=memory.device) * 0x9E3779B97F4A7C | 1
    sums = [(part * odd[: len(part)]).sum()[None] for part in torch.split(words, WORDS)] if end else []
    return [*sums, memory[end:].to(torch.int64)]


def copies(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy all values. Those on a device become views of one memory per type, so that few kernels copy and check them."""
    kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, value in params.items():
        if value.is_cuda:
            kinds.setdefault((value.dtype, value.device), []).append(name)
    out = {name: value.detach().clone() for name, value in params.items() if not value.is_cuda}
    for names in kinds.values():
        whole = torch.cat([params[name].detach().reshape(-1) for name in names])
        parts = torch.split(whole, [params[name].numel() for name in names])
        out |= {name: part.view(params[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: out[name] for name in params}


class Channel(Protocol):
    """A parameter channel, as a transport implements it: the last versions, each with the checksum of its publication."""

    name: str

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None: ...

    def newest(self) -> int:
        """Newest version published; -1 before any."""
        ...

    def has(self, version: int) -> bool: ...

    def stamps(self) -> dict[int, int]:
        """The available versions, each with the checksum of its publication."""
        ...

    def get(self, version: int) -> ParamSet | None:
        """Exactly `version`; None if it is missing or damaged. (`DataError` is for a publisher out of order.)"""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


class LocalChannel:
    """A channel inside one process: references where that is safe, otherwise copies of the last `depth` versions."""

    def __init__(self, name: str, *, shared: bool, depth: int) -> None:
        self.name, self.shared, self.depth = name, shared, depth
        self._versions: OrderedDict[int, tuple[Mapping[str, Tensor], int]] = OrderedDict()
        self._restored: dict[int, Mapping[str, Tensor]] = {}
        """Older versions from a checkpoint that was made with copies; a reader may have to load one after the restore."""

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        if version < self.newest():
            raise DataError(f"parameters {self.name!r}: version {version} published after {self.newest()}")
        if self.shared:
            if version > self.newest() >= 0:
                self._restored.clear()
            self._versions.clear()
            self._versions[version] = (params, 0)
            return
        while len(self._versions) >= self.depth and version not in self._versions:
            self._versions.popitem(last=False)
        kept = copies(params)
        self._versions[version] = (kept, checksum(kept))

    def newest(self) -> int:
        return next(reversed(self._versions), -1)

    def has(self, version: int) -> bool:
        return version in self._versions or version in self._restored

    def stamps(self) -> dict[int, int]:
        return {version: crc for version, (_, crc) in self._versions.items()}

    def get(self, version: int) -> ParamSet | None:
        if version in self._restored and version not in self._versions:
            return ParamSet(version, self._restored[version])
        found = self._versions.get(version)
        if found is None or (not self.shared and checksum(found[0]) != found[1]):
            return None
        return ParamSet(version, found[0], shared=self.shared)

    def snapshot(self) -> State:
        """Older versions that a reader may still load. The trainer publishes the newest one again after a restore."""
        if self.shared:
            return {"versions": {str(v): dict(params) for v, params in self._restored.items()}}
        old = list(self._versions.items())[:-1]
        return {"versions": {str(v): dict(params) for v, (params, _) in old}}

    def restore(self, state: State) -> None:
        self._versions.clear()
        self._restored.clear()
        if self.shared:
            self._restored = {int(v): params for v, params in state["versions"].items()}
            return
        for version, params in state["versions"].items():
            self.publish(int(version), params)


class NoChannel:
    """In place of a channel, for an inference stream that loads no parameters: version 0, for ever, of nothing."""

    name = ""

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        raise DataError("an inference stream without a parameter channel has nothing to publish to")

    def newest(self) -> int:
        return 0

    def has(self, version: int) -> bool:
        return version == 0

    def stamps(self) -> dict[int, int]:
        return {0: 0}

    def get(self, version: int) -> ParamSet | None:
        return ParamSet(0, {}) if version == 0 else None

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


class FixedChannel(NoChannel):
    """For an inference stream that loads given parameters once: they are version 0, for ever."""

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self._given = ParamSet(0, params)

    def get(self, version: int) -> ParamSet | None:
        return self._given if version == 0 else None


class ChannelSubscriber:
    """`ParamSubscriber` on a channel. `poll` never returns an older version unless asked; damaged versions are counted.

    Constants travel in a channel of their own, if there is one: samplers read them without the parameters.
    """

    def __init__(self, channel: Channel, constants: Channel | None = None) -> None:
        self._channel = channel
        self._beside, self._constants = constants, ParamSet(-1, {})
        self._seen = -1
        self.num_refused = 0

    def poll(self, version: int = -1) -> ParamSet | None:
        wanted = version if version >= 0 else self._channel.newest()
        if wanted < 0 or (version < 0 and wanted <= self._seen):
            return None
        found = self._channel.get(wanted)
        if found is None:
            self.num_refused += int(self._channel.has(wanted))
            return None
        self._seen = max(self._seen, wanted)
        if weight_check.SIZES not in found.params:
            return found
        params, given = weight_check.split(found.params)
        return replace(found, params=params, weight_check=given)

    def constants(self, version: int = -1) -> Mapping[str, Tensor] | None:
        """What was published beside exactly `version`, or beside the newest one for -1; None if it is missing or damaged."""
        if self._beside is None:
            return {}
        wanted = version if version >= 0 else self._beside.newest()
        if wanted != self._constants.version:
            found = self._beside.get(wanted)
            if found is None:
                self.num_refused += int(self._beside.has(wanted))
                return None
            self._constants = found
        return self._constants.params if wanted >= 0 else None

    def newest(self) -> int:
        """Newest version published; -1 before any."""
        return self._channel.newest()

    @property
    def channel(self) -> str:
        """The name of the channel."""
        return self._channel.name

    def available(self, version: int) -> bool:
        """Whether exactly `version` is still available."""
        return self._channel.has(version)

    def versions(self) -> list[int]:
        """The available versions."""
        return sorted(self._channel.stamps())

    def is_kept(self, version: int, kept: Kept | None) -> bool:
        """Whether a checkpoint that contains `kept` has exactly `version`. With None it contains the versions of this channel.

        On several nodes each node has its own channel, and only the trainer's is saved. With a slow network this channel is
        behind the trainer's, and still has versions that the trainer's has dropped.
        """
        return self.available(version) if kept is None or not self.channel else version in kept[self.channel]


def load(inferencer: Inferencer, params: ParamSet) -> list[WorkerEvent]:
    """Load a version and run its weight check, if it has one; returns events with the result.

    Raises a `RunnelError` if the inferencer does not compute what the learner computes.
    """
    inferencer.load_params(params)
    given = params.weight_check
    if given is None or not isinstance(inferencer, ChecksWeights):
        return []
    found = given.check(inferencer.logprobs(given.prompt, given.tokens), params.version)
    return [{"kind": "proof", "version": params.version, "metrics": found}]
