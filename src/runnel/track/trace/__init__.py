"""A picture of a run that was traced, as Perfetto and chrome://tracing open it."""

from runnel.track.trace.write import Summary, write_trace

__all__ = ["Summary", "write_trace"]
