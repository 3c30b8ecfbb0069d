"""What tuning finds: benchmarks of `runnel tune`."""
