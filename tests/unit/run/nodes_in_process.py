"""A cluster in one process: the real supervisor over real members, on nodes whose parameters come as late as a test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from runnel.core.framing import Message
from runnel.core.records import StreamSpec
from runnel.flow.inference.mailboxes import InferenceSpec, MailboxClient, MailboxServer, MailboxTable
from runnel.flow.params import Channel, ChannelSubscriber, LocalChannel
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable, TableWriter
from runnel.flow.staleness import AdmissionRule
from runnel.flow.transports.shm import ShmChannel, anonymous_file
from runnel.graphs.experiment import Experiment
from runnel.run.launchers.member import Member, tell_error
from runnel.run.session import Session

HOME = "trainer"


class Nodes:
    """A node for each group: its own copy of the parameter channel, which gets a version when `late` says so."""

    def __init__(self, experiment: Experiment, *, channel: str, late: Callable[[str, int], int]) -> None:
        self.experiment, self._kind, self._late = experiment, channel, late
        self.channels: dict[str, Channel] = {}
        self._published: list[tuple[int, dict[str, Tensor]]] = []
        self._brought: dict[str, int] = {}
        self._tables: dict[str, SlotTable] = {}
        self._mailbox_tables: dict[str, MailboxTable] = {}

    def table(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        if spec.name not in self._tables:
            self._tables[spec.name] = SlotTable(spec, policy, SlotMemory.local(spec))
        return self._tables[spec.name]

    def mailboxes(self, spec: InferenceSpec) -> MailboxTable:
        return self._mailbox_tables.setdefault(spec.name, MailboxTable.local(spec))

    def channel(self, node: str, name: str, depth: int) -> Channel:
        if node not in self.channels:
            self.channels[node] = self._make(name, depth)
            if node == HOME:
                self._listen(self.channels[node])
        return self.channels[node]

    def _make(self, name: str, depth: int) -> Channel:
        if self._kind == "shm":
            return ShmChannel(name, anonymous_file(name), depth=depth, ring=lambda: None)
        return LocalChannel(name, shared=False, depth=depth)

    def _listen(self, home: Channel) -> None:
        """Keep every publication: one that is on its way arrives also when its node has let it go."""
        publish = home.publish

        def heard(version: int, params: Mapping[str, Tensor]) -> None:
            self._published.append((version, {k: v.clone() for k, v in params.items()}))
            publish(version, params)

        home.publish = heard  # type: ignore[method-assign]

    def bring(self, *, all_of_it: bool = False) -> None:
        """Have arrive what is not late."""
        for node, channel in self.channels.items():
            if node == HOME or not self._published:
                continue
            newest = self._published[-1][0]
            wanted = newest if all_of_it else newest - self._late(node, newest)
            at = self._brought.get(node, 0)
            while at < len(self._published) and self._published[at][0] <= wanted:
                channel.publish(*self._published[at])
                at += 1
            self._brought[node] = at

    def value_of(self, version: int) -> dict[str, Tensor]:
        """What was published as `version`, last."""
        return next(params for v, params in reversed(self._published) if v == version)


class Outer:
    """`run.wiring.Outer` of one group."""

    meet_at = "127.0.0.1"

    def __init__(self, nodes: Nodes, node: str) -> None:
        self._nodes, self._node = nodes, node

    def samples(self, spec: StreamSpec, policy: AdmissionRule) -> SlotTable:
        return self._nodes.table(spec, policy)

    def writer(self, spec: StreamSpec, policy: AdmissionRule, index: int) -> TableWriter:
        return TableWriter(self._nodes.table(spec, policy), index)

    def rank_reader(self, *args: Any) -> Any:
        raise NotImplementedError

    def client(self, spec: InferenceSpec, index: int, subscriber: ChannelSubscriber, *, first: int = 0) -> MailboxClient:
        return MailboxClient(self._nodes.mailboxes(spec), index, subscriber, first=first)

    def server(self, spec: InferenceSpec, index: int) -> MailboxServer:
        return MailboxServer(self._nodes.mailboxes(spec), index)

    def params(self, name: str, *, depth: int) -> Channel:
        return self._nodes.channel(self._node, name, depth)

    def wait(self, timeout_s: float, *also: int) -> bool:
        return True

    def catch_up(self) -> None:
        self._nodes.bring(all_of_it=True)

    def flush(self) -> None: ...


class QuietMember(Member):
    def _beat(self) -> None: ...


class Line:
    """Both ends of a control line: what the supervisor sends is obeyed at once."""

    closed = False

    def __init__(self) -> None:
        self.orders: list[Message] = []
        self._words: list[Message] = []
        self.own = MemberEnd(self)

    def send(self, message: Message) -> None:
        self.orders.append(message)

    def receive(self) -> list[Message]:
        found, self._words = self._words, []
        return found

    def say(self, message: Message) -> None:
        self._words.append(message)


class MemberEnd:
    closed = False

    def __init__(self, line: Line) -> None:
        self._line = line

    def send(self, message: Message) -> None:
        self._line.say(message)

    def receive(self) -> list[Message]:
        found, self._line.orders = self._line.orders, []
        return found

    def fileno(self) -> int:
        return -1


class ProcessHandle:
    """A member in this process."""

    def __init__(self, group: str, nodes: Nodes, session: Session, numbers: dict[str, int]) -> None:
        self.group, self.line, outer = group, Line(), Outer(nodes, group)
        self.member = QuietMember(nodes.experiment, group, self.line.own, outer, folder=session.folder.path, **numbers)
        self.ended = False

    def step(self) -> None:
        """What `Member.serve` does in one turn."""
        member = self.member
        if self.ended:
            return
        try:
            for order in member.line.receive():
                member._obey(order)
            if member.running:
                member.group.round()
            member._report(force=True)
        except Exception as error:
            self.ended = True
            tell_error(member.line, self.group, error)

    def waits(self) -> bool:
        return False

    def died(self) -> str:
        return ""

    def stack(self) -> str:
        return ""

    def end(self, timeout_s: float) -> None:
        self.ended = True
        self.member.group.close()


class ProcessHost:
    """`supervisor.ProcessHost` in this process."""

    def __init__(self, session: Session, *, channel: str = "local", late: Callable[[str, int], int] | None = None) -> None:
        self._session, self._channel = session, channel
        self._late = late or (lambda node, version: 0)
        self.handles: dict[str, ProcessHandle] = {}

    def lost(self) -> str:
        return ""

    def open(self, groups: Collection[str]) -> None:
        self.nodes = Nodes(self._session.experiment, channel=self._channel, late=self._late)

    def start(self, group: str, order: Message) -> ProcessHandle:
        self.handles[group] = ProcessHandle(group, self.nodes, self._session, order)
        return self.handles[group]

    def wait(self, handles: Collection[Any], timeout_s: float) -> None:
        for handle in list(self.handles.values()):
            self.nodes.bring()
            handle.step()

    def output(self) -> str:
        return ""

    def close(self) -> None: ...


def lags_of(script: Mapping[str, list[int]]) -> Callable[[str, int], int]:
    """How many versions a node is behind, by its name and the newest version there is."""

    def late(node: str, version: int) -> int:
        lags = script.get(node, [0])
        return lags[version % len(lags)]

    return late


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(np.array_equal(a[k].numpy(), b[k].numpy()) for k in a)
