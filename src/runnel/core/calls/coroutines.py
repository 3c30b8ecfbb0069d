"""Coroutines of user code: many at once, in one thread with an event loop. A coroutine whose time is over is cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from runnel.core.calls.pool import RAISED, Args, Bell, CallOutcome, CallSpec, Executor, failed
from runnel.core.clock import Clock

ANSWER_S = 0.05
"""A loop that takes longer to answer is held up by code that blocks."""
END_S = 1.0
"""What coroutines get at the end to let go of what they hold."""


class LoopThread:
    """A thread with an event loop. It ends when `close` is called, after all of its coroutines are cancelled."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:  # its end cancels what still runs
            runner.run(self._over.wait())

    def answers(self) -> bool:
        """Whether the loop gets to what it is asked, soon."""
        answered = threading.Event()
        self.loop.call_soon_threadsafe(answered.set)
        return answered.wait(ANSWER_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)

    def join(self) -> None:
        self._thread.join(END_S)


class AsyncExecutor(Executor):
    """Runs up to `workers` coroutines at once in one thread. A coroutine that blocks the loop (`time.sleep`) delays the others;
    when its time is over, later calls get another loop in another thread."""

    def __init__(self, spec: CallSpec, clock: Clock) -> None:
        super().__init__(spec, clock)
        self._fn = spec.function()
        self._loops: list[LoopThread] = []
        """The last one takes new calls."""
        self._tasks: dict[int, tuple[LoopThread, Future[None]]] = {}

    def begin(self, number: int, args: Args) -> None:
        self._bell = self._bell or Bell()
        self._begin(number)
        if not self._loops:
            self._loops.append(LoopThread(self.spec.name))
        thread = self._loops[-1]
        self._tasks[number] = thread, asyncio.run_coroutine_threadsafe(self._run(number, args), thread.loop)

    def poll(self) -> dict[int, CallOutcome]:
        found = super().poll()
        for number in found:
            self._tasks.pop(number, None)
        return found

    def close(self) -> None:
        super().close()
        for thread in self._loops:
            thread.close()
        for thread in self._loops:
            thread.join()
        self._loops, self._tasks = [], {}

    async def _run(self, number: int, args: Args) -> None:
        try:
            outcome = CallOutcome(await self._fn(*args[0], **args[1]))
        except RAISED as error:  # also where we have cancelled it: then nobody wants the outcome
            outcome = failed(error, self.spec.fn)
        self._finish(number, outcome)

    def _stop(self, number: int) -> None:
        thread, task = self._tasks[number]
        task.cancel()
        if thread is self._loops[-1] and not thread.answers():
            self._loops.append(LoopThread(self.spec.name))
