"""One process: streams are references, nothing is copied, and every edge is deterministic."""

from __future__ import annotations

from runnel.core.records import StreamSpec
from runnel.flow.params import Channel, LocalChannel
from runnel.flow.slots import SlotMemory, SlotTable
from runnel.flow.staleness import AdmissionRule


class InprocTransport:
    """Memory of this process. `wait` has nobody to wait for: a round that moves nothing will never move."""

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        return SlotTable(spec, policy, SlotMemory.local(spec))

    def params(self, name: str, *, depth: int, shared: bool) -> Channel:
        return LocalChannel(name, depth=depth, shared=shared)
