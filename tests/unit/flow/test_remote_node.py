"""The shared memory and the doorbells of a node, between processes that no common parent gave them to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_peer import POLICY, SPEC

from runnel.core.errors import ConfigError
from runnel.flow.params import ChannelSubscriber
from runnel.flow.slots import TableReader
from runnel.flow.transports.cluster.node import AGENT_PLACE, NodeBells, NodeMemory, make_memory
from runnel.testing.sample_properties import values

PEER = Path(__file__).with_name("node_peer.py")


@pytest.fixture
def memory() -> Iterator[NodeMemory]:
    made = make_memory({SPEC.name: SPEC}, ["policy"], {}, places=4)
    yield made
    for fd in (*made.fds.values(), *(fd for pair in made.pipes for fd in pair), made.marks):
        os.close(fd)


@pytest.fixture
def peer(memory: NodeMemory) -> Iterator[subprocess.Popen[str]]:
    orders = json.dumps({"memory": memory.to_data(), "place": 1})
    process = subprocess.Popen(
        [sys.executable, str(PEER), orders], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=True
    )
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_inherited_nothing_finds_the_memory(memory: NodeMemory, peer: subprocess.Popen[str]) -> None:
    bells = NodeBells(memory, AGENT_PLACE)
    transport = memory.transport(bells)
    assert bells.wait(30.0), "the peer never rang"
    assert peer.stdout is not None
    assert peer.stdout.readline() == "written\n"
    assert values(TableReader(transport.samples(SPEC, POLICY), "trainer").take(2)) == [1.0, 2.0]
    found = ChannelSubscriber(transport.params("policy", depth=2)).poll()
    assert found is not None
    assert (found.version, found.params["w"].tolist()) == (3, [3.0] * 4)
    while bells.wait(0.0):
        continue
    for _ in range(3):  # there and back
        bells.ring()
        assert bells.wait(10.0), "the peer did not answer the bell"


def test_memory_outlives_a_process_that_was_killed(memory: NodeMemory, peer: subprocess.Popen[str]) -> None:
    bells = NodeBells(memory, AGENT_PLACE)
    assert peer.stdout is not None
    assert peer.stdout.readline() == "written\n"
    peer.send_signal(signal.SIGKILL)
    peer.wait()
    table = memory.transport(bells).samples(SPEC, POLICY)
    assert TableReader(table, "trainer").available() == 2
    for _ in range(100_000):  # nobody empties its pipe: ringing must not block
        bells.ring()


def test_bells_ring_those_that_have_a_place_and_not_oneself(memory: NodeMemory) -> None:
    agent, one, two = (NodeBells(memory, place) for place in (AGENT_PLACE, 1, 2))
    one.ring()
    assert [b.wait(0.0) for b in (agent, one, two)] == [True, False, True]
    assert not agent.wait(0.0)
    three = NodeBells(memory, 3)
    one.ring()
    assert three.wait(0.0)


def test_a_thread_wakes_its_own_process(memory: NodeMemory) -> None:
    bells = NodeBells(memory, 2)
    threading.Timer(0.05, bells.wake).start()
    start = time.monotonic()
    assert bells.wait(10.0)
    assert time.monotonic() - start < 5.0
    for _ in range(100_000):
        bells.wake()
    assert bells.wait(0.0)


def test_a_wait_ends_when_another_descriptor_can_be_read(memory: NodeMemory) -> None:
    read, write = os.pipe()
    bells = NodeBells(memory, 1)
    assert not bells.wait(0.0, read)
    os.write(write, b"x")
    assert bells.wait(10.0, read)
    os.close(read)
    os.close(write)


def test_memory_of_a_process_that_is_gone_names_the_fix(memory: NodeMemory) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    gone = NodeMemory(process.pid, memory.fds, memory.pipes, memory.marks)
    with pytest.raises(ConfigError, match="processes of one node must see each other under /proc"):
        NodeBells(gone, 1)


def test_a_bell_whose_maker_has_died_is_rung_in_vain_and_nobody_fails() -> None:
    """An agent is killed while others of its node run: the supervisor deals with that, and not who happens to ring."""
    code = (
        "import json, sys, time; from runnel.flow.transports.cluster.node import make_memory; "
        "print(json.dumps(make_memory({}, [], {}, places=4).to_data()), flush=True); time.sleep(60)"
    )
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        memory = NodeMemory.from_data(json.loads(agent.stdout.readline()))
        bells, other = NodeBells(memory, 1), NodeBells(memory, 2)
        bells.ring()
        assert other.wait(5.0), "it is rung where somebody listens"
        other._marks[3] = 1  # one that was never rung from here
    finally:
        agent.kill()
        agent.wait()
    os.close(other._own)
    assert len(bells._writers) == 1
    for _ in range(3):
        bells.ring()
