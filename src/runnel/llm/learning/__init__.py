"""The token learner: batches, passes, the reference, drift, and what it records."""
