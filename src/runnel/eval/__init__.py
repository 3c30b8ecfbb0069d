"""Evaluation: playing episodes with a policy, and honest statistics over them."""
