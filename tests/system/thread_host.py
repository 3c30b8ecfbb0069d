"""Jobs of a study on threads of this process: what they do is the same, and starting one costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from runnel.tune import study
from runnel.tune.job import Message, Talk, work
from runnel.tune.job_pool import Seat


class ThreadSeat:
    closed = False

    def __init__(self, order: Message, news: threading.Event) -> None:
        self._out, self._news, self._talk = SimpleQueue[Message](), news, Talk(self)
        self._mine = threading.Thread(target=work, args=(order, self._talk), daemon=True)
        self._mine.start()

    def receive(self) -> list[Message]:
        found = []
        while True:
            try:
                found.append(self._out.get_nowait())
            except Empty:
                return found

    def send(self, message: Message) -> None:
        """Called from both sides: by the job with what it says, by the pool with a verdict."""
        if message["kind"] in ("verdict", "interrupt"):
            self._talk.take(message)
        else:
            self._out.put(message)
            self._news.set()

    def died(self) -> str:
        return ""

    def end(self) -> None:
        self._mine.join()


class ThreadHost:
    def __init__(self) -> None:
        self._news = threading.Event()

    def start(self, order: Message) -> ThreadSeat:
        return ThreadSeat(order, self._news)

    def wait(self, handles: Collection[Seat], timeout_s: float) -> None:
        self._news.wait(timeout_s)
        self._news.clear()

    def close(self) -> None:
        pass


def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, studies of this process run their jobs on threads."""

    def make(*_: Any) -> ThreadHost:
        return ThreadHost()

    monkeypatch.setattr(study, "_make_host", make)
