"""What workers, samplers, inferencers, learners and task sources promise each other: one file by subject, protocols only."""
