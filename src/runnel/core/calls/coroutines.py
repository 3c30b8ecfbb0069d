"""Coroutines of user code: many at once, in one thread with an event loop. A coroutine whose time is over is cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from runnel.core.calls.pool import ANY, Args, Bell, CallOutcome, CallSpec, Executor, failed
from runnel.core.clock import Clock

ANSWER_S = 0.05
"""A loop that takes longer to answer is held up by code that blocks."""
HELD_S = 1.0
"""After so long without an answer of the loop, calls that have not begun to run get another one."""
END_S = 1.0
"""What coroutines get at the end to let go of what they hold."""


class LoopThread:
    """A thread with an event loop. It ends when `close` is called, after all of its coroutines are cancelled."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._asked, self._answered = -HELD_S, True
        """When `held` has asked, and whether there was an answer."""
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:  # its end cancels what still runs
            runner.run(self._over.wait())

    def answers(self) -> bool:
        """Whether the loop gets to what it is asked, soon."""
        answered = threading.Event()
        if not self._thread.is_alive():
            return False
        self.loop.call_soon_threadsafe(answered.set)
        return answered.wait(ANSWER_S)

    def held(self, now: float) -> bool:
        """Whether it has not got to what it was asked for a while, or has ended. This waits for nothing: it asks now and then,
        and looks later."""
        if not self._thread.is_alive():  # a task that user code made can end it
            return True
        if not self._answered and now - self._asked >= HELD_S:
            return True
        if self._answered and now - self._asked >= HELD_S / 4:
            self._answered, self._asked = False, now
            self.loop.call_soon_threadsafe(self._answer)
        return False

    def _answer(self) -> None:
        self._answered = True

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._over.set)

    def join(self) -> None:
        self._thread.join(END_S)


class AsyncExecutor(Executor):
    """Runs up to `workers` coroutines at once in one thread. A coroutine that blocks the loop (`time.sleep`) delays those that
    have begun; the others, and later calls, soon get another loop in another thread."""

    def __init__(self, spec: CallSpec, clock: Clock) -> None:
        super().__init__(spec, clock)
        self._fn = spec.function()
        self._loops: list[LoopThread] = []
        """The last one takes new calls."""
        self._tasks: dict[int, tuple[LoopThread, Future[None]]] = {}
        self._waiting: dict[int, Args] = {}
        """Calls that no loop has got to."""

    def begin(self, number: int, args: Args) -> None:
        self._bell = self._bell or Bell()
        self._begin(number)
        if not self._loops:
            self._loops.append(LoopThread(self.spec.name))
        self._leave_if_held()
        self._schedule(number, args)

    def _schedule(self, number: int, args: Args) -> None:
        thread = self._loops[-1]
        with self._lock:
            self._waiting[number] = args
            self._tasks[number] = thread, asyncio.run_coroutine_threadsafe(self._run(number, thread), thread.loop)

    def _leave_if_held(self) -> None:
        """Take calls that have not begun away from a loop that is held up."""
        if self._loops[-1].held(self._clock.now()):
            self._loops.append(LoopThread(self.spec.name))
            with self._lock:
                for number, args in list(self._waiting.items()):
                    self._tasks[number][1].cancel()
                    self._begin(number)
                    self._schedule(number, args)

    def poll(self) -> dict[int, CallOutcome]:
        found = super().poll()
        for number in found:
            self._tasks.pop(number, None)
        if self._tasks:
            self._leave_if_held()
        return found

    def close(self) -> None:
        super().close()
        for thread in self._loops:
            thread.close()
        for thread in self._loops:
            thread.join()
        self._loops, self._tasks, self._waiting = [], {}, {}

    async def _run(self, number: int, thread: LoopThread) -> None:
        with self._lock:
            if number not in self._tasks or self._tasks[number][0] is not thread:
                return  # another loop runs it
            if (args := self._waiting.pop(number, None)) is None:
                return  # given up
        try:
            outcome = CallOutcome(await self._fn(*args[0], **args[1]))
        except ANY as error:  # also where we have cancelled it: then nobody wants the outcome
            outcome = failed(error, self.spec.fn)
        self._finish(number, outcome)

    def _stop(self, number: int) -> None:
        thread, task = self._tasks[number]
        with self._lock:
            self._waiting.pop(number, None)
        task.cancel()
        if thread is self._loops[-1] and not thread.answers():
            self._loops.append(LoopThread(self.spec.name))
