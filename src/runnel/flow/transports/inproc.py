"""The transport inside one process: streams are references, nothing is copied, and every edge is deterministic."""

from __future__ import annotations

from runnel.core.records import StreamSpec
from runnel.flow.params import Channel, LocalChannel
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable
from runnel.flow.staleness import AdmissionRule


class InprocTransport:
    """Sample streams and parameter channels in this process's own memory."""

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        return SlotTable(spec, policy, SlotMemory.local(spec))

    def params(self, name: str, *, depth: int, shared: bool) -> Channel:
        return LocalChannel(name, depth=depth, shared=shared)
