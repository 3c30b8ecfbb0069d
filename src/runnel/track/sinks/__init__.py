"""Where metric rows go: always to metrics.jsonl, on request to other places. One file for each sink, one contract
(`base.py`)."""

from runnel.track.sinks.base import Sink, scalars, step_of
from runnel.track.sinks.guard import GuardedSink
from runnel.track.sinks.jsonl import JsonlSink, encode
from runnel.track.sinks.make import SINKS, find_sink, make_sink, open_sinks

__all__ = ["SINKS", "GuardedSink", "JsonlSink", "Sink", "encode", "find_sink", "make_sink", "open_sinks", "scalars", "step_of"]
