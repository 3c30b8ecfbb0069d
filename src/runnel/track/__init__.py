"""The files of a run, and what watches it: sinks for metrics, the live view, the watch for a collapse, videos, traces."""
