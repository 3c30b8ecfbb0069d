"""Trials on a Ray cluster: an actor for each job. The study's folder must be one that all nodes see."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import RayError

from runnel.core.errors import ConfigError
from runnel.core.framing import Message
from runnel.run.launchers.ray_actors import enter
from runnel.run.launchers.ray_head import joined, made
from runnel.tune.folder import StudyFolder
from runnel.tune.job import Talk, work
from runnel.tune.job_pool import Seat
from runnel.tune.settings import Setup

LISTEN_S = 1.0
"""A call that waits for a job's next words gives up after so long, and is made again."""


class JobActor:
    """One job, in a process of Ray's. Data crosses as JSON."""

    def __init__(self) -> None:
        self._out = SimpleQueue[Message]()
        self._talk = Talk(self)

    def send(self, message: Message) -> None:
        """What the job says (its `Outbox`)."""
        self._out.put(message)

    def begin(self, data: bytes) -> None:
        """Start on an order."""
        order = json.loads(data)
        enter(order)
        if not Path(order["study"]).is_file():
            fix = "is not there on this node; give --out a folder that all nodes share"
            return self.send({"kind": "failed", "error": str(ConfigError("out", order["study"], fix))})
        threading.Thread(target=work, args=(order, self._talk), daemon=True).start()

    def take(self, data: bytes) -> None:
        """A verdict, or an interruption."""
        self._talk.take(json.loads(data))

    def listen(self) -> bytes:
        """What the job has said since the last call; waits a little for something."""
        try:
            found = [self._out.get(timeout=LISTEN_S)]
        except Empty:
            found = []
        while not self._out.empty():
            found.append(self._out.get())
        return json.dumps(found).encode()


class RayProcess:
    """A job's actor, and the call that waits for its words."""

    def __init__(self, actor: Any, order: Message) -> None:
        self._actor, self._how = actor, ""
        self._began = actor.begin.remote(json.dumps(order).encode())
        self.call = actor.listen.remote()

    @property
    def closed(self) -> bool:
        return bool(self._how)

    def send(self, message: Message) -> None:
        self._actor.take.remote(json.dumps(message).encode())

    def receive(self) -> list[Message]:
        if self.closed or not ray.wait([self.call], timeout=0)[0]:
            return []
        try:
            found: list[Message] = json.loads(ray.get(self.call))
        except RayError as error:
            self._how = f"its process was lost ({str(error).strip().splitlines()[0]})"
            return []
        self.call = self._actor.listen.remote()
        return found

    def died(self) -> str:
        return self._how

    def end(self) -> None:
        self._how = self._how or "ended"
        ray.kill(self._actor)


class RayHost:
    """Jobs as actors of a cluster: the one we are in, the one at `cluster.address`, or one that is made on this machine."""

    def __init__(self, setup: Setup, folder: StudyFolder) -> None:
        self._study = folder.study
        config = setup.config
        self._needs = {"num_cpus": config.placement.threads, "num_gpus": 1 if config.device.startswith("cuda") else 0}
        self._cluster = ExitStack()
        if not ray.is_initialized():
            address = config.cluster.address or os.environ.get("RAY_ADDRESS", "")
            cores = setup.options.workers * config.placement.threads
            self._cluster.enter_context(joined(address) if address else made(cores))

    def start(self, order: Message) -> RayProcess:
        more = {"study": str(self._study), "cwd": os.getcwd(), "sys_path": [p for p in sys.path if p]}
        actor = ray.remote(JobActor).options(max_concurrency=4, max_restarts=0, **self._needs).remote()
        return RayProcess(actor, {**order, **more})

    def wait(self, handles: Collection[Seat], timeout_s: float) -> None:
        calls = [s.call for s in handles if isinstance(s, RayProcess) and not s.closed]
        if calls:
            ray.wait(calls, num_returns=1, timeout=timeout_s)

    def close(self) -> None:
        self._cluster.close()
