"""Writes a traced run as a picture that Perfetto and chrome://tracing open."""

from runnel.track.trace.write import TraceSummary, write_trace

__all__ = ["TraceSummary", "write_trace"]
