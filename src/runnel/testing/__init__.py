"""Public contract checks: run them on your own environment, learner, transport, engine or reward."""
