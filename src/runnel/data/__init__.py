"""Replay memory and data sets."""
