"""Jobs of a study on threads of this process: what they do is the same, and starting one costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from runnel.run.launchers.host import ProcessHandle
from runnel.tune import study
from runnel.tune.job import Message, Talk, work


class ThreadProcess:
    closed = False

    def __init__(self, order: Message, news: threading.Event) -> None:
        self.line = self
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

    def waits(self) -> bool:
        return False

    def stack(self) -> str:
        return ""

    def end(self, timeout_s: float) -> None:
        self._mine.join()


class ThreadHost:
    def __init__(self) -> None:
        self._news = threading.Event()

    def open(self, names: Collection[str]) -> None: ...

    def start(self, name: str, order: Message) -> ThreadProcess:
        return ThreadProcess(order, self._news)

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        self._news.wait(timeout_s)
        self._news.clear()

    def lost(self) -> str:
        return ""

    def output(self) -> str:
        return ""

    def close(self) -> None: ...


def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, studies of this process run their jobs on threads."""

    def make(*_: Any) -> ThreadHost:
        return ThreadHost()

    monkeypatch.setattr(study, "_make_host", make)
