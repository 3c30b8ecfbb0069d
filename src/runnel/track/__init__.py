"""Looking at a run: sinks for metrics, the live view, plots, the report."""
