"""One readable file per experiment: task, network, config, streams, run."""
