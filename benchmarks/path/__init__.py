"""Which files of the package one training iteration goes through: `python -m benchmarks.path`."""
