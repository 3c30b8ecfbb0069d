"""Protects a run from its sinks: a sink that fails is switched off and reported, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable

from runnel.core.errors import ConfigError
from runnel.track.folder import Row
from runnel.track.sinks.base import Sink


class GuardedSink:
    """Makes a sink, and makes it again when the run goes back to a checkpoint. If the sink fails, `warn` is called once.

    A `ConfigError` while the sink is first made is raised: the user can mend it. A full disk or an error of a library does not
    end the run.
    """

    def __init__(self, name: str, make: Callable[[], Sink], warn: Callable[[str], None]) -> None:
        self.name, self._make, self._warn = name, make, warn
        self._sink: Sink | None = None
        try:
            self._sink = make()
        except ConfigError:
            raise
        except Exception as error:
            self._switch_off(error)

    def row(self, row: Row) -> None:
        self._try(lambda sink: sink.row(row))

    def flush(self) -> None:
        self._try(lambda sink: sink.flush())

    def close(self) -> None:
        self._try(lambda sink: sink.close())
        self._sink = None

    def rewind(self) -> None:
        """metrics.jsonl was cut back: make a new sink, which brings its view in line with the file."""
        self._try(lambda sink: sink.close())
        self._try(self._remake)

    def _remake(self, _: Sink) -> None:
        self._sink = self._make()

    def _try(self, call: Callable[[Sink], None]) -> None:
        if self._sink is None:
            return
        try:
            call(self._sink)
        except Exception as error:  # any: a view of the run, and whatever library is behind it, must not end training
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        self._sink = None
        self._warn(
            f"sink {self.name!r} failed and is off from here on ({type(error).__name__}: {error}); metrics.jsonl has all"
        )
