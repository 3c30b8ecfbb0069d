"""The other process of test_remote_node.py: comes to a node's memory by the kernel's list of descriptors, and uses it."""

from __future__ import annotations

import json
import sys

import torch

from runnel.flow.staleness import LagRule
from runnel.flow.transports.cluster.node import NodeBells, NodeMemory
from runnel.testing.sample_properties import spec_of, write

SPEC = spec_of(capacity=4)
POLICY = LagRule(lag=3, batch=1, exact=True)


def main(orders: dict[str, object]) -> None:
    """Writes two segments and publishes a version; then answers each ring with a ring, until its input ends."""
    memory = NodeMemory.from_data(orders["memory"])  # type: ignore[arg-type]
    bells = NodeBells(memory, int(str(orders["place"])))
    transport = memory.transport(bells)
    transport.params("policy", depth=2).publish(3, {"w": torch.full((4,), 3.0)})
    writer = transport.writer(SPEC, POLICY, 0)
    for value in (1.0, 2.0):
        write(writer, value)
    print("written", flush=True)
    while True:
        bells.wait(30.0, sys.stdin.fileno())
        if bells.wait(0.0, sys.stdin.fileno()) and not sys.stdin.readline():
            return
        bells.ring()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
