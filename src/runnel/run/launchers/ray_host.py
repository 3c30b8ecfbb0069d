"""Process host and process handle for a Ray cluster: each process is an actor that Ray places."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from runnel.core.framing import Message
from runnel.run.launchers.host import ProcessHandle
from runnel.run.launchers.ray_actors import ProcessActor
from runnel.run.launchers.ray_head import Head

Actor = Any
"""A handle of a Ray actor. Ray makes its methods at run time, so no type checker knows them."""
Answer = Any
"""A reference of Ray (a future): the result of a call that may not have returned yet."""
STACK_TIMEOUT_S = 5.0


class RayLine:
    """The supervisor's end of the line to an actor. An order is a call; one `listen` call is always open for the replies."""

    def __init__(self, actor: Actor) -> None:
        self.closed = False
        self.lost = ""
        self._actor = actor
        self._left: list[Message] = []
        self._sent = 0
        self.open: Answer | None = None

    def begin(self) -> None:
        self.open = self._actor.listen.remote()

    def send(self, message: Message) -> None:
        if not self.closed:
            # The calls are numbered, because Ray may deliver them in any order.
            self._actor.order.remote(self._sent, json.dumps(message).encode())
            self._sent += 1

    def look(self) -> None:
        """Collect arrived messages; set `lost` when the actor is gone."""
        while self.open is not None and ray.wait([self.open], timeout=0)[0]:
            try:
                self._left += json.loads(ray.get(self.open))
                self.open = self._actor.listen.remote()
            except RayError as error:
                self.lost, self.open = _reason(error), None

    def receive(self) -> list[Message]:
        self.look()
        found, self._left = self._left, []
        return found


def _reason(error: RayError) -> str:
    """Ray's message about a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"was lost: {' '.join(lines)[:400]}"


class RayProcess:
    """A `ProcessHandle` for an actor. `begin` gives it its order once Ray has placed it."""

    def __init__(self, name: str, actor: Actor, head: Head) -> None:
        self.name, self.actor, self._head = name, actor, head
        self.order: Message = {}
        self.line = RayLine(actor)
        self.place: Answer | None = actor.where.remote()
        """The open call of `where`, until the node is known."""
        self.node = ""
        self.ip = ""
        self.begun = False
        self._failed = ""

    def placed(self) -> bool:
        """Whether Ray has found a node for it by now."""
        if self.place is not None and ray.wait([self.place], timeout=0)[0]:
            try:
                found = json.loads(ray.get(self.place))
                self.node, self.ip = found["node"], found["ip"]
            except RayError as error:
                self._failed = _reason(error)
            self.place = None
        return bool(self.node)

    def begin(self) -> None:
        """Give the actor its order. An actor that Ray has not placed yet gets it later."""
        self.actor.begin.remote(json.dumps(self.order).encode())
        self.line.begin()
        self.begun = True

    def waits(self) -> bool:
        return self.place is not None

    def died(self) -> str:
        if not self._failed:
            self.line.look()
        if self._failed or not self.line.lost:
            return self._failed
        return f"on node {self.node[:8]} {self.line.lost}" if self.node else self.line.lost

    def fail(self, how: str) -> None:
        """Kill the process, because its node cannot be used any more."""
        self._failed = self._failed or how
        kill(self.actor, self._head)

    def stack(self) -> str:
        try:
            text: str = ray.get(self.actor.stack.remote(), timeout=STACK_TIMEOUT_S)
        except (RayError, TimeoutError):
            return "(the process does not answer)"
        return text

    def end(self, timeout_s: float) -> None:
        self.line.closed = True
        if self.begun and timeout_s > 0 and not self.died():
            ray.wait([self.actor.ended.remote()], timeout=timeout_s)
        kill(self.actor, self._head)


def kill(actor: Actor, head: Head) -> None:
    """End an actor's process. Ray does that through its head; without a head, the process is asked to end itself."""
    if head.silent():
        actor.leave.remote()
    else:
        ray.kill(actor)


def surroundings() -> Message:
    """What `ray_actors.enter` needs to give an actor the folder and the modules of this process."""
    return {"cwd": os.getcwd(), "sys_path": [p for p in sys.path if p]}


class RayHost:
    """A `ProcessHost` on the cluster of `head`, for processes that share nothing.

    `work` is the function that an actor runs (`module:function`, called with the order and a line); `needs` are the resources
    that Ray reserves for it.
    """

    def __init__(self, head: Head, *, work: str = "", needs: Mapping[str, float] | None = None) -> None:
        self._head, self._work, self._resources = head, work, dict(needs or {})

    def start(self, name: str, order: Message) -> RayProcess:
        actor = ray.remote(ProcessActor).options(max_concurrency=64, **self._resources).remote()
        handle = RayProcess(name, actor, self._head)
        handle.order = {**order, **surroundings(), "work": self._work, "name": name}
        handle.begin()
        return handle

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        lines = [handle.line for handle in handles if isinstance(handle, RayProcess)]
        if answers := [line.open for line in lines if line.open is not None]:
            ray.wait(answers, timeout=timeout_s)
        else:
            time.sleep(timeout_s)
