"""Experiments: configs, tasks, and the graphs of workers and streams that recipes build."""
