"""A picture of a run that was traced, as Perfetto and chrome://tracing open it."""

from runnel.track.trace.write import TraceSummary, write_trace

__all__ = ["TraceSummary", "write_trace"]
