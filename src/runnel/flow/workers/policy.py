"""The policy worker: serves an inference stream in batches. An inline client in an actor has the same contract."""

from __future__ import annotations

from runnel.core.clock import Clock
from runnel.core.contracts.inference import Closes, Inferencer, Request
from runnel.core.worker import Worker
from runnel.flow.inference.mailboxes import InferenceServer
from runnel.flow.params import ChannelSubscriber, load


class PolicyWorker(Worker):
    """Consumes requests, produces replies; loads parameters between two steps.

    Batches adapt to the load without a timer: all requests since the last step form one batch. A request that names a version
    gets a reply of exactly that version; requests for a later version wait for the earlier ones. The worker has no state in
    checkpoints, because clients keep their requests and send them again.
    """

    kind = "policy"

    def __init__(
        self, name: str, clock: Clock, *, server: InferenceServer, inferencer: Inferencer, subscriber: ChannelSubscriber
    ) -> None:
        super().__init__(name, clock)
        self._server, self._inferencer, self._subscriber = server, inferencer, subscriber
        self._later: list[Request] = []
        self._held: set[int] = set()
        """Requests in the inferencer that need the loaded version: no other may be loaded before their replies."""
        self._version = -1
        self._waiting = "requests"

    def poll(self) -> int:
        self._later += self._server.poll()
        gone = self._server.aborted()
        if gone:
            self._inferencer.abort(gone)
            self._later = [r for r in self._later if r.id not in gone]
            self._held.difference_update(gone)
        if not self._later and not self._inferencer.pending():
            self._waiting = "requests"
            return 0
        if not self._load():
            return 0
        now = [r for r in self._later if r.version in (-1, self._version)]
        self._later = [r for r in self._later if r.version not in (-1, self._version)]
        self._held.update(r.id for r in now if r.version >= 0)
        with self.timer.stage("infer"):
            self._inferencer.submit(now)
            replies = self._inferencer.step()
        self._held.difference_update(r.id for r in replies)
        with self.timer.stage("reply"):
            self._server.reply(replies)
        # At least 1: an engine inside long sequences works without replies, and must not count as idle.
        return max(len(now) + len(replies), 1)

    def _load(self) -> bool:
        """Load the version that the waiting requests need, oldest first; returns whether a step is possible.

        Requests for any version (-1) use the newest, but never change the version under requests that name one.
        """
        if self._held:
            return True
        exact = sorted(r.version for r in self._later if r.version >= 0)
        if exact and (exact[0] == self._version or self._inferencer.pending()):
            return True
        found = self._subscriber.poll(exact[0] if exact else -1)
        is_open = any(r.version < 0 for r in self._later)
        if found is None and exact and is_open:
            found = self._subscriber.poll()
        if found is not None:
            with self.timer.stage("load"):
                self._events.extend(load(self._inferencer, found))
            self._version = found.version
        elif (exact and not is_open) or self._version < 0:
            self._waiting = f"parameters of version {exact[0] if exact else 0}"
            return False
        return True

    def waits_for(self) -> str:
        return self._waiting

    def close(self) -> None:
        if isinstance(self._inferencer, Closes):
            self._inferencer.close()
