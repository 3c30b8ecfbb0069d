"""One file per classical algorithm: its Config and its Learner."""
