"""Curricula of environments: what an environment that takes tasks is told to play, and what the trainer learns of its tasks."""
